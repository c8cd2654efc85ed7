"""The history of all runs, in one file of JSON lines."""
