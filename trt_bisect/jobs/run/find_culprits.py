"""The measuring of a run: search, recipe, latencies, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from trt_bisect._version import versions
from trt_bisect.driver.suspects.curves import ADAPTIVE
from trt_bisect.driver.suspects.search import Findings
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.speed import measure_latencies
from trt_bisect.evaluator.trial import Trial
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
from trt_bisect.results.layer_rows import counts
from trt_bisect.results.manifest import RunManifest
from trt_bisect.results.network_graph import NETWORK, network_facts
from trt_bisect.results.run_report import Report
from trt_bisect.results.search_result import Measured
from trt_bisect.results.summary import base_misses
from trt_bisect.support.plain_json import write_json


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


def verdict(answering: AnswerSearch, announced: RunManifest) -> tuple[Report, Measured, Answer]:
    """Searches the culprits and the recipe; returns the report, the measurements behind it, and the answer.

    Args:
        answering: searches the answer, on all inputs.
        announced: the manifest that was written at the start.
    """
    preparation, experiment = answering.plans.preparation, answering.choose_ranges()
    asked = announce(preparation, experiment, announced.blank.command, announced)
    answering.plans.give_back()
    names = [layer.name for layer in experiment.network.layers]
    curve = search(asked.curve, asked.question, experiment.evaluator, experiment.rule, names, preparation.progress)
    broken_off, first, of_curve = _broken_off(experiment), answering.plans.experiment, experiment
    answer = answering.finish(curve.findings.suspects)
    experiment = answer.experiment
    gains = answering.alone.gains(answer, curve.findings.suspects)
    measured = measured_answer(answer, curve, {**first.store.trials, **of_curve.store.trials}, gains)
    trials = all_trials(first, of_curve, experiment)
    latencies = measure_latencies(
        experiment.builder,
        experiment.network,
        measured.recipe.plan,
        preparation.options.high_precision,
        experiment.feeds[0],
        preparation.progress,
    )
    memory = preparation.options.memory_bytes
    overflows = overflows_of(experiment.network, experiment.feeds, memory)
    base = (
        base_range_notes(experiment, memory) if base_misses(experiment.network, experiment.rule, curve.nothing) else []
    )
    report = assemble(
        measured,
        asked.blank,
        experiment.network,
        experiment.ranges,
        experiment.rule,
        files=recipe_of(preparation.options, answer, measured.recipe.plan),
        notes=[
            *preparation.notes,
            *range_notes(experiment.network, experiment.builder, overflows),
            *base,
            *broken_off,
            *_not_measured(asked.curve, curve.findings),
            *refused_by_default(answer),
        ],
        overflows=overflows,
        seconds=_seconds(preparation, trials),
        latencies=latencies,
        answer=answer_facts(answer),
        accept=preparation.options.accept,
    )
    plans, builds, inferences = counts(trials)
    return replace(report, plans=plans, builds=builds, inferences=inferences), measured, answer


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
