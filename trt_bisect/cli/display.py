"""The output of a command on screen: ``--json``, ``-q``, ``-v``, and the console's width."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from trt_bisect.errors import BadInput
from trt_bisect.support.codec import encode

if TYPE_CHECKING:
    from rich.console import Console

    from trt_bisect.support.progress import Progress

_PARAMETER = "display"
_PANEL = "Display"
_FLAGS = {
    "as_json": (("--json",), "Print the result as one JSON document on stdout, and nothing else there."),
    "quiet": (("--quiet", "-q"), "Show no progress; run prints its verdict alone."),
    "verbose": (("--verbose", "-v"), "Show every step, with the seconds since the start, on stderr."),
}


@dataclass(frozen=True)
class Display:
    """The output of one command, as its display options ask for it.

    Attributes:
        as_json: the result is one JSON document.
        quiet: no progress.
        verbose: every step is a line.

    Raises:
        BadInput: quiet and verbose.
    """

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise BadInput("--quiet and --verbose contradict each other.", "Leave out one of the two.")

    def progress(self) -> Progress:
        """Returns the display of progress, on stderr."""
        from trt_bisect.support.progress import RichProgress, Silent

        return Silent() if self.quiet else RichProgress(verbose=self.verbose)

    def print_json(self, record: Any) -> None:
        """Prints a result as JSON on stdout; numbers that are not finite become null."""
        typer.echo(msgspec.json.format(encode(record), indent=1).decode())

    def say(self, text: str) -> None:
        """Prints a line on stdout; with ``--json`` nothing."""
        if not self.as_json:
            typer.echo(text)


def console(piped: int) -> Console:
    """Returns the console of stdout: as wide as the terminal, or as COLUMNS says.

    Args:
        piped: the columns where stdout is no terminal and COLUMNS is not set.
    """
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=piped)


def with_display(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command whose parameter ``display`` is a ``Display`` the flags that make it."""
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != _PARAMETER]
    flags = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, typer.Option(*words, help=text, rich_help_panel=_PANEL)],
        )
        for name, (words, text) in _FLAGS.items()
    ]

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        display = Display(**{name: given.pop(name) for name in _FLAGS})
        return command(**given, display=display)

    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + flags
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
