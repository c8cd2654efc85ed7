"""A network of 1.3 GB in the shape of BERT-large, random weights beside the graph: seconds and memory of a whole run.

    python -m benchmarks.large
    python -m benchmarks.large --blocks 6 --memory 300 --stages

It has 24 blocks of width 1,024, an embedding of 30,522 words, and one planted culprit. The run is a process of its own,
``--explain`` and ``--memory`` are its options. Seconds on the clock, the processor's seconds of all threads, and the
peak memory of the process are the kernel's. With ``--stages`` each stage of the command has its own line.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.measure import apart, command_line, ended, inference
from benchmarks.networks import encoder, plant

WORDS, WIDTH, TOKENS, SAMPLES = 30_522, 1024, 128, 4


def main(*, explain: str = "none", blocks: int = 24, memory: str = "512", stages: bool = False) -> None:
    with tempfile.TemporaryDirectory() as name:
        # The kernel counts the memory of a process to the peak of those that it starts, so another makes the network.
        network, data = apart(made, name, blocks)
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / 1e9
        plain = apart(inference, network, data)
        print(f"network and data: {size:.2f} GB; planted: {culprit(blocks)[1]}")
        print("one inference of a plain session: ", end="")
        print(f"{plain['processor']:.2f} s of the processor, {plain['peak_mb'] / 1024:.2f} GiB", flush=True)
        command = [sys.executable, "-m", "benchmarks.stages" if stages else "trt_bisect", "run", network]
        command += ["--calibration", data, "--input", data, "--calibrator", "minmax", "--metric", "sqnr"]
        command += ["--threshold", "20", "--explain", explain, "--memory", memory, "--engine", "onnxruntime"]
        seconds, used = ended([*command, "-o", f"{name}/run"], quiet=False)
        if stages:
            return
        report = json.loads(Path(name, "run/report.json").read_text())
        layers = sum(row["quantizable"] for row in report["layers"])
        print(
            f"{len(report['layers'])} layers, {layers} of them quantizable; culprits: {', '.join(report['culprits'])}"
        )
        print(f"seconds by stage: {json.dumps({name: round(value, 1) for name, value in report['seconds'].items()})}")
        print(f"{seconds:.0f} s on the clock, {used.ru_utime + used.ru_stime:.0f} s of the processor")
        peak = used.ru_maxrss / 1024
        print(f"peak memory: {peak / 1024:.2f} GiB, {peak / plain['peak_mb']:.2f} plain inferences")


def culprit(blocks: int) -> tuple[str, str]:
    """Returns the maker of the channel that is raised, and its reader, which is to blame."""
    return f"block{blocks // 2}.norm2", f"block{blocks // 2}.up"


def made(folder: str, blocks: str) -> tuple[str, str]:
    """Writes the network with its weights in a file beside it, and samples of word numbers; returns both paths."""
    model = encoder(int(blocks), WIDTH, 16, TOKENS)
    plant(model, *culprit(int(blocks)))
    random = np.random.default_rng(1)
    table = random.normal(0, 1, (WORDS, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "words"))
    model.graph.node.insert(0, helper.make_node("Gather", ["words", "ids"], ["x"], name="words", axis=0))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", TOKENS]))
    network, data = f"{folder}/bert-large.onnx", f"{folder}/ids.npz"
    onnx.save(model, network, save_as_external_data=True, location="bert-large.weights")
    np.savez(data, ids=random.integers(0, WORDS, (SAMPLES, TOKENS)))
    return network, data


if __name__ == "__main__":
    command_line(__doc__, main)
