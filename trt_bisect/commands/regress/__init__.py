"""Nightly runs: a suite of networks is measured and compared with a baseline."""
