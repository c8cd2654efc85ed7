"""The answer of a run: ranges, culprits and recipe that pass on all inputs given."""
