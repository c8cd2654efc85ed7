"""Measures the cost of ten viewers for a running sweep: the same sweep alone and watched, by turns, on this machine.

    python -m benchmarks.view --repeat 7

The sweep is ``run --strategy exhaustive``, the server ``trt-bisect view`` on its folder. The viewers are real HTTP
clients in a process of their own: each opens the page, and then asks for news every two seconds as the page does, from
before the sweep begins to its end. On one machine they cost something themselves, which a browser elsewhere does
not; the processor time of server and viewers is printed apart.
"""

from __future__ import annotations

import argparse
import http.client
import json
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

SAMPLES = Path(__file__).resolve().parent.parent / "samples" / "ocr"
COMMAND = str(Path(sys.executable).with_name("trt-bisect"))
EVERY = 2.0
"""Seconds between two questions of a page: EVERY in trt_bisect/report/page/web/live.js."""


@dataclass(frozen=True)
class Sweep:
    """One sweep: its seconds, and the processor seconds and answers of those who watched."""

    seconds: float
    server: float = 0.0
    viewers: float = 0.0
    answers: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=5, help="sweeps of each kind")
    parser.add_argument("--watch", nargs=2, metavar=("ADDRESS", "COUNT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.watch:
        watch(asked.watch[0], int(asked.watch[1]))
        return
    alone, watched = list[Sweep](), list[Sweep]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sweep(folder, 0)  # files into memory, and a run to be listed
        (folder / "sweep").rename(folder / "before")
        for turn in range(asked.repeat):
            kinds = [(alone, 0), (watched, asked.viewers)]
            for found, viewers in kinds if turn % 2 else kinds[::-1]:
                found.append(sweep(folder, viewers))
                print(f"{viewers or 'no':>3} viewers: {found[-1].seconds:6.2f} s", flush=True)
    for name, value in summary(alone, watched).items():
        print(f"{name}: {value:.4g}")


def summary(alone: list[Sweep], watched: list[Sweep]) -> dict[str, float]:
    """Medians, and the ratio of the sweep's own time; processor time as a share of one core."""

    def median(sweeps: list[Sweep], field: str) -> float:
        return statistics.median(getattr(found, field) for found in sweeps)

    seconds = median(watched, "seconds")
    return {
        "sweep alone, s": median(alone, "seconds"),
        "sweep watched, s": seconds,
        "watched / alone": seconds / median(alone, "seconds"),
        "spread alone, slowest / fastest": max(s.seconds for s in alone) / min(s.seconds for s in alone),
        "server, share of one core": median(watched, "server") / seconds,
        "viewers, share of one core": median(watched, "viewers") / seconds,
        "answers a sweep": median(watched, "answers"),
    }


def sweep(folder: Path, viewers: int) -> Sweep:
    """A sweep in a new folder under ``folder``; ``viewers`` are there before it begins."""
    run = folder / "sweep"
    shutil.rmtree(run, ignore_errors=True)
    data = ["--calibration", SAMPLES / "calibration.npz", "--input", SAMPLES / "inputs.npz", "--samples", "1"]
    command = [
        COMMAND,
        "run",
        SAMPLES / "network.onnx",
        *data,
        "--strategy",
        "exhaustive",
        "--explain",
        "none",
        "-o",
        run,
    ]
    if not viewers:
        return Sweep(_seconds(command))
    server, address = _serve(folder)
    viewer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.view", "--watch", address, str(viewers)],
        stdout=subprocess.PIPE,
        cwd=SAMPLES.parent.parent,
    )
    time.sleep(2 * EVERY)  # until all of them ask
    pids = (server.pid, viewer.pid)
    before = [_processor_seconds(pid) for pid in pids]
    seconds = _seconds(command)
    of_server, of_viewers = (_processor_seconds(pid) - was for pid, was in zip(pids, before, strict=True))
    viewer.send_signal(signal.SIGTERM)
    told = json.loads(viewer.communicate()[0])
    server.send_signal(signal.SIGINT)
    server.wait()
    return Sweep(seconds, of_server, of_viewers, told["answers"])


def _seconds(command: Sequence[object]) -> float:
    began = time.perf_counter()
    subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def _serve(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """The server of a folder, and its address."""
    server = subprocess.Popen([COMMAND, "view", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        found = re.search(r"http://\S+", line)
        if found:
            return server, found[0]
    raise SystemExit("trt-bisect view did not start")


def _processor_seconds(pid: int) -> float:
    """Returns the processor time of a process in seconds: fields 14 and 15 of ``/proc/<pid>/stat`` in proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def watch(address: str, count: int) -> None:
    """Runs viewers until SIGTERM, spread over the two seconds between requests; then prints their counts as JSON."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    told: list[int] = []
    viewers = [
        threading.Thread(target=_view, args=(address, EVERY * place / count, stopped, told)) for place in range(count)
    ]
    for viewer in viewers:
        viewer.start()
    stopped.wait()
    for viewer in viewers:
        viewer.join()
    print(json.dumps({"answers": len(told)}))


def _view(address: str, late: float, stopped: threading.Event, told: list[int]) -> None:
    """Acts as one viewer: opens the page as soon as it is there, then asks for news as the page does."""
    place = urlsplit(address)
    assert place.hostname is not None
    connection = http.client.HTTPConnection(place.hostname, place.port)
    headers = {"Accept-Encoding": "gzip"}
    opened = False
    stopped.wait(late)
    while not stopped.is_set():
        connection.request("GET", f"/run/sweep/{'data.json' if opened else ''}?{place.query}", headers=headers)
        answer = connection.getresponse()
        answer.read()
        told.append(answer.status)
        headers["If-None-Match"] = answer.headers.get("ETag") or ""
        opened = opened or answer.status == 200
        stopped.wait(EVERY)


if __name__ == "__main__":
    if shutil.which(COMMAND) is None:
        raise SystemExit(f"There is no {COMMAND}: pip install -e '.[dev]' in this environment.")
    main()
