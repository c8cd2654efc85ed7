"""Progress displays: Rich in a terminal, a bar in a notebook, or none; and the time left of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from time import perf_counter
from typing import Any, Protocol

from trt_bisect.support.text import duration


class Progress(Protocol):
    """A progress display: one stage after another, each with a number of steps."""

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps, None if unknown."""

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps; the step before it is done."""

    def left(self, seconds: float | None) -> None:
        """Shows the time left of the whole job; None if unknown."""

    def say(self, text: str) -> None:
        """Shows a permanent line."""

    def close(self) -> None:
        """Ends the display; called once, after the last step."""


class Silent:
    """A display that shows nothing."""

    def stage(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    step = left = say = close = stage


def grown(total: int | None, done: int) -> int | None:
    """Returns ``total`` or, if more steps are ``done``, a quarter more than these; None if ``total`` is unknown."""
    return total if total is None or done <= total else done + max(done // 4, 1)


class Counted:
    """The steps of a stage and the time left, as displays show them."""

    def __init__(self) -> None:
        self._ends: float | None = None  # of the whole job
        self._title = self._what = ""
        self._total: int | None = None
        self._done = self._current_size = 0

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps, None if unknown."""
        self._title, self._what, self._total = title, "", total
        self._done = self._current_size = 0

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps."""
        self._done += self._current_size
        self._total = grown(self._total, self._done + size)
        self._current_size, self._what = size, what

    def left(self, seconds: float | None) -> None:
        """Sets the time left of the whole job, from now on; None if unknown."""
        self._ends = None if seconds is None else perf_counter() + seconds

    @property
    def seconds_left(self) -> float | None:
        """The seconds left by the clock, at least 1; None if unknown."""
        return None if self._ends is None else max(self._ends - perf_counter(), 1.0)

    @property
    def left_text(self) -> str:
        """``about 3 min left in all``; empty if unknown."""
        return "" if self.seconds_left is None else f"about {duration(self.seconds_left)} left in all"

    @property
    def _count(self) -> str:
        return str(self._done) if self._total is None else f"{self._done}/{self._total}"


class TimeUp(BaseException):
    """The time limit of a run is over. Like Ctrl-C, it passes through all error handling."""


class TimeLimited:
    """A display that raises TimeUp at every step or stage after the time limit, except within ``lifted``."""

    def __init__(self, shown: Progress, seconds: float) -> None:
        self._shown, self.say, self.close = shown, shown.say, shown.close
        self._ends = perf_counter() + seconds
        self.is_lifted = False

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps; raises TimeUp after the limit."""
        self._check()
        self._shown.stage(title, total)

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps; raises TimeUp after the limit."""
        self._check()
        self._shown.step(what, size)

    def left(self, seconds: float | None) -> None:
        """Shows the time left, at most that of the limit; None if unknown."""
        self._shown.left(None if seconds is None else min(seconds, max(self._ends - perf_counter(), 0.0)))

    def refuse(self, seconds: float) -> None:
        """Raises TimeUp if a step that takes ``seconds`` would end after the limit."""
        if perf_counter() + seconds > self._ends and not self.is_lifted:
            raise TimeUp

    def _check(self) -> None:
        self.refuse(0.0)


@contextmanager
def lifted(shown: Progress) -> Iterator[None]:
    """Suspends a display's time limit for the block: the last steps of a run, which belong to its verdict."""
    if not isinstance(shown, TimeLimited):
        yield
        return
    shown.is_lifted = True
    try:
        yield
    finally:
        shown.is_lifted = False


def fits(shown: Progress, seconds: float) -> None:
    """Raises TimeUp if a step that takes ``seconds`` would end after the display's time limit, if any."""
    if isinstance(shown, TimeLimited):
        shown.refuse(seconds)


class RichProgress(Counted):
    """A bar with the step, the count and the times left, on stderr; plain lines if stderr is no terminal.

    Plain lines come for each stage, and once a minute; with ``verbose`` also for each step.
    """

    def __init__(self, *, verbose: bool = False) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress as Bar, ProgressColumn, Task, TextColumn, TimeElapsedColumn
        from rich.text import Text

        class LeftColumn(ProgressColumn):
            """The time left of the whole job, or else of the stage."""

            def render(self, task: Task) -> Text:
                stage = "" if task.time_remaining is None else f"{duration(task.time_remaining)} left"
                return Text(task.fields["display"].left_text or stage)

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
        self._last_line = 0.0
        self._task: Any = None

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps, with a new bar."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        if self._verbose or not self._console.is_terminal:
            self._say_stage(", ".join(filter(None, (title, self.left_text))))
        super().stage(title, total)
        self._task = self._bar.add_task(title, what="", display=self, **self._figures())

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps, and moves the bar."""
        if self._verbose:
            self._say_timed(f"  {what}")
        super().step(what, size)
        self._bar.update(self._task, what=what, **self._figures())

    def _figures(self) -> dict[str, Any]:
        completed, total = (self._done, self._total) if self._total else (0, _UNKNOWN)
        return {"completed": completed, "total": total, "count": self._count}

    def left(self, seconds: float | None) -> None:
        """Shows the time left of the whole job (None: unknown) next to the bar, or in a line once a minute."""
        super().left(seconds)
        is_line = self._verbose or not self._console.is_terminal
        if is_line and seconds is not None and perf_counter() - self._last_line > _BETWEEN_LINES:
            self._say_stage(f"  {self.left_text}")

    def _say_stage(self, text: str) -> None:
        self._last_line = perf_counter()
        if self._verbose:
            self._say_timed(text)
        else:
            self.say(text)

    def _say_timed(self, text: str) -> None:
        self.say(f"{perf_counter() - self._began:8.1f} s  {text}")

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Removes the bar, at the end of the job."""
        self._bar.stop()


