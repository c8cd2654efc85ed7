"""The results of every command as frozen dataclasses, and their files."""
