"""The checks of what goes wrong: crashes, hangs, empty memory, and memory that does not come back."""

from __future__ import annotations

from functools import partial
from time import perf_counter

import subjects
from bench import Bench
from faulty import crash, hang, make_faulty, run_out_of_memory

from trt_bisect.builder.base import Engine
from trt_bisect.builder.cuda_memory import Device, open_device
from trt_bisect.builder.isolation import IsolatedBuilder
from trt_bisect.errors import TrialFailed
from trt_bisect.precision import PrecisionPlan, prefix

MIB = 1 << 20
BUILDS = 200
_HANG_SECONDS = 15.0
_SMALLEST = 2 * MIB
_WITHIN = 64 * MIB
_FAULTS = {"crash": (crash, "build failed"), "hang": (hang, "timed out"), "memory": (run_out_of_memory, "build failed")}


def isolation(bench: Bench) -> None:
    """A build that crashes, hangs or raises MemoryError costs one trial; the one after it is measured."""
    subject = subjects.lenet(bench.folder)
    count = len(subject.network.layers)
    before, faulty, after = (prefix(count, k) for k in subject.network.quantizable[:3])
    make = subjects.maker_of(subject, bench.engine)
    for name, (fault, expected) in _FAULTS.items():
        limit = _HANG_SECONDS if name == "hang" else subjects.BUILD_SECONDS
        builder = IsolatedBuilder(partial(make_faulty, make, faulty.key(), fault), limit)
        began = perf_counter()
        outcomes = [_outcome(builder, plan, subject, bench.gpu) for plan in (before, faulty, after)]
        bench.figure(name, {"outcomes": outcomes, "seconds": perf_counter() - began})
        found = [outcome for outcome, _ in outcomes]
        bench.expect(f"{name}: one trial is lost, with its outcome", found == ["measured", expected, "measured"], found)


def full_gpu(bench: Bench) -> None:
    """A GPU whose memory another process has taken: what becomes of a trial, and the next one is measured."""
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
    found = [outcome for outcome, _ in outcomes]
    bench.expect("measured before and after", found[0] == found[2] == "measured", found)
    bench.figure("with no memory left", found[1])


def _take_all(device: Device) -> list:
    """Plain allocations, ever smaller ones, until little is left."""
    taken, size = [], device.cuda.mem_get_info()[0] // 2
    while size > _SMALLEST:
        try:
            taken.append(device.cuda.mem_alloc(size))
        except device.cuda.MemoryError:
            size //= 2
    return taken


def _outcome(builder: IsolatedBuilder, plan: PrecisionPlan, subject: subjects.Subject, infer: bool) -> tuple[str, str]:
    """Outcome and message; without a GPU a built engine counts as measured."""
    try:
        with builder.build(plan) as engine:
            if infer:
                engine.infer(subject.feeds[0])
    except TrialFailed as failure:
        return failure.outcome, failure.message
    return "measured", ""


def memory(bench: Bench) -> None:
    """GPU memory after 200 builds and inferences in one process, and after a worker has ended."""
    subject = subjects.lenet(bench.folder)
    plans = [prefix(len(subject.network.layers), k) for k in subject.network.quantizable]
    device = open_device()
    make = subjects.maker_of(subject, bench.engine, bench.folder / "timing.cache")
    before = _free(device)
    isolated = IsolatedBuilder(make, subjects.BUILD_SECONDS)
    _run(isolated.build(plans[0]), subject)
    bench.figure("MiB that a worker holds", (before - _free(device)) / MIB)
    del isolated
    bench.expect("a worker that has ended holds nothing", before - _free(device) < _WITHIN, before - _free(device))

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


def _run(engine: Engine, subject: subjects.Subject) -> None:
    with engine:
        engine.infer(subject.feeds[0])


def _free(device: Device) -> int:
    with device.current():
        return int(device.cuda.mem_get_info()[0])
