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
from onnx import TensorProto, helper, numpy_helper

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


def _save(folder: Path, name: str, graph: onnx.GraphProto, shape: tuple[int, ...]) -> tuple[str, str]:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", x=np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32))
    return str(folder / f"{name}.onnx"), str(folder / f"{name}.npz")


class _Graph:
    """A graph while it is made; weights are seeded."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(1)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def weight(self, *shape: int) -> str:
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        values = self.random.normal(0, (2.0 / fan_in) ** 0.5, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, inside: int, outside: int, **attributes: Any) -> str:
        return self.node("Relu", self.node("Conv", x, self.weight(outside, inside, 3, 3), pads=[1] * 4, **attributes))

    def done(self, x: str, shape: tuple[int, ...], output: tuple[int, ...]) -> onnx.GraphProto:
        assert self.nodes[-1].output[0] == x
        self.nodes[-1].output[0] = "y"
        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, *sizes))
            for name, sizes in (("x", shape), ("y", output))
        ]
        return helper.make_graph(self.nodes, "g", values[:1], values[1:], self.weights)


def _descriptor() -> tuple[str, onnx.GraphProto, tuple[int, ...]]:
    graph, shape = _Graph(), (3, 512, 512)
    x = graph.conv("x", 3, 32)
    for _ in range(11):
        x = graph.conv(x, 32, 32)
    return "dense descriptor", graph.done(graph.conv(x, 32, 16), shape, (16, 512, 512)), shape


def _skips() -> tuple[str, onnx.GraphProto, tuple[int, ...]]:
    graph, shape = _Graph(), (3, 512, 512)
    down, x, width = [], graph.conv("x", 3, 16), 16
    for _ in range(4):
        down.append((x, width))
        x, width = graph.conv(graph.conv(x, width, 2 * width, strides=[2, 2]), 2 * width, 2 * width), 2 * width
    for skip, outside in reversed(down):
        up = graph.node("ConvTranspose", x, graph.weight(width, outside, 2, 2), strides=[2, 2])
        x, width = graph.conv(graph.node("Concat", up, skip, axis=1), 2 * outside, outside), outside
    return "long skips", graph.done(graph.conv(x, 16, 4), shape, (4, 512, 512)), shape


def _attention() -> tuple[str, onnx.GraphProto, tuple[int, ...]]:
    graph, tokens, width = _Graph(), 1024, 64
    x = "x"
    for _ in range(6):
        q, k, v = (graph.node("MatMul", x, graph.weight(width, width)) for _ in range(3))
        scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 2, 1]))
        mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
        x = graph.node("Add", graph.node("MatMul", mixed, graph.weight(width, width)), x)
    head = graph.node("MatMul", x, graph.weight(width, 16))
    return "attention", graph.done(head, (tokens, width), (tokens, 16)), (tokens, width)


def _large_weights() -> tuple[str, onnx.GraphProto, tuple[int, ...]]:
    """After VGG (Simonyan and Zisserman, 2014), whose first matrix has more bytes than all convolutions."""
    graph, shape, x, inside = _Graph(), (3, 96, 96), "x", 3
    for convolutions, outside in ((1, 64), (1, 128), (2, 256), (2, 512), (2, 512)):
        for _ in range(convolutions):
            x, inside = graph.conv(x, inside, outside), outside
        x = graph.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = graph.node("Flatten", x)
    for rows, columns in ((512 * 3 * 3, 4096), (4096, 4096)):
        x = graph.node("Relu", graph.node("Gemm", x, graph.weight(rows, columns)))
    return "large weights", graph.done(graph.node("Gemm", x, graph.weight(4096, 100)), shape, (100,)), shape


if __name__ == "__main__":
    main()
