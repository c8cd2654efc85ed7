from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from trt_bisect.analyzer.blame import advise
from trt_bisect.analyzer.compared import (
    Compared,
    ComparedWeights,
    compare_tensors,
    compare_weight_pairs,
    compare_weights,
)
from trt_bisect.analyzer.histograms import ChannelMap, channel_map
from trt_bisect.analyzer.metrics import default_threshold
from trt_bisect.analyzer.origins import WEIGHTED, Origin, Tensors, activation_origins, both_observer, plan_observer
from trt_bisect.analyzer.tensors import TensorStatistics
from trt_bisect.builder.base import EMULATED, BuildOptions
from trt_bisect.builder.debug_tensors import ENGINE, FIRST_WITH_UNFUSED, EngineTensor, engine_tensors
from trt_bisect.builder.engines import AUTO, ONNXRUNTIME, engine_status, open_builder
from trt_bisect.builder.tensorrt_build import TENSORRT, version_of
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high, no_ranges
from trt_bisect.commands.losses import with_most_sensitive
from trt_bisect.data.datasets import Dataset, open_dataset
from trt_bisect.data.feeds import Feeds, TensorSpec
from trt_bisect.data.saved import open_dumps
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed, first_line
from trt_bisect.model.layers import Layer, weight_axis
from trt_bisect.model.network import GivenModel, Network
from trt_bisect.model.observe import groups_within
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import LowPrecision, Quantizer, Scales
from trt_bisect.options.commands import CompareOptions, ProfileOptions
from trt_bisect.options.declare import takes
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.preparation.asked_network import as_emulated, asked_network, fixed_notes, logged_layers, read_network
from trt_bisect.preparation.given_data import ranges_of
from trt_bisect.preparation.judgement import SavedOutputs
from trt_bisect.preparation.two_networks import (
    AsItRuns,
    Planned,
    TwoNetworks,
    as_it_runs,
    feeds_between,
    matched_layers,
    refuse_with_other,
    same_tensors,
    weights_as_they_are,
)
from trt_bisect.report.comparison import Comparison, Profile, ProfiledTensor, sort_column
from trt_bisect.report.tensorboard_board import Board, open_board
from trt_bisect.report.tensorboard_logs import ComparisonLogs, ProfileLogs
from trt_bisect.support.files import output_folder
from trt_bisect.support.progress import Progress, default_progress
from trt_bisect.support.text import counted, percent

SAVED, AS_IT_RUNS = "saved", "as it runs"
# origins of a scale without a calibrator: a file, or the largest value of a weight or of its channel
IN_FILE, OWN_LEVELS, LARGEST_VALUE = "the network's own Q/DQ", "the integer network", "largest value"
IN_PLAN = "the plan"
INPUT, OUTPUT, WEIGHT, BIAS, CONSTANT = "input", "output", "weight", "bias", "constant"
_NUMBERS = "fiub"


@takes(CompareOptions)
def compare(
    model: GivenModel | Any | None = None,
    options: CompareOptions = CompareOptions(),  # noqa: B008
) -> Comparison:
    """Compares every tensor and weight of a network in FP32 and in low precision, and names suspicious layers.

    ONNX Runtime emulates the network with all layers in low precision. A tensor is compared before its own rounding;
    the effect of this rounding is reported separately.

    With ``reference``, the columns ``fp32`` of the result are of that network, which runs unchanged, or of saved
    outputs. With ``other``, the columns ``fp32`` are of the first network and ``int8`` of the other one, both
    unchanged. Integer networks, an ONNX Runtime session and a function from feeds to outputs are compared as they run,
    by tensors of equal names.

    Args:
        model: an FP32 ONNX file or a loaded network; for two saved runs None, or the network whose layers they ran.
        options: fields of ``CompareOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used.
    """
    sort_column(options.sort)
    if model is not None and options.other is None:
        options = with_most_sensitive(model, options)
    folder = options.folder
    board = open_board(options.tensorboard, options.tensorboard_detail)
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        comparing = _Comparing(options, shown, board)
        comparison, planned = comparing.compared(model)
    if folder is not None:
        comparison.save(folder)
    if comparing.logs is not None:
        plan = (planned.writer, planned.plan) if planned else (None, None)
        comparing.logs.write(comparison, *plan)
    return comparison


