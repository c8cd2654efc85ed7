"""The TensorBoard logs of ``run``, ``compare`` and ``profile``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.origins import RESULT, Origin, Tensors, activation_origins, plan_observer, sides_of
from trt_bisect.builder.base import EMULATED
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import Feeds, TensorSpec
from trt_bisect.driver.search import Findings
from trt_bisect.evaluator.accuracy import ACCURACY, accuracy_in
from trt_bisect.evaluator.each_input import INPUTS, OF_METRIC
from trt_bisect.evaluator.trial import WHOLE, Trial, TrialKey
from trt_bisect.model.layers import Layer, Shape, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.model.observe import groups_within
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import round_trips
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.report import tensorboard_board as logs
from trt_bisect.report.answer import FrontPoint
from trt_bisect.report.choices import FP16, choice_of
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.model import Report
from trt_bisect.report.network_graph import attribute_text
from trt_bisect.report.screen.run import bullets, literal, next_lines, table
from trt_bisect.support.progress import Progress
from trt_bisect.support.text import shape_text

if TYPE_CHECKING:
    from trt_bisect.preparation.experiment import Experiment


@dataclass(frozen=True)
class MeasuredPlan:
    """A measured plan; figures that were not measured are None.

    Attributes:
        similarity: the similarity on the worst input.
        latency: the mean milliseconds of an inference.
        what: the plan in words.
    """

    plan: PrecisionPlan
    similarity: float | None = None
    accuracy: float | None = None
    latency: float | None = None
    what: str = ""

    def figures(self) -> dict[str, float]:
        """Returns by title the measured figures, and the number of layers in low precision."""
        layers = float(len(self.plan.lowered))
        figures = {"similarity": self.similarity, "accuracy": self.accuracy, "latency in ms": self.latency}
        measured = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
        return {"layers in low precision": layers, **measured}


def steps_of(experiment: Experiment, shared: Mapping[str, Trial]) -> list[MeasuredPlan]:
    """Returns the plans measured with an experiment's ranges, in order of measurement, each with its similarity on the
    most inputs run.

    Failed trials and trials in another setting do not count. Of ``shared``, trials with any ranges, only those on
    single inputs count.
    """
    rule, ranges = experiment.rule, experiment.ranges.digest()
    on_inputs = {key: trial for key, trial in shared.items() if key.startswith(INPUTS)}
    plans: dict[str, PrecisionPlan] = {}
    best: dict[str, tuple[int, Trial]] = {}
    accuracies: dict[str, float | None] = {}
    for trial in {**on_inputs, **experiment.store.trials}.values():
        key = TrialKey.from_text(trial.plan)
        if trial.failed or not key.has_plan:
            continue
        if ACCURACY in trial.outputs and key.measured_in.startswith(ACCURACY):
            accuracies[key.plan] = accuracy_in(trial)
        else:
            rank = _rank(key, ranges, rule.metric.name)
            if rank is None:
                continue
            if key.plan not in best or rank < best[key.plan][0]:
                best[key.plan] = rank, trial
        plans.setdefault(key.plan, PrecisionPlan.from_key(key.plan))
    return [
        MeasuredPlan(plan, _similarity(best[key][1], rule) if key in best else None, accuracies.get(key))
        for key, plan in plans.items()
    ]


def _rank(key: TrialKey, ranges: str, metric: str) -> int | None:
    if key.measured_in.split(" ")[0] != INPUTS:
        return 2 if key.measured_in == WHOLE else 3
    match = re.fullmatch(rf"{INPUTS} \w+ {ranges[:12]} (whole|{OF_METRIC}{re.escape(metric)})", key.measured_in)
    if match is None:
        return None
    return 0 if match[1] == "whole" else 1


def _similarity(trial: Trial, rule: Rule) -> float | None:
    if trial.outputs:
        return rule.similarity(trial)
    worst = max(trial.losses.values(), default=math.inf)
    return rule.metric.value(worst) if math.isfinite(worst) else None


def spread_over_front(
    steps: Iterable[MeasuredPlan], cost: Callable[[PrecisionPlan], float], most: int
) -> list[MeasuredPlan]:
    """Selects at most ``most`` plans: evenly from the front of cost and similarity, then from the others. Returns
    them by increasing cost.
    """
    by_cost = sorted(steps, key=lambda step: (cost(step.plan), -_known(step)))
    front: list[MeasuredPlan] = []
    for step in by_cost:
        if not front or _known(step) > _known(front[-1]):
            front.append(step)
    others = [step for step in by_cost if step not in front]
    chosen = _evenly(front, most)
    chosen += _evenly(others, most - len(chosen))
    return [step for step in by_cost if step in chosen]


def _known(step: MeasuredPlan) -> float:
    return -math.inf if step.similarity is None else step.similarity


def _evenly(steps: Sequence[MeasuredPlan], most: int) -> list[MeasuredPlan]:
    places = np.unique(np.linspace(0, len(steps) - 1, min(most, len(steps))).round().astype(int))
    return [steps[k] for k in places]


# TensorFlow's graph.proto and node_def.proto: a name is [A-Za-z0-9.][A-Za-z0-9_.\-/]*; an input is "node", or
# "node:slot" for a later output.
INPUT, OUTPUT = "Input", "Output"
FOLLOWS = "follows"
"""The TensorBoard device of a layer whose precision no plan decides."""

_ILLEGAL = re.compile(r"[^A-Za-z0-9_.\-/]")


def graph_of(network: Network, plan: PrecisionPlan | None = None) -> Any:
    """Returns the GraphDef of a network: a node for each layer, input and output.

    The device of a layer's node is the layer's precision in ``plan`` (None: FP32).
    """
    from tensorboard.compat.proto.graph_pb2 import GraphDef

    graph, types = GraphDef(), network.types
    inputs, outputs = [spec.name for spec in network.inputs], [f"{spec.name}_output" for spec in network.outputs]
    names = iter(legal_names([*inputs, *(layer.title or layer.name for layer in network.layers), *outputs]))
    on_judged = {layer.outputs[0]: layer.shape for layer in network.layers if layer.outputs and layer.shape is not None}
    known_shapes = {**types.shapes, **on_judged}
    sources: dict[str, str] = {}
    for spec in network.inputs:
        sources[spec.name] = next(names)
        _add(graph, sources[spec.name], INPUT, (), "", _boundary_texts(spec), [spec.shape])
    for layer in network.layers:
        node, name = network.skeleton.graph.node[layer.index], next(names)
        device = FOLLOWS if not layer.quantizable else str(plan.precisions[layer.index] if plan else Precision.FP32)
        shapes = [known_shapes.get(tensor) for tensor in node.output]
        read = [sources[tensor] for tensor in layer.inputs if tensor in sources]
        _add(graph, name, layer.op_type, read, device, _layer_texts(layer, node, types), shapes)
        sources.update({tensor: f"{name}:{slot}" if slot else name for slot, tensor in enumerate(node.output)})
    for spec in network.outputs:
        read = [sources[spec.name]] if spec.name in sources else []
        _add(graph, next(names), OUTPUT, read, "", _boundary_texts(spec), [])
    return graph


def legal_names(names: Sequence[str]) -> list[str]:
    """Returns for each name a unique name that TensorFlow allows and that is not the scope of another."""
    legal = [_legal(name) for name in names]
    scopes = {name[:end] for name in legal for end, letter in enumerate(name) if letter == "/"}
    taken, unique_names = set(scopes), []
    for name in legal:
        # "a" next to "a/b" becomes "a/a".
        base = f"{name}/{name.rpartition('/')[2]}" if name in scopes else name
        unique_names.append(logs.unused(base, taken))
        taken.add(unique_names[-1])
    return unique_names


def _legal(name: str) -> str:
    parts = [part for part in _ILLEGAL.sub("_", name).split("/") if part]
    legal = "/".join(parts)
    return legal if legal and re.match(r"[A-Za-z0-9.]", legal) else f".{legal}"


def _add(
    graph: Any,
    name: str,
    op_type: str,
    inputs: Iterable[str],
    device: str,
    texts: Mapping[str, str],
    shapes: Sequence[Shape | None],
) -> None:
    node = graph.node.add(name=name, op=op_type, device=device)
    node.input.extend(inputs)
    for key, text in texts.items():
        if text:
            node.attr[key].s = text.encode()
    for shape in shapes:
        sizes = node.attr["_output_shapes"].list.shape.add(unknown_rank=shape is None)
        for size in shape or ():
            sizes.dim.add(size=size if isinstance(size, int) else -1, name=size if isinstance(size, str) else "")


def _boundary_texts(spec: TensorSpec) -> dict[str, str]:
    return {"tensor": spec.name, "tensor_type": _typed(spec.dtype, spec.shape)}


def _layer_texts(layer: Layer, node: onnx.NodeProto, types: TensorTypes) -> dict[str, str]:
    constants = [
        f"{name} {_typed(types.dtypes.get(name), types.shapes.get(name, ()))}"
        for name in node.input
        if name and name not in layer.inputs
    ]
    texts = {"layer_name": layer.name, "constants": "; ".join(constants), "why_not_int8": layer.why_not}
    return {**texts, **{attribute.name: attribute_text(attribute) for attribute in node.attribute}}


def _typed(dtype: np.dtype[Any] | None, shape: Shape) -> str:
    return f"{dtype or '?'}[{shape_text(shape)}]"


class _Logs:
    weights: logs.WeightHistograms | None = None

    def __init__(self, board: logs.Board, network: Network | None, tags: Mapping[str, str]) -> None:
        self.board, self.network = board, network
        self.tags = {name: tag for name, tag in tags.items() if board.layers is None or name in board.layers}
        self._channels = logs.LoudChannels(board.channels)

    def read_weights(self, network: Network, writer: PlanWriter) -> None:
        self.weights = logs.WeightHistograms(self._channels)
        for tag, weight in logs.weights_of(network, writer, self.tags):
            sides = {logs.FP32: network.constant(weight.tensor)}
            if weight.quantizers:
                sides[logs.INT8] = round_trips(sides[logs.FP32], weight.quantizers)
            self.weights.add(tag, weight.channel_axis, sides, weight.index)

    def histograms(self, kind: str, origins: Mapping[str, Origin]) -> logs.TensorHistograms:
        return logs.TensorHistograms(kind, origins, self.tags, self._channels, self.board.samples)

    def write_run(
        self,
        name: str,
        tensors: logs.TensorHistograms,
        plan: PrecisionPlan | None = None,
        figures: Iterable[tuple[str, float, int]] = (),
        /,
        **texts: str,
    ) -> None:
        with logs.log_run(self.board.folder / name) as run:
            if self.network is not None:
                run.graph(graph_of(self.network, plan))
            tensors.write(run)
            if self.weights is not None:
                lowered = () if plan is None else plan.lowered
                self.weights.write(run, None if tensors.kind == logs.FP32 else lowered)
            for figure in figures:
                run.scalar(*figure)
            run.texts(**texts, not_finite=bullets(tensors.not_finite()))


class RunLogs(_Logs):
    """TensorBoard logs of ``run``: FP32, the most important plans, the curve, and the figures of all measured plans.

    Args:
        reported: the trials of full INT8 and the recipe on all inputs.
        shared: trials with any ranges.
        cost, accuracy: return the figure of a plan; ``accuracy`` is None without labels.
    """

    def __init__(
        self,
        board: logs.Board,
        report: Report,
        experiment: Experiment,
        findings: Findings,
        recipe: PrecisionPlan,
        *,
        trials: Mapping[str, Trial],
        reported: Mapping[PrecisionPlan, Trial],
        shared: Mapping[str, Trial],
        cost: Callable[[PrecisionPlan], float],
        accuracy: Callable[[PrecisionPlan], float | None] | None,
        memory: int,
    ) -> None:
        super().__init__(board, experiment.network, _tags_of(experiment.network))
        self._report, self._experiment, self._findings, self._recipe = report, experiment, findings, recipe
        self._trials, self._reported, self._measured = trials, reported, partial(steps_of, experiment, shared)
        self._cost, self._accuracy, self._memory = cost, accuracy, memory
        self._writer = PlanWriter(experiment.network, experiment.ranges.scales, GraphTarget.ONNXRUNTIME)
        self.read_weights(experiment.network, self._writer)

    def _shown(self) -> list[MeasuredPlan]:
        report, rule, canonical = self._report, self._experiment.rule, self._experiment.whole.canonical
        words: dict[PrecisionPlan, list[str]] = {}
        for plan, what in self._wanted():
            words.setdefault(canonical(plan), []).append(what)
        fp16, floats = choice_of(FP16, report.choices), self._experiment.network.all_in(Precision.FP16)
        if fp16 is not None:  # its unquantized layers are in FP16 too, so that it is not canonical
            words[floats] = ["FP16"]
        others = [step for step in self._measured() if words.keys().isdisjoint((step.plan, canonical(step.plan)))]
        others = spread_over_front(others, self._cost, max(0, self.board.plans - len(words)))
        words |= {canonical(step.plan): ["measured in the search"] for step in others}
        reported = {canonical(plan): trial for plan, trial in self._reported.items()}
        figures = {plan: rule.similarity(reported.get(plan) or self._trials.get(plan.key())) for plan in words}
        full = self._experiment.network.full(self._experiment.whole.high)
        names = {canonical(self._recipe): "recipe", canonical(full): "int8"}
        if fp16 is not None:
            names[floats], figures[floats] = FP16, fp16.similarity
        accuracies = {plan: getattr(report.accuracy, name, None) for plan, name in names.items()}
        for point in report.front:
            plan = canonical(self._plan_of(point))
            if report.goal.drop:
                accuracies.setdefault(plan, point.figure)
            elif figures[plan] is None:
                figures[plan] = point.figure
        for step in others:
            if figures[plan := canonical(step.plan)] is None:
                figures[plan] = step.similarity
        if self._accuracy is not None:
            accuracies |= {plan: self._accuracy(plan) for plan in words if accuracies.get(plan) is None}
        return [
            MeasuredPlan(
                plan, figures[plan], accuracies.get(plan), report.milliseconds(names.get(plan, "")), "; ".join(reasons)
            )
            for plan, reasons in words.items()
        ]

    def _wanted(self) -> Iterator[tuple[PrecisionPlan, str]]:
        network, high = self._experiment.network, self._experiment.whole.high
        yield network.full(high), "full INT8"
        for step in self._findings.steps:
            if step.suspect:
                names = ", ".join(f"'{network.layers[k].name}'" for k in step.layers)
                yield step.plan.keeping(step.layers, high), f"up to {names}, but without it"
                yield step.plan, f"up to {names}, with it"
        yield self._recipe, "the recipe"
        for point in self._report.front:
            yield self._plan_of(point), ": ".join(filter(None, ("of the front", ", ".join(point.names))))

    def _plan_of(self, point: FrontPoint) -> PrecisionPlan:
        network = self._experiment.network
        plan = self._recipe.keeping(network.movable, self._recipe.low)
        for k in network.movable:
            if (precision := point.high.get(network.layers[k].name)) is not None:
                plan = plan.keeping([k], Precision(precision))
        return plan

    def write(self, progress: Progress) -> None:
        """Runs FP32 and the most important plans in emulation, for their tensors, and writes the logs.

        Raises BadInput if it cannot write them, or ONNX Runtime cannot run the network.
        """
        report, network, feeds = self._report, self._experiment.network, self._experiment.feeds
        fp32 = report.accuracy.fp32 if report.accuracy else None
        reference = MeasuredPlan(network.free_plan(), None, fp32, report.milliseconds("fp32"), "FP32")
        shown = [reference, *self._shown()]
        names = [
            logs.run_name(number, report.metric, step.similarity, step.accuracy) for number, step in enumerate(shown)
        ]
        progress.stage("Writing TensorBoard's logs", len(shown) * max(len(feeds), self.board.samples))
        self.board.clear()
        for name, step in zip(names, shown, strict=True):
            self._write_plan(name, step, is_fp32=step is reference, on_input=partial(progress.step, name))
        with logs.log_run(self.board.folder / logs.PLANS) as run:
            for number, step in enumerate(self._measured(), 1):
                for name, value in step.figures().items():
                    run.scalar(name, value, number)
        emulation = (
            f"the similarities were measured on {report.engine}; the histograms are of the emulation on ONNX Runtime, "
            "since TensorRT fuses layers and gives final outputs only"
        )
        origin = [] if report.arithmetic == EMULATED else [emulation]
        with logs.log_run(self.board.folder / logs.CURVE) as run:
            _write_curve(run, report, self._experiment.rule)
            rows = [(name, step.what, step.similarity, step.accuracy) for name, step in zip(names, shown, strict=True)]
            run.texts(
                summary=bullets([*(line.text for line in report.lines), *next_lines(report)]),
                culprits=_culprits(report),
                notes=bullets([*origin, *(note.text for note in report.notes)]),
                runs=table(["run", "plan", report.metric, ACCURACY], rows),
            )

    def _inputs(self) -> Iterator[Feeds]:
        judged = self._experiment.feeds
        yield from judged
        known = [*map(digest_of_feeds, judged)]
        every = chain.from_iterable(data.inferences for data in self._experiment.more)
        others = (sample for sample in every if digest_of_feeds(sample) not in known)
        yield from islice(others, max(0, self.board.samples - len(judged)))

    def _write_plan(self, name: str, shown: MeasuredPlan, *, is_fp32: bool, on_input: Callable[[], None]) -> None:
        network, feeds, plan = self._experiment.network, self._experiment.feeds, shown.plan
        origins = activation_origins(network, self._writer, plan.lowered)
        tensors = self.histograms(logs.FP32 if is_fp32 else logs.INT8, origins)
        if origins:
            groups = groups_within(network, origins, feeds[0], self._memory)
            observe = plan_observer(self._writer, plan, origins, groups)
            for index, sample in enumerate(self._inputs()):
                on_input()
                for observed in observe(sample, index):
                    tensors.add(observed)
                    del observed
        figures = [(tag, value, 0) for tag, value in shown.figures().items()]
        text = "" if is_fp32 else _plan_text(shown, network)
        self.write_run(name, tensors, plan, figures, plan=text)


def _write_curve(run: logs.LogRun, report: Report, rule: Rule) -> None:
    loss = "1 - similarity" if rule.metric.perfect == 1.0 else "loss"
    for row in report.layers:
        if row.similarity is not None:
            run.scalar("similarity", row.similarity, row.index)
            run.scalar(loss, rule.metric.loss(row.similarity), row.index)
        if row.loss is not None and math.isfinite(row.loss):
            run.scalar("loss of the layer", row.loss, row.index)


def _plan_text(shown: MeasuredPlan, network: Network) -> str:
    in_int8 = shown.plan.lowered
    kept = [layer.name for layer in network.layers if layer.quantizable and layer.index not in in_int8]
    text = f"{shown.what}: {len(in_int8)} layers in INT8."
    return literal(text) + (f"\n\nNot in INT8:\n\n{bullets(kept)}" if kept else "")


def _tags_of(network: Network) -> dict[str, str]:
    return logs.layer_tags([layer.name for layer in network.layers], network)


def _culprits(report: Report) -> str:
    rows = [
        (
            *(row.index, row.name, row.op_type, row.similarity, row.loss, row.alone, row.put_back),
            ", ".join(rounded.tensor for rounded in row.rounds),
        )
        for row in report.layers
        if row.culprit
    ]
    titles = [
        "k",
        f"culprit{report.of_unchanged}",
        "operator",
        "similarity",
        "loss",
        "alone",
        "put back",
        "what is rounded",
    ]
    return table(titles, rows) if rows else ""


class ComparisonLogs(_Logs):
    """TensorBoard logs of ``compare``: histograms of the compared tensors and weights."""

    def __init__(self, board: logs.Board, origins: Mapping[str, Origin], network: Network | None) -> None:
        names = [layer.name for layer in network.layers] if network else []
        names += [name for name, origin in origins.items() if not origin.layer]
        super().__init__(board, network, logs.layer_tags(names, network))
        self._fp32, self._int8 = (self.histograms(kind, origins) for kind in (logs.FP32, logs.INT8))

    def watched(self, samples: Iterable[tuple[Tensors, Tensors]]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yields the samples (tensors in FP32 and INT8) unchanged and adds them to the histograms."""
        for reference, output in samples:
            self._fp32.add(reference)
            self._int8.add(output)
            yield reference, output
            del reference, output

    def watched_weights(
        self, weights: Iterable[tuple[Origin, np.ndarray, np.ndarray]]
    ) -> Iterator[tuple[Origin, np.ndarray, np.ndarray]]:
        """Yields the weights (origin, values in each network) unchanged and adds them to histograms."""
        self.weights = pairs = logs.WeightHistograms(self._channels)
        for origin, first, second in weights:
            if origin.layer in self.tags:
                sides = {logs.FP32: first, logs.INT8: second}
                pairs.add(f"{self.tags[origin.layer]}/weights", origin.channel_axis, sides)
            yield origin, first, second

    def write(self, result: Comparison, writer: PlanWriter | None, plan: PrecisionPlan | None) -> None:
        """Writes the FP32 run, and the INT8 run with each tensor's cosine and SQNR at the index of its layer.

        Weights are those of two networks, or those that ``writer`` rounds; ``plan``: the INT8 run's, None if unknown.
        Raises BadInput if the folder is not writable.
        """
        if self.weights is None and self.network is not None and writer is not None:
            self.read_weights(self.network, writer)
        self.board.clear()
        self.write_run(logs.run_name(0), self._fp32)
        cosines = [row.figures.cosine for row in result.tensors if row.origin.kind == RESULT]
        least = min((value for value in cosines if not math.isnan(value)), default=None)
        figures = [
            (f"tensor {name}", value, row.origin.index)
            for row in result.tensors
            if row.origin.index is not None and row.origin.tensor
            for name in ("cosine", "sqnr")
            if math.isfinite(value := getattr(row.figures, name))
        ]
        rows = [(", ".join(advice.layers), advice.reason, advice.tensor, advice.words) for advice in result.advice]
        advice = table(["layer", "reason", "tensor", "evidence"], rows) if rows else ""
        name = logs.run_name(1, "cosine", least)
        self.write_run(name, self._int8, plan, figures, advice=advice, notes=bullets(result.notes))


