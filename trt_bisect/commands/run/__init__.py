"""The command ``run``: culprits, recipe, explanation, report."""