@dataclass(frozen=True)
class _Low(Planned):
    data: Dataset | None
    notes: tuple[str, ...]
    ranges: Ranges
    unquantized_round: bool

    def shaped(self, network: Network) -> Planned:
        return Planned(_writer(network, self.ranges.scales, unquantized_round=self.unquantized_round), self.plan)


def _writer(network: Network, scales: Scales, *, unquantized_round: bool = False) -> PlanWriter:
    return PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=unquantized_round)


def _in_low(network: Network, options: CompareOptions, progress: Progress) -> _Low:
    if network.low.needs_ranges:
        ranges, data = ranges_of(network, options.calibration, options, progress)
    else:
        ranges, data = no_ranges(network.low.title), _data(options, options.calibration, network.inputs)
    network, kept_high = keeping_unusable_high(network, ranges)
    writer = _writer(network, ranges.scales, unquantized_round=options.unquantized_round)
    plan = network.full(network.base or Precision.FP32)
    notes = (*fixed_notes(network), *network.notes, *kept_high)
    return _Low(writer, plan, data, notes, ranges, options.unquantized_round)


def _data(
    options: CompareOptions | ProfileOptions, data: Any, inputs: tuple[TensorSpec, ...], default: Dataset | None = None
) -> Dataset | None:
    return default if data is None else open_dataset(data, inputs, pictures=options.preprocessing())


