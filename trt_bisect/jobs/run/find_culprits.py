"""The main job on a bench: search, recipe, latencies, report."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

from trt_bisect._version import versions
from trt_bisect.analyzer.judge import sqnr_disagreement
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.speed import measure_latencies
from trt_bisect.evaluator.trial_key import WHOLE
from trt_bisect.jobs.experiment import Experiment
from trt_bisect.jobs.preparation import Preparation
from trt_bisect.jobs.recipe_of import recipe_of
from trt_bisect.jobs.run.build_report import assemble, blank_report
from trt_bisect.jobs.run.search import search
from trt_bisect.results.manifest import RunManifest
from trt_bisect.results.run_report import Report
from trt_bisect.results.search_result import Measured


def _broken_off(bench: Experiment) -> list[str]:
    """What is to be said of passes that could not be finished."""
    failures = bench.evaluator.failures if isinstance(bench.evaluator, BranchEvaluator) else []
    if not failures:
        return []
    return [f"{len(failures)} passes in pieces broke off, and whole engines took over: {failures[0].splitlines()[0]}"]


def verdict(job: Preparation, bench: Experiment, command: str = "") -> tuple[Report, Measured]:
    """The culprits, the recipe, and all that was measured on the way; and the trials behind it.

    Args:
        job: that ``bench`` belongs to.
        bench: where it is measured.
        command: that asked for it.
    """
    high = job.request.options.high
    asked = _asked(job, bench, command)
    if job.folder is not None:
        asked.save(job.folder)
    names = [layer.name for layer in bench.network.layers]
    measured = search(job.request.way, asked.question, bench.evaluator, bench.rule, names, job.progress)
    warning = sqnr_disagreement(bench.rule, measured.full)
    latencies = measure_latencies(
        bench.builder, bench.network, measured.recipe.plan, high, bench.feeds[0], job.progress
    )
    trials = bench.store.trials
    seconds = {
        "calibrate": job.calibrated,
        "build": sum(trial.build_seconds for trial in trials.values()),
        "infer": sum(trial.infer_seconds for trial in trials.values()),
        "total": perf_counter() - job.began,
    }
    measured = replace(measured, trials=trials, canonical=bench.whole.canonical)
    report = assemble(
        measured,
        asked.blank,
        bench.network,
        bench.ranges,
        bench.rule,
        files=recipe_of(job.request, bench, measured.recipe.plan),
        notes=[*([warning] if warning else []), *_broken_off(bench)],
        seconds=seconds,
        latencies=latencies,
    )
    return report, measured


def _asked(job: Preparation, bench: Experiment, command: str) -> RunManifest:
    """What is known before anything is measured."""
    way = job.request.way
    blank = blank_report(
        bench.network,
        bench.ranges,
        bench.rule,
        strategy=way.strategy,
        builder=bench.builder,
        high=job.request.options.high,
        versions={**versions(), **bench.builder.versions},
        inputs=bench.about,
        notes=job.notes,
        fingerprint=bench.key,
        made_of=bench.parts,
    )
    measured_in = bench.evaluator.measured_in if isinstance(bench.evaluator, BranchEvaluator) else WHOLE
    blank = replace(blank, command=command, started=job.started)
    return RunManifest(blank, bench.rule, way.every_boundary, measured_in, job.started)
