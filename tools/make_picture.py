"""Draws what ``trt-bisect run`` prints as docs/table.svg, from a finished run; no font is fetched to show it.

python tools/make_picture.py RUN docs/table.svg
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console

from trt_bisect import Report
from trt_bisect.report.screen.run import print_report


def main(run: str, picture: str) -> None:
    """Reads RUN/report.json and writes the SVG."""
    report = Report.from_json(json.loads((Path(run) / "report.json").read_text()))
    console = Console(record=True, file=io.StringIO(), width=100, force_terminal=True)
    print_report(report, console)
    drawn = console.export_svg(title=f"trt-bisect run {report.model}")
    Path(picture).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main(*sys.argv[1:])