@dataclass
class _Comparing:
    options: CompareOptions
    progress: Progress
    board: Board | None
    logs: ComparisonLogs | None = None

    def compared(self, model: GivenModel | Any | None) -> tuple[Comparison, _Low | None]:
        options = self.options
        as_is = [None if options.other is None else as_it_runs(network, options) for network in (model, options.other)]
        network = None if model is None or as_is[0] else asked_network(options, model, options.shapes)
        if network is not None and options.recipe is None:
            network = as_emulated(network, options.engine)
        self.board = logged_layers(self.board, network)
        saved = options.fp32 is not None or options.int8 is not None
        if network is None and not saved and not as_is[0]:
            raise BadInput("There is no network.", "Give MODEL, or two saved runs with --fp32 and --int8.")
        if options.other is not None:
            return (self._as_they_run(network, *as_is) if any(as_is) else self._two_networks(network)), None
        knows_scales = not saved or options.calibration is not None or (network is not None and network.has_pairs)
        planned = _in_low(network, options, self.progress) if network is not None and knows_scales else None
        if saved:
            return self._saved_runs(network, planned), planned
        assert planned is not None
        if options.reference is not None:
            return self._against_reference(planned), planned
        return self._emulated(planned), planned

    def _tensors(
        self, runs: _Runs, origins: Mapping[str, Origin], network: Network | None, length: int | None, parts: int = 1
    ) -> tuple[tuple[Compared, ...], int]:
        # ``runs`` has ``parts`` items for each sample; also returns the number of samples
        self.progress.stage("Comparing", length)
        seen = 0

        def count() -> None:
            nonlocal seen
            seen += 1
            if seen % parts == 0:
                self.progress.step(f"sample {seen // parts}")

        if self.board is not None:
            self.logs = ComparisonLogs(self.board, origins, network)
            runs = self.logs.watched(runs)
        return compare_tensors(runs, origins, count), seen // parts

    def _weight_pairs(self, weights: Iterable[tuple[Origin, np.ndarray, np.ndarray]]) -> ComparedWeights:
        if self.logs is not None:
            weights = self.logs.watched_weights(weights)
        return compare_weight_pairs(weights)

    def _result(self, tensors: tuple[Compared, ...], low: LowPrecision, observer: str, **facts: Any) -> Comparison:
        weights, channels = facts.pop("weights")
        of_weights = observer if observer in (IN_FILE, OWN_LEVELS) else LARGEST_VALUE
        usual, threshold = default_threshold("cosine", low.precision), self.options.threshold
        assert usual is not None
        limit = usual if threshold is None else float(threshold)
        sides = ("the first network", "the second one") if facts.get("other") else None
        given = facts.pop("given", ())
        observers = [IN_PLAN if compared.origin.tensor in given else observer for compared in tensors]
        return Comparison(
            tensors=tuple(compared.row_by(chosen) for compared, chosen in zip(tensors, observers, strict=True)),
            weights=tuple(compared.row_by(of_weights) for compared in weights),
            channels=channels,
            advice=advise(tensors, weights, limit, low.title, sides),
            threshold=limit,
            low=str(low.precision),
            sort=self.options.sort,
            **facts,
        )

    def _emulated(self, planned: _Low) -> Comparison:
        network = planned.network
        samples = self._samples(planned)
        first, every = _opened(samples)
        origins = planned.origins()
        groups = groups_within(network, origins, first, self.options.memory_bytes, runs=2)
        on_both = both_observer(planned.writer, planned.plan, origins, groups)
        tensors, count = self._tensors(_runs(on_both, every), origins, network, samples.length, len(groups))
        on_engine, of_engine = _on_engine(planned, samples, self.options)
        return self._result(
            tensors,
            network.low,
            planned.ranges.origin,
            given=network.scales,
            weights=compare_weights(network, planned.weights()),
            model=network.source,
            arithmetic=EMULATED,
            source=samples.source,
            samples=count,
            notes=(*planned.notes, *of_engine),
            engine_tensors=on_engine,
        )

    def _samples(self, low: _Low) -> Dataset:
        samples = _data(self.options, self.options.inputs, low.network.inputs, low.data)
        if samples is None:
            raise BadInput("No data was given to run.", "Give --input with one or more samples.")
        return samples

    def _for_two(self, network: object, specs: tuple[TensorSpec, ...]) -> Dataset:
        options = self.options
        refuse_with_other(options)
        if network is None:
            problem = "Two networks run as their files say, and --other cannot be used."
            raise BadInput(problem, "Leave this option out, or compare one network.")
        data = options.calibration if options.inputs is None else options.inputs
        if data is None or not specs:
            problem = "No data was given to run." if data is None else "The inputs of neither network are known."
            raise BadInput(problem, "Give --input with samples, and a network or a session among the two.")
        return open_dataset(data, specs, pictures=options.preprocessing())

    def _two_networks(self, network: Network | None) -> Comparison:
        samples = self._for_two(network, network.inputs if network else ())
        assert network is not None
        assert self.options.other is not None
        other = asked_network(self.options, self.options.other, None)
        first, every = _opened(samples)
        two = TwoNetworks(network, other, first, self.options.memory_bytes)
        return self._matched(two, network, other, samples, every, IN_FILE)

    def _against_reference(self, low: _Low) -> Comparison:
        options, network = self.options, low.network
        samples = self._samples(low)
        saved = options.saved_outputs
        runs = as_it_runs(options.reference, options) if saved is None else None
        if saved is not None:
            runs = AsItRuns(str(saved), network.inputs, SavedOutputs(network, samples, saved).infer)
        if runs is not None:
            return self._by_names(runs, low.as_it_runs(), low, samples, low.ranges.origin, low.notes)
        assert options.reference is not None
        reference = read_network(options, options.reference, None)
        theirs = feeds_between(network, reference)
        first, every = _opened(samples)
        two = TwoNetworks(reference, network, theirs(first), options.memory_bytes, planned=low.shaped)
        return self._matched(two, reference, network, samples, map(theirs, every), low.ranges.origin, low.notes)

    def _matched(
        self,
        two: TwoNetworks,
        first: Network,
        second: Network,
        samples: Dataset,
        every: Iterable[Feeds],
        observer: str,
        notes: tuple[str, ...] = (),
    ) -> Comparison:
        tensors, count = self._tensors(_runs(two.on, every), two.origins, first, samples.length, two.groups)
        return self._result(
            tensors,
            second.low,
            observer,
            weights=self._weight_pairs(two.weights()),
            model=first.source,
            arithmetic=EMULATED,
            source=samples.source,
            samples=count,
            notes=(
                *notes,
                *two.matching.notes(first.source, second.source),
                *(f"'{side.source}': {side.part}" for side in (first, second) if side.part),
            ),
            other=second.source,
            matched=matched_layers(two.matching),
        )

    def _as_they_run(self, network: Network | None, first: AsItRuns | None, second: AsItRuns | None) -> Comparison:
        model = self.options.other
        other = asked_network(self.options, model, None) if second is None and model is not None else None
        mine, theirs = (Planned.as_in_file(plain) if plain else None for plain in (network, other))
        first_run, second_run = first or (mine and mine.as_it_runs()), second or (theirs and theirs.as_it_runs())
        assert first_run
        assert second_run
        samples = self._for_two(network or first, first_run.inputs or second_run.inputs)
        observer = IN_FILE if theirs else OWN_LEVELS
        return self._by_names(first_run, second_run, theirs or mine, samples, observer, of_second=bool(theirs))

    def _by_names(
        self,
        first: AsItRuns,
        second: AsItRuns,
        layers: Planned | None,
        samples: Dataset,
        observer: str,
        notes: tuple[str, ...] = (),
        *,
        of_second: bool = True,
    ) -> Comparison:
        # ``layers``: the network whose layers are known, the second one if ``of_second``
        sample, every = _opened(samples)
        mine, theirs = first.tensors(sample), second.tensors(sample)
        pairs = same_tensors(first, second, mine, theirs)
        if not pairs:
            raise BadInput(
                f"No tensor of '{first.source}' has the name and the shape of a tensor of '{second.source}'.",
                "Compare their outputs: give both the same output names.",
            )
        of_layers = layers.origins() if layers else {}
        origins = {}
        for name, other in pairs.items():
            if of_second:
                origin = of_layers.get(other, Origin(tensor=name))
            else:
                origin = replace(of_layers.get(name, Origin(tensor=name)), quantizers=(), readers=())
            origins[name] = replace(origin, tensor=name)

        def on(feeds: Feeds, _position: int) -> _Runs:
            ours, others = first.tensors(feeds), second.tensors(feeds)
            yield {name: ours[name] for name in pairs}, {name: others[other] for name, other in pairs.items()}

        network = layers.network if layers else None
        tensors, count = self._tensors(_runs(on, every), origins, network, samples.length)
        if layers and of_second:
            weights = compare_weights(layers.network, layers.weights())
        else:
            both = weights_as_they_are(layers.weights(), layers.network.constant, second) if layers else ()
            weights = self._weight_pairs(both)
        alone = f"{len(mine) - len(pairs)} in the first one only, {len(theirs) - len({*pairs.values()})} in the other"
        return self._result(
            tensors,
            layers.network.low if isinstance(layers, _Low) else self.options.low_precision,
            observer,
            weights=weights,
            model=first.source,
            arithmetic=AS_IT_RUNS,
            source=samples.source,
            samples=count,
            notes=(*notes, f"{len(pairs)} tensors are in both networks, {alone}"),
            other=second.source,
        )

    def _saved_runs(self, network: Network | None, planned: _Low | None) -> Comparison:
        fp32, int8 = self.options.fp32, self.options.int8
        if fp32 is None or int8 is None:
            raise BadInput("One saved run alone cannot be compared.", "Give both --fp32 and --int8.")
        known: Mapping[str, Origin] = {}
        outputs: tuple[TensorSpec, ...] = ()
        low, observer = self.options.low_precision, ""
        facts: dict[str, Any] = {"model": "", "weights": ((), ()), "notes": ()}
        if network is not None:
            low, outputs, facts["model"] = network.low, network.outputs, network.source
            known = activation_origins(network, PlanWriter(network, {}, GraphTarget.ONNXRUNTIME), ())
        if planned is not None:
            network, observer, known = planned.network, planned.ranges.origin, planned.origins()
            facts |= {"given": network.scales, "weights": compare_weights(network, planned.weights())}
            facts["notes"] = planned.notes
        names, pairs, unmatched = open_dumps(fp32, int8, outputs)
        origins = {name: known.get(name, Origin(tensor=name)) for name in names}
        tensors, count = self._tensors(pairs, origins, network, None)
        facts["notes"] += tuple(unmatched)
        return self._result(
            tensors, low, observer, arithmetic=SAVED, source=f"{fp32} and {int8}", samples=count, **facts
        )


