"""Draws what a command prints, as docs/table.svg; no font is fetched to show it.

python tools/make_picture.py docs/table.svg trt-bisect run NETWORK --calibration DATA
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100


def main(picture: str, *command: str) -> None:
    """Runs the command and writes the SVG of its standard output."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False).stdout
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True)
    console.print(Text.from_ansi(printed))
    drawn = console.export_svg(title=shlex.join(command))
    Path(picture).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main(*sys.argv[1:])
