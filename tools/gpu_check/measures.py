"""Distances between outputs, and the network's layers in what an engine did."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from trt_bisect.builder.base import Outputs

_PRECISIONS = {"8": "int8", "h": "fp16", "f": "fp32"}


def cosine(reference: Outputs, output: Outputs) -> float:
    """The least cosine over the outputs, in float64."""
    return min(_cosine(reference[name], output[name]) for name in reference)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    norms = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norms if norms else float(np.array_equal(x, y))


def relative_difference(reference: Outputs, output: Outputs) -> float:
    """The largest norm of a difference over the norm of the reference, over the outputs."""
    return max(
        float(np.linalg.norm(output[n].astype(np.float64) - reference[n]) / max(np.linalg.norm(reference[n]), 1e-30))
        for n in reference
    )


def precisions_of(key: str) -> list[str]:
    """The precision of every layer in a plan's key.

    >>> precisions_of("8*2.f*1")
    ['int8', 'int8', 'fp32']
    """
    runs = re.findall(r"([8hf])\*(\d+)", key)
    return [_PRECISIONS[letter] for letter, count in runs for _ in range(int(count))]


def disobeyed(key: str, ran: Mapping[int, str], quantizable: Sequence[int]) -> list[tuple[int, str, str]]:
    """The quantizable layers that ran in another precision than the plan asked: index, asked, ran."""
    asked = precisions_of(key)
    return [(k, asked[k], ran[k]) for k in quantizable if k in ran and ran[k] != asked[k]]