_Runs = Iterable[tuple[Tensors, Tensors]]


def _opened(samples: Dataset) -> tuple[Feeds, Iterable[Feeds]]:
    every = iter(samples)
    first = next(every)
    return first, chain([first], every)


def _runs(on: Callable[[Feeds, int], _Runs], samples: Iterable[Feeds]) -> _Runs:
    return chain.from_iterable(on(feeds, position) for position, feeds in enumerate(samples))


def _on_engine(
    planned: _Low, samples: Dataset, options: CompareOptions
) -> tuple[tuple[EngineTensor, ...], tuple[str, ...]]:
    # FP32's and the plan's engine; if they show no tensors, a note says why
    if options.engine == ONNXRUNTIME:
        return (), ()
    status, network = engine_status(TENSORRT), planned.network
    shows = status.usable and version_of(status.version) >= FIRST_WITH_UNFUSED and not network.low.wide
    if options.engine not in (AUTO, TENSORRT) or not shows:
        return (), (f"{final_outputs_only(options.engine)}; 'trt-bisect run' measures the engine",)
    build = BuildOptions(debug_tensors=True, plugins=options.libraries(onnxruntime=False), device=options.device)
    build = replace(build, sizes=samples.profile.sizes)
    shapes = {} if network.is_static else samples.profile.shapes
    writer = PlanWriter(network, planned.ranges.scales, GraphTarget.ONNXRUNTIME)
    try:
        builder = open_builder(TENSORRT, "strong", network, planned.ranges.scales, build, shapes)
        tensors: tuple[EngineTensor, ...] = ()
        for plan in (network.free_plan(), planned.plan):
            with builder.build(plan) as engine:
                tensors += engine_tensors(writer, plan, engine.infer, samples)
    except (EngineUnavailable, TrialFailed) as error:
        return (), (f"TensorRT's engine does not show its tensors: {first_line(error)}",)
    wrong = [row for row in tensors if row.cause == ENGINE]
    return tensors, (
        f"TensorRT {status.version} shows {counted(len(tensors), 'tensor')} of its engines; the others are fused",
        *(
            f"the {row.precision} engine computes {' + '.join(row.layers) or row.layer} otherwise than the emulation: "
            f"'{row.tensor}' is off by {percent(row.own)} on the engine's own inputs"
            for row in wrong
        ),
        *(() if wrong else ("no kernel of the engines is to blame",)),
    )


