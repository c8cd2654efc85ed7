"""The search for the cheapest recipe."""
