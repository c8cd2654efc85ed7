"""Run folders: the journal of trials, stored ranges and inputs, the lock, the progress file."""
