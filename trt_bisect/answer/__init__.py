"""The answer: ranges, culprits and recipe that hold on all inputs given."""
