"""Measures the promises of `docs/reliability.md`: each module breaks runs in one way and counts the results."""
