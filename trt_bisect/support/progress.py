"""Progress displays: Rich in a terminal, tqdm in a notebook, or none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

from trt_bisect.support.text import duration


class Progress(Protocol):
    """The interface of a progress display: one stage after another, each with a number of steps."""

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps; None if unknown."""
        ...

    def step(self, what: str, size: int = 1) -> None:
        """Begins a step named ``what`` that counts as ``size`` steps; the step before it is done."""
        ...

    def left(self, seconds: float | None) -> None:
        """Tells about how long the whole job will still take; None if that is not known."""
        ...

    def say(self, text: str) -> None:
        """Shows a permanent line."""
        ...

    def close(self) -> None:
        """Ends the display."""
        ...


class Silent:
    """A display that shows nothing."""

    def stage(self, title: str, total: int | None) -> None:
        """Does nothing."""

    def step(self, what: str, size: int = 1) -> None:
        """Does nothing."""

    def left(self, seconds: float | None) -> None:
        """Does nothing."""

    def say(self, text: str) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class TimeLeft:
    """The time that a job will still take, as it was told last, less what has passed since."""

    def __init__(self) -> None:
        self._ends: float | None = None

    def tell(self, seconds: float | None) -> None:
        """Takes the time left from now on; None if it is not known."""
        self._ends = None if seconds is None else perf_counter() + seconds

    @property
    def seconds(self) -> float | None:
        """The seconds left, 1 at least: the job still goes on; None if they are not known."""
        return None if self._ends is None else max(self._ends - perf_counter(), 1.0)

    @property
    def text(self) -> str:
        """``about 3 min left in all``; empty if it is not known."""
        return "" if self.seconds is None else f"about {duration(self.seconds)} left in all"


def grown(total: int | None, done: int) -> int | None:
    """Returns the total of a stage that has reached ``done`` steps: a total that was too small grows by a quarter."""
    return total if total is None or done <= total else done + max(done // 4, 1)


class TimeUp(BaseException):
    """The time limit of a run is over. Like Ctrl-C, it goes through everything that handles errors."""


class TimeLimited:
    """Another display, which raises TimeUp at every step or stage after a time, except where it is ``lifted``.

    Args:
        seconds: the time from now on.
    """

    def __init__(self, shown: Progress, seconds: float) -> None:
        self._shown = shown
        self._ends = perf_counter() + seconds
        self.is_lifted = False

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage."""
        self._check()
        self._shown.stage(title, total)

    def step(self, what: str, size: int = 1) -> None:
        """Begins a step."""
        self._check()
        self._shown.step(what, size)

    def left(self, seconds: float | None) -> None:
        """Tells the time left, which ends with the limit."""
        self._shown.left(None if seconds is None else min(seconds, max(self._ends - perf_counter(), 0.0)))

    def say(self, text: str) -> None:
        """Shows a permanent line."""
        self._shown.say(text)

    def close(self) -> None:
        """Ends the display."""
        self._shown.close()

    def _check(self) -> None:
        if perf_counter() > self._ends and not self.is_lifted:
            raise TimeUp


@contextmanager
def lifted(shown: Progress) -> Iterator[None]:
    """Within it, no time limit ends what a display shows: the last steps of a run, which belong to its verdict."""
    if isinstance(shown, TimeLimited):
        shown.is_lifted = True
    yield
    if isinstance(shown, TimeLimited):
        shown.is_lifted = False


class RichProgress:
    """A bar with the step, the count and the times left, on stderr; plain lines if stderr is no terminal.

    A plain line tells the time left of the whole job: that of each stage, and at most one a minute between stages.

    Args:
        verbose: each stage and each step is a line of its own, with the seconds since the start.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
        from rich.text import Text

        class LeftColumn(ProgressColumn):
            """The time left of the whole job; where it is not known, that of the stage; else nothing."""

            def render(self, task: Task) -> Text:
                stage = "" if task.time_remaining is None else f"{duration(task.time_remaining)} left"
                return Text(task.fields["left"].text or stage)

        self._console = Console(stderr=True, highlight=False)
        self._verbose, self._began = verbose, perf_counter()
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            LeftColumn(),
            TextColumn("{task.fields[what]}", markup=False),
            console=self._console,
            transient=True,
            disable=verbose or not self._console.is_terminal,
        )
        self._bar.start()
        self._left, self._told = TimeLeft(), 0.0
        self._task: Any = None
        self._current_size = 0
        self._total: int | None = None
        self._done = 0

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage with a new bar."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        if self._verbose or not self._console.is_terminal:
            self._say_stage(", ".join(filter(None, (title, self._left.text))))
        self._total, self._done = total, 0
        self._task = self._bar.add_task(
            title, total=total or _UNKNOWN, what="", count=_count(0, total), left=self._left
        )
        self._current_size = 0

    def step(self, what: str, size: int = 1) -> None:
        """Begins a step and moves the bar by the step before it."""
        if self._verbose:
            self._say_timed(f"  {what}")
        self._done += self._current_size
        done = self._done
        self._total = grown(self._total, done + size)
        completed = done if self._total else 0
        total, count = self._total or _UNKNOWN, _count(done, self._total)
        self._bar.update(self._task, completed=completed, total=total, what=what, count=count)
        self._current_size = size

    def left(self, seconds: float | None) -> None:
        """Shows the time left beside the bar, or in a line if the last one is a minute old."""
        self._left.tell(seconds)
        is_line = self._verbose or not self._console.is_terminal
        if is_line and seconds is not None and perf_counter() - self._told > _BETWEEN_LINES:
            self._say_stage(f"  {self._left.text}")

    def _say_stage(self, text: str) -> None:
        self._told = perf_counter()
        self._say_timed(text) if self._verbose else self.say(text)

    def _say_timed(self, text: str) -> None:
        self.say(f"{perf_counter() - self._began:8.1f} s  {text}")

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Removes the bar."""
        self._bar.stop()


_BETWEEN_LINES = 60.0
"""Seconds between two lines that tell the time left in one stage."""
_UNKNOWN = 1
"""The total of a bar that stays empty, as nobody knows how many steps its stage takes."""


def _count(done: int, total: int | None) -> str:
    return str(done) if total is None else f"{done}/{total}"


class NotebookProgress:
    """A tqdm bar in a notebook."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._left, self._what = TimeLeft(), ""

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage with a new bar."""
        from tqdm.auto import tqdm

        self.close()
        self._bar = tqdm(total=total, desc=title, leave=False)
        self._current_size = 0

    def step(self, what: str, size: int = 1) -> None:
        """Begins a step and moves the bar by the step before it."""
        self._bar.update(self._current_size)
        self._current_size, self._what = size, what
        self.left(self._left.seconds)

    def left(self, seconds: float | None) -> None:
        """Shows the time left after the step."""
        self._left.tell(seconds)
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(filter(None, (self._what, self._left.text))))

    def say(self, text: str) -> None:
        """Prints a line."""
        print(text)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class PrefixedProgress(Silent):
    """Another display with a name before each stage and line; no time left, as it is that of one job among several."""

    def __init__(self, shown: Progress, name: str) -> None:
        self._shown = shown
        self._name = name

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage."""
        self._shown.stage(f"{self._name}: {title}", total)

    def step(self, what: str, size: int = 1) -> None:
        """Begins a step."""
        self._shown.step(what, size)

    def say(self, text: str) -> None:
        """Shows a permanent line."""
        self._shown.say(f"{self._name}: {text}")


def default_progress() -> Progress:
    """Returns the display for a call from Python: tqdm in the kernel of a notebook, else none."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return NotebookProgress() if kernel is not None and kernel.IPKernelApp.initialized() else Silent()
