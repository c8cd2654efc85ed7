"""The judgement of a run's answer on its stand-in, without the run: from its files and the stand-in alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx

from benchmarks.answer.judge import Feeds, Outputs, cosine, infer, read_samples, session, worst
from benchmarks.builds.networks import Files, Subject
from benchmarks.builds.standin import Difference, compiled
from trt_bisect import Report, load_network
from trt_bisect.calibration.collect import CANDIDATES, magnitudes
from trt_bisect.errors import TrialFailed
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.file import Written, save_model
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.report.parts import FAILS, UNMEASURED, WITH_DOUBTS

SAME_COST = 1e-6
LEAST_D, FEW_NUMBERS = 0.5, 8
"""The least figure D of variation; an output of fewer numbers is judged over all inputs alone."""
FAR = 0.7
"""With all scales below this share of its own an engine does not compute as its file says: a run may say so instead of
a recipe."""


@dataclass
class Bench:
    """A network with its inputs, and what a stand-in makes of its plans.

    Attributes:
        feeds: all inputs given: those of the calibration and the others.
    """

    subject: Subject
    files: Files
    difference: Difference

    @cached_property
    def network(self) -> Network:
        return load_network(self.files[0])

    @cached_property
    def feeds(self) -> list[Feeds]:
        opened = session(self.files[0], "float")
        return [feeds for path in dict.fromkeys(self.files[1:]) for feeds in read_samples(path, opened)]

    @cached_property
    def references(self) -> list[Outputs]:
        opened = session(self.files[0], "float")
        return [infer(opened, feeds) for feeds in self.feeds]

    def scales(self, calibrator: str) -> Scales:
        """The scales of a calibrator, from all calibration data."""
        (chosen,) = (each for each in CANDIDATES if str(each) == calibrator)
        samples = read_samples(self.files[1], session(self.files[0], "float"))
        return magnitudes(self.network, samples).ranges(chosen).scales

    def holds(self, written: Written, difference: Difference | None = None, margin: float = 0.0) -> bool:
        """Returns true if the stand-in builds a file and meets the threshold on all inputs.

        Args:
            difference: another stand-in's.
            margin: the share of the loss allowed that is left.
        """
        try:
            changed = compiled(written, self.difference if difference is None else difference)
        except TrialFailed:
            return False
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            save_model(changed.model, changed.weights, path)
            opened = session(path, "float")
        outputs = [infer(opened, feeds) for feeds in self.feeds]
        threshold = 1.0 - (1.0 - self.subject.threshold) * (1.0 - margin)
        for reference, output in zip(self.references, outputs, strict=True):
            if worst(reference, output, self.subject.cuts) < threshold:
                return False
        return all(_varies(self.references, outputs, name) for name in self.references[0])


def _varies(references: Sequence[Outputs], outputs: Sequence[Outputs], name: str) -> bool:
    """Returns false if an output no longer depends on the input as in FP32: D of docs/concepts/metrics.md is below 0.5.

    Args:
        references: FP32's outputs for each input.
        outputs: the other ones.
        name: that of the output.
    """
    v, w = (np.array([row[name].ravel() for row in rows], np.float64) for rows in (references, outputs))
    v, w = v - v.mean(axis=0), w - w.mean(axis=0)
    if cosine(v, w) < LEAST_D:
        return False
    each = [cosine(a, b) for a, b in zip(v, w, strict=True)]
    return v.shape[1] < FEW_NUMBERS or float(np.median(each)) >= LEAST_D


def read_recipe(folder: Path) -> tuple[Network, PrecisionPlan, Scales]:
    """Reads the folder ``recipe`` of a run: the float network, with changes if the run made some, plan and scales."""
    content = json.loads((folder / "plan.json").read_text())
    network = load_network(folder / "network.onnx")
    plan = network.full(Precision(content["high"]))
    for name, precision in content["layers"].items():
        plan = plan.keeping([network.layer_named(name).index], Precision(precision))
    return network, plan, content["scales"]


def faults(bench: Bench, report: Report | None, folder: Path) -> Iterator[str]:
    """Yields what is wrong with a run's answer; ``report`` is None where the run ended without one."""
    if report is None or report.verdict == UNMEASURED:
        yield "no verdict"
        return
    network, difference = bench.network, bench.difference
    writer = PlanWriter(network, bench.scales(report.ranges.origin), GraphTarget.TENSORRT)
    # A layer that no engine builds in INT8 is none that can be in INT8.
    refused = [network.layer_named(name).index for name in difference.refuses]
    full = writer.write(network.full(Precision.FP32).keeping(refused))
    passes = bench.holds(full)
    if passes == (report.verdict == FAILS):
        yield f"the verdict is '{report.verdict}', and full INT8 {'holds' if passes else 'misses'} on the stand-in"
    if passes and difference.disobeys and not bench.holds(full, Difference()) and report.verdict != WITH_DOUBTS:
        yield "it passes without a doubt as the culprit was not run in INT8"
    if not bench.holds(writer.write(network.free_plan())):
        if report.recipe.meets:
            yield "a recipe is said to hold, and the base misses on the stand-in"
        return
    if not report.recipe.meets:
        if difference.scales is None or difference.scales[1] > FAR:
            yield "no recipe is said to hold, and the base holds on the stand-in"
        return
    changed, plan, scales = read_recipe(folder / "recipe")
    file = Written(onnx.load(folder / "recipe" / "network.qdq.onnx"), {})
    if not bench.holds(file):
        yield "the recipe misses on the stand-in"
    in_plan = {changed.layers[k].name for k in changed.quantizable if k not in plan.int8}
    if in_plan - set(difference.refuses) != set(report.recipe.high) - set(difference.refuses):
        yield f"the report has {sorted(report.recipe.high)} high, the recipe {sorted(in_plan)}"
    for layer in (*difference.wrong, *difference.refuses):
        if changed.layer_named(layer).index in plan.int8:
            yield f"'{layer}' is not high"
    margin = 0.0
    if report.answer is not None and bench.holds(file, margin=report.answer.margin):
        margin = report.answer.margin
    # Culprits are decided before the other layers high go to FP16, where that pays.
    in_fp32, of_changed = plan.keeping(plan.fp16, Precision.FP32), PlanWriter(changed, scales, GraphTarget.TENSORRT)
    for culprit in report.culprits:
        index = changed.layer_named(culprit).index
        back = [of_changed.write(each.keeping([index], Precision.INT8)) for each in (in_fp32, plan)]
        if all(bench.holds(each, margin=margin) for each in back):
            yield f"'{culprit}' is no culprit: the recipe holds with it in INT8"
    if bench.subject.every_plan:
        yield from _cheaper(bench, plan, writer)


def _cheaper(bench: Bench, recipe: PrecisionPlan, writer: PlanWriter) -> Iterator[str]:
    """Yields the set of layers that holds at a smaller cost than the recipe's, of all sets."""
    network = bench.network
    costs = shares(times_by_macs(network, facts_for(network, bench.feeds[0])))

    def cost(layers: tuple[int, ...]) -> float:
        return sum(costs[k][Precision.FP32] for k in layers)

    sets = [kept for size in range(len(network.quantizable) + 1) for kept in combinations(network.quantizable, size)]
    found = cost(tuple(k for k in network.quantizable if k not in recipe.int8))
    for kept in sorted(sets, key=cost):
        if cost(kept) >= found - SAME_COST:
            return
        if bench.holds(writer.write(network.full(Precision.FP32).keeping(kept))):
            names = [network.layers[k].name for k in kept]
            yield f"{names} holds for {cost(kept):.2%}, the recipe costs {found:.2%}"
            return
