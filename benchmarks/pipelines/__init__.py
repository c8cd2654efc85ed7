"""Pipelines with a planted culprit in one of their networks."""
