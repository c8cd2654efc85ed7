"""Compares the peak memory of runs with the limit that ``--memory`` promises.

    python -m benchmarks.memory --memory 128 512
    python -m benchmarks.memory network.onnx data.npz ... --memory 512

The promise: no more than the network's own engines take plus ``--memory``. What the engines take is measured in a
process that loads the network and runs an FP32 and a full INT8 engine on every sample, both alive at once. Each run is
a process of its own, and its peak is the kernel's (``VmHWM``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.networks import Sketch
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.network import Network
from trt_bisect.support.machine import peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=int, nargs="+", default=[128, 512], help="MiB")
    parser.add_argument("files", nargs="*", help="networks, each with its data; without any, four are made")
    asked = parser.parse_args()
    print("| network | activations, MiB | both engines, MiB | `--memory` | promised, MiB | measured, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        given = list(zip(asked.files[::2], asked.files[1::2], strict=True)) or made(Path(name))
        for network, data in given:
            plain = _in_a_process("engines", network, data)
            for memory in asked.memory:
                peak = _in_a_process("run", network, data, str(memory))["peak"]
                promised = plain["peak"] + memory
                verdict = "" if peak <= promised else " (more)"
                print(
                    f"| {Path(network).stem} | {plain['activations']:.0f} | {plain['peak']:.0f} | {memory} "
                    f"| {promised:.0f} | {peak:.0f}{verdict} |",
                    flush=True,
                )


def _in_a_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-c", "from benchmarks import memory; memory.measured()", *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return figures


def measured() -> None:
    """Measures ``engines NETWORK DATA`` or ``run NETWORK DATA MIB`` in a process of its own; prints MiB as JSON."""
    import trt_bisect
    from trt_bisect.model.shapes import facts_for

    what, network, data, *memory = sys.argv[1:]
    figures: dict[str, float] = {}
    if what == "run":
        with tempfile.TemporaryDirectory() as folder:
            trt_bisect.run(network, data, engine="onnxruntime", threshold=0.999, memory=int(memory[0]), output=folder)
    else:
        loaded = trt_bisect.load_network(network)
        with np.load(data) as arrays:
            count = len(arrays[arrays.files[0]])
            samples = [{name: arrays[name][k : k + 1] for name in arrays.files} for k in range(count)]
        _run_both(loaded, samples)
        facts = facts_for(loaded, samples[0])
        figures["activations"] = sum(facts.size(name) for name in loaded.activations) / 2**20
    print(json.dumps({**figures, "peak": peak_bytes() / 2**20}))


def _run_both(network: Network, samples: list[Feeds]) -> None:
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
    from trt_bisect.precision import int8_set

    scales = dict.fromkeys(network.activations, np.float32(0.05))
    builder = OnnxRuntimeBuilder(network, scales, BuildOptions())
    with builder.reference() as fp32, builder.build(int8_set(len(network.layers), network.quantizable)) as int8:
        for feeds in samples:
            fp32.infer(feeds)
            int8.infer(feeds)


def made(folder: Path) -> list[tuple[str, str]]:
    """A chain, one with long skips and attention, whose activations are large; and one with large weights."""
    return [_save(folder, *each) for each in (_descriptor(), _skips(), _attention(), _large_weights())]


Drawn = tuple[str, Sketch, str, tuple[int, ...], tuple[int, ...]]
"""A name, the graph, its last tensor, and the shapes of a sample and of its output."""


def _save(
    folder: Path, name: str, sketch: Sketch, last: str, shape: tuple[int, ...], out: tuple[int, ...]
) -> tuple[str, str]:
    assert sketch.nodes[-1].output[0] == last
    sketch.nodes[-1].output[0] = "y"
    onnx.save(sketch.model([1, *shape], [1, *out]), folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", x=np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32))
    return str(folder / f"{name}.onnx"), str(folder / f"{name}.npz")


class _Numbered(Sketch):
    """A sketch whose nodes are named by their operator and number."""

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.node(op, list(inputs), f"{op.lower()}{len(self.nodes)}", **attributes)

    def weight(self, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.constant(f"w{len(self.constants)}", self.random.normal(0, (2.0 / fan_in) ** 0.5, shape))

    def block(self, x: str, inside: int, outside: int, **attributes: Any) -> str:
        return self.op("Relu", self.op("Conv", x, self.weight(outside, inside, 3, 3), pads=[1] * 4, **attributes))


def _descriptor() -> Drawn:
    graph = _Numbered(1)
    x = graph.block("x", 3, 32)
    for _ in range(11):
        x = graph.block(x, 32, 32)
    return "dense descriptor", graph, graph.block(x, 32, 16), (3, 512, 512), (16, 512, 512)


def _skips() -> Drawn:
    graph = _Numbered(1)
    down, x, width = [], graph.block("x", 3, 16), 16
    for _ in range(4):
        down.append((x, width))
        x, width = graph.block(graph.block(x, width, 2 * width, strides=[2, 2]), 2 * width, 2 * width), 2 * width
    for skip, outside in reversed(down):
        up = graph.op("ConvTranspose", x, graph.weight(width, outside, 2, 2), strides=[2, 2])
        x, width = graph.block(graph.op("Concat", up, skip, axis=1), 2 * outside, outside), outside
    return "long skips", graph, graph.block(x, 16, 4), (3, 512, 512), (4, 512, 512)


def _attention() -> Drawn:
    graph, tokens, width = _Numbered(1), 1024, 64
    x = "x"
    for _ in range(6):
        q, k, v = (graph.op("MatMul", x, graph.weight(width, width)) for _ in range(3))
        scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 2, 1]))
        mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
        x = graph.op("Add", graph.op("MatMul", mixed, graph.weight(width, width)), x)
    return "attention", graph, graph.op("MatMul", x, graph.weight(width, 16)), (tokens, width), (tokens, 16)


def _large_weights() -> Drawn:
    """After VGG (Simonyan and Zisserman, 2014), whose first matrix has more bytes than all convolutions."""
    graph, x, inside = _Numbered(1), "x", 3
    for convolutions, outside in ((1, 64), (1, 128), (2, 256), (2, 512), (2, 512)):
        for _ in range(convolutions):
            x, inside = graph.block(x, inside, outside), outside
        x = graph.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.op("Flatten", x)
    for rows, columns in ((512 * 3 * 3, 4096), (4096, 4096)):
        x = graph.op("Relu", graph.op("Gemm", x, graph.weight(rows, columns)))
    return "large weights", graph, graph.op("Gemm", x, graph.weight(4096, 100)), (3, 96, 96), (100,)


if __name__ == "__main__":
    main()