def final_outputs_only(engine: str) -> str:
    """Returns a note for reports: this engine gives final outputs only, so the tensors are those of the emulation."""
    return (
        f"engine '{engine}': TensorRT fuses layers and gives final outputs only, so the tensors are those of the "
        "emulation on ONNX Runtime"
    )


@takes(ProfileOptions)
def profile(model: GivenModel, options: ProfileOptions) -> Profile:
    """Lists the inputs, outputs, weights and biases of each layer: dtype, INT8 scale, shape, and moments.

    A float network runs in FP32, a file with Q/DQ pairs runs with them. A tensor that INT8 rounds also has the moments
    after its Q/DQ pair, and the share of values beyond the pair's range. The scales come from the file, else from the
    calibration data. Without samples only constants have figures.

    Args:
        model: an ONNX file, or a loaded network.
        options: fields of ``ProfileOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used, or no layer is left.
    """
    folder = options.folder
    board = open_board(options.tensorboard, options.tensorboard_detail)
    network = asked_network(options, model, options.shapes).as_in_file()
    layers = _chosen(network, options.prefix, options.op_types)
    board = logged_layers(board, network)
    with output_folder(folder), closing(options.progress or default_progress()) as shown:
        gives_scales = options.calibration is not None or network.has_pairs
        ranges, data = (
            ranges_of(network, options.calibration, options, shown) if gives_scales else (Ranges(network.scales), None)
        )
        samples = _data(options, options.inputs, network.inputs, data)
        writer = PlanWriter(network, ranges.scales, GraphTarget.ONNXRUNTIME)
        plan = network.full(Precision.FP32) if network.has_pairs else network.free_plan()
        logs = None if board is None else ProfileLogs(board, network, writer, layers, plan)
        profiling = _Profiling(network, writer, ranges.scales, plan)
        if samples:
            profiling.watch(samples, layers, options.memory_bytes, shown, logs)
    notes = [*fixed_notes(network)]
    notes += ["the values are those that the file computes, with its Q/DQ pairs"] if plan.lowered and samples else []
    notes += [] if samples else ["without --input or --calibration only what is constant has figures"]
    rows = tuple(row for layer in layers for row in profiling.rows(layer))
    result = Profile(network.source, samples.source if samples else "", profiling.samples, rows, tuple(notes))
    if folder is not None:
        result.save(folder)
    if logs is not None:
        logs.write(notes)
    return result


