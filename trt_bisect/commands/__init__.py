"""The work of each command, without its screen."""
