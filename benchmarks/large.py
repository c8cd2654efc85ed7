"""A network of 1.3 GB in the shape of BERT-large, random weights beside the graph: seconds and memory of a whole run.

    python -m benchmarks.large

It has 24 blocks of width 1,024, an embedding of 30,522 words, and one planted culprit. The run is a process of its own.
Seconds on the clock, the processor's seconds of all threads, and the peak memory of the process are the kernel's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.networks import encoder, plant

WORDS, WIDTH, TOKENS, BLOCKS = 30_522, 1024, 128, 24
CULPRIT = ("block12.norm2", "block12.up")
"""The maker of the channel that is raised, and its reader, which is to blame."""
SAMPLES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--explain", default="none", help="as of trt-bisect run")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        network, data = made(Path(name))
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / 1e9
        command = [str(Path(sys.executable).with_name("trt-bisect")), "run", str(network), "--calibration", str(data)]
        command += ["--input", str(data), "--calibrator", "minmax", "--metric", "sqnr", "--threshold", "20"]
        command += ["--explain", asked.explain, "--engine", "onnxruntime", "-o", str(Path(name) / "run")]
        began = time.perf_counter()
        done = subprocess.Popen(command)
        _, status, used = os.wait4(done.pid, 0)
        seconds = time.perf_counter() - began
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"trt-bisect ended with {os.waitstatus_to_exitcode(status)}")
        report = json.loads((Path(name) / "run" / "report.json").read_text())
        layers = sum(row["quantizable"] for row in report["layers"])
        print(f"network and data: {size:.2f} GB, {layers} quantizable layers, {len(report['layers'])} layers")
        print(f"planted: {CULPRIT[1]}; culprits: {', '.join(report['culprits']) or 'none'}")
        print(f"{seconds:.0f} s on the clock, {used.ru_utime + used.ru_stime:.0f} s of the processor")
        print(f"seconds by stage: {json.dumps({name: round(value, 1) for name, value in report['seconds'].items()})}")
        before = report["peak_bytes"] / 2**30
        print(f"peak memory: {used.ru_maxrss / 2**20:.2f} GiB; without the run's last files {before:.2f}")


def made(folder: Path) -> tuple[Path, Path]:
    """Writes the network with its weights in a file beside it, and samples of word numbers; returns both paths."""
    model = encoder(BLOCKS, WIDTH, 16, TOKENS)
    plant(model, *CULPRIT)
    random = np.random.default_rng(1)
    table = random.normal(0, 1, (WORDS, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "words"))
    model.graph.node.insert(0, helper.make_node("Gather", ["words", "ids"], ["x"], name="words", axis=0))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", TOKENS]))
    network, data = folder / "bert-large.onnx", folder / "ids.npz"
    onnx.save(model, str(network), save_as_external_data=True, location="bert-large.weights")
    np.savez(data, ids=random.integers(0, WORDS, (SAMPLES, TOKENS)))
    return network, data


if __name__ == "__main__":
    main()
