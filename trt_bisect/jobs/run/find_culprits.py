"""The measuring of a run: search, recipe, latencies, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from trt_bisect._version import versions
from trt_bisect.driver.suspects.curves import ADAPTIVE
from trt_bisect.driver.suspects.search import Findings
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.speed import measure_latencies
from trt_bisect.evaluator.trial import UNTRIED, Trial
from trt_bisect.evaluator.trial_key import WHOLE
from trt_bisect.jobs.answer.answer import AnswerSearch
from trt_bisect.jobs.answer.facts import answer_facts, measured_answer, refused_by_default
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.experiment import Experiment, all_trials
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recipe_of import recipe_of
from trt_bisect.jobs.run.build_report import assemble, blank_report
from trt_bisect.jobs.run.range_faults import base_range_notes, overflows_of, range_notes
from trt_bisect.jobs.run.search import search
from trt_bisect.report.layer_rows import counts
from trt_bisect.report.manifest import RunManifest
from trt_bisect.report.model import Report
from trt_bisect.report.network_graph import NETWORK, network_facts
from trt_bisect.report.search_result import Curve, Measured
from trt_bisect.report.summary import INTERRUPTED, TIME_LIMIT, UNEXPLAINED, base_misses
from trt_bisect.support.plain_json import write_json
from trt_bisect.support.progress import TimeUp, lifted


def _broken_off(experiment: Experiment) -> list[str]:
    """Notes on passes that could not be finished."""
    failures = experiment.evaluator.failures if isinstance(experiment.evaluator, BranchEvaluator) else []
    if not failures:
        return []
    return [f"{len(failures)} passes in pieces broke off, and whole engines took over: {failures[0].splitlines()[0]}"]


def _not_measured(curve: str, findings: Findings) -> list[str]:
    """A note on the boundaries that an adaptive curve leaves out."""
    measured, layers = len(findings.steps), sum(len(step.layers) for step in findings.steps)
    if curve != ADAPTIVE or measured == layers:
        return []
    return [
        f"the curve is adaptive: {measured} of {layers} boundaries were measured, all of them where the loss changes; "
        "the others have no figure (--curve full measures them)"
    ]


@dataclass
class _Searched:
    """The results of a search, also of one that was stopped.

    Attributes:
        asked: the manifest of the run.
        of_curve: the experiment that the curve is measured on.
        curve: the curve; an empty one if it was not measured.
        answer: the answer; None if full INT8 was not measured.
        gains: by layer index, see ``Recipe``.
        stopped: see ``Report``.
    """

    asked: RunManifest
    of_curve: Experiment
    curve: Curve
    answer: Answer | None = None
    gains: Mapping[int, float] = field(default_factory=dict)
    stopped: str = ""


def verdict(answering: AnswerSearch, announced: RunManifest) -> tuple[Report, Measured, Answer]:
    """Searches the culprits and the recipe; returns the report, the measurements behind it, and the answer.

    A search that was stopped gives a report on what is known, with ``stopped``.

    Args:
        answering: searches the answer, on all inputs.
        announced: the manifest that was written at the start.

    Raises:
        TimeUp, KeyboardInterrupt: the search was stopped before full INT8 was measured.
    """
    found = _Searched(announced, answering.experiment, Curve(Findings(None, (), (), ()), nothing=UNTRIED))
    try:
        _search(answering, found)
    except (TimeUp, KeyboardInterrupt) as stop:
        found.stopped = TIME_LIMIT if isinstance(stop, TimeUp) else INTERRUPTED
        with lifted(answering.plans.preparation.progress):
            answer = found.answer or answering.so_far(measures=found.stopped == TIME_LIMIT)
        if answer is None:
            raise
        rest = [] if found.curve.findings.steps else ["the curve was not measured"]
        found.answer = replace(answer, not_done=(*answer.not_done, *rest, UNEXPLAINED))
    with lifted(answering.plans.preparation.progress):
        return _reported(answering, found)


def _reported(answering: AnswerSearch, found: _Searched) -> tuple[Report, Measured, Answer]:
    """Returns what ``verdict`` returns, with the latencies that are measured."""
    assert found.answer is not None
    preparation, first, curve, answer = (
        answering.plans.preparation,
        answering.plans.experiment,
        found.curve,
        found.answer,
    )
    experiment, interrupted = answer.experiment, found.stopped == INTERRUPTED
    measured = measured_answer(answer, curve, {**first.store.trials, **found.of_curve.store.trials}, found.gains)
    trials = all_trials(first, found.of_curve, experiment)
    latencies = (
        None
        if interrupted
        else measure_latencies(
            experiment.builder,
            experiment.network,
            measured.recipe.plan,
            preparation.options.high_precision,
            experiment.feeds[0],
            preparation.progress,
        )
    )
    memory = preparation.options.memory_bytes
    overflows = () if interrupted else overflows_of(experiment.network, experiment.feeds, memory)
    base = (
        base_range_notes(experiment, memory) if base_misses(experiment.network, experiment.rule, curve.nothing) else []
    )
    report = assemble(
        measured,
        found.asked.blank,
        experiment.network,
        experiment.ranges,
        experiment.rule,
        files=recipe_of(preparation.options, answer, measured.recipe.plan),
        notes=[
            *preparation.notes,
            *range_notes(experiment.network, experiment.builder, overflows),
            *base,
            *_broken_off(found.of_curve),
            *_not_measured(found.asked.curve, curve.findings),
            *refused_by_default(answer),
        ],
        overflows=overflows,
        seconds=_seconds(preparation, trials),
        latencies=latencies,
        answer=answer_facts(answer),
        accept=preparation.options.accept,
        stopped=found.stopped,
    )
    plans, builds, inferences = counts(trials)
    return replace(report, plans=plans, builds=builds, inferences=inferences), measured, answer


def _search(answering: AnswerSearch, found: _Searched) -> None:
    """Searches; fills ``found`` as it goes, so that what is known is there if it is stopped."""
    preparation = answering.plans.preparation
    experiment = found.of_curve = answering.choose_ranges()
    found.asked = announce(preparation, experiment, found.asked.blank.command, found.asked)
    answering.plans.give_back()
    names = [layer.name for layer in experiment.network.layers]
    asked = found.asked
    found.curve = search(
        asked.curve, asked.question, experiment.evaluator, experiment.rule, names, preparation.progress
    )
    suspects = found.curve.findings.suspects
    found.answer = answering.finish(suspects)
    found.gains = answering.alone.gains(found.answer, suspects)


def _seconds(preparation: Preparation, trials: Sequence[Trial]) -> dict[str, float]:
    return {
        "calibrate": preparation.data.calibrated,
        "build": sum(trial.build_seconds for trial in trials),
        "infer": sum(trial.infer_seconds for trial in trials),
        "total": perf_counter() - preparation.began,
    }


def announce(
    preparation: Preparation, experiment: Experiment, command: str, before: RunManifest | None = None
) -> RunManifest:
    """Writes the graph and the manifest, which ``view`` shows before the report exists; returns the manifest.

    It is called before anything is measured, and again when ranges are chosen.

    Args:
        preparation: the preparation of the run.
        experiment: the experiment with the ranges.
        command: the command that asked for the run.
        before: the manifest that was written before; nothing is written if it still holds.
    """
    manifest = _asked(preparation, experiment, command)
    if preparation.folder is not None and manifest != before:
        write_json(preparation.folder / NETWORK, network_facts(experiment.network, experiment.ranges.scales))
        manifest.save(preparation.folder)
    return manifest


def _asked(preparation: Preparation, experiment: Experiment, command: str) -> RunManifest:
    """The manifest of the run, from facts known before anything is measured."""
    blank = blank_report(
        experiment.network,
        experiment.ranges,
        experiment.rule,
        strategy=experiment.strategy,
        builder=experiment.builder,
        high=preparation.options.high_precision,
        versions={**versions(), **experiment.builder.versions},
        inputs=experiment.about,
        notes=preparation.notes,
        fingerprint=experiment.key,
        made_of=experiment.parts,
    )
    measured_in = experiment.evaluator.measured_in if isinstance(experiment.evaluator, BranchEvaluator) else WHOLE
    blank = replace(blank, command=command, started=preparation.started)
    return RunManifest(
        blank,
        experiment.rule,
        preparation.options.curve_of(experiment.strategy, len(experiment.network.movable)),
        measured_in,
        preparation.started,
        preparation.options.accept,
        preparation.digest,
    )