_Pair = tuple[str, tuple[object, ...]]  # a tensor, and the keys of the quantizers that round it


@dataclass
class _Profiling:
    network: Network
    writer: PlanWriter
    scales: Mapping[str, np.float32]
    plan: PrecisionPlan
    samples: int = 0
    figures: dict[_Pair, dict[str, Any]] = field(default_factory=dict)
    # shape and dtype by tensor, of the first sample that had it
    seen: dict[str, tuple[tuple[int, ...], str]] = field(default_factory=dict)

    def uses(self, layer: Layer) -> Iterator[_TensorUse]:
        node = self.network.skeleton.graph.node[layer.index]
        kept_high = layer.fixed is not None and not layer.fixed.needs_scale
        quantizers = {
            (rounding.slot, rounding.at_output): self.writer.quantizers(layer, rounding)
            for rounding in (() if kept_high or not layer.quantizable else layer.roundings)
            if rounding.fixed or rounding.is_weight or rounding.tensor in self.scales
        }
        for at_output, names in ((False, node.input), (True, node.output)):
            for slot, name in enumerate(names):
                if name:
                    yield _TensorUse(slot, name, at_output, quantizers.get((slot, at_output), ()))

    def watch(
        self, samples: Dataset, layers: Sequence[Layer], memory: int, progress: Progress, logs: ProfileLogs | None
    ) -> None:
        progress.stage("Profiling", samples.length)
        uses = (use for layer in layers for use in self.uses(layer))
        varying = {use.pair: use for use in uses if not self.network.has_constant(use.tensor)}.values()
        names = list(dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs)))
        known = Planned(self.writer, self.plan).origins()
        origins = {name: known.get(name, Origin(tensor=name)) for name in names}
        statistics: dict[_Pair, TensorStatistics] = {}
        first, every = _opened(samples)
        groups = groups_within(self.network, names, first, memory)
        observe = plan_observer(self.writer, self.plan, origins, groups)
        for position, feeds in enumerate(every):
            for tensors in observe(feeds, position):
                for name, tensor in tensors.items():
                    self.seen.setdefault(name, (tensor.shape, str(tensor.dtype)))
                for use in varying:
                    values = tensors.get(use.tensor)
                    if values is not None and values.dtype.kind in _NUMBERS:
                        statistics.setdefault(use.pair, TensorStatistics(use.quantizers)).add(values)
                if logs is not None:
                    logs.add(tensors)
                del tensors
            self.samples += 1
            progress.step(f"sample {self.samples}")
        self.figures = {pair: statistic.figures() for pair, statistic in statistics.items()}

    def rows(self, layer: Layer) -> Iterator[ProfiledTensor]:
        for use in self.uses(layer):
            name, types = use.tensor, self.network.types
            shape, dtype = self.seen.get(name, (types.shapes.get(name, ()), str(types.dtypes.get(name, ""))))
            facts: dict[str, Any] = {"role": OUTPUT if use.at_output else INPUT, "spread": None}
            facts |= {"quantized_dtype": "", "scale": None, "zero_point": None}
            if use.quantizers:
                first = use.quantizers[0]
                facts |= {"quantized_dtype": str(first.zero_point.dtype), "scale": float(np.max(first.scale))}
                if not first.in_fp8 and np.unique(first.zero_point).size == 1:
                    facts["zero_point"] = int(first.zero_point.reshape(-1)[0])
            if self.network.has_constant(name):
                values = self.network.constant(name)
                facts["map"] = self._channel_map(layer, use, values)
                if not use.at_output:
                    facts["role"] = _constant_role(layer, use.slot)
                if values.dtype.kind in _NUMBERS:
                    statistics = TensorStatistics(use.quantizers)
                    statistics.add(values)
                    facts |= statistics.figures()
            facts |= self.figures.get(use.pair, {})
            yield ProfiledTensor(
                index=layer.index,
                layer=layer.name,
                op_type=layer.op_type,
                slot=use.slot,
                tensor=name,
                dtype=dtype,
                shape=shape,
                module=layer.module,
                code=layer.code,
                **facts,
            )

    def _channel_map(self, layer: Layer, use: _TensorUse, values: np.ndarray) -> ChannelMap | None:
        if values.dtype.kind != "f" or use.at_output:
            return None
        weights = (rounding for rounding in layer.roundings if rounding.is_weight and rounding.slot == use.slot)
        axis = next((rounding.axis for rounding in weights), None)
        if axis is None:
            axis = weight_axis(self.network.skeleton.graph.node[layer.index], use.slot, self.network.types)
        return channel_map(values, axis)


