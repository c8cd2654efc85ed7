"""Reports in which nothing is measured yet."""

from __future__ import annotations

from collections.abc import Iterable

from trt_bisect._version import __version__
from trt_bisect.analyzer.judge import DEFAULT_SHARE
from trt_bisect.analyzer.metrics import DEFAULT_THRESHOLDS
from trt_bisect.errors import NothingMeasured
from trt_bisect.model.layers import Layer
from trt_bisect.precision import Precision
from trt_bisect.report.report import NOT_TRIED, LayerRow, Report


def empty_report(model: str) -> Report:
    """The report of a run of which nothing but its network's name is known."""
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


def blank_rows(layers: Iterable[Layer], high: Precision) -> tuple[LayerRow, ...]:
    """A row a layer, nothing tried yet, all in the ``high`` precision."""
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
            asked=str(high),
            ran="",
            recipe=str(high),
            why_not=layer.why_not,
        )
        for layer in layers
    )
