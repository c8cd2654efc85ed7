"""Spoiled inputs through the real commands: no traceback, no hang, no memory beyond the limit.

    python -m benchmarks.reliability fuzz --count 20000 --seed 1 --json FILE
    python -m benchmarks.reliability fuzz --seed 1 --first 4711 --count 1 --keep /tmp/found    # one of them again

Every case is a process of its own, forked from this one, in which ``trt_bisect.cli.main`` runs with the case's
arguments; the readers of ``view`` are asked through its application instead. Allowed are the exit codes 0 to 3, with a
message of one or two lines where it is 2 or 3. Anything else is a finding, and its files are kept.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.reliability.forked import Ended, Process, import_everything, start, start_function, watch
from benchmarks.reliability.fuzz_cases import VIEW, Case, make_case
from benchmarks.reliability.seeds import Seeds, make_seeds
from benchmarks.reliability.subjects import tell

SECONDS, MIB = 30.0, 2048
_ALLOWED = (0, 1, 2, 3)
_OWN_FAULT = "an error of trt-bisect itself"


def measure(
    *,
    count: int = 20_000,
    seed: int = 1,
    first: int = 0,
    only: str = "",
    workers: int = os.cpu_count() or 1,
    keep: Path = Path("fuzz-findings"),
    json: Path | None = None,
) -> int:
    """Tries so many cases from number ``first`` on, or those of one kind; ``keep`` is a folder for findings."""
    import_everything()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
        seeds = make_seeds(Path(work) / "seeds")
        numbers = range(first, first + count)
        tried = list(tried_all(seeds, seed, numbers, Path(work), workers, keep, only))
    faults = {number: (case, fault) for number, case, _, fault in tried if fault}
    codes = collections.Counter(f"{case.kind}: exit {ended.code}" for _, case, ended, _ in tried)
    figures = {
        "seed": seed,
        "inputs": len(tried),
        "findings": len(faults),
        "slowest_seconds": round(max(ended.seconds for _, _, ended, _ in tried), 1),
        "most_mib": max(ended.peak_mib for _, _, ended, _ in tried),
        "by_kind": dict(sorted(codes.items())),
        "faults": {str(number): fault for number, (_, fault) in faults.items()},
    }
    broken = [f"case {k} ({' '.join(case.arguments[:2])}): {fault}" for k, (case, fault) in faults.items()]
    return tell(figures, broken, json)


def tried_all(
    seeds: Seeds, seed: int, numbers: range, work: Path, workers: int, keep: Path, only: str
) -> Iterator[tuple[int, Case, Ended, str]]:
    """Tries cases, ``workers`` at a time; yields number, case, result, and what is not allowed of it."""
    waiting = iter(numbers)
    going: dict[Process, tuple[int, Case, Path]] = {}
    while True:
        while len(going) < workers and (number := next(waiting, None)) is not None:
            case_folder = work / f"case-{number}"
            case_folder.mkdir()
            case = make_case(seeds, seed, number, case_folder, only)
            going[_begin(case, case_folder)] = (number, case, case_folder)
        if not going:
            return
        for process, ended in watch(list(going), SECONDS, MIB):
            number, case, case_folder = going.pop(process)
            fault = fault_of(ended)
            if fault:
                shutil.copytree(case_folder, keep / str(number), symlinks=True, dirs_exist_ok=True)
                print(f"{number} {case.kind}: {fault}\n    {' '.join(case.arguments)}", flush=True)
            shutil.rmtree(case_folder)
            yield number, case, ended, fault


def _begin(case: Case, folder: Path) -> Process:
    if case.arguments[0] == VIEW:
        return start_function(lambda: _look(Path(case.arguments[1])), folder)
    return start(case.arguments, folder, lambda: os.chdir(folder))


def _look(runs: Path) -> None:
    """Every page of the list and of each run, as ``view`` serves them."""
    from starlette.testclient import TestClient

    from trt_bisect.view.server import make_app

    pages = ["/", "/rows", *(f"/run/{name}/{what}" for name in ("one", "two") for what in ("", "data.json"))]
    for folder, paths in ((runs, pages), (runs / "one", ["/", "/data.json"])):
        client = TestClient(make_app(folder), raise_server_exceptions=False)
        for path in paths:
            answer = client.get(path)
            if answer.status_code not in (200, 404):
                print(f"{folder.name}{path} {answer.status_code}: {answer.text}")


def fault_of(ended: Ended) -> str:
    """Returns the first thing in the result of a case that is not allowed; empty if there is none."""
    printed = ended.out + ended.err
    if ended.why == "time":
        return f"it took more than {SECONDS:g} s"
    if ended.why == "memory" or ended.peak_mib > MIB:
        return f"it took {ended.peak_mib} MiB"
    if _OWN_FAULT in printed:
        return printed[printed.index(_OWN_FAULT) :].splitlines()[0]
    if "Traceback (most recent call last)" in printed or "a pickle was loaded" in printed:
        return "a traceback: " + printed.strip().splitlines()[-1]
    if ended.code not in _ALLOWED:
        return f"exit code {ended.code}: {(ended.err.strip().splitlines() or [''])[-1]}"
    if ended.code in (2, 3):
        message = re.search(r"^trt-bisect: .*", ended.err, re.MULTILINE | re.DOTALL)
        if message is None and "Usage:" not in ended.err and ended.code == 2:
            return "exit code 2 without a message"
        lines = message.group().strip().splitlines() if message else []
        if len(lines) > 2 or any(len(line) > 2000 for line in lines):
            return f"a message of {len(lines)} lines, {sum(map(len, lines))} letters"
    return ""
