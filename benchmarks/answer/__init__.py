"""The answer's benchmark: recipes on published networks, the search against every plan, and the cost of a run."""
