"""The history of all runs in one SQLite file."""
