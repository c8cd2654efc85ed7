"""The stages before plans are measured: calibrate, choose inputs, run the reference, judge, open the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from trt_bisect.analyzer.classes import Classes, classes_of
from trt_bisect.analyzer.compare_output import judging_notes
from trt_bisect.analyzer.fp32_itself import randomness, started_at
from trt_bisect.analyzer.judge import Comparer, Rule, nonfinite_in_reference
from trt_bisect.analyzer.slices import Slices
from trt_bisect.analyzer.structure.findings import KINDS
from trt_bisect.analyzer.tasks.find import refuse_shapes
from trt_bisect.analyzer.tasks.task import Task
from trt_bisect.analyzer.worst import WorstInputs, worst_inputs
from trt_bisect.builder.base import EMULATED, Builder, BuildOptions, Engine, Outputs
from trt_bisect.builder.engines import ONNXRUNTIME, choose_engine, open_builder
from trt_bisect.calibration.ranges import (
    Ranges,
    keeping_unusable_high,
    non_finite_weight,
    refuse_without_low,
    unusable_scales,
)
from trt_bisect.cluster.ray_cluster import open_cluster
from trt_bisect.data.datasets import Dataset
from trt_bisect.data.feeds import Feeds, size_remedy
from trt_bisect.data.statistics import Sketch
from trt_bisect.errors import BadInput, NothingMeasured, TrialFailed
from trt_bisect.evaluator.evaluators import Compare
from trt_bisect.evaluator.trial import MEASURED, Trial, TrialStore
from trt_bisect.model.network import Network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.reading import compare_with_file
from trt_bisect.options.concerns import AUTO, EMULATION, HEADS
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.asked_network import refuse_emulated_only
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.report.parts import JudgedInputs
from trt_bisect.runs.cached_inputs import fingerprint, load_inputs, save_inputs
from trt_bisect.runs.journal import Journal
from trt_bisect.support.memory import give_back_memory
from trt_bisect.support.text import FILE, FITTING_TASK, OUTPUTS, RANGES, TASK, Note, listed, noted

_TELLING = 8  # the number of samples whose outputs decide how a detector's head is read
STAYS_HERE = (
    "The emulation runs on this machine: the cluster gets only its few plans of whole engines. It gets all plans of "
    "--strategy exhaustive and bisect."
)


@contextmanager
def prepared(setup: Setup, *, emulated: bool = False) -> Iterator[Experiment]:
    """Prepares an experiment; in the ``with`` block the journal and the cluster are open.

    ``emulated`` measures in the emulation, whatever engine is asked for.

    Raises:
        BadInput: an argument cannot be used.
        NothingMeasured: FP32 does not run, or has no finite output.
    """
    with open_cluster(setup.options.cluster, setup.progress.say) as setup.cluster, ExitStack() as open_files:
        engine, strategy = chosen_engine(setup)
        ranges, data = setup.data.ranges(setup.options.calibration)
        say_engine(setup, engine)
        if emulated and engine != ONNXRUNTIME:
            engine, strategy = ONNXRUNTIME, EMULATION
        network = usable(setup, setup.read, ranges)
        feeds, about = _judged_inputs(setup, network, engine, ranges, data)
        network = network.with_shapes(facts_for(network, feeds[0]).shapes)
        builder = setup.builder_for(network, engine, ranges, feeds)
        references, random = _references(setup, network, builder, feeds)
        rule, classes, slices, task = _judged(setup, network, feeds, references, engine)
        parts = setup.fingerprint_parts(network, builder, ranges, feeds)
        store = _store(setup, open_files, parts)
        integers = setup.judgement.integers
        compare = Comparer(references, rule.metric, classes, slices, task, integers, inputs=feeds)
        plan, options = network.free_plan(network.quantizable), setup.build_options()
        setup.notes[1:1] = noted(FILE, file_figure_noted(network, plan, feeds, compare, rule, options))
        about = replace(
            about, random=random, warnings=(*about.warnings, *_unlike_reference(setup, builder, feeds, compare, rule))
        )
        whole = setup.whole(network, builder, ranges, feeds, compare, store)
        given = [source for source in (setup.options.inputs, setup.options.dataset) if source is not None]
        more = [setup.data.without_held_out(setup.data.open(source)) for source in given]
        if data is not None and setup.options.dataset is None:
            more.append(data)
        experiment = Experiment(
            network=network,
            ranges=ranges,
            feeds=feeds,
            references=references,
            about=about,
            builder=builder,
            rule=rule,
            store=store,
            evaluator=whole,
            data=data,
            more=tuple(more),
            compare=compare,
            parts=parts,
            strategy=strategy,
            curve=setup.options.curve_of(strategy, len(network.movable)),
            classes=classes,
            slices=slices,
            task=task,
            integers=integers,
        )
        yield setup.with_curve(experiment)


def chosen_engine(setup: Setup) -> tuple[str, str]:
    """Returns the engine and the strategy (``emulation``, ``bisect`` or ``exhaustive``) that the options ask for.

    Raises BadInput if the options do not fit the network.
    """
    network, options = setup.read, setup.options
    refuse_unfit_outputs(setup)
    refuse_without_low(network)
    engine = choose_engine(options.engine)
    refuse_emulated_only(network, engine)
    if options.unquantized_round and engine != ONNXRUNTIME:
        problem = f"'--unquantized int8' is an emulation; on the engine '{engine}' TensorRT decides."
        raise BadInput(problem, "Leave it out, or add --engine onnxruntime.")
    strategy = options.asked_strategy
    if options.cluster and strategy == EMULATION:
        setup.progress.say(STAYS_HERE)
    return engine, strategy


def refuse_unfit_outputs(setup: Setup) -> None:
    """Raises BadInput if the network lacks an output that the user names, or the task can read no output's shape."""
    if setup.read.pipeline is not None:
        return
    specs = {spec.name: spec for spec in setup.read.outputs}
    for name in setup.options.outputs:
        if name not in specs:
            remedy = "Its outputs are " + ", ".join(f"'{n}'" for n in specs) + "."
            raise BadInput(f"'{setup.read.source}' has no output '{name}'.", remedy)
    if setup.options.task is not None:
        refuse_shapes(setup.options.task, [specs[name] for name in setup.options.outputs or specs])


