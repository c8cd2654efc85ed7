"""Helpers without knowledge of networks: progress, the machine, JSON, CSV, files written completely or not at all."""
