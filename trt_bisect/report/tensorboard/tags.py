"""The names of runs and tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trt_bisect.analyzer.origins import INPUT, Origin

FP32, INT8, ROUNDED = "fp32", "int8", "int8_rounded"
CURVE = "curve"
"""The run of the curve, which belongs to no plan."""
PLANS = "plans"
"""The run with the figures of all plans that were measured."""
RUN = re.compile(r"(baseline|tune_\d+)(_[a-z0-9_]+_.+)?|curve|plans")


def baseline_name(score: float | None) -> str:
    """Returns the name of the FP32 run."""
    return f"baseline_acc_{score_text(score)}"


def trial_name(number: int, score: float | None) -> str:
    """Returns the name of the run of trial ``number``, from 1 on, in Neural Compressor's form."""
    return f"tune_{number}_acc_{score_text(score)}"


def score_text(score: float | None) -> str:
    """Returns a score with six digits, so that 0.9999 and 0.99999 differ."""
    return "none" if score is None else f"{score:#.6g}"


def layer_tags(names: Iterable[str]) -> dict[str, str]:
    """Returns the beginning of each layer's tags, by layer name; all differ.

    TensorBoard groups cards by the text before a tag's first slash. A name's leading slashes are removed, since a group
    needs a name.
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
    """Returns the tag of each tensor: ``<layer>/output``, ``<layer>/output_1`` for the second, ``<input>/input``.

    Args:
        origins: of the tensors; one without a layer is named by the tensor.
        layers: the beginnings of the layers' tags.
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
    """Returns the tag of item ``number`` of a layer: ``tag``, ``tag_1``, ``tag_2``."""
    return f"{tag}_{number}" if number else tag