def say_engine(setup: Setup, engine: str) -> None:
    """Shows the user which engine ``auto`` chose."""
    if setup.options.engine == AUTO:
        setup.progress.say(f"Engine: {engine} (chosen by 'auto'; 'trt-bisect engines' says why)")


def usable(setup: Setup, network: Network, ranges: Ranges) -> Network:
    """Returns the network with layers without usable ranges in high precision, and adds a note on them."""
    network, kept_high = keeping_unusable_high(network, ranges)
    setup.notes += noted(RANGES, kept_high)
    return network


def _judged_inputs(
    setup: Setup, network: Network, engine: str, ranges: Ranges, data: Dataset | None
) -> tuple[list[Feeds], JudgedInputs]:
    inputs = setup.options.inputs
    given = setup.options.dataset if inputs is None else inputs
    source = data if given is None else setup.data.without_held_out(setup.data.open(given))
    if source is None:
        raise BadInput(
            "No data was given to run the network on.",
            f"Give --input with an input on which {network.low.title} looks bad, or --dataset to find it.",
        )
    seen = Sketch()
    source = source if given is None else seen.watching(source)
    feeds = None if inputs is None else list(source)
    if feeds is not None and (setup.options.samples is None or len(feeds) <= setup.options.samples):
        about = JudgedInputs(source.source, len(feeds))
    else:
        feeds, about = _worst_of(setup, network, engine, ranges, source)
    return feeds, setup.data.judged(about, feeds, ranges, seen, of_calibration=given is None)


def _worst_of(
    setup: Setup, network: Network, engine: str, ranges: Ranges, source: Dataset
) -> tuple[list[Feeds], JudgedInputs]:
    setup.progress.stage("Searching for the worst inputs", source.length)
    count = setup.options.samples or 1
    builder, key = setup.builder_for(network, engine, ranges, source), ""
    setup.judgement.told = _telling(setup, builder, source) if setup.options.task in HEADS else []
    if setup.folder is not None:
        chosen = {
            "data": source.digest(),
            "count": count,
            "metric name": setup.judgement.asked_metric.name,
            "plan": network.full(setup.options.high_precision).key(),
        }
        key = fingerprint({**setup.fingerprint_parts(network, builder, ranges, ()), **chosen})
        kept = load_inputs(setup.folder, key)
        if kept is not None:
            return kept[0], msgspec.convert(kept[1], JudgedInputs)
    worst = find_worst(setup, network, builder, source, count)
    about = JudgedInputs(
        source=source.source,
        judged=len(worst.inputs),
        searched=len(worst.similarities),
        places=tuple(source.place(position) for position in worst.places),
        similarities=tuple(None if np.isnan(value) else float(value) for value in worst.similarities),
        median=None if np.isnan(worst.median) else float(worst.median),
        faint=tuple(source.place(position) for position in worst.faint),
    )
    if setup.folder is not None:
        save_inputs(setup.folder, key, worst.inputs, msgspec.to_builtins(about))
    return list(worst.inputs), about


