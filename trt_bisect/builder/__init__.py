"""Builders: one network and one precision plan become an engine. One module an engine."""
