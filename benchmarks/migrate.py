"""Twelve calibration caches, migrated: scales, the build by TensorRT-RTX, outputs, printed options, seconds.

    python -m benchmarks.migrate [--only line-classifier] [--json figures.json]
    python -m benchmarks.migrate --pairs FOLDER

A cache is TensorRT's own (docs/evidence), two have scales of this package, nine those of ModelOpt, NNCF and ONNX
Runtime, on networks from packages; five of these networks were simplified after that. The tools get an environment of
their own under ``.bench``. ``--pairs`` takes NAME.onnx and NAME.cache of a folder instead, ``--only`` the rows whose
name has a text.

*Wrong* counts the scales that no entry has, or that are not of a tensor with the same values in the network of the
cache. *Other* are tensors of the changed network that have the name of one with other values.
"""

from __future__ import annotations

import json as to_json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

import trt_bisect
from benchmarks.answer.published import NETWORKS, make_networks
from benchmarks.measure import ROOT, WORK, command_line, environment
from trt_bisect.builder.tensorrt_rtx import layers_of_file
from trt_bisect.calibration.cache import open_cache
from trt_bisect.model.file import Written, read_model, with_outputs
from trt_bisect.model.session import make_session
from trt_bisect.report.structure import Migration

TOOLS = (
    ("nncf==3.4.0", "onnxslim==0.1.98", "onnxsim==0.8.1", "onnxruntime==1.24.4", "torch==2.13.0"),
    ("nvidia-modelopt[onnx]==0.47.0",),
)
MADE = (
    "photo-classifier modelopt none, page-classifier modelopt onnxslim, ocr-sample modelopt none, line-classifier "
    "onnxruntime_table onnxsim, layout-detector onnxruntime_table onnxsim, recogniser onnxruntime_pairs none, "
    "silero-vad onnxruntime_pairs onnxsim, speech-encoder nncf none, detector nncf onnxslim"
)
REMOVED = re.compile(r"--(int8|fp16|best|calib|precisionConstraints|layer(Precisions|OutputTypes|DeviceTypes))\b")
OLD = "trtexec --int8 --calib=x --precisionConstraints=obey --layerPrecisions=none:fp32"


class Case(NamedTuple):
    """A network with a cache; ``before`` is the network of the cache, where it was changed since."""

    name: str
    network: Path
    cache: Path
    inputs: Path
    before: Path | None = None


def cases() -> list[Case]:
    """The twelve; makes the environment and the caches where they are missing."""
    make_networks()
    python, work = environment(WORK / "quantizers", str(TOOLS), *TOOLS), WORK / "migrate"
    work.mkdir(parents=True, exist_ok=True)
    evidence = to_json.loads((ROOT / "docs/evidence/h200-tensorrt-8.6.0.json").read_text())["checks"]
    written = next(check["figures"]["cache"] for check in evidence if check["name"] == "calibrator")
    (work / "lenet.cache").write_text(written)
    lenet = ROOT / "samples/lenet/lenet.onnx"
    made = [Case("lenet, TensorRT 8.6", lenet, work / "lenet.cache", lenet.with_name("digits.npz"))]
    for path in (ROOT / "samples/detector/detector.onnx", ROOT / "samples/transformer/encoder.onnx"):
        network, inputs, cache = (
            trt_bisect.load_network(path),
            path.with_name("calibration.npz"),
            work / f"{path.stem}.cache",
        )
        ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(str(inputs), network.inputs))
        cache.write_text(trt_bisect.format_cache(ranges.scales))
        made.append(Case(f"{path.stem}, ours", path, cache, inputs))
    for row_name in MADE.split(", "):
        name, tool, change = row_name.split()
        before, inputs, folder = NETWORKS / name / "network.onnx", NETWORKS / name / "given.npz", work / row_name
        if not (folder / "network.onnx").exists():
            words = [python, ROOT / "benchmarks/answer/make_caches.py", before, inputs, tool, change, folder]
            subprocess.run([str(word) for word in words], check=True, capture_output=True)
        files = folder / "network.onnx", folder / "scales.cache", inputs
        made.append(Case(row_name.replace(" ", ", "), *files, before if change != "none" else None))
    return made


def pairs_in(folder: Path) -> list[Case]:
    """The networks of a folder, with random inputs."""
    made = []
    for path in sorted(folder.glob("*.onnx")):
        random, inputs = np.random.default_rng(0), path.with_suffix(".npz")
        specs = trt_bisect.load_network(path).inputs
        drawn = {spec.name: np.abs(random.normal(size=[size or 1 for size in spec.shape])) for spec in specs}
        np.savez(inputs, **{spec.name: np.ceil(drawn[spec.name] * 9).astype(spec.dtype) for spec in specs})
        made.append(Case(path.stem, path, path.with_suffix(".cache"), inputs))
    return made