def _telling(setup: Setup, builder: Builder, source: Dataset) -> list[Outputs]:
    # One sample may not tell how a detector's outputs are read.
    try:
        with setup.reference_engine(builder) as engine:
            return [{name: copy(value) for name, value in engine.infer(fed).items()} for fed in source.first(_TELLING)]
    except TrialFailed:
        return []


def find_worst(
    setup: Setup, network: Network, builder: Builder, samples: Dataset, count: int, keep: bool = False
) -> WorstInputs:
    """Returns the ``count`` inputs of a data set that lose most in full INT8, the worst first.

    If ``keep``, Ctrl-C returns the inputs found so far; if not, inputs on which FP32 finds something for the task rank
    before others. Raises BadInput if FP32 or full INT8 cannot be built or run.
    """
    plan = network.full(setup.options.high_precision)
    try:
        with setup.reference_engine(builder) as fp32, builder.build(plan) as int8:
            return worst_between(setup, fp32, int8, samples, count, keep)
    except TrialFailed as failure:
        raise BadInput(
            f"The search for the worst input failed, because FP32 or full {network.low.title} does not run: "
            f"{failure.message}",
            _remedy(builder, network, "Give --input with the input to judge on."),
        ) from failure
    finally:
        give_back_memory()


def worst_between(setup: Setup, fp32: Engine, low: Engine, samples: Dataset, count: int, keep: bool) -> WorstInputs:
    """Returns the ``count`` inputs of a data set on which two engines differ most, the worst first.

    ``keep`` is that of ``find_worst``. Raises TrialFailed if an engine fails.
    """
    judgement = setup.judgement
    return worst_inputs(
        samples,
        fp32,
        low,
        lambda reference: judgement.rule(judgement.outputs(reference), [reference]),
        count,
        lambda number: setup.progress.step(f"sample {number}"),
        keep_when_stopped=keep,
        class_axis=setup.options.class_axis,
        slices=lambda reference: judgement.slices(judgement.outputs(reference), [reference]),
        task=judgement.task,
        integers=judgement.integers,
        found_first=not keep,
    )


def _references(setup: Setup, network: Network, builder: Builder, feeds: Sequence[Feeds]) -> tuple[list[Outputs], str]:
    references = []
    setup.progress.stage("FP32 reference", len(feeds))
    give_back_memory()
    try:
        with setup.reference_engine(builder) as engine:
            for input_index, sample in enumerate(feeds):
                setup.progress.step(f"input {input_index}")
                references.append({name: copy(value) for name, value in engine.infer(sample).items()})
            again = engine.infer(feeds[0]) if setup.judged_by is None else references[0]
            random = randomness(network, references[0], again)
    except TrialFailed as failure:
        if references:
            problem = f"FP32 does not run on input {len(references)}: {failure.message}"
            raise BadInput(problem, _remedy(builder, network, "Check its shapes and values.")) from failure
        raise NothingMeasured(
            f"The FP32 network cannot be run: {failure.message}",
            _remedy(builder, network, f"Run '{network.source}' with the engine alone."),
        ) from failure
    setup.notes += noted(OUTPUTS, nonfinite_in_reference(references).values())
    if random:
        setup.progress.say(f"RANDOM: {random}")
    return references, random


def _remedy(builder: Builder, network: Network, otherwise: str) -> str:
    if builder.arithmetic != EMULATED:
        return otherwise
    return size_remedy([spec.shape for spec in network.inputs], otherwise)


