"""A run: culprits, recipe, explanation, report."""
