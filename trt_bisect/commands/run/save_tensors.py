"""Writes the tensors of FP32, full INT8 and the recipe into a run folder: an ``.npz`` for each sample, and an index."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from trt_bisect.analyzer.origins import activation_origins, plan_observer
from trt_bisect.answer.result import Answer
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.data.feeds import Feeds, read_archive, write_archive
from trt_bisect.driver.search import Findings
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.options.concerns import ALL_LAYERS, BOUNDARIES, NO_TENSORS, POLYGRAPHY as AS_JSON, RunOptions
from trt_bisect.precision import PrecisionPlan, int8_set
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.preparation.workspace import (
    BOUNDARIES as BOUNDARIES_FOLDER,
    INDEX,
    INPUTS_JSON,
    POLYGRAPHY,
    SAMPLE,
    TENSORS,
)
from trt_bisect.support.codec import read
from trt_bisect.support.files import make_folder, whole_file, write_whole
from trt_bisect.support.progress import Progress

Tensors = Mapping[str, np.ndarray]
Run = Callable[[Feeds], Tensors]
MOST = 1 << 30  # the most bytes of tensors that a run saves
_FP32, _RECIPE = "fp32", "recipe"
_LONGEST = 100  # characters of a layer's name in the name of a folder
_BASE64 = 4 / 3  # bytes of text per byte of an array in Polygraphy's JSON


def refuse_tensors(options: RunOptions, folder: Path | None, engine: str) -> None:
    """Checks ``--save-tensors``: raises BadInput without a folder, or for tensors that the engine does not give."""
    if options.save_tensors == NO_TENSORS:
        return
    if folder is None:
        raise BadInput("There is no folder to save tensors in.", "Give --output.")
    if options.save_tensors == ALL_LAYERS and engine != ONNXRUNTIME:
        problem = f"The engine '{engine}' fuses layers and gives final outputs only."
        raise BadInput(problem, "Give --save-tensors outputs, or --engine onnxruntime.")


def save_tensors(options: RunOptions, answer: Answer, folder: Path, progress: Progress) -> list[str]:
    """Saves the tensors of FP32, full INT8 and the recipe, for as many inputs as fit into 1 GiB; given inputs come
    before held-out ones.

    A sample already saved for the same plan under the same fingerprint is not run again. Returns a note if not all
    samples were saved, else an empty list.
    """
    if options.save_tensors == NO_TENSORS:
        return []
    of_user = answer.of_user.experiment
    plans = {
        _FP32: _nothing_low(of_user),
        "int8": of_user.network.full(of_user.whole.high),
        _RECIPE: answer.recipe.plan,
    }
    writing = _Writing(of_user, plans, options.save_tensors == ALL_LAYERS, answer.experiment)
    given, held_out, as_json = answer.inputs.given, answer.held_out_inputs, options.save_tensors == AS_JSON
    feeds = [*given.feeds, *(held_out.feeds if held_out else ())]
    labels = [*given.labels, *(held_out.labels if held_out else ())]
    count, notes = writing.save(folder / TENSORS, feeds, labels, progress, as_json=as_json)
    if count and as_json:
        write_polygraphy(folder / TENSORS, writing.plans, feeds[:count])
    return notes


def save_boundaries(
    options: RunOptions, answer: Answer, findings: Findings, folder: Path, progress: Progress
) -> list[str]:
    """Saves FP32's final outputs, and the final outputs with the layers up to each measured point of the curve in INT8,
    on the curve's inputs.

    If the user fixed all layers, as with ``--scoped``, only the one plan left is saved. Returns a note if not all
    samples were saved, else an empty list.
    """
    if options.save_tensors != BOUNDARIES:
        return []
    experiment = answer.experiment
    full = experiment.network.full(experiment.whole.high)
    ends = {step.layers[-1]: step.plan for step in findings.steps} or {max(full.lowered, default=0): full}
    width = len(str(len(full)))
    names = {k: re.sub(r"[^A-Za-z0-9._-]+", "_", experiment.network.layers[k].name)[:_LONGEST] for k in ends}
    plans = {f"{k:0{width}}-{names[k]}": plan for k, plan in ends.items()}
    writing = _Writing(experiment, {_FP32: _nothing_low(experiment), **plans}, layers=False)
    feeds, labels = experiment.feeds, answer.inputs.given.labels[: len(experiment.feeds)]
    return writing.save(folder / TENSORS / BOUNDARIES_FOLDER, feeds, labels, progress)[1]


def _nothing_low(experiment: Experiment) -> PrecisionPlan:
    return int8_set(len(experiment.network.layers), ())


class _Writing:
    def __init__(
        self, experiment: Experiment, plans: Mapping[str, PrecisionPlan], layers: bool, recipe: Experiment | None = None
    ) -> None:
        self._experiment, self.plans, self._layers, self._recipe = experiment, plans, layers, recipe or experiment

    def save(
        self, folder: Path, feeds: Sequence[Feeds], labels: Sequence[str], progress: Progress, *, as_json: bool = False
    ) -> tuple[int, list[str]]:
        with self.opened(_FP32) as run:
            size = len(self.plans) * sum(values.nbytes for values in run(feeds[0]).values())
        if as_json:
            size += int(_BASE64 * (size + sum(values.nbytes for values in feeds[0].values())))
        count = min(len(feeds), MOST // max(size, 1))
        if not count:
            return 0, [f"no tensors were saved: one sample of {len(self.plans)} plans is larger than {MOST >> 20} MiB"]
        self.begin(make_folder(folder), labels[:count], len(feeds))
        progress.stage("Saving tensors", count * len(self.plans))
        for name in self.plans:
            directory = make_folder(folder / name)
            missing = [number for number in range(count) if not (directory / SAMPLE.format(number)).is_file()]
            if not missing:
                continue
            with self.opened(name) as run:
                for number in missing:
                    progress.step(f"{name} {labels[number]}")
                    with whole_file(directory / SAMPLE.format(number)) as file:
                        write_archive(file, run(feeds[number]))
        note = f"tensors of {count} of {len(feeds)} inputs were saved: more do not fit into {MOST >> 20} MiB"
        return count, [] if count == len(feeds) else [note]

    def begin(self, folder: Path, labels: Sequence[str], input_count: int) -> None:
        # writes the index; removes samples of another fingerprint and surplus samples
        plans = {name: plan.key() for name, plan in self.plans.items()}
        if self._recipe is not self._experiment:
            plans[_RECIPE] += f" {self._recipe.key}"
        network = self._experiment.network
        outputs = {spec.name for spec in network.outputs}
        made_of = {"fingerprint": self._experiment.key, "tensors": "layers" if self._layers else "outputs"}
        index = {"schema": 1, **made_of, "plans": plans, "samples": list(labels), "given": input_count}
        index["layers"] = {
            tensor: {"layer": layer.name, "op_type": layer.op_type}
            for tensor, layer in network.producers.items()
            if self._layers or tensor in outputs
        }
        before = read(dict, folder / INDEX) or {}
        is_same = all(before.get(key) == value for key, value in made_of.items())
        plans_before = (before.get("plans") or {}) if is_same else {}
        names = {SAMPLE.format(number) for number in range(len(labels))}
        for path in folder.glob("*/*.npz"):
            name = path.parent.name
            if path.name not in names or name not in plans or plans_before.get(name) != plans[name]:
                path.unlink()
        write_whole(folder / INDEX, (json.dumps(index, indent=1) + "\n").encode())

    @contextmanager
    def opened(self, name: str) -> Iterator[Run]:
        experiment, plan = self._recipe if name == _RECIPE else self._experiment, self.plans[name]
        if self._layers:
            writer = PlanWriter(experiment.network, experiment.ranges.scales, GraphTarget.ONNXRUNTIME)
            observe = plan_observer(writer, plan, activation_origins(experiment.network, writer, plan.int8))
            yield lambda feeds: next(observe(feeds, 0))
            return
        builder = experiment.builder
        try:
            with builder.reference() if plan == self.plans[_FP32] else builder.build(plan) as engine:
                yield engine.infer
        except TrialFailed as failure:
            raise BadInput(f"Tensors cannot be saved: {failure.message}", "Leave out --save-tensors.") from failure


def write_polygraphy(folder: Path, plans: Iterable[str], feeds: Sequence[Feeds]) -> None:
    """Writes Polygraphy's JSON: the samples, and a run for each plan, read from the ``.npz`` files in ``folder``."""
    from polygraphy.comparator import IterationResult, RunResults
    from polygraphy.json import to_json

    directory = make_folder(folder / POLYGRAPHY)
    inputs = [{name: np.asarray(values) for name, values in sample.items()} for sample in feeds]
    write_whole(directory / INPUTS_JSON, to_json(inputs).encode())
    for plan in plans:
        runner = f"trt-bisect-{plan}"
        saved = (read_archive(folder / plan / SAMPLE.format(number)) for number in range(len(feeds)))
        iterations = [IterationResult(outputs=arrays, runner_name=runner) for arrays in saved]
        results = RunResults([(runner, iterations)])
        write_whole(directory / f"{plan}.json", results.to_json().encode())
