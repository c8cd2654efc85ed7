"""Evaluators measure precision plans."""
