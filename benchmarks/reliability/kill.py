"""``kill -9`` at random moments of a run, and inside its writes; then the same command until it ends.

    python -m benchmarks.reliability kill --times 200 --seed 1 --json FILE

Half of the runs are killed at a moment drawn evenly from their measured duration: start, calibration, search for the
worst input, passes, report, explanation, page. The others are killed inside a write: a part of what goes into the
journal, or into another file of the folder, reaches it, up to a byte drawn evenly from all that an undisturbed run
writes there. Of the runs that go on, a third is killed once more. A run is the real command in a forked process (see
``forked``) and the leader of its own group, which is killed as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reliability.forked import Ended, import_everything, run, start
from benchmarks.reliability.subjects import Undisturbed, subjects, tell, twice, undisturbed, unfinished, whole_lines

AGAIN = 1 / 3
"""The share of resumed runs that are killed again."""

_MOMENT, _JOURNAL, _FILE = "at a random moment", "inside a journal write", "inside the write of another file"
_KINDS = (_MOMENT, _MOMENT, _JOURNAL, _FILE)


def measure(*, times: int = 200, seed: int = 1, small: bool = False, json: Path | None = None) -> int:
    """Kills so many runs; ``small``: of a small network, as the tests have it."""
    import_everything()
    random = Random(seed)
    counted: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kill-") as work:
        chosen, cut = list(subjects(Path(work), small=small).items())[:times], Path(work) / "cut"
        references = [undisturbed(*subject, Path(work) / f"whole-{k}") for k, subject in enumerate(chosen)]
        for number in range(times):
            reference, kind = references[number % len(chosen)], random.choice(_KINDS)
            counts: Counter[str] = Counter()
            while not counts["kills"]:
                counts, killed_in, faults = killed_and_resumed(reference, kind, random, cut)
            counted.update(counts)
            counted[f"killed {kind}"] += 1
            stages.update(killed_in)
            broken += [f"run {number}, {reference.name}, killed {kind}: {fault}" for fault in faults]
    figures = {"seed": seed, "runs": times, **dict(sorted(counted.items()))}
    return tell({**figures, "killed in": dict(stages.most_common())}, broken, json)


def killed_and_resumed(
    reference: Undisturbed, kind: str, random: Random, work_folder: Path
) -> tuple[Counter[str], Counter[str], list[str]]:
    """Kills a run in ``place``, then starts it until it ends by itself; returns counts, stages of the kills, faults."""
    shutil.rmtree(work_folder, ignore_errors=True)
    work_folder.mkdir(parents=True)
    folder, arguments = work_folder / "run", reference.into(work_folder / "run")
    counts: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    faults: list[str] = []
    seen: set[bytes] = set()
    kinds = [kind]
    while kinds:
        ended = _killed(arguments, work_folder, kinds.pop(), reference, random)
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
    ended = run(arguments, work_folder)
    lines = whole_lines(folder)
    counts["trials that were known when a run went on"] += len(seen)
    counts["trials done twice"] += twice(lines)
    counts["trials lost"] += len(seen - set(lines))
    if twice(lines) or seen - set(lines):
        faults.append(f"{twice(lines)} trials done twice, {len(seen - set(lines))} lost")
    other = reference.faults(ended, folder)
    counts["reports equal"] += not other
    faults += other
    if b"".join(lines) != (folder / "journal.jsonl").read_bytes():
        faults.append("the journal ends in the middle of a line")
    if hidden := unfinished(folder):
        faults.append(f"left behind: {', '.join(hidden)}")
    return counts, stages, faults


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


def _killed(arguments: list[str], work_folder: Path, kind: str, reference: Undisturbed, random: Random) -> Ended:
    if kind != _MOMENT:
        after = random.randrange(reference.journal_bytes if kind == _JOURNAL else reference.file_bytes)
        return run(arguments, work_folder, lambda: _tear(after, in_journal=kind == _JOURNAL))
    moment = random.uniform(0.0, reference.seconds)
    process = start(arguments, work_folder)
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
    """A file of which only the next bytes are written, as many as ``left`` has; then the process is killed."""

    def __init__(self, file: Any, left: list[int]) -> None:
        self._file = file
        self._left = left

    def write(self, content: Any) -> int:
        (left,) = self._left
        if left < len(content):
            self._file.write(content[:left])
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        self._left[0] -= len(content)
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


def _tear(after: int, *, in_journal: bool) -> None:
    """Makes this process kill itself after it has written ``after`` bytes into the journal, or into other files."""
    left, opened = [after], Path.open

    def torn(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = opened(path, mode, *arguments, **options)
        is_chosen = (path.suffix == ".jsonl") is in_journal and "progress.json" not in path.name
        return Torn(file, left) if {*mode} & {*"wa+"} and is_chosen else file

    Path.open = torn  # type: ignore[method-assign, assignment]
