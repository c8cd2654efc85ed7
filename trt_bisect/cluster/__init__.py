"""Plans tried on the workers of a Ray cluster."""
