"""The adaptive curve of large networks against the full one, and what it would miss on measured curves.

    python -m benchmarks.adaptive                          # 400, 800 and 2,000 layers
    python -m benchmarks.adaptive --study RUN_FOLDER ...   # strides and shares on the curves of finished runs

Each measurement is a process of its own: the search alone, without reading, calibrating and reporting. Time is the
processor's, of all threads, so that other work on the machine counts little. It is shown as a multiple of the network's
own FP32 inference, which is measured in the same process. The peak memory is
a multiple of the peak before the search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

from benchmarks.networks import chain, plant, samples
from trt_bisect.driver.suspects.adaptive import adaptive
from trt_bisect.driver.suspects.curves import exhaustive
from trt_bisect.driver.suspects.search import Findings, Loss, Question, drive
from trt_bisect.driver.suspects.speculative import LastRises, drive_speculatively
from trt_bisect.precision import PrecisionPlan

PLANTED = (0.3, 0.7)
"""Culprits are planted at these shares of the depth."""
SHARES_OF_FULL = (0.9, 0.6, 0.3, 0.15, 0.08, 0.04, 0.02, 0.01)
"""Budgets of the study, as shares of the loss of full INT8."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[400, 800, 2000])
    parser.add_argument("--full-up-to", type=int, default=800, help="measure the full curve up to so many layers")
    parser.add_argument("--study", type=Path, nargs="+", help="run folders with a full curve")
    asked = parser.parse_args()
    console = Console(highlight=False, width=140)
    if asked.study:
        study(asked.study, console)
        return
    print("| layers | planted | curve | plans | inference, s | search, s | inferences | 15 log2 N | peak | suspects |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for layers, planted in itertools.product(asked.layers, (False, True)):
            network, data = made(Path(name), layers, planted=planted)
            for curve in ("adaptive", *(["full"] if layers <= asked.full_up_to else [])):
                print(_row(layers, planted, curve, _in_a_process(curve, network, data)), flush=True)


def _row(layers: int, planted: bool, curve: str, found: dict[str, Any]) -> str:
    cells = (
        layers,
        "yes" if planted else "no",
        curve,
        f"{found['plans']} in {found['passes']} passes",
        f"{found['inference']:.4f}",
        f"{found['seconds']:.1f}",
        f"{found['seconds'] / found['inference']:.0f}",
        f"{15 * math.log2(layers):.0f}",
        f"{found['peak'] / found['plain']:.2f}",
        ", ".join(found["suspects"]) or "none",
    )
    return f"| {' | '.join(map(str, cells))} |"


def made(folder: Path, layers: int, *, planted: bool) -> tuple[Path, Path]:
    """Writes a chain of convolutions and sums, and two samples; returns both paths."""
    model = chain(layers, width=32, size=8, gain=0.6)
    convolutions = {node.name for node in model.graph.node if node.op_type == "Conv"}
    for share in PLANTED if planted else ():
        k = next(k for k in range(int(share * layers), layers) if {f"conv{k}", f"conv{k + 1}"} <= convolutions)
        plant(model, f"conv{k}", f"conv{k + 1}")
    network, data = folder / f"chain-{layers}-{planted}.onnx", folder / f"chain-{layers}.npz"
    onnx.save(model, str(network))
    np.savez(data, x=samples(model, 2))
    return network, data


def _in_a_process(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-c", "from benchmarks import adaptive; adaptive.measured()", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured() -> None:
    """In a process of its own: ``CURVE NETWORK DATA``; prints the figures as JSON."""
    from trt_bisect.analyzer.judge import comparison, make_rule
    from trt_bisect.analyzer.metrics import find_metric
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.evaluator.branch import branch_evaluator
    from trt_bisect.evaluator.rebuild import RebuildEvaluator
    from trt_bisect.model.network import load_network
    from trt_bisect.runs.journal import MemoryStore
    from trt_bisect.support.machine import peak_bytes

    curve, path, data = sys.argv[1:]
    network = load_network(path)
    feeds = [{"x": x[None]} for x in np.load(data)["x"]]
    scales, store, options = calibrate(network, feeds, "minmax").scales, MemoryStore(), BuildOptions()
    builder = OnnxRuntimeBuilder(network, scales, options)
    with builder.reference() as engine:
        compare = comparison([engine.infer(feeds[0])])
        inference = min(_cpu_seconds(lambda: engine.infer(feeds[0])) for _ in range(9))
    plain = peak_bytes()
    rule = make_rule(find_metric("sqnr"), 28.0)
    question = Question(len(network.layers), network.movable, rule.budget, rule.step)
    whole = RebuildEvaluator(network, builder, feeds[:1], compare, store)
    passes: list[int] = []

    def search() -> Findings:
        evaluator = branch_evaluator(
            network, builder, lambda *_: builder, scales, options, feeds[:1], compare, store, whole,
            memory=512 << 20, few_boundaries=curve == "adaptive",
        )  # fmt: skip

        def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
            passes.append(len(plans))
            return [rule.loss(trial) for trial in evaluator.measure_all(plans, lambda *_: None)]

        if curve == "adaptive":
            return drive(adaptive(question), measure_all)
        return drive_speculatively(lambda: exhaustive(question), measure_all, LastRises(question))

    began = time.process_time()
    findings = search()
    seconds = time.process_time() - began
    suspects = [network.layers[k].name for k in findings.suspects]
    print(json.dumps({
        "inference": inference, "seconds": seconds, "plans": len(store.trials), "passes": len(passes),
        "plain": plain, "peak": peak_bytes(), "suspects": suspects,
    }))  # fmt: skip


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def study(folders: Sequence[Path], console: Console) -> None:
    """Prints by stride and share the suspects of the full curve that the adaptive search misses.

    A suspect that stays high is taken to shed the loss that it added.
    """
    curves = dict(itertools.chain.from_iterable(map(_curves, folders)))
    cases = [(name, curve, share) for name, curve in curves.items() for share in SHARES_OF_FULL if curve[-1] > 0]
    truth = {(name, share): _simulated(curve, share, exhaustive)[0] for name, curve, share in cases}
    console.print(f"{len(curves)} curves, {len(cases)} budgets, {sum(map(len, truth.values()))} suspects")
    table = Table("stride", "share", "missed", "besides", "plans, times the boundaries")
    for stride, share in itertools.product((4, 8, 16), (0.1, 0.25, 0.5)):
        missed = more = 0
        times = []
        for name, curve, budget in cases:
            found, asked = _simulated(curve, budget, adaptive, stride=stride, share=share)
            missed += len(truth[name, budget] - found)
            more += len(found - truth[name, budget])
            times.append(asked / len(curve))
        table.add_row(str(stride), str(share), str(missed), str(more), f"{np.mean(times):.2f}")
    console.print(table)
    ahead = [_simulated(curve, share, exhaustive)[1] / len(curve) for _, curve, share in cases]
    console.print(f"full curve, plans asked for ahead included: {np.mean(ahead):.2f} times the boundaries")


def _curves(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the curves without suspects kept high, in cosine and SQNR, that the journal of a run holds in full."""
    from trt_bisect.analyzer.judge import Rule
    from trt_bisect.analyzer.metrics import find_metric
    from trt_bisect.evaluator.trial import WHOLE, Trial, TrialKey, of_a_pass
    from trt_bisect.report.model import Report
    from trt_bisect.runs.journal import records_of

    report = Report.load(folder)
    trials: dict[str, dict[str, Any]] = {}
    for record in records_of((folder / "journal.jsonl").read_bytes().splitlines()):
        if "trial" in record:
            trial = Trial.from_json(record["trial"])
            trials.setdefault(record["run"], {})[trial.plan] = trial
    movable = tuple(row.index for row in report.layers if row.quantizable and not row.fixed)
    question = Question(len(report.layers), movable, report.budget or 0.0, (report.budget or 0.0) * report.share)
    keys = [TrialKey(question.prefix(k).key(), WHOLE) for k in (-1, *question.quantizable)]
    for (run, found), metric in itertools.product(trials.items(), ("cosine", "sqnr")):
        rule = Rule(find_metric(metric), report.threshold, report.share)
        of_boundaries = [of_a_pass(found, key) for key in keys]
        if all(of_boundaries):
            losses = np.array([rule.loss(trial) for trial in of_boundaries if trial], float)
            if np.isfinite(losses).all():
                yield f"{folder.name} {run} {metric}", losses


def _simulated(curve: np.ndarray, of_full: float, search: Callable[..., Any], **options: float) -> tuple[set[int], int]:
    """Returns the suspects that a search finds on a curve, and the number of plans that it asks for."""
    layers, rises = len(curve) - 1, np.diff(curve)
    question = Question(layers, tuple(range(layers)), float(of_full * curve[-1]), float(of_full * curve[-1] / 2))
    asked: set[tuple[int, int]] = set()

    def loss(plan: PrecisionPlan) -> float:
        last = max(plan.lowered, default=-1)
        asked.add((last, len(plan.lowered)))
        return float(curve[last + 1] - sum(rises[k] for k in range(last) if k not in plan.lowered))

    def measure_all(plans: Sequence[PrecisionPlan]) -> list[Loss]:
        return [loss(plan) for plan in plans]

    if search is exhaustive:
        found = drive_speculatively(lambda: exhaustive(question), measure_all, LastRises(question))
    else:
        found = drive(search(question, **options), measure_all)
    return set(found.suspects), len(asked)


if __name__ == "__main__":
    main()
