"""Measures the cost of ten viewers for a running sweep: the same sweep alone and watched, by turns, on this machine.

    python -m benchmarks.view --repeat 7

The sweep is a whole ``run``, the server ``trt-bisect view`` on its folder. The viewers are real HTTP clients in a
process of their own: each opens the page, and then asks for news every two seconds as the page does, from before the
sweep begins to its end. On one machine they cost something themselves, which a browser elsewhere does not; the
processor time of server and viewers is printed apart.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.measure import COMMAND, ROOT, command_line, ended

SAMPLES = ROOT / "samples" / "ocr"
EVERY = 2.0
"""Seconds between two questions of a page: EVERY in tools/web/page/live.js."""
Sweep = tuple[float, float, float, int]
"""The seconds of a sweep, the processor seconds of the server and of the viewers, and the answers to these."""


def main(*, viewers: int = 10, repeat: int = 5, watch: tuple[str, int] | None = None) -> None:
    if watch:
        print(answers(*watch))
        return
    alone, watched = list[Sweep](), list[Sweep]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweep(folder, 0)  # files into memory, and a run to be listed
        (folder / "sweep").rename(folder / "before")
        for turn in range(repeat):
            kinds = [(alone, 0), (watched, viewers)]
            for sweeps, count in kinds if turn % 2 else kinds[::-1]:
                sweeps.append(sweep(folder, count))
                print(f"{count or 'no':>3} viewers: {sweeps[-1][0]:6.2f} s", flush=True)
    seconds, server, viewing, answered = (statistics.median(figures) for figures in zip(*watched, strict=True))
    by_itself = sorted(sweep_alone[0] for sweep_alone in alone)
    print(f"sweep alone, s: {statistics.median(by_itself):.4g}\nsweep watched, s: {seconds:.4g}")
    print(f"watched / alone: {seconds / statistics.median(by_itself):.4g}")
    print(f"spread alone, slowest / fastest: {by_itself[-1] / by_itself[0]:.4g}")
    print(f"server, share of one core: {server / seconds:.4g}\nviewers, share of one core: {viewing / seconds:.4g}")
    print(f"answers a sweep: {answered:.4g}")


def sweep(folder: Path, viewers: int) -> Sweep:
    """A sweep in a new folder under ``folder``; ``viewers`` are there before it begins."""
    run = folder / "sweep"
    shutil.rmtree(run, ignore_errors=True)
    command = [COMMAND, "run", SAMPLES / "network.onnx", "--calibration", SAMPLES / "calibration.npz", "--input"]
    command += [SAMPLES / "inputs.npz", "--samples", "1", "--threshold", "0.95", "-o", run]
    if not viewers:
        return ended(command)[0], 0.0, 0.0, 0
    server = subprocess.Popen([COMMAND, "view", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))
    words = [sys.executable, "-m", "benchmarks.view", "--watch", address, str(viewers)]
    viewer = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT)
    time.sleep(2 * EVERY)  # until all of them ask
    processes = (server.pid, viewer.pid)
    before = [_processor_seconds(pid) for pid in processes]
    seconds, _ = ended(command)
    of_server, of_viewers = (_processor_seconds(pid) - was for pid, was in zip(processes, before, strict=True))
    viewer.send_signal(signal.SIGTERM)
    answered = int(viewer.communicate()[0])
    server.send_signal(signal.SIGINT)
    server.wait()
    return seconds, of_server, of_viewers, answered


def _processor_seconds(pid: int) -> float:
    """Returns the processor time of a process in seconds: fields 14 and 15 of ``/proc/<pid>/stat`` in proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(address: str, count: int) -> int:
    """Runs viewers until SIGTERM, spread over the two seconds between requests; returns the number of answers."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    statuses: list[int] = []
    late = [EVERY * k / count for k in range(count)]
    viewers = [threading.Thread(target=_view, args=(address, each, stopped, statuses)) for each in late]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    return len(statuses)


def _view(address: str, late: float, stopped: threading.Event, statuses: list[int]) -> None:
    """Acts as one viewer: opens the page as soon as it is there, then asks for news as the page does."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port)
    headers = {"Accept-Encoding": "gzip"}
    opened = False
    stopped.wait(late)
    while not stopped.is_set():
        connection.request("GET", f"/run/sweep/{'data.json' if opened else ''}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        headers["If-None-Match"] = answer.headers.get("ETag") or ""
        opened = opened or answer.status == 200
        stopped.wait(EVERY)


if __name__ == "__main__":
    command_line(__doc__, main)
