"""Whole runs sent to a cluster."""
