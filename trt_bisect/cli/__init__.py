"""The command ``trt-bisect``."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from trt_bisect.errors import Interrupted, NoRoom, NothingMeasured, TrtBisectError, lacks_room, on_screen, own_fault


def main() -> None:
    """Runs the command line; errors become one or two lines on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a stream that cannot carry a character must not end the command
    try:
        sys.exit(_run(sys.argv[1:]) or 0)
    except TrtBisectError as error:
        _end(error)
    except KeyboardInterrupt:  # while modules are imported
        _end(Interrupted("interrupted."))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # pybind11 makes an ImportError of Ctrl-C
            _end(Interrupted("interrupted."))
        if isinstance(error, OSError) and lacks_room(error):
            _end(NoRoom(f"No room is left: {error.strerror}."))
        if os.environ.get("TRT_BISECT_DEBUG"):
            raise
        problem, _, remedy = own_fault(error).partition("\n")
        remedy += " TRT_BISECT_DEBUG=1 shows the traceback. The run folder keeps what was measured."
        _end(NothingMeasured(problem, remedy))


def _end(error: TrtBisectError) -> NoReturn:
    """Ends the process with an error on stderr.

    With ``--json`` the error is the only document on stdout too, except after a stop: then the result was printed.
    """
    if "--json" in sys.argv[1:] and not isinstance(error, Interrupted):
        facts = {"problem": error.problem, "remedy": error.remedy, "exit_code": error.exit_code}
        print(json.dumps({"error": facts}, indent=1))
    print(f"trt-bisect: {on_screen(error)}", file=sys.stderr)
    sys.exit(error.exit_code)


def _run(words: list[str]) -> Any:
    from trt_bisect.cli.app import CONTINUED, bound_to

    function, arguments = bound_to(words)
    try:
        with _stopped_alike():
            return function(**arguments)
    except KeyboardInterrupt as stop:
        remedy = "The same command begins again."
        if words[0] in CONTINUED:
            remedy = "The same command goes on from what was measured."
        raise Interrupted("interrupted.", remedy) from stop


@contextmanager
def _stopped_alike() -> Iterator[None]:
    # SIGTERM, which schedulers and containers send, stops the process as Ctrl-C does
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
