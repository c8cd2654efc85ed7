"""ModelOpt's AutoCast beside trt-bisect in FP16: the layers that each keeps in FP32, and the output's error.

python -m benchmarks.autocast FOLDER [--modelopt PYTHON]

AutoCast runs in the Python given, which has ``nvidia-modelopt[onnx]``, with its defaults, on the first input. Its
network is read and measured by the same emulation as the recipe, on all inputs. It also runs with the recipe's list of
nodes to exclude. The networks are those of ``tests/support/fp16_networks.py`` and ``tests/jobs/test_low_runs.py``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from tests.jobs import test_low_runs
from tests.support import fp16_networks
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.errors import TrtBisectError
from trt_bisect.jobs.run.run import run
from trt_bisect.model.low import FP16
from trt_bisect.model.network import Network, load_network

_AUTOCAST = """
import json, sys, onnx
from modelopt.onnx.autocast import convert_to_mixed_precision
for job in json.load(sys.stdin):
    try:
        model = convert_to_mixed_precision(job["network"], "fp16", calibration_data=job["data"], keep_io_types=True,
                                           providers=["cpu"], **job["options"])
        onnx.save(model, job["result"])
    except Exception as error:
        print(job["result"], type(error).__name__, str(error)[:300], file=sys.stderr)
"""


def _networks(folder: Path) -> list[tuple[str, Path, Path]]:
    """Writes the five networks and their inputs."""
    found = []
    for draw in (fp16_networks.encoder, fp16_networks.restorer, fp16_networks.faint):
        place = folder / draw.__name__
        place.mkdir(parents=True, exist_ok=True)
        found.append((draw.__name__, *fp16_networks.written(draw, place)))
    for plant in (test_low_runs.softmax_by_hand, test_low_runs.small_epsilon):
        place = folder / plant.__name__
        place.mkdir(parents=True, exist_ok=True)
        found.append((plant.__name__, *test_low_runs.drawn(plant, place)))
    return found


def _worst_cosine(network: Network, reference: Network, inputs: np.ndarray) -> float | None:
    """The worst cosine of the first output, all layers in FP16, with FP32; None if it is not finite."""
    exact = OnnxRuntimeBuilder(reference, {}, BuildOptions()).reference()
    low = OnnxRuntimeBuilder(network, {}, BuildOptions()).build(network.free_plan(network.quantizable))
    found = []
    for x in inputs:
        one, two = (next(iter(engine.infer({"x": x}).values())).astype(np.float64).ravel() for engine in (exact, low))
        if not np.isfinite(two).all():
            return None
        found.append(float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two) or 1.0)))
    return min(found)


def _autocast_row(path: Path, network: Path, inputs: np.ndarray) -> dict[str, Any]:
    if not path.is_file():
        return {"failed": True}
    try:
        theirs = load_network(path, low=FP16)
    except TrtBisectError as error:
        return {"failed": str(error)}
    kept = [layer.name for layer in theirs.layers if layer.why_not == "the network has it in float32"]
    return {"kept": kept, "cosine": _worst_cosine(theirs, load_network(network), inputs)}


def main() -> None:
    """Writes ``autocast.json`` into the folder, and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--modelopt", default="python", help="the Python that has nvidia-modelopt")
    given = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    jobs, networks = [], _networks(given.folder)
    for name, network, data in networks:
        report = run(
            network, inputs=str(data), low="fp16", engine="onnxruntime", history="none", explain="none",
            output=str(network.parent / "run"),
        )  # fmt: skip
        rows[name] = {"recipe": {"kept": list(report.recipe.high), "cosine": report.similarity.recipe}}
        first = network.parent / "first.npz"
        np.savez(first, x=np.load(data)["x"][0])
        excluded = json.loads((network.parent / "run/recipe/modelopt_nodes_to_exclude.json").read_text())
        for kind, options in (("autocast", {}), ("with our list", {**excluded, "data_max": 1e30, "init_max": 1e30})):
            result = network.parent / f"{kind.replace(' ', '-')}.onnx"
            jobs.append({"network": str(network), "data": str(first), "result": str(result), "options": options})
    subprocess.run([given.modelopt, "-c", _AUTOCAST], input=json.dumps(jobs), text=True, check=False)
    for name, network, data in networks:
        inputs = np.load(data)["x"]
        for kind in ("autocast", "with our list"):
            rows[name][kind] = _autocast_row(network.parent / f"{kind.replace(' ', '-')}.onnx", network, inputs)
    text = json.dumps(rows, indent=1)
    (given.folder / "autocast.json").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