class ProfileLogs(_Logs):
    """TensorBoard logs of ``profile``: histograms of the layers' tensors and weights."""

    def __init__(
        self, board: logs.Board, network: Network, writer: PlanWriter, layers: Sequence[Layer], plan: PrecisionPlan
    ) -> None:
        tags = _tags_of(network)
        super().__init__(board, network, {layer.name: tags[layer.name] for layer in layers})
        self.read_weights(network, writer)
        read = {name for layer in layers for name in (*layer.inputs, *layer.outputs)}
        every = activation_origins(network, writer, plan.lowered, sides_of(plan))
        origins = {name: origin for name, origin in every.items() if name in read}
        self._outputs, self._rounded = (self.histograms(kind, origins) for kind in (logs.FP32, logs.ROUNDED))
        self._plan = plan if network.has_pairs else None

    def add(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Adds a sample's tensors by name."""
        self._outputs.add(tensors)
        self._rounded.add(tensors)

    def write(self, notes: Sequence[str]) -> None:
        """Writes one TensorBoard run, and another of rounded values if the file has Q/DQ pairs; raises BadInput if this
        fails.
        """
        self.board.clear()
        self.write_run(logs.run_name(0), self._outputs, notes=bullets(notes))
        if self._plan is not None:
            self.write_run(logs.run_name(1), self._rounded, self._plan)
