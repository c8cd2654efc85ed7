"""Sentences on suites: files of networks that are measured each night."""

from __future__ import annotations

NO_NETWORK = "there is no network"
NO_TABLE = "is no table"
IN_PER_CENT = "is in per cent"
NEEDS_A_THRESHOLD = "needs a threshold"
NO_METRIC = "There is no metric"
WHOLE_NUMBER = "Write a whole number from 1 on"
AT_MOST_100 = "Write a number above 0, at most 100."
TRUE_OR_FALSE = "Write true or false."
TWO_NETWORKS = "two networks are called"
THE_KEYS = "The keys are name, model,"
