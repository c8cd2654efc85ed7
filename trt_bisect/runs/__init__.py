"""Run folders: the journal of trials, stored ranges and inputs, the progress file."""
