"""Cosines by NumPy alone, of arrays and of what ONNX Runtime makes of two files."""

import numpy as np

from tests.support.quantized import plain_session


def cosine(one, other):
    one, other = (np.asarray(each, np.float64).ravel() for each in (one, other))
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def worst_cosine(one, other, feeds):
    """The worst cosine of any output on any input, of two files in ONNX Runtime without optimisations."""
    sessions = [plain_session(each, optimised=False) for each in (one, other)]
    outputs = ([session.run(None, sample) for session in sessions] for sample in feeds)
    return min(cosine(a, b) for pair in outputs for a, b in zip(*pair, strict=True))


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def logit(p):
    return np.log(p / (1 - p))


def softmax(values, axis=-1):
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)
