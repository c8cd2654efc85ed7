"""``verify``: an engine's own outputs against what its file says, and the cause of a difference."""
