"""The entropy search of NVIDIA's slides as a plain loop over every threshold, for comparison."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def best_bins(counts: np.ndarray, levels: int = 128) -> float:
    """Returns the best number of bins, less a half."""
    counts = counts.astype(float).copy()
    counts[0] = counts[1]
    best, best_divergence = len(counts), np.inf
    for size in range(levels, len(counts) + 1):
        p = counts[:size].copy()
        p[-1] += counts[size:].sum()
        q = np.zeros(size)
        bounds = [level * size // levels for level in range(levels)] + [size]
        for start, end in pairwise(bounds):
            occupied = p[start:end] > 0
            if occupied.any():
                q[start:end][occupied] = counts[start:end].sum() / occupied.sum()
        kept = p > 0
        p, q = p[kept] / p.sum(), np.maximum(q[kept], 1e-4)
        divergence = float(np.sum(p * np.log(p / (q / q.sum()))))
        if divergence < best_divergence:
            best, best_divergence = size, divergence
    return best - 0.5