_BETWEEN_LINES = 60.0  # seconds
_UNKNOWN = 1  # the total of a bar that stays empty, for an unknown number of steps


class NotebookProgress(Counted):
    """A bar in a notebook's output: each stage replaces the one before it, and the end removes it."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: Any = None
        self._shown_at = 0.0

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps, with an empty bar."""
        super().stage(title, total)
        self._show()

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps, and moves the bar."""
        super().step(what, size)
        if perf_counter() - self._shown_at > _BETWEEN_UPDATES:
            self._show()

    def say(self, text: str) -> None:
        """Prints a line."""
        print(text)

    def close(self) -> None:
        """Removes the bar, at the end of the job."""
        if self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)
            self._handle = None

    def _show(self) -> None:
        text = ", ".join(filter(None, (f"{self._title} {self._count}", self._what, self.left_text)))
        value = "" if self._total is None else f' value="{self._done}" max="{self._total}"'
        shown = {"text/plain": text, "text/html": f"<progress{value}></progress> {escape(text)}"}
        self._shown_at = perf_counter()
        if self._handle is None:
            from IPython.display import display

            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


_BETWEEN_UPDATES = 0.1  # seconds


class PrefixedProgress(Silent):
    """A display with ``name`` before stages and lines, for one job among several; it shows no time left."""

    def __init__(self, shown: Progress, name: str) -> None:
        self._shown = shown
        self._name = name

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of about ``total`` steps, with the name before its title."""
        self._shown.stage(f"{self._name}: {title}", total)

    def step(self, what: str, size: int = 1) -> None:
        """Begins the step ``what``, worth ``size`` steps."""
        self._shown.step(what, size)

    def say(self, text: str) -> None:
        """Shows a permanent line that begins with the name."""
        self._shown.say(f"{self._name}: {text}")


def default_progress() -> Progress:
    """Returns the display for a call from Python: a bar in a notebook, else none."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    return NotebookProgress() if kernel is not None and kernel.IPKernelApp.initialized() else Silent()


# the stages that are forecast, in order; the curve comes first if an engine is built for each plan
SEARCH, CHECKS, CURVE, EXPLANATION = STAGES = ("search", "checks", "curve", "explanation")
# inferences: of the curve and the explanation for each layer and judged input, of the checks for each given input;
# measured on the runs in docs/benchmarks.md
_CURVE, _CHECKS, _EXPLANATION = 2.5, 5.0, 2.0
_STEADY = 16.0  # after this many seconds an inference counts half for the pace: later ones have warm caches


def other_stages(layers: int, given: int, judged: int, *, explains: bool) -> dict[str, float]:
    """Returns the expected number of inferences of each stage of a run, by stage, except the search.

    Args:
        layers: number of layers that can be low.
        given: number of inputs given.
        judged: number of inputs of the curve.
        explains: true if the run explains its culprits.
    """
    runs = float(layers * judged)
    return {CURVE: _CURVE * runs, CHECKS: _CHECKS * given, EXPLANATION: _EXPLANATION * runs if explains else 0.0}


class Forecast:
    """Shows the time left of a run in a display, whenever a better forecast is known.

    Attributes:
        left: by stage, the number of inferences left; None for a job whose stages are not forecast.
    """

    def __init__(self, shown: Progress) -> None:
        self.shown = shown
        self.left: dict[str, float] | None = None
        self._done = 0.0
        self._pace = (0.0, 0.0)

    def search(self, inferences_left: float, seconds_each: float | None = None) -> None:
        """Sets the search's inferences left, each of ``seconds_each`` (None: as long as the last ones)."""
        if self.left is None:
            return
        if seconds_each is not None:
            self._pace = (1.0, seconds_each)
        self.left[SEARCH] = inferences_left
        self._tell()

    def ran(self, inferences: int, seconds: float) -> None:
        """Counts inferences that ran, in ``seconds`` together; during a search they belong to the search."""
        weight = 0.5 ** (seconds / _STEADY)
        self._pace = (weight * self._pace[0] + inferences, weight * self._pace[1] + seconds)
        if self.left and self.left.get(SEARCH):
            self._done += inferences
            total = self._done - inferences + self.left[SEARCH]
            self.search(float(grown(round(total), round(self._done) + 1) or 0) - self._done)

    def begins(self, stage: str) -> None:
        """Begins a stage: the time left no longer counts earlier stages."""
        self._leave(STAGES[STAGES.index(stage) :])

    def ends(self, stage: str) -> None:
        """Ends a stage: the time left no longer counts it."""
        self._leave([name for name in STAGES if name != stage])

    def _leave(self, stages: Sequence[str]) -> None:
        if self.left is not None:
            self.left = {name: inferences for name, inferences in self.left.items() if name in stages}
            self._tell()

    def seconds(self) -> float | None:
        """Returns the seconds left; None before the first inference."""
        inferences, seconds = self._pace
        return seconds / inferences * sum(self.left.values()) if inferences and self.left is not None else None

    def _tell(self) -> None:
        self.shown.left(self.seconds())
