"""The answer of a run: the ranges, the culprits, and the recipe that passes on all given inputs."""
