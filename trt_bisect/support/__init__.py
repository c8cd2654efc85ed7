"""Helpers that know nothing of networks: progress, the machine, JSON files, files written whole."""
