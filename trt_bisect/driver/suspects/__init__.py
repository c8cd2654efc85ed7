"""Searches for the layers that lose accuracy."""
