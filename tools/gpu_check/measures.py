"""Distances between outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trt_bisect.builder.base import Engine, Outputs
from trt_bisect.data.feeds import Feeds


def outputs_of(engine: Engine, feeds: Sequence[Feeds]) -> Outputs:
    """The outputs of an engine for all feeds, one after the other along the first axis."""
    made = [engine.infer(sample) for sample in feeds]
    return {name: np.concatenate([outputs[name] for outputs in made]) for name in made[0]}


def relative_difference(reference: Outputs, output: Outputs) -> float:
    """The largest norm of a difference over the norm of the reference, over the outputs."""
    return max(
        float(np.linalg.norm(output[n].astype(np.float64) - reference[n]) / max(np.linalg.norm(reference[n]), 1e-30))
        for n in reference
    )
