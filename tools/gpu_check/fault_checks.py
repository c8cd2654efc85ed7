"""The checks of faults: crashes, hangs, lack of memory, and memory that does not come back."""

from __future__ import annotations

from functools import partial
from time import perf_counter, sleep
from typing import Any

import subjects
from bench import Experiment

from tests.support.fake_builders import hang, make_faulty, say_and_run_out_of_memory, segfault
from trt_bisect.builder.base import Engine
from trt_bisect.builder.isolation import IsolatedBuilder
from trt_bisect.builder.tensorrt_engine import Device, open_device
from trt_bisect.errors import TrialFailed
from trt_bisect.precision import PrecisionPlan, prefix

MIB = 1 << 20
BUILDS = 60
HANG_SECONDS = 30.0
_SMALLEST = 2 * MIB
_WITHIN = 64 * MIB


def isolation(bench: Experiment) -> None:
    """Builds that crash, hang or raise MemoryError cost one trial each; the ones before and after are measured."""
    subject = subjects.lenet(bench.folder)
    plans = [prefix(len(subject.network.layers), k) for k in subject.network.quantizable]
    faults = {plans[1].key(): segfault, plans[2].key(): say_and_run_out_of_memory, plans[4].key(): hang}
    make = partial(make_faulty, subjects.maker_of(subject, bench.engine), faults)
    builder = IsolatedBuilder(make, HANG_SECONDS)
    trials: list[dict[str, Any]] = []
    for plan in plans:
        began = perf_counter()
        outcome, message = _outcome(builder, plan, subject, bench.gpu)
        seconds = perf_counter() - began
        trials.append({"plan": plan.key(), "outcome": outcome, "message": message, "seconds": seconds})
        bench.figure("trials", trials)
    outcomes = [trial["outcome"] for trial in trials]
    expected = ["measured", "build failed", "out of memory", "measured", "timed out", "measured"]
    bench.expect("each fault costs its own trial and no other", outcomes == expected, outcomes)
    bench.expect("the crash is named", "SIGSEGV" in trials[1]["message"], trials[1]["message"])


def full_gpu(bench: Experiment) -> None:
    """Another process takes the GPU's memory: the trial fails with an outcome, and the next one is measured."""
    subject = subjects.residual(bench.folder)
    plans = [prefix(len(subject.network.layers), k) for k in subject.network.quantizable[:3]]
    builder = IsolatedBuilder(subjects.maker_of(subject, bench.engine), subjects.BUILD_SECONDS)
    outcomes = [_outcome(builder, plans[0], subject, True)]
    device = open_device()
    with device.current():
        taken = _take_all(device)
        outcomes.append(_outcome(builder, plans[1], subject, True))
        for memory in taken:
            memory.free()
        outcomes.append(_outcome(builder, plans[2], subject, True))
    bench.figure("outcomes", outcomes)
    kinds = [outcome for outcome, _ in outcomes]
    bench.expect("measured before and after", kinds[0] == kinds[2] == "measured", kinds)
    bench.figure("with no memory left", kinds[1])


def _take_all(device: Device) -> list:
    """Allocates ever smaller blocks until little memory is left."""
    taken, size = [], device.cuda.mem_get_info()[0] // 2
    while size > _SMALLEST:
        try:
            taken.append(device.cuda.mem_alloc(size))
        except device.cuda.MemoryError:
            size //= 2
    return taken


def _outcome(
    builder: IsolatedBuilder, plan: PrecisionPlan, subject: subjects.TrialSpec, infer: bool
) -> tuple[str, str]:
    """Outcome and message; without a GPU a built engine counts as measured."""
    try:
        with builder.build(plan) as engine:
            if infer:
                engine.infer(subject.feeds[0])
    except TrialFailed as failure:
        return failure.outcome, failure.message
    return "measured", ""


def memory(bench: Experiment) -> None:
    """GPU memory after 60 builds and inferences in one process, and after a worker has ended."""
    subject = subjects.lenet(bench.folder)
    plans = [prefix(len(subject.network.layers), k) for k in subject.network.quantizable]
    device = open_device()
    make = subjects.maker_of(subject, bench.engine, bench.folder / "timing.cache")
    before = _free(device)
    isolated = IsolatedBuilder(make, subjects.BUILD_SECONDS)
    _run(isolated.build(plans[0]), subject)
    bench.figure("MiB that a worker holds", (before - _free(device)) / MIB)
    del isolated
    held = _still_held(device, before)
    bench.expect("a worker that has ended holds nothing", held < _WITHIN, held)

    builder = make()
    for plan in plans:
        _run(builder.build(plan), subject)
    first, began = _free(device), perf_counter()
    free = [first]
    for turn in range(BUILDS):
        _run(builder.build(plans[turn % len(plans)]), subject)
        free.append(_free(device))
        if turn % 20 == 19:
            bench.figure("builds", turn + 1)
            bench.figure("seconds a build", (perf_counter() - began) / (turn + 1))
            bench.figure("MiB lost since the start", (first - free[-1]) / MIB)
    bench.expect(
        f"memory is back after {BUILDS} builds", first - free[-1] < _WITHIN, f"{(first - free[-1]) / MIB:.1f} MiB"
    )


def _still_held(device: Device, before: int) -> int:
    """Returns the bytes still in use, after a few seconds for the driver to free those of a process that has ended."""
    ends = perf_counter() + 5
    while before - _free(device) >= _WITHIN and perf_counter() < ends:
        sleep(0.1)
    return before - _free(device)


def _run(engine: Engine, subject: subjects.TrialSpec) -> None:
    with engine:
        engine.infer(subject.feeds[0])


def _free(device: Device) -> int:
    with device.current():
        return int(device.cuda.mem_get_info()[0])
