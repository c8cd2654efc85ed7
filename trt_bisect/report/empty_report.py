"""Reports in which nothing is measured yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from trt_bisect._version import __version__
from trt_bisect.analyzer.judge import DEFAULT_SHARE
from trt_bisect.analyzer.metrics import DEFAULT_THRESHOLDS
from trt_bisect.errors import NothingMeasured
from trt_bisect.model.layers import Layer
from trt_bisect.precision import Precision
from trt_bisect.report.layer_row import FOLLOWS, NOT_TRIED, LayerRow
from trt_bisect.report.model import RECOVER, Report
from trt_bisect.report.recovery import ACCURACY, ALL_HIGH, Recovery


def empty_report(model: str) -> Report:
    """Returns the report of a run that has nothing but its network's name."""
    return Report(
        model=model,
        engine="",
        typing="",
        strategy="",
        arithmetic="",
        metric="cosine",
        threshold=DEFAULT_THRESHOLDS["cosine"],
        share=DEFAULT_SHARE,
        precision=str(Precision.FP32),
        versions={"trt_bisect": __version__},
        layers=(),
        culprits=(),
        similarity={"int8": None, "recipe": None},
        outputs={"int8": {}, "recipe": {}},
        recipe={"high": [], "added": [], "meets": False},
        ranges={},
        inputs={},
        notes=(),
        summary="",
        plans=0,
        builds=0,
        inferences=0,
        peak_bytes=0,
        seconds={},
        fingerprint="",
        exit_code=NothingMeasured.exit_code,
    )


def blank_rows(layers: Iterable[Layer], high: Precision, base: Precision) -> tuple[LayerRow, ...]:
    """Returns one row for each layer, not tried yet: in the ``high`` precision, or the ``base`` if it only follows."""
    return tuple(
        LayerRow(
            index=layer.index,
            name=layer.name,
            op_type=layer.op_type,
            shape=layer.shape,
            quantizable=layer.quantizable,
            similarity=None,
            drop=None,
            culprit=False,
            outcome=NOT_TRIED,
            asked=str(layer.fixed or (high if layer.quantizable else base)),
            ran="",
            recipe=str(layer.fixed or (high if layer.quantizable else base)),
            why_not=layer.why_not,
            fixed=str(layer.fixed or ""),
        )
        for layer in layers
    )


def recovered_report(found: Recovery, graph: Mapping[str, Any] | None) -> Report:
    """Returns a recovery as a report without a curve, for a folder in which no ``run`` was made.

    Args:
        found: the recovery.
        graph: the value of ``network_facts`` for the same network; without it there are no layers.
    """
    high = {row.layer: row.precision for row in found.high}
    return replace(
        empty_report(found.model),
        engine=found.engine,
        typing=found.typing,
        strategy=RECOVER,
        arithmetic=found.arithmetic,
        metric=found.figure,
        threshold=found.target["least"],
        precision=found.precision,
        versions=found.versions,
        layers=_recovered_rows(found, graph or {}, high),
        similarity={"int8": found.measured["int8"], "recipe": found.measured["recipe"]},
        recipe={"high": list(high), "added": [], "meets": found.meets},
        notes=found.notes,
        summary=found.summary,
        plans=found.plans,
        builds=found.builds,
        inferences=found.inferences,
        seconds={"total": found.seconds},
        fingerprint=found.fingerprint,
        exit_code=found.exit_code,
        latency=found.latency,
        started=found.started,
        accuracy=_accuracy(found),
    )


def _accuracy(found: Recovery) -> dict[str, float | None] | None:
    """The accuracies of FP32, full INT8 and the recipe where an accuracy decides; else None."""
    if found.figure != ACCURACY:
        return None
    return {"fp32": found.target["reference"], "int8": found.measured["int8"], "recipe": found.measured["recipe"]}


def _recovered_rows(found: Recovery, graph: Mapping[str, Any], high: Mapping[str, str]) -> tuple[LayerRow, ...]:
    """Returns one row for each layer. Those that can be in INT8 are those that the plan without INT8 names."""
    movable = next((point.high for point in found.front if ALL_HIGH in point.names), high)
    layers, tensors = graph.get("layers", ()), graph.get("tensors", {})
    return tuple(
        LayerRow(
            index=layer["index"],
            name=layer["name"],
            op_type=layer["op_type"],
            shape=_shape(tensors.get(next(iter(layer["outputs"]), ""))),
            quantizable=layer["name"] in movable,
            similarity=None,
            drop=None,
            culprit=False,
            outcome=NOT_TRIED if layer["name"] in movable else FOLLOWS,
            asked="",
            ran="",
            recipe=high.get(layer["name"], found.low) if layer["name"] in movable else "",
        )
        for layer in layers
    )


def _shape(tensor: Mapping[str, Any] | None) -> tuple[int | str | None, ...] | None:
    shape = None if tensor is None else tensor.get("shape")
    return None if shape is None else tuple(shape)
