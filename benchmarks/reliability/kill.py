"""``kill -9`` at random moments of a run, and inside its writes; then the same command until it ends.

    python -m benchmarks.reliability kill --times 200 --seed 1 --json FILE

Half of the runs are killed at a moment drawn evenly from their measured duration: start, calibration, search for the
worst input, passes, report, explanation, page. The others are killed inside a write: a part of what goes into the
journal, or into another file of the folder, reaches it, up to a byte drawn evenly from all that an undisturbed run
writes there. Of the runs that go on, a third is killed once more. A run is the real command in a forked process (see
``forked``) and the leader of its own group, which is killed as a whole.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reliability.forked import Ended, import_everything, run, start
from benchmarks.reliability.subjects import TrialSpec, differences, result, subjects, twice, unfinished, whole_lines

AGAIN = 1 / 3
"""The share of resumed runs that are killed again."""

_MOMENT, _JOURNAL, _FILE = "at a random moment", "inside a journal write", "inside the write of another file"
_KINDS = (_MOMENT, _MOMENT, _JOURNAL, _FILE)


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody killed.

    Attributes:
        bytes: written into the journal, and into other files.
    """

    subject: TrialSpec
    code: int
    result: dict[str, Any]
    seconds: float
    journal_bytes: int
    file_bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--times", type=int, default=200, help="runs that are killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="only a small network, as the tests have it")


def measure(asked: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    import_everything()
    random = Random(asked.seed)
    counted: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kill-") as work:
        chosen = subjects(Path(work), small=asked.small)
        whole = [
            undisturbed(subject, Path(work) / f"whole-{place}") for place, subject in enumerate(chosen[: asked.times])
        ]
        for number in range(asked.times):
            one, kind = whole[number % len(whole)], random.choice(_KINDS)
            cut = Path(work) / "cut"
            killed = killed_and_resumed(one, kind, random, cut)
            while not killed.counts["kills"]:
                shutil.rmtree(cut)
                killed = killed_and_resumed(one, kind, random, cut)
            counted.update(killed.counts)
            counted[f"killed {kind}"] += 1
            stages.update(killed.stages)
            broken += [f"run {number}, {one.subject.name}, killed {kind}: {fault}" for fault in killed.faults]
            shutil.rmtree(cut)
    figures = {"seed": asked.seed, "runs": asked.times, **dict(sorted(counted.items()))}
    return {**figures, "killed in": dict(stages.most_common())}, broken


def undisturbed(subject: TrialSpec, folder: Path, before: Callable[[], None] | None = None) -> Undisturbed:
    """The run that the others must be equal to; ``before`` is done in its process first."""
    folder.mkdir()
    ended = run(subject.into(folder / "run"), folder, before)
    files = [path for path in (folder / "run").rglob("*") if path.is_file()]
    journal = sum(path.stat().st_size for path in files if path.suffix == ".jsonl")
    others = sum(path.stat().st_size for path in files) - journal
    return Undisturbed(subject, ended.code, result(folder / "run"), ended.seconds, journal, others)


@dataclass(frozen=True)
class Killed:
    """The result of a run that was killed and resumed."""

    counts: Counter[str]
    stages: Counter[str]
    faults: list[str]


def killed_and_resumed(whole: Undisturbed, kind: str, random: Random, place: Path) -> Killed:
    """Kills a run in ``place``, then starts it until it ends by itself."""
    place.mkdir(parents=True)
    folder, arguments = place / "run", whole.subject.into(place / "run")
    counts: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    faults: list[str] = []
    seen: set[bytes] = set()
    kinds = [kind]
    while kinds:
        ended = _killed(arguments, place, kinds.pop(), whole, random)
        if ended.code != -signal.SIGKILL:
            break
        counts["kills"] += 1
        stages[_stage(ended)] += 1
        lines = whole_lines(folder)
        if not seen <= set(lines):
            faults.append("a trial in the journal was lost")
        seen |= set(lines)
        faults += unnamed(folder)
        kinds = [random.choice(_KINDS)] if random.random() < AGAIN else []
    ended = run(arguments, place)
    lines = whole_lines(folder)
    counts["trials that were known when a run went on"] += len(seen)
    counts["trials done twice"] += twice(lines)
    counts["trials lost"] += len(seen - set(lines))
    different = differences(result(folder), whole.result)
    counts["reports equal"] += not different
    if twice(lines) or seen - set(lines):
        faults.append(f"{twice(lines)} trials done twice, {len(seen - set(lines))} lost")
    if ended.code != whole.code or different:
        faults.append(f"exit code {ended.code}, other: {', '.join(different) or 'nothing'}; {ended.err.strip()[-300:]}")
    if b"".join(lines) != (folder / "journal.jsonl").read_bytes():
        faults.append("the journal ends in the middle of a line")
    if left := unfinished(folder):
        faults.append(f"left behind: {', '.join(left)}")
    return Killed(counts, stages, faults)


def unnamed(folder: Path) -> list[str]:
    """Returns a fault if a run folder has a recipe with its plan, and no report that names it."""
    try:
        layers = json.loads((folder / "recipe" / "plan.json").read_bytes())["layers"]
    except FileNotFoundError:
        return []
    named = []
    for name in ("run.json", "report.json"):
        if (folder / name).exists():
            record = json.loads((folder / name).read_bytes())
            named.append({row["name"]: row["recipe"] for row in record.get("layers", ())})
    is_named = any(layers.items() <= precisions.items() for precisions in named)
    return [] if is_named else ["no report names the recipe in the folder"]


def _killed(arguments: list[str], place: Path, kind: str, whole: Undisturbed, random: Random) -> Ended:
    if kind == _JOURNAL:
        after = random.randrange(whole.journal_bytes)
        return run(arguments, place, lambda: _end_in_journal(after))
    if kind == _FILE:
        after = random.randrange(whole.file_bytes)
        return run(arguments, place, lambda: _end_in_files(after))
    moment = random.uniform(0.0, whole.seconds)
    process = start(arguments, place)
    deadline = process.began + moment
    while time.monotonic() < deadline:
        if (ended := process.poll()) is not None:
            return ended
        time.sleep(min(0.002, max(0.0, deadline - time.monotonic())))
    process.kill()
    return process.ended()


def _stage(ended: Ended) -> str:
    """Returns the last stage that the run named."""
    titles = [line for line in ended.err.splitlines() if line and not line.startswith(("Engine:", "Going on"))]
    return titles[-1].split(" of ")[0] if titles else "start"


class Torn:
    """A file of which only the next so many bytes are written; then the process is killed."""

    def __init__(self, file: Any, left: Callable[[int], int]) -> None:
        self._file = file
        self._left = left

    def write(self, content: Any) -> int:
        size = len(content)
        allowed = self._left(size)
        if allowed < size:
            self._file.write(memoryview(content)[:allowed])
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        written: int = self._file.write(content)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Torn:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


def _end_in_journal(after: int) -> None:
    _tear(after, lambda path: path.suffix == ".jsonl")


def _end_in_files(after: int) -> None:
    _tear(after, lambda path: path.suffix != ".jsonl" and "progress.json" not in path.name)


def _tear(after: int, concerns: Callable[[Path], bool]) -> None:
    """Makes this process kill itself after it has written ``after`` bytes into the chosen files."""
    budget = [after]

    def left(size: int) -> int:
        allowed = min(size, budget[0])
        budget[0] -= allowed
        return allowed

    opened = Path.open

    def torn(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = opened(path, mode, *arguments, **options)
        return Torn(file, left) if {*mode} & {*"wa+"} and concerns(path) else file

    Path.open = torn  # type: ignore[method-assign, assignment]
