"""Searches for the cheapest plan that meets a target."""
