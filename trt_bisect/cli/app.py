"""The commands by name."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from trt_bisect._version import __version__
from trt_bisect.cli.calibrate import calibrate_command
from trt_bisect.cli.check import check_command
from trt_bisect.cli.clean import clean_command
from trt_bisect.cli.compare import compare_command
from trt_bisect.cli.demo import demo_command
from trt_bisect.cli.display import with_display
from trt_bisect.cli.engines import engines_command
from trt_bisect.cli.history import history_command
from trt_bisect.cli.layers import layers_command
from trt_bisect.cli.profile import profile_command
from trt_bisect.cli.recover import recover_command
from trt_bisect.cli.regress import regress_command
from trt_bisect.cli.run import run_command
from trt_bisect.cli.sensitivity import sensitivity_command
from trt_bisect.cli.usage import Command
from trt_bisect.cli.view import view_command
from trt_bisect.cli.worst import worst_command
from trt_bisect.errors import Interrupted

app = typer.Typer(
    name="trt-bisect",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Names the layers that lose a network's accuracy under TensorRT INT8, and writes the recipe that restores it.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trt-bisect {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Names the layers that lose a network's accuracy under TensorRT INT8, and writes the recipe that restores it."""


_GOES_ON = "The same command goes on from what was measured."
_BEGINS_ANEW = "Nothing is kept of it; the same command begins anew."
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


_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo_command,
    "run": run_command,
    "recover": recover_command,
    "sensitivity": sensitivity_command,
    "regress": regress_command,
    "layers": layers_command,
    "compare": compare_command,
    "profile": profile_command,
    "calibrate": calibrate_command,
    "check": check_command,
    "worst": worst_command,
    "view": view_command,
    "history": history_command,
    "engines": engines_command,
    "clean": clean_command,
}
for _name, _command in _COMMANDS.items():
    _afterwards = _BEGINS_ANEW if _name in _WITHOUT_JOURNAL else _GOES_ON
    app.command(_name, cls=Command)(_interruptible(with_display(_command), _afterwards))