def row(case: Case) -> dict[str, Any]:
    """Migrates a network on four inputs, and reads the written file with ``onnx`` and TensorRT-RTX."""
    out = WORK / "migrated" / case.name
    out.mkdir(parents=True, exist_ok=True)
    feeds = list(trt_bisect.open_dataset(str(case.inputs), trt_bisect.load_network(case.network).inputs))[:4]
    np.savez(out / "inputs.npz", **{name: np.concatenate([sample[name] for sample in feeds]) for name in feeds[0]})  # type: ignore[arg-type]
    words = ["--cache", case.cache, "--input", out / "inputs.npz", "--layer-precisions", OLD, "-o", out, case.network]
    command = [sys.executable, "-m", "trt_bisect", "migrate", *map(str, words)]
    began = time.perf_counter()
    ran = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if ran.returncode not in (0, 1):
        return {"network": case.name, "failed": ran.stderr}
    report = trt_bisect.load(out)
    assert isinstance(report, Migration)
    assert report.proof
    graph = onnx.load(out / "network.qdq.onnx").graph
    constants = {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    rounding = [n for n in graph.node if n.op_type == "QuantizeLinear" and n.input[0] not in constants]
    kept = {node.input[0]: constants[node.input[1]].tobytes() for node in rounding}
    entries, ways = open_cache(case.cache).scales, {scale.tensor: scale for scale in report.scales}
    wrong, renamed = {name for name, bits in kept.items() if bits != entries[ways[name].entry].tobytes()}, 0
    if case.before:
        old, new = values(case.before, feeds[0]), values(case.network, feeds[0])
        rights = {name: {e for e in entries if e in old and same(old[e], array)} for name, array in new.items()}
        of_any = set().union(*rights.values())
        renamed = sum(name in old and not same(old[name], array) for name, array in new.items())
        for name, bits in kept.items():
            right = of_any if ways[name].way == "moved" else rights[name]
            wrong |= set() if bits in {entries[entry].tobytes() for entry in right} else {name}
    unsure = [name for choice in report.choices if choice.kind == "unsure" for name in choice.names]
    return {
        "network": case.name,
        "scales": len(kept),
        "wrong": sorted(wrong),
        "ways": dict(Counter(scale.way for scale in report.scales)),
        "other": renamed,
        "unsure": len(unsure),
        "kernels": len(layers_of_file(out / "network.qdq.onnx", {n: array.shape for n, array in feeds[0].items()})),
        "difference": report.proof.difference,
        "removed": sorted(map(str, set(REMOVED.findall(ran.stdout + ran.stderr + (out / "README.md").read_text())))),
        "seconds": round(seconds, 1),
    }


def values(path: Path, feeds: trt_bisect.Feeds) -> dict[str, tuple[int, np.ndarray]]:
    """By float32 tensor of a network on one input, the number of its values, and 999 of them in order of size."""
    model, weights = read_model(path)
    made = [name for node in model.graph.node for name in node.output if name and node.op_type != "Constant"]
    session = make_session(Written(with_outputs(model, made), weights))
    names = [spec.name for spec in session.get_outputs() if spec.type == "tensor(float)"]
    arrays = {**feeds, **dict(zip(names, session.run(names, dict(feeds)), strict=True))}
    places = {n: np.linspace(0, array.size - 1, 999).astype(int) for n, array in arrays.items() if array.size}
    return {name: (arrays[name].size, np.sort(arrays[name], axis=None)[at]) for name, at in places.items()}


def same(values_before: tuple[int, np.ndarray], values_now: tuple[int, np.ndarray]) -> bool:
    """True if two tensors hold the same values, in any order."""
    least = 1e-4 * float(np.max(np.abs(values_before[1])))
    return values_before[0] == values_now[0] and np.allclose(values_before[1], values_now[1], rtol=1e-3, atol=least)


def main(*, only: str = "", pairs: Path | None = None, json: Path | None = None) -> None:
    rows = []
    for case in pairs_in(pairs) if pairs else cases():
        if only in case.name:
            rows.append(row(case))
            print(*(f"{key} {value}" for key, value in rows[-1].items()), sep="; ", flush=True)
            if json:
                json.write_text(to_json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    command_line(__doc__, main)
