"""The answer's benchmark: recipes on published networks, and the cost of a run."""
