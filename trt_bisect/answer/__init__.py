"""The answer of a run: ranges, culprits and recipe that hold on all inputs given."""
