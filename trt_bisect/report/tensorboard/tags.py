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


def run_name(number: int, metric: str = "", score: float | None = None, accuracy: float | None = None) -> str:
    """Returns the name of the run of a plan, such as ``tune_2_acc_0.973000`` or ``tune_3_cosine_0.998700``.

    It ends in the accuracy where one was measured, else in the metric and its value, else in neither: a similarity is
    never called an accuracy.

    Args:
        number: the number of the plan, from 1 on; 0 for the baseline, FP32.
        metric: the name of the metric.
        score: its value; None where it was not measured, and for the baseline, whose similarity says nothing.
        accuracy: on labelled data, or of the user's function; None where it was not measured.
    """
    name = f"tune_{number}" if number else "baseline"
    if accuracy is not None:
        return f"{name}_acc_{score_text(accuracy)}"
    word = re.sub(r"[^a-z0-9_]", "_", metric.lower())
    return name if score is None else f"{name}_{word}_{score_text(score)}"


def score_text(score: float) -> str:
    """Returns a score with six digits, so that 0.9999 and 0.99999 differ."""
    return f"{score:#.6g}"


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
        origins: the origins of the tensors; one without a layer is named by the tensor.
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
