"""Run folders: the journal of trials, fingerprints, what a run keeps so that it can go on after any stop."""
