"""The options that every command has: ``--config``, ``--json``, ``-q``, ``-v``; and the console's width."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trt_bisect.errors import BadInput
from trt_bisect.options.declare import FLAT, Options, panel
from trt_bisect.options.kinds import FILE, SWITCH, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from trt_bisect.support.progress import Progress

DISPLAY = panel("Display")
WIDE = 220
"""The columns of a table with many of them, where stdout is no terminal."""
Model = Annotated[Path, DISPLAY(FILE, help="The ONNX network.")]
Top = Annotated[int, DISPLAY(whole(least=0), help="Print this many rows of a table; 0 prints all.")]
Columns = Annotated[
    str, DISPLAY(without="those that fit", help="Print these columns: their CSV names, separated by commas.")
]


@dataclass(frozen=True, kw_only=True)
class Output(Options):
    """The output of a command, as its display options ask for it.

    Attributes:
        json: Print the result as one JSON document on stdout.
        quiet: Show no progress; run and demo print the verdict only.
        verbose: Show every step with its time, on stderr.

    Raises:
        BadInput: quiet and verbose.
    """

    json: Annotated[bool, DISPLAY(SWITCH)] = False
    quiet: Annotated[bool, DISPLAY(SWITCH, "--quiet", "-q")] = False
    verbose: Annotated[bool, DISPLAY(SWITCH, "--verbose", "-v", expert=True)] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quiet and self.verbose:
            raise BadInput("--quiet and --verbose contradict each other.", "Leave out one of the two.")

    def progress(self) -> "Progress":
        """Returns the display of progress, on stderr."""
        from trt_bisect.support.progress import RichProgress, Silent

        return Silent() if self.quiet else RichProgress(verbose=self.verbose)

    def print_json(self, record: Any) -> None:
        """Prints a result as JSON on stdout; numbers that are not finite become null."""
        import msgspec

        from trt_bisect.support.codec import encode

        print(msgspec.json.format(encode(record), indent=1).decode(), flush=True)

    def show(self, found: Any, printed: "Callable[[Any, Console], None]", piped: int, where: str = "") -> None:
        """Prints a result and ``where`` its files are, or with ``--json`` its JSON; ``piped``: see ``console``."""
        if self.json:
            self.print_json(found)
            return
        screen = console(piped)
        printed(found, screen)
        if where:
            screen.print(where, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Prints a line on stdout; with ``--json`` nothing."""
        if not self.json:
            print(text, flush=True)


@dataclass(frozen=True, kw_only=True)
class Configured(Output):
    """The output of a command whose options may stand in a file.

    Attributes:
        config: Take options from this TOML file; the command line wins.
    """

    config: Annotated[Path | None, DISPLAY(FILE)] = None


Display = Annotated[Configured, FLAT]
"""The parameter ``display`` of a command."""


def console(piped: int) -> "Console":
    """Returns the console of stdout: as wide as the terminal, or as COLUMNS says.

    Args:
        piped: the columns where stdout is no terminal and COLUMNS is not set.
    """
    from rich.console import Console

    screen = Console(highlight=False)
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=piped)


def listed(text: str) -> list[str]:
    """Returns the words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def run_folder(output: Any, model: Path) -> Any:
    """Returns the folder for the output: ``trt-bisect-<model>`` where none was given."""
    return output or Path(f"trt-bisect-{model.stem}")
