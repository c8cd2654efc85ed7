"""``verify``: an engine's outputs compared with the emulation of its file, and the cause of a difference."""
