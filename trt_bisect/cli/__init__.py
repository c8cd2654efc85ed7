"""The command ``trt-bisect``: one module a command."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trt_bisect.errors import (
    MAKE_ROOM,
    Interrupted,
    NothingMeasured,
    TrtBisectError,
    lacks_room,
    on_screen,
    own_fault,
)


def main() -> None:
    """Runs the command line; errors become one or two lines on stderr and an exit code."""
    try:
        sys.exit(_run(sys.argv[1:]) or 0)
    except TrtBisectError as error:
        _say_as_json(error.problem, error.remedy, error.exit_code)
        print(f"trt-bisect: {on_screen(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # while modules are imported
        print("trt-bisect: interrupted.", file=sys.stderr)
        sys.exit(Interrupted.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if isinstance(error, OSError) and lacks_room(error):
            _say_as_json(f"No room is left: {error.strerror}.", MAKE_ROOM, TrtBisectError.exit_code)
            print(f"trt-bisect: No room is left: {error.strerror}.\n{MAKE_ROOM}", file=sys.stderr)
            sys.exit(TrtBisectError.exit_code)
        if os.environ.get("TRT_BISECT_DEBUG"):
            raise
        _say_as_json(own_fault(error), "", NothingMeasured.exit_code)
        print(
            f"trt-bisect: {own_fault(error)} TRT_BISECT_DEBUG=1 shows the traceback. "
            "The run folder keeps what was measured.",
            file=sys.stderr,
        )
        sys.exit(NothingMeasured.exit_code)


def _run(words: list[str]) -> int | None:
    from trt_bisect.cli.app import COMMANDS, parsed

    call = parsed(words)
    try:
        with _stopped_alike():
            return call()
    except KeyboardInterrupt as stop:
        raise Interrupted("interrupted.", COMMANDS.get(words[0], "")) from stop


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


def _say_as_json(problem: str, remedy: str, exit_code: int) -> None:
    """Prints an error as the one JSON document of ``--json``; without the flag nothing, and after a result nothing."""
    if "--json" in sys.argv[1:] and exit_code != Interrupted.exit_code:
        print(json.dumps({"error": {"problem": problem, "remedy": remedy, "exit_code": exit_code}}, indent=1))
