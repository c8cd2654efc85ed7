"""Compares the peak memory of runs with the limit that ``--memory`` promises.

    python -m benchmarks.memory --memory 128 512

The promise: no more than the network's own engines take plus ``--memory``, in MiB. What the engines take is measured in
a process that loads the network and runs an FP32 and a full INT8 engine on every sample, both alive at once. Each run
is a process of its own, and its peak is the kernel's (``VmHWM``). Four networks are made.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.measure import apart, command_line, peak_mb, read
from benchmarks.networks import Sketch


def main(*, memory: tuple[int, ...] = (128, 512)) -> None:
    print("| network | activations, MiB | both engines, MiB | `--memory` | promised, MiB | measured, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        for draw in (_descriptor, _skips, _attention, _large_weights):
            network, data = _save(Path(name), *draw())
            activations, plain = apart(engines, network, data)
            for limit in memory:
                peak, promised = apart(run, network, data, limit), plain + limit
                verdict = "" if peak <= promised else " (more)"
                print(f"| {Path(network).stem} | {activations:.0f} | {plain:.0f} | {limit} ", end="")
                print(f"| {promised:.0f} | {peak:.0f}{verdict} |", flush=True)


def engines(network: str, data: str) -> tuple[float, float]:
    """The MiB of the activations, and of a process that holds an FP32 and a full INT8 engine."""
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
    from trt_bisect.model.observe import facts_for
    from trt_bisect.precision import int8_set

    loaded, samples = read(network, data)
    builder = OnnxRuntimeBuilder(loaded, dict.fromkeys(loaded.activations, np.float32(0.05)), BuildOptions())
    with builder.reference() as fp32, builder.build(int8_set(len(loaded.layers), loaded.quantizable)) as int8:
        for feeds in samples:
            fp32.infer(feeds)
            int8.infer(feeds)
    facts = facts_for(loaded, samples[0])
    return sum(facts.size(name) for name in loaded.activations) / 2**20, peak_mb()


def run(network: str, data: str, memory: str) -> float:
    """The MiB of a run."""
    import trt_bisect

    with tempfile.TemporaryDirectory() as folder:
        trt_bisect.run(network, data, engine="onnxruntime", threshold=0.999, memory=int(memory), output=folder)
    return peak_mb()


Drawn = tuple[str, Sketch, tuple[int, ...], tuple[int, ...]]
"""A name, the graph, whose last node makes the output, and the shapes of a sample and of its output."""


def _save(folder: Path, name: str, sketch: Sketch, shape: tuple[int, ...], out: tuple[int, ...]) -> tuple[str, str]:
    sketch.nodes[-1].output[0] = "y"
    onnx.save(sketch.model([1, *shape], [1, *out]), folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", x=np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32))
    return str(folder / f"{name}.onnx"), str(folder / f"{name}.npz")


class _Numbered(Sketch):
    """A sketch whose nodes are named by their operator and number."""

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.node(op, list(inputs), f"{op.lower()}{len(self.nodes)}", **attributes)

    def parameter(self, *shape: int) -> str:
        return self.constant(f"w{len(self.constants)}", self.weight("", *shape))

    def block(self, x: str, inside: int, outside: int, **attributes: Any) -> str:
        return self.op("Relu", self.op("Conv", x, self.parameter(outside, inside, 3, 3), pads=[1] * 4, **attributes))


def _descriptor() -> Drawn:
    graph = _Numbered(1)
    x = graph.block("x", 3, 32)
    for _ in range(11):
        x = graph.block(x, 32, 32)
    graph.block(x, 32, 16)
    return "dense descriptor", graph, (3, 512, 512), (16, 512, 512)


def _skips() -> Drawn:
    graph = _Numbered(1)
    down, x, width = [], graph.block("x", 3, 16), 16
    for _ in range(4):
        down.append((x, width))
        x, width = graph.block(graph.block(x, width, 2 * width, strides=[2, 2]), 2 * width, 2 * width), 2 * width
    for skip, outside in reversed(down):
        up = graph.op("ConvTranspose", x, graph.parameter(width, outside, 2, 2), strides=[2, 2])
        x, width = graph.block(graph.op("Concat", up, skip, axis=1), 2 * outside, outside), outside
    graph.block(x, 16, 4)
    return "long skips", graph, (3, 512, 512), (4, 512, 512)


def _attention() -> Drawn:
    graph, tokens, width = _Numbered(1), 1024, 64
    x = "x"
    for _ in range(6):
        q, k, v = (graph.op("MatMul", x, graph.parameter(width, width)) for _ in range(3))
        scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 2, 1]))
        mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
        x = graph.op("Add", graph.op("MatMul", mixed, graph.parameter(width, width)), x)
    graph.op("MatMul", x, graph.parameter(width, 16))
    return "attention", graph, (tokens, width), (tokens, 16)


def _large_weights() -> Drawn:
    """After VGG (Simonyan and Zisserman, 2014), whose first matrix has more bytes than all convolutions."""
    graph, x, inside = _Numbered(1), "x", 3
    for convolutions, outside in ((1, 64), (1, 128), (2, 256), (2, 512), (2, 512)):
        for _ in range(convolutions):
            x, inside = graph.block(x, inside, outside), outside
        x = graph.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.op("Flatten", x)
    for rows, columns in ((512 * 3 * 3, 4096), (4096, 4096)):
        x = graph.op("Relu", graph.op("Gemm", x, graph.parameter(rows, columns)))
    graph.op("Gemm", x, graph.parameter(4096, 100))
    return "large weights", graph, (3, 96, 96), (100,)


if __name__ == "__main__":
    command_line(__doc__, main)
