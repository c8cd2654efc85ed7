"""What runs and tags are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trt_bisect.analyzer.origins import INPUT, Origin

FP32, INT8, ROUNDED = "fp32", "int8", "int8_rounded"
CURVE = "curve"
"""The run that holds what belongs to no plan."""
RUN = re.compile(r"(baseline|tune_\d+)_acc_.+|curve")


def baseline_name(score: float | None) -> str:
    """The name of the FP32 run."""
    return f"baseline_acc_{_score(score)}"


def trial_name(number: int, score: float | None) -> str:
    """The name of the run of trial ``number``, from 1 on, as Neural Compressor names them."""
    return f"tune_{number}_acc_{_score(score)}"


def _score(score: float | None) -> str:
    """Six digits, so that 0.9999 and 0.99999 differ."""
    return "none" if score is None else f"{score:#.6g}"


def layer_tags(names: Iterable[str]) -> dict[str, str]:
    """What the tags of each layer begin with, all different.

    TensorBoard groups cards by what stands before a tag's first slash: a name's leading slashes are left out, or the
    group would have no name.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        short = name.lstrip("/") or "_"
        tag, count = short, 1
        while tag in taken:
            tag, count = f"{short}_{count}", count + 1
        taken.add(tag)
        found[name] = tag
    return found


def output_tags(origins: Iterable[Origin], layers: Mapping[str, str]) -> dict[str, str]:
    """The tag of each tensor: ``<layer>/output``, ``<layer>/output_1`` for the second, ``<input>/input``.

    Args:
        origins: of the tensors; one whose layer is not known stands for itself.
        layers: what the layers' tags begin with.
    """
    found, counts = {}, dict.fromkeys(layers, 0)
    for origin in origins:
        if origin.kind == INPUT:
            found[origin.tensor] = f"{origin.tensor.lstrip('/')}/input"
            continue
        name = origin.layer or origin.tensor
        number = counts[name]
        counts[name] += 1
        found[origin.tensor] = numbered(f"{layers[name]}/output", number)
    return found


def numbered(tag: str, number: int) -> str:
    """A tag for the first, the second, ... of several things of a layer."""
    return f"{tag}_{number}" if number else tag
