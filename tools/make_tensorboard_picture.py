"""Draws TensorBoard's histogram page on the logs of ``--tensorboard``, in Chromium, as docs/tensorboard.png.

trt-bisect run samples/lenet/lenet_planted.onnx --calibration samples/lenet/calibration.npz -o RUN --tensorboard LOGS
python -m tools.make_tensorboard_picture LOGS docs/tensorboard.png 'relu1/output|ip2/(weights|output)'
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from playwright.sync_api import Page

from tests.support.browser import chromium

READY = re.compile(r"http://[^\s/]+:(\d+)/")


@contextmanager
def serving(logs: str) -> Iterator[str]:
    """The address of a TensorBoard on a free port that has read the logs, for as long as it is needed."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logs, "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            ready = next(match for line in server.stderr if (match := READY.search(line)))
            address = f"http://127.0.0.1:{ready[1]}"
            _wait_until_read(address)
            yield address
        finally:
            server.terminate()


def _wait_until_read(address: str) -> None:
    """TensorBoard reads beside serving: waits until no more histograms come."""
    before, now = b"", b"{}"
    while now == b"{}" or now != before:
        time.sleep(0.5)
        before, now = now, urllib.request.urlopen(f"{address}/data/plugin/histograms/tags", timeout=30).read()


def draw(page: Page, address: str, picture: str, tags: str) -> None:
    """Opens the histograms of the tags that match, waits until they are drawn, and writes the page as PNG."""
    page.goto(f"{address}/#histograms&tagFilter={quote(tags)}")
    page.locator("vz-histogram-timeseries path").first.wait_for()
    page.wait_for_load_state("networkidle")
    page.screenshot(path=picture)


def main(logs: str, picture: str, tags: str = "") -> None:
    """Serves LOGS and draws the histograms of the tags that match."""
    with serving(logs) as address, chromium() as browser:
        draw(browser.new_page(viewport={"width": 1500, "height": 900}), address, picture, tags)


if __name__ == "__main__":
    main(*sys.argv[1:])
