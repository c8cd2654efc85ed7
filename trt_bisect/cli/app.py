"""The commands by name."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated

import typer

from trt_bisect._version import __version__
from trt_bisect.cli.display import with_display
from trt_bisect.cli.usage import Command
from trt_bisect.errors import Interrupted


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trt-bisect {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Names the layers that lose a network's accuracy under TensorRT INT8, and writes the recipe that restores it."""


_GOES_ON = "The same command goes on from what was measured."
_BEGINS_ANEW = "Nothing is kept of it; the same command begins anew."
COMMANDS = (
    "demo",
    "run",
    "recover",
    "sensitivity",
    "regress",
    "layers",
    "compare",
    "profile",
    "calibrate",
    "check",
    "worst",
    "view",
    "history",
    "engines",
    "clean",
)
"""The commands in the order of the help. ``name_command`` in the module ``trt_bisect.cli.name`` is their function."""
_WITHOUT_JOURNAL = ("calibrate", "check", "clean", "compare", "demo", "engines", "layers", "profile")


@contextmanager
def _stopped_alike() -> Iterator[None]:
    """Makes SIGTERM, with which schedulers and containers stop a process, end it in the same way as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _interruptible(command: Callable[..., None], afterwards: str) -> Callable[..., None]:
    """Returns ``command`` with Ctrl-C and SIGTERM raised as Interrupted, with the remedy ``afterwards``."""

    @functools.wraps(command)
    def told(*arguments: object, **options: object) -> None:
        try:
            with _stopped_alike():
                command(*arguments, **options)
        except KeyboardInterrupt as stop:
            raise Interrupted("interrupted.", afterwards) from stop

    return told


def application(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """Returns the command line with some of the commands; the modules of others are not imported."""
    app = typer.Typer(
        name="trt-bisect",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        help="Names the layers that lose a network's accuracy under TensorRT INT8, and writes the recipe that restores "
        "it.",
    )
    app.callback()(_options)
    for name in names:
        function = getattr(import_module(f"trt_bisect.cli.{name}"), f"{name}_command")
        afterwards = _BEGINS_ANEW if name in _WITHOUT_JOURNAL else _GOES_ON
        app.command(name, cls=Command)(_interruptible(with_display(function), afterwards))
    return app
