"""Suites of ``regress`` for tests: one small network, and questions about a night's result."""

from __future__ import annotations

SUITE = """
[defaults]
engine = "onnxruntime"
repeats = 2

[[network]]
name = "chain"
model = "chain.onnx"
calibration = "calibration.npz"
input = "inputs.npz"
"""


def only(regression):
    (result,) = regression.networks
    return result


def failing(regression):
    return [(change.kind, change.what) for change in only(regression).failures]


def differing(regression):
    return {difference.what for difference in only(regression).differs}
