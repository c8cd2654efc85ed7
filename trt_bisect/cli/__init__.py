"""The command ``trt-bisect``: one module a command."""

from __future__ import annotations

import errno
import os
import sys

from trt_bisect.errors import MAKE_ROOM, NothingMeasured, TrtBisectError, on_screen, own_fault


def main() -> None:
    """Runs the command line; errors become one or two lines on stderr and an exit code."""
    from trt_bisect.cli.app import app

    try:
        app(prog_name="trt-bisect")
    except TrtBisectError as error:
        print(f"trt-bisect: {on_screen(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(f"trt-bisect: No room is left: {error.strerror}.\n{MAKE_ROOM}", file=sys.stderr)
            sys.exit(TrtBisectError.exit_code)
        if os.environ.get("TRT_BISECT_DEBUG"):
            raise
        print(
            f"trt-bisect: {own_fault(error)} TRT_BISECT_DEBUG=1 shows all of it. What was measured is kept.",
            file=sys.stderr,
        )
        sys.exit(NothingMeasured.exit_code)
