"""Drivers choose the plan to try next from the losses so far. They know no engine and no network.

A driver is a generator: it yields a precision plan and is sent the plan's loss (0 for outputs equal to FP32's, infinite
for NaN, None for a plan that could not be measured). It returns its findings.
"""
