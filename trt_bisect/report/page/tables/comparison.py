"""The page of ``compare``: tensors, weights, channels and advice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from trt_bisect.analyzer.advisor import LOW_SIMILARITY
from trt_bisect.analyzer.compared import Compared
from trt_bisect.report.comparison import ADVICE, CHANNELS, MATCHED, TENSORS, WEIGHTS, Comparison
from trt_bisect.report.page.tables.shape import (
    DECIBELS,
    INDEX,
    NAME,
    PERCENT,
    SHAPE,
    TEXT,
    Column,
    Distribution,
    Panels,
    Ranges,
    Section,
    TablePage,
)
from trt_bisect.report.saving import pictures

_METRICS = ("cosine", "sqnr", "mse", "l1", "kl", "atol", "rtol")
_LOGARITHMIC = ("mse", "l1", "kl", "atol", "rtol")
_MATCHED = (
    Column("layer", "Layer", "In the first network", NAME, phone=True, paper=True),
    Column("op_type", "Op", "", TEXT, paper=True),
    Column("other", "Second network's layer", "", TEXT, phone=True, paper=True),
    Column("other_op_type", "Op there", "", TEXT, paper=True),
    Column("by", "Matched by", "Empty for a layer of one network only", TEXT, phone=True, paper=True),
)
_MOST_CHANNELS = 4096
"""The page has the channels with the lowest SQNR; the CSV file has all of them."""


@dataclass(frozen=True)
class _Runs:
    """The names of the two runs in titles."""

    high: str
    low: str


def page(found: Comparison) -> TablePage:
    """Returns the page of a comparison."""
    runs = _Runs("first", "second") if found.other else _Runs("FP32", found.low.upper())
    arithmetic = found.arithmetic if found.other else f"{runs.low} ({found.arithmetic})"
    return TablePage(
        command="compare",
        model=found.model,
        headline=_headline(found),
        low=found.low,
        facts={
            "Second network": found.other,
            "Arithmetic": arithmetic,
            "Samples": f"{found.samples} of {found.source}" if found.samples else "",
        },
        notes=found.notes,
        sections=(
            Section(
                "advice",
                "Abnormal layers",
                _ADVICE,
                [{**asdict(each), "layers": ", ".join(each.layers)} for each in found.advice],
                ADVICE,
                filters=("reason",),
                words="A tensor inside the network explains a loss. Only 'trt-bisect run' proves the cause.",
            ),
            _compared("tensors", "Tensors", found.tensors, TENSORS, runs),
            _compared("weights", "Weights", found.weights, WEIGHTS, runs),
            _channels(found, runs),
            *_matched(found),
        ),
    )


def _headline(found: Comparison) -> str:
    layers = {name for each in found.advice for name in each.layers}
    known = [row for row in found.tensors if math.isfinite(row.figures.cosine)]
    worst = min(known, key=lambda row: row.figures.cosine, default=None)
    least = f" The lowest cosine is {100 * worst.figures.cosine:.4g}%, of '{worst.origin.tensor}'." if worst else ""
    if not found.advice:
        return f"No layer is abnormal.{least}"
    low = sum(each.reason == LOW_SIMILARITY for each in found.advice)
    return f"{len(layers)} layers are abnormal, with {len(found.advice)} findings, {low} of low similarity.{least}"


def _compared(part: str, title: str, rows: tuple[Compared, ...], file: str, runs: _Runs) -> Section:
    return Section(
        part,
        title,
        _columns(runs),
        [_record(row) for row in rows],
        file,
        plots=(
            Panels(f"All metrics, {runs.low} against {runs.high}", _METRICS, log=_LOGARITHMIC),
            Ranges(f"Ranges: {runs.high}, {runs.low}, and their difference"),
            Distribution("How many have which value", "sqnr"),
        ),
        pictures=[pictures(row) for row in rows],
        filters=("kind", "op_type", "quantized_dtype"),
    )


def _record(row: Compared) -> dict[str, Any]:
    record = row.record()
    before, after = row.fp32.max - row.fp32.min, row.int8.max - row.int8.min
    return {**record, "layer": record["layer"] or record["tensor"], "range_difference": after - before}


def _matched(found: Comparison) -> list[Section]:
    rows = [{**asdict(each), "layer": each.layer or "(none)"} for each in found.matched]
    return [Section("matched", "Layers of both networks", _MATCHED, rows, MATCHED, filters=("by",))] if rows else []


def _channels(found: Comparison, runs: _Runs) -> Section:
    rows = sorted(found.channels, key=lambda row: (math.isnan(row.figures.sqnr), row.figures.sqnr))[:_MOST_CHANNELS]
    cut = len(found.channels) - len(rows)
    return Section(
        "channels",
        "Channels of the weights",
        _columns(runs, of_channels=True),
        [_record(row) for row in rows],
        CHANNELS,
        plots=(Distribution("How many have which value", "scale"),),
        filters=("op_type",),
        words=f"The {len(rows)} with the lowest SQNR; {cut} more are in {CHANNELS}." if cut > 0 else "",
        sort="sqnr",
    )


def _columns(runs: _Runs, *, of_channels: bool = False) -> tuple[Column, ...]:
    high, low = runs.high, runs.low
    return (
        Column("index", "#", "Place in execution order", INDEX, paper=True),
        Column("layer", "Layer", "That makes the tensor, or reads the weight", NAME, phone=True, paper=True),
        *([Column("channel", "Channel", "Of the weight", phone=True, paper=True)] if of_channels else []),
        Column("tensor", "Tensor", "", TEXT),
        Column("kind", "Kind", "", TEXT),
        Column("op_type", "Op", "Operator", TEXT, paper=True),
        Column("shape", "Shape", "On the first sample; sorted by the number of values", SHAPE),
        Column("quantized_dtype", "Rounded to", "", TEXT),
        Column("scale", "Scale", "The largest one if each channel has its own"),
        Column("cosine", "Cosine", f"{low} against {high}, before its own rounding", PERCENT, phone=True, paper=True),
        Column("sqnr", "SQNR", "dB", DECIBELS, phone=True, paper=True),
        Column("mse", "MSE", "Mean squared error", paper=True),
        Column("l1", "L1", "Mean absolute error"),
        Column("kl", "KL", "KL divergence, in nats"),
        Column("atol", "Atol", "Largest absolute error"),
        Column("rtol", "Rtol", "Largest relative error"),
        Column("worst_cosine", "Worst cosine", "Of one sample", PERCENT),
        Column("worst_sample", "Worst sample", "Its index"),
        Column("fp32_min", f"{high} min", "", paper=True),
        Column("fp32_max", f"{high} max", "", paper=True),
        Column("int8_min", f"{low} min", "", paper=True),
        Column("int8_max", f"{low} max", "", paper=True),
        Column("range_difference", "Range difference", f"Width of the range, {low} minus {high}"),
        *_moments("fp32", high),
        *_moments("int8", low),
        Column("rounding_sqnr", "Own rounding", "SQNR of the tensor's own rounding alone, dB", DECIBELS),
        Column("rounding_clipped", "Clipped", "Saturation: share of values beyond the range", PERCENT),
        Column("rounding_clipped_noise", "Clipped noise", "Their share of the rounding noise", PERCENT),
        Column("rounding_near_zero", "Near zero", "Share of values in the 5 levels around zero", PERCENT),
        Column("rounding_to_zero", "To zero", "Share of the non-zero values that become zero", PERCENT),
        Column("rounding_levels_90", "Levels for 90%", "That hold 90% of the non-zero values"),
        Column("loud_channel", "Loud channel", "The channel with the largest magnitude"),
        Column("loud_channel_times", "times", "Its magnitude by the median of the others"),
        Column("loud_input_channel", "Loud input channel", "Likewise, of a weight's inputs"),
        Column("loud_input_channel_times", "times (input)", ""),
        Column("note", "Note", "", TEXT),
    )


def _moments(run: str, title: str) -> Iterable[Column]:
    for name, word in (("mean", "mean"), ("std", "std"), ("variance", "variance"), ("nonfinite", "not finite")):
        yield Column(f"{run}_{name}", f"{title} {word}", "")


_ADVICE = (
    Column("index", "#", "Place in execution order", INDEX, paper=True),
    Column("layers", "Layers", "That lose accuracy by it", NAME, phone=True, paper=True),
    Column("reason", "Reason", "", TEXT, phone=True, paper=True),
    Column("tensor", "Tensor", "", TEXT),
    Column("kind", "Kind", "", TEXT),
    Column("words", "Evidence", "", TEXT, paper=True),
)