def _judged(
    setup: Setup, network: Network, feeds: Sequence[Feeds], references: Sequence[Outputs], engine: str
) -> tuple[Rule, dict[str, Classes], Slices, Task | None]:
    judgement, options = setup.judgement, setup.options
    outputs = _finite_outputs(setup, network, feeds, references)
    prepared_outputs = references[0] if engine == ONNXRUNTIME and setup.judged_by is None else None
    if network.pipeline is None:
        setup.notes += noted(FILE, compare_with_file(network, feeds[0], outputs, prepared_outputs))
    slices = judgement.slices(outputs, references)
    with_groups = [slices.with_groups(reference) for reference in references]
    names = slices.names(outputs)
    rule = judgement.rule(names, with_groups)
    equality = set(judgement.integers.of(references[0]))
    by_metric = [name for name in names if name not in equality]
    classes, on_classes = classes_of(with_groups, by_metric, rule.metric.name, options.class_axis)
    on_judging = judging_notes(with_groups, by_metric, rule.metric)
    task, on_task = judgement.checked_task(references)
    rule = rule if task is None else replace(rule, reads=task.reads)
    setup.notes += [
        *noted(OUTPUTS, [*slices.notes(), *on_classes, *on_judging]),
        *noted(TASK if task else FITTING_TASK, on_task),
    ]
    return rule, classes, slices, task


def _finite_outputs(
    setup: Setup, network: Network, feeds: Sequence[Feeds], references: Sequence[Outputs]
) -> tuple[str, ...]:
    judged = tuple(
        name
        for name in setup.judgement.outputs(references[0])
        if any(not outputs[name].size or np.isfinite(outputs[name]).any() for outputs in references)
    )
    if not judged:
        why, remedy = non_finite_weight(network), "Give --input with data on which FP32 itself works."
        where, _ = started_at(network, feeds[0], (), setup.options.memory_bytes)
        problem = f"The FP32 reference of '{setup.read.source}' has only NaN or infinite values{where}."
        for kind, layers in unusable_scales(network).items():
            why, remedy = f"{kind.capitalize()}, in the file's Q/DQ pairs at {listed(layers, 4)}", KINDS[kind].remedy
        if why:
            problem = f"{why}: {problem}"
        raise NothingMeasured(problem, remedy)
    integers = setup.judgement.integers.of(references[0])
    left_out = [repr(name) for name in integers if name not in judged]
    if left_out and not setup.options.outputs:
        text = "your metric does not judge outputs of integers unless --outputs names them"
        setup.notes.append(Note(OUTPUTS, f"{text}: {', '.join(left_out)}"))
    return judged


def _store(setup: Setup, open_files: ExitStack, parts: dict[str, Any]) -> TrialStore:
    key = fingerprint(parts)
    if setup.folder is None:
        return setup.in_memory.under(key, parts)
    store = open_files.enter_context(Journal(setup.folder, key, parts))
    if store.resumed:
        setup.progress.say(f"Continuing with {store.resumed} trials already measured in {setup.folder}")
    return store


def file_figure_noted(
    network: Network,
    plan: PrecisionPlan,
    feeds: Sequence[Feeds],
    compare: Compare,
    rule: Rule,
    options: BuildOptions,
) -> list[str]:
    """Returns a sentence with the figure of the user's Q/DQ file, with pairs only at the plan's layers in low
    precision.

    Returns no sentence if no pair is asymmetric, or ONNX Runtime cannot run the file.
    """
    if not network.asymmetric:
        return []
    plan = network.free_plan(plan.lowered)
    try:
        with open_builder(ONNXRUNTIME, "strong", network.as_in_file(), {}, options).build(plan) as engine:
            figures = compare([engine.infer(sample) for sample in feeds])
    except TrialFailed:
        return []
    trial = Trial(plan.key(), MEASURED).judged(figures)
    value = rule.similarity(trial)
    figure = "no figure (not finite)" if value is None else rule.text(value)
    high = ", without those of the recipe's high layers," if len(plan.lowered) < len(network.quantizable) else ""
    missed = " and misses the threshold" if high and not rule.meets(trial) else ""
    return [f"the file with its asymmetric pairs{high} measures {figure} ({rule.metric.name}) in ONNX Runtime{missed}"]


def _unlike_reference(
    setup: Setup, builder: Builder, feeds: Sequence[Feeds], compare: Compare, rule: Rule
) -> list[str]:
    if setup.judged_by is None or not setup.read.has_pairs:
        return []
    try:
        with builder.reference() as engine:
            trial = Trial("", MEASURED).judged(compare([engine.infer(sample) for sample in feeds]))
    except TrialFailed:
        return []
    value = rule.similarity(trial)
    if rule.meets(trial) or value is None or unusable_scales(setup.read):
        return []
    return [
        f"even without its Q/DQ pairs, in FP32, '{setup.read.source}' measures {rule.text(value)} against the "
        "reference: its layers or stored weights are others, and no precision restores that. Give the network that it "
        "was quantized from as the reference. If that is given, quantize it again: a scale for each channel of a "
        "weight, and no integers for the weights of normalizations, lose less."
    ]