@dataclass(frozen=True)
class _TensorUse:
    slot: int
    tensor: str
    at_output: bool
    quantizers: tuple[Quantizer, ...]

    @property
    def pair(self) -> _Pair:
        return self.tensor, tuple(quantizer.key() for quantizer in self.quantizers)


def _chosen(network: Network, prefixes: Sequence[str], op_types: Sequence[str]) -> list[Layer]:
    present = {layer.op_type for layer in network.layers}
    for op_type in op_types:
        if op_type not in present:
            problem = f"'{network.source}' has no layer of operator '{op_type}'."
            raise BadInput(problem, f"It has {', '.join(sorted(present))}.")
    for prefix in prefixes:
        if not any(layer.name.startswith(prefix) for layer in network.layers):
            problem = f"'{network.source}' has no layer whose name begins with '{prefix}'."
            raise BadInput(problem, f"'trt-bisect layers {network.source}' lists them.")
    operators, beginnings = {*op_types} or present, tuple(prefixes) or ("",)
    layers = [layer for layer in network.layers if layer.op_type in operators and layer.name.startswith(beginnings)]
    if not layers:
        begins = " or ".join(f"'{prefix}'" for prefix in prefixes)
        raise BadInput(
            f"'{network.source}' has no such layer: name beginning with {begins}, operator {' or '.join(op_types)}.",
            f"'trt-bisect layers {network.source}' lists them.",
        )
    return layers


def _constant_role(layer: Layer, slot: int) -> str:
    if any(rounding.is_weight and rounding.slot == slot and not rounding.at_output for rounding in layer.roundings):
        return WEIGHT
    if layer.op_type in WEIGHTED and slot in (1, 2):
        return WEIGHT if slot == 1 else BIAS
    return BIAS if layer.op_type == "Add" else CONSTANT
