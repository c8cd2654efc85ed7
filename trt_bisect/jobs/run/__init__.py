"""The main job: culprits, recipe, explanation, report."""
