"""The command ``trt-bisect``: one module a command."""

from __future__ import annotations

import os
import sys

from trt_bisect.errors import NothingMeasured, TrtBisectError, own_fault


def main() -> None:
    """Runs the command line; errors become one or two lines on stderr and an exit code."""
    from trt_bisect.cli.app import app

    try:
        app(prog_name="trt-bisect")
    except TrtBisectError as error:
        print(f"trt-bisect: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        if os.environ.get("TRT_BISECT_DEBUG"):
            raise
        print(
            f"trt-bisect: {own_fault(error)} TRT_BISECT_DEBUG=1 shows all of it. What was measured is kept.",
            file=sys.stderr,
        )
        sys.exit(NothingMeasured.exit_code)
