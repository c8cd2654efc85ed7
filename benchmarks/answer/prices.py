"""Recipes by predicted time against recipes by multiply-adds, each with both prices.

    python -m benchmarks.answer prices --json prices.json
    python -m benchmarks.answer prices --gpu OrinNano --only recogniser silero-vad

The networks are the samples and those of ``benchmarks.answer published``; ``run`` searches each twice on the same
inputs, with ``--cost macs`` and with ``--gpu``. The times are predictions: docs/concepts/time.md says how good.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import trt_bisect
from benchmarks.answer.judge import read_samples, session
from benchmarks.answer.published import NETWORKS, make_networks
from trt_bisect.model.cost import TimePrices, shares, times_by_macs
from trt_bisect.model.shapes import facts_for
from trt_bisect.options.declare import asked_gpu
from trt_bisect.precision import Precision

SAMPLES = Path(__file__).resolve().parents[2] / "samples"


@dataclass(frozen=True)
class Case:
    """A network, the data that it is calibrated with and judged on, and the cosine asked for."""

    network: Path
    calibration: str
    inputs: str
    threshold: float = 0.99


def _published(name: str, threshold: float = 0.99) -> Case:
    return Case(NETWORKS / name / "network.onnx", "given.npz", "given.npz", threshold)


CASES = {
    "samples/lenet": Case(SAMPLES / "lenet/lenet_planted.onnx", "calibration.npz", "digits.npz"),
    "samples/transformer": Case(SAMPLES / "transformer/encoder.onnx", "calibration.npz", "calibration.npz", 0.999),
    "samples/detector": Case(SAMPLES / "detector/detector.onnx", "calibration.npz", "test.npz", 0.999),
    "samples/ocr": Case(SAMPLES / "ocr/network.onnx", "calibration.npz", "inputs.npz", 0.95),
    **{name: _published(name) for name in "silero-vad akiki-vad speech-encoder line-classifier".split()},
    "page-classifier": _published("page-classifier", 0.99999),
    **{name: _published(name) for name in ("recogniser", "detector")},
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", default="T4", help="the GPU of the predicted times")
    parser.add_argument("--only", nargs="+", choices=[*CASES])
    parser.add_argument("--effort", choices=("quick", "default", "thorough"), default="default")


def measure(asked: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """A row for each network; the table is printed again after each."""
    make_networks()
    rows = []
    for name in asked.only or CASES:
        console.print(f"{name} ...")
        rows.append({"network": name, **row(CASES[name], asked.gpu, asked.effort)})
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n")
        console.print(table(rows))
    return rows


def row(case: Case, gpu: str, effort: str) -> dict[str, Any]:
    """The predicted times of a network, and both recipes with both prices."""
    network, folder = trt_bisect.load_network(case.network), case.network.parent
    feeds = read_samples(folder / case.inputs, session(case.network, "off"))[0]
    facts = facts_for(network, feeds)
    prices = TimePrices(network, facts, asked_gpu(gpu), Precision.FP32)
    macs = shares(times_by_macs(network, facts))
    found: dict[str, Any] = {"threshold": case.threshold, "layers": len(network.quantizable)}
    plans = {"int8": prices.full, "fp16": prices.in_all(Precision.FP16), "fp32": prices.in_all(Precision.FP32)}
    found |= {f"{name}_ms": 1e3 * prices.seconds(plan) for name, plan in plans.items()}
    for price in ("macs", "time"):
        report = trt_bisect.run(
            case.network, str(folder / case.calibration), str(folder / case.inputs), threshold=case.threshold,
            engine="onnxruntime", explain="none", effort=effort, curve="culprits", gpu=gpu, precision="fp32",
            cost="macs" if price == "macs" else None,
        )  # fmt: skip
        high = [network.layer_named(name).index for name in report.recipe.high]
        plan = prices.full.keeping(high, Precision.FP32)
        found[price] = {
            "high": list(report.recipe.high),
            "meets": report.recipe.meets,
            "macs": sum(macs[k][Precision.FP32] for k in high),
            "time": prices.price(plan),
            "ms": 1e3 * prices.seconds(plan),
        }
    return found


def table(rows: list[dict[str, Any]]) -> Table:
    """Each price as a share of INT8's gain over FP32."""
    result = Table("network", "target", "layers", "INT8, FP16, FP32, ms", box=None)
    for column in ("by macs: high", "macs", "time", "ms", "by time: high", "macs", "time", "ms", "ms / ms"):
        result.add_column(column, justify="right")
    for one in rows:
        times = " ".join(f"{one[f'{name}_ms']:.3f}" for name in ("int8", "fp16", "fp32"))
        cells = [one["network"], f"{one['threshold']}", str(one["layers"]), times]
        for price in ("macs", "time"):
            recipe = one[price]
            cells += [str(len(recipe["high"])) + ("" if recipe["meets"] else " (misses)")]
            cells += [f"{recipe['macs']:.1%}", f"{recipe['time']:.1%}", f"{recipe['ms']:.3f}"]
        result.add_row(*cells, f"{one['time']['ms'] / one['macs']['ms']:.3f}")
    return result
