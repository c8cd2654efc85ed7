"""Recipes by predicted time against recipes by multiply-adds, each with both prices.

    python -m benchmarks.answer prices --json prices.json
    python -m benchmarks.answer prices --gpu OrinNano --only recogniser silero-vad

The networks are the samples and those of ``benchmarks.answer published``; ``run`` searches each twice on the same
inputs, with ``--cost macs`` and with ``--gpu``. The times are predictions: docs/concepts/time.md says how good.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import read_samples, session
from benchmarks.answer.published import NETWORKS, make_networks
from benchmarks.measure import ROOT, tell_rows
from trt_bisect.model.cost import TimePrices, shares, times_by_macs
from trt_bisect.model.observe import facts_for
from trt_bisect.options.declare import asked_gpu
from trt_bisect.precision import Precision

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
    """The predicted times of a network, and both recipes with both prices."""
    file, calibration, inputs, threshold = case
    network = trt_bisect.load_network(file)
    facts = facts_for(network, read_samples(file.with_name(inputs), session(file, "off"))[0])
    prices, macs = TimePrices(network, facts, asked_gpu(gpu)), shares(times_by_macs(network, facts))
    figures: dict[str, Any] = {"network": name, "threshold": threshold, "layers": len(network.quantizable)}
    plans = {"int8": prices.full, "fp16": prices.in_all(Precision.FP16), "fp32": prices.in_all(Precision.FP32)}
    figures |= {f"{name}_ms": 1e3 * prices.seconds(plan) for name, plan in plans.items()}
    for price in ("macs", "time"):
        report = trt_bisect.run(
            file, str(file.with_name(calibration)), str(file.with_name(inputs)), threshold=threshold,
            engine="onnxruntime", explain="none", effort=effort, curve="culprits", gpu=gpu, precision="fp32",
            cost="macs" if price == "macs" else None,
        )  # fmt: skip
        high = [network.layer_named(name).index for name in report.recipe.high]
        plan = prices.full.keeping(high, Precision.FP32)
        figures[price] = {
            "high": list(report.recipe.high),
            "meets": report.recipe.meets,
            "macs": sum(macs[k][Precision.FP32] for k in high),
            "time": prices.price(plan),
            "ms": 1e3 * prices.seconds(plan),
        }
    return figures


def table(rows: list[dict[str, Any]]) -> Table:
    """Each price as a share of INT8's gain over FP32."""
    result = Table("network", "target", "layers", "INT8, FP16, FP32, ms", box=None)
    for column in ("by macs: high", "macs", "time", "ms", "by time: high", "macs", "time", "ms", "ms / ms"):
        result.add_column(column, justify="right")
    for figures in rows:
        times = " ".join(f"{figures[f'{name}_ms']:.3f}" for name in ("int8", "fp16", "fp32"))
        cells = [figures["network"], f"{figures['threshold']}", str(figures["layers"]), times]
        for recipe in (figures["macs"], figures["time"]):
            cells += [str(len(recipe["high"])) + ("" if recipe["meets"] else " (misses)")]
            cells += [f"{recipe['macs']:.1%}", f"{recipe['time']:.1%}", f"{recipe['ms']:.3f}"]
        result.add_row(*cells, f"{figures['time']['ms'] / figures['macs']['ms']:.3f}")
    return result
