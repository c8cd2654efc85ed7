"""Drivers choose the plan to try next from the losses measured so far. They know no engine and no network.

A driver is a generator. It yields a precision plan and is sent the plan's loss: 0 for outputs equal to FP32's, infinite
for NaN, None if the plan could not be measured. It returns its findings.
"""
