"""Builders: a network and a precision plan become an engine."""
