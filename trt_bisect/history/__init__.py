"""Every run in one SQLite file."""
