"""Recipes by predicted time against recipes by multiply-adds, and how long both are predicted to take.

    python -m benchmarks.answer costs --json costs.json
    python -m benchmarks.answer costs --gpu OrinNano --only recogniser silero-vad

The networks are the samples and those of ``benchmarks.answer published``; ``run`` searches each twice on the same
inputs, with ``--cost macs`` and with ``--gpu``. The times are predictions: docs/concepts/time.md says how good.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

import trt_bisect
from benchmarks.answer.published import NETWORKS, make_networks
from benchmarks.measure import ROOT, tell_rows

Case = tuple[Path, str, str, float]
"""A network, the data that it is calibrated with and judged on, and the cosine asked for."""
SAMPLES = ROOT / "samples"
PUBLISHED = "silero-vad akiki-vad speech-encoder line-classifier page-classifier recogniser detector".split()
CASES: dict[str, Case] = {
    "samples/lenet": (SAMPLES / "lenet/lenet_planted.onnx", "calibration.npz", "digits.npz", 0.99),
    "samples/transformer": (SAMPLES / "transformer/encoder.onnx", "calibration.npz", "calibration.npz", 0.999),
    "samples/detector": (SAMPLES / "detector/detector.onnx", "calibration.npz", "test.npz", 0.999),
    "samples/ocr": (SAMPLES / "ocr/network.onnx", "calibration.npz", "inputs.npz", 0.95),
}
CASES |= {name: (NETWORKS / name / "network.onnx", "given.npz", "given.npz", 0.99) for name in PUBLISHED}
CASES["page-classifier"] = (*CASES["page-classifier"][:3], 0.99999)


def measure(
    *,
    gpu: str = "T4",
    only: tuple[str, ...] = (),
    effort: Literal["quick", "default", "thorough"] = "default",
    json: Path | None = None,
) -> None:
    """A row for each network."""
    make_networks()
    tell_rows({name: partial(row, name, case, gpu, effort) for name, case in CASES.items()}, only, table, json)


def row(name: str, case: Case, gpu: str, effort: Literal["quick", "default", "thorough"]) -> dict[str, Any]:
    """The predicted times of a network, and both recipes with the costs that ``run`` tells."""
    file, calibration, inputs, threshold = case
    figures: dict[str, Any] = {"network": name, "threshold": threshold}
    for cost in ("macs", "time"):
        report = trt_bisect.run(
            file, str(file.with_name(calibration)), str(file.with_name(inputs)), threshold=threshold,
            engine="onnxruntime", explain="none", effort=effort, curve="culprits", gpu=gpu,
            cost="macs" if cost == "macs" else None,
        )  # fmt: skip
        assert report.answer is not None
        assert report.predicted is not None
        ms = {plan: time.ms for plan, time in report.predicted.plans.items()}
        figures |= {"layers": sum(layer.quantizable for layer in report.layers), "ms": ms}
        figures[cost] = {
            "high": list(report.recipe.high),
            "meets": report.recipe.meets,
            "cost": report.answer.cost,
            "ms": ms["recipe"],
        }
    return figures


def table(rows: list[dict[str, Any]]) -> Table:
    """Each cost as a share of INT8's speedup over FP16."""
    result = Table("network", "target", "layers", "INT8, FP16, FP32, ms", box=None)
    for column in ("by macs: high", "cost", "ms", "by time: high", "cost", "ms", "ms / ms"):
        result.add_column(column, justify="right")
    for figures in rows:
        times = " ".join(f"{figures['ms'][name]:.3f}" for name in ("int8", "fp16", "fp32"))
        cells = [figures["network"], f"{figures['threshold']}", str(figures["layers"]), times]
        for recipe in (figures["macs"], figures["time"]):
            cells += [str(len(recipe["high"])) + ("" if recipe["meets"] else " (misses)")]
            cells += [f"{recipe['cost']:.1%}", f"{recipe['ms']:.3f}"]
        result.add_row(*cells, f"{figures['time']['ms'] / figures['macs']['ms']:.3f}")
    return result
