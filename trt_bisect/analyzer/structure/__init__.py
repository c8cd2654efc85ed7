"""The structure check of a network file."""
