"""The command ``trt-bisect``: one module a command."""

from __future__ import annotations

import sys

from trt_bisect.errors import TrtBisectError


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
