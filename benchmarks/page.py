"""Times the page of a network with 2,000 layers in this machine's Chromium.

    python -m benchmarks.page
    python -m benchmarks.page --layers 400 --repeat 3

The report is a real one: ``trt_bisect.run`` on a residual network of that many layers, generated with seeded weights.
Full INT8 meets its low threshold, so that the run ends after the curve and the explanation. The figures of opening
are medians of ``--repeat`` openings, each in a fresh context: the first contentful paint, when the table can be used,
when the graph is drawn, and how long the curve takes once it is scrolled to, with the start of Plotly. The first
includes Chromium's reading of the file. A selection is the time from a click on a row until two frames later, when row,
panel and curve show it. ``--clicks`` rows are chosen in all, in equal steps down the table; before each click the page
is idle. ``--page`` is a report.html that is there already.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper
from playwright.sync_api import Browser

import trt_bisect
from benchmarks.measure import command_line
from benchmarks.networks import Sketch, plant, samples
from tests.support.browser import chromium, open_page
from trt_bisect.report.page import PAGE

PER_BLOCK, STAGES = 5, 4

_TIMES = """() => [...performance.getEntriesByType('paint'), ...performance.getEntriesByType('mark')]
    .map(entry => [entry.name, entry.startTime])"""
_CURVE = """async () => {
  const plot = document.querySelector('#curve-plot');
  const began = performance.now();
  plot.scrollIntoView({ behavior: 'instant', block: 'center' });
  while (plot.ariaBusy) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""
_SELECT = """async share => {
  const table = document.querySelector('#table');
  table.scrollTop = share * (table.scrollHeight - table.clientHeight);
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  await new Promise(done => requestIdleCallback(done));
  const shown = document.querySelectorAll('#table-body [role=row]');
  const row = shown[Math.floor(shown.length / 2)];
  const began = performance.now();
  row.click();
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  await new Promise(done => setTimeout(done));
  const took = performance.now() - began;
  const name = row.querySelector('.name bdi').textContent;
  if (document.querySelector('#details-body .layer-name').textContent !== name) throw new Error(`${name} is not shown`);
  return took;
}"""


def deep(layers: int, width: int = 8, size: int = 8) -> onnx.ModelProto:
    """A residual network of about ``layers`` layers in four stages, named as an exporter names them."""
    sketch = Sketch(layers)
    x = sketch.conv("x", "/stem/Conv", 3, width, 3)
    blocks = (layers - 4) // PER_BLOCK
    for block in range(blocks):
        name = f"/layer{block * STAGES // blocks + 1}/block{block}"
        y = sketch.relu(sketch.conv(x, f"{name}/conv1/Conv", width, width, 3), f"{name}/relu1/Relu")
        y = sketch.conv(y, f"{name}/conv2/Conv", width, width, 3, gain=2.0 / blocks)
        x = sketch.relu(sketch.node("Add", [y, x], f"{name}/Add"), f"{name}/relu2/Relu")
    x = sketch.node("Flatten", [sketch.node("GlobalAveragePool", [x], "/pool/GlobalAveragePool")], "/Flatten")
    weight = sketch.constant("/fc/Gemm.weight", sketch.random.normal(0, 0.3, (width, 10)))
    sketch.nodes.append(helper.make_node("Gemm", [x, weight], ["y"], name="/fc/Gemm"))
    model = sketch.model(["n", 3, size, size], ["n", 10])
    middle = f"/layer2/block{blocks * 3 // 8}"
    plant(model, f"{middle}/conv1/Conv", f"{middle}/conv2/Conv")
    return model


def deep_run(layers: int, folder: Path) -> Path:
    """The page of a run on ``deep``."""
    model, network, data = deep(layers), folder / "deep.onnx", folder / "data.npz"
    onnx.save(model, str(network))
    np.savez(data, x=samples(model, 4))
    trt_bisect.run(network, data, output=folder / "run", engine="onnxruntime", calibrator="minmax", threshold=0.5)
    return folder / "run" / PAGE


def measure(browser: Browser, page: Path, shares: Sequence[float]) -> tuple[dict[str, float], list[float]]:
    """Opens the page once; returns the milliseconds of each step, and of the selections at ``shares`` of the table."""
    watched = open_page(browser, page)
    opened = watched.page
    times = dict(opened.evaluate(_TIMES))
    times["curve"] = opened.evaluate(_CURVE)
    opened.evaluate("document.querySelector('#layers').scrollIntoView()")
    selections = [float(opened.evaluate(_SELECT, share)) for share in shares]
    assert not watched.complaints, watched.complaints
    opened.context.close()
    return {name: times[name] for name in ("first-contentful-paint", "usable", "graph", "curve")}, selections


def main(*, layers: int = 2000, repeat: int = 5, clicks: int = 100, page: Path | None = None) -> None:
    shares = np.linspace(0, 1, clicks).tolist()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = page or deep_run(layers, Path(folder))
        openings, selections = zip(*(measure(browser, page, shares[k::repeat]) for k in range(repeat)), strict=True)
        print(f"{page.stat().st_size / 1e6:.2f} MB")
        for name in openings[0]:
            print(f"{name}: {statistics.median(opening[name] for opening in openings):.0f} ms")
        times = [took for of_opening in selections for took in of_opening]
        print(f"{len(times)} selections: median {statistics.median(times):.0f} ms, ", end="")
        print(f"95th percentile {np.percentile(times, 95):.0f} ms, slowest {max(times):.0f} ms")


if __name__ == "__main__":
    command_line(__doc__, main)
