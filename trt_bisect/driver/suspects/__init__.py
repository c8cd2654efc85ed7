"""Searches for suspects: layers at which the prefix curve loses much accuracy."""
