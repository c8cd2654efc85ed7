"""``verify``: compares an engine with its file, and finds the cause of a difference."""
