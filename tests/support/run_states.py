"""Folders of runs that go on or were killed, and the data that a page holds."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from trt_bisect.report.model import REPORT
from trt_bisect.runs.progress_file import PROGRESS


def interrupted(folder: Path) -> None:
    """Turns a finished run's folder into that of a killed run."""
    (folder / REPORT).unlink()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    progress = {"pid": int(dead.stdout), "born": 1, "host": socket.gethostname(), "began": 0.0}
    progress |= {"stage": "Measuring plans", "total": 9, "done": 3, "what": "ip1", "seconds": 1.0}
    (folder / PROGRESS).write_text(json.dumps(progress))


def running(folder: Path, **changed) -> None:
    """Writes the progress of a run that goes on in this process."""
    from trt_bisect.runs.progress_file import _born

    progress = {"pid": os.getpid(), "born": _born(os.getpid()), "host": socket.gethostname(), "began": 0.0}
    progress |= {"stage": "Measuring plans", "total": 9, "done": 3, "what": "ip1", "seconds": 1.0, **changed}
    (folder / PROGRESS).write_text(json.dumps(progress))


def embedded(html: str) -> dict:
    """Returns the data inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])
