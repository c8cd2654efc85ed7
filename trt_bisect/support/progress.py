"""Progress of long work, shown by Rich in a terminal, by tqdm in a notebook, or not at all."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Protocol


class Progress(Protocol):
    """Stages one after another, each with a number of steps."""

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage of ``total`` steps, as far as that can be foreseen; None where it cannot."""
        ...

    def step(self, what: str, size: int = 1) -> None:
        """Says what is being done now, and as how many steps it counts; what was being done before is done."""
        ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None:
        """Ends the display."""
        ...


class Silent:
    """Shows nothing."""

    def stage(self, title: str, total: int | None) -> None:
        """Nothing."""

    def step(self, what: str, size: int = 1) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class RichProgress:
    """A bar with the layer, the count and the time left, on stderr; plain lines where stderr is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._bar.start()
        self._task: Any = None
        self._doing = 0

    def stage(self, title: str, total: int | None) -> None:
        """A bar of its own."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        if not self._console.is_terminal:
            self.say(title)
        self._task = self._bar.add_task(title, total=total, what="")
        self._doing = 0

    def step(self, what: str, size: int = 1) -> None:
        """Moves the bar."""
        task = next(task for task in self._bar.tasks if task.id == self._task)
        grown = None if task.total is None else max(task.total, task.completed + self._doing + size)
        self._bar.update(self._task, advance=self._doing, total=grown, what=what)
        self._doing = size

    def say(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Takes the bar away."""
        self._bar.stop()


class NotebookProgress:
    """A tqdm bar."""

    def __init__(self) -> None:
        self._bar: Any = None

    def stage(self, title: str, total: int | None) -> None:
        """A bar of its own."""
        from tqdm.auto import tqdm

        self.close()
        self._bar = tqdm(total=total, desc=title, leave=False)
        self._doing = 0

    def step(self, what: str, size: int = 1) -> None:
        """Moves the bar."""
        self._bar.update(self._doing)
        self._doing = size
        self._bar.set_postfix_str(what)

    def say(self, text: str) -> None:
        """Printed."""
        print(text)

    def close(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Named:
    """A display with a name before each stage; it stays open when what is named ends."""

    def __init__(self, shown: Progress, name: str) -> None:
        self._shown = shown
        self._name = name

    def stage(self, title: str, total: int | None) -> None:
        """Begins a stage."""
        self._shown.stage(f"{self._name}: {title}", total)

    def step(self, what: str, size: int = 1) -> None:
        """Moves on."""
        self._shown.step(what, size)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._shown.say(f"{self._name}: {text}")

    def close(self) -> None:
        """Nothing: others follow."""


class Showing:
    """Closes a display on the way out."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __enter__(self) -> Progress:
        return self.progress

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.close()


def default_progress() -> Progress:
    """tqdm in a notebook, else nothing."""
    return NotebookProgress() if "ipykernel" in sys.modules else Silent()
