"""A network of 1.3 GB in the shape of BERT-large, random weights beside the graph: seconds and memory of a whole run.

    python -m benchmarks.large
    python -m benchmarks.large --blocks 6 --memory 300 --stages

It has 24 blocks of width 1,024, an embedding of 30,522 words, and one planted culprit. The run is a process of its own.
Seconds on the clock, the processor's seconds of all threads, and the peak memory of the process are the kernel's. With
``--stages`` each stage of the command has its own line.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
SAMPLES = 4
NETWORK, DATA = "bert-large.onnx", "ids.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--explain", default="none", help="as of trt-bisect run")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--memory", default="512", help="as of trt-bisect run")
    parser.add_argument("--stages", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        network, data = _made_apart(Path(name), asked.blocks)
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / 1e9
        plain_seconds, plain_peak = _one_inference(network, data)
        print(f"network and data: {size:.2f} GB; planted: {culprit(asked.blocks)[1]}")
        print(
            f"one inference of a plain session: {plain_seconds:.2f} s of the processor, {plain_peak:.2f} GiB",
            flush=True,
        )
        program = "benchmarks.stages" if asked.stages else "trt_bisect"
        command = [sys.executable, "-m", program, "run", str(network), "--calibration", str(data)]
        command += ["--input", str(data), "--calibrator", "minmax", "--metric", "sqnr", "--threshold", "20"]
        command += ["--explain", asked.explain, "--memory", asked.memory, "--engine", "onnxruntime"]
        command += ["-o", str(Path(name) / "run")]
        seconds, used = _used_by(command)
        if asked.stages:
            return
        _tell_report(Path(name) / "run")
        print(f"{seconds:.0f} s on the clock, {used.ru_utime + used.ru_stime:.0f} s of the processor")
        peak = used.ru_maxrss / 2**20
        print(f"peak memory: {peak:.2f} GiB, {peak / plain_peak:.2f} plain inferences")


def culprit(blocks: int) -> tuple[str, str]:
    """Returns the maker of the channel that is raised, and its reader, which is to blame."""
    return f"block{blocks // 2}.norm2", f"block{blocks // 2}.up"


def _tell_report(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    layers = sum(row["quantizable"] for row in report["layers"])
    print(f"{len(report['layers'])} layers, {layers} of them quantizable; culprits: {', '.join(report['culprits'])}")
    print(f"seconds by stage: {json.dumps({name: round(value, 1) for name, value in report['seconds'].items()})}")


def _made_apart(folder: Path, blocks: int) -> tuple[Path, Path]:
    """Calls ``made`` in another process: the kernel counts the memory of a process to the peak of those it starts."""
    code = f"from pathlib import Path; from benchmarks import large; large.made(Path({str(folder)!r}), {blocks})"
    subprocess.run([sys.executable, "-c", code], check=True)
    return folder / NETWORK, folder / DATA


def _used_by(command: list[str]) -> tuple[float, resource.struct_rusage]:
    """Runs a command; returns its seconds on the clock, and what the kernel says that it used."""
    began = time.perf_counter()
    _, status, used = os.wait4(subprocess.Popen(command).pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{command[1]} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used


def _one_inference(network: Path, data: Path) -> tuple[float, float]:
    """Returns the processor's seconds of one FP32 inference in ONNX Runtime alone, and the process's peak in GiB."""
    code = (
        "import sys, time, numpy, onnxruntime; session = onnxruntime.InferenceSession(sys.argv[1]); "
        "feeds = {'ids': numpy.load(sys.argv[2])['ids'][:1]}; session.run(None, feeds); began = time.process_time(); "
        "session.run(None, feeds); open(sys.argv[3], 'w').write(str(time.process_time() - began))"
    )
    told = network.with_name("inference.txt")
    _, used = _used_by([sys.executable, "-c", code, str(network), str(data), str(told)])
    return float(told.read_text()), used.ru_maxrss / 2**20


def made(folder: Path, blocks: int = BLOCKS) -> tuple[Path, Path]:
    """Writes the network with its weights in a file beside it, and samples of word numbers; returns both paths."""
    model = encoder(blocks, WIDTH, 16, TOKENS)
    plant(model, *culprit(blocks))
    random = np.random.default_rng(1)
    table = random.normal(0, 1, (WORDS, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "words"))
    model.graph.node.insert(0, helper.make_node("Gather", ["words", "ids"], ["x"], name="words", axis=0))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", TOKENS]))
    network, data = folder / NETWORK, folder / DATA
    onnx.save(model, str(network), save_as_external_data=True, location="bert-large.weights")
    np.savez(data, ids=random.integers(0, WORDS, (SAMPLES, TOKENS)))
    return network, data


if __name__ == "__main__":
    main()
