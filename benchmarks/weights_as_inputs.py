"""The cost of an engine that repeated blocks share: weights as inputs beside weights as constants.

    python -m benchmarks.weights_as_inputs

Eight convolutions and sums of ``benchmarks.adaptive``, and four MatMuls of an encoder; two threads. Times are the least
of 5 sessions and of 30 inferences.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

WIDTH = 768


def main() -> None:
    print("| block | rows | weights | session, ms | inference, ms | same outputs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, make in (("convolutions", _convolutions), ("encoder", _encoder)):
        for rows in (1, 8):
            nodes, weights, x = make(rows)
            outputs = []
            for as_inputs in (False, True):
                model, feeds = _model(nodes, weights, x, as_inputs=as_inputs)
                made, inferred, output = _measured(model, feeds)
                outputs.append(output)
                same = np.array_equal(outputs[0], output) if as_inputs else ""
                kind = "inputs" if as_inputs else "constants"
                print(f"| {name} | {rows} | {kind} | {made * 1e3:.1f} | {inferred * 1e3:.2f} | {same} |")


def _convolutions(rows: int) -> tuple[list[onnx.NodeProto], list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for k in range(8):
        nodes.append(helper.make_node("Conv", [last, f"w{k}"], [f"conv{k}"], pads=[1] * 4))
        nodes.append(helper.make_node("Add", [f"conv{k}", last], [f"sum{k}"]))
        weights.append(random.normal(0, 0.05, (32, 32, 3, 3)).astype(np.float32))
        last = f"sum{k}"
    return nodes, weights, random.normal(0, 1, (rows, 32, 8, 8)).astype(np.float32)


def _encoder(rows: int) -> tuple[list[onnx.NodeProto], list[np.ndarray], np.ndarray]:
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for k in range(4):
        nodes.append(helper.make_node("MatMul", [last, f"w{k}"], [f"product{k}"]))
        nodes.append(helper.make_node("Relu", [f"product{k}"], [f"relu{k}"]))
        shape = (WIDTH, 4 * WIDTH) if k % 2 == 0 else (4 * WIDTH, WIDTH)
        weights.append(random.normal(0, 0.02, shape).astype(np.float32))
        last = f"relu{k}"
    return nodes, weights, random.normal(0, 1, (rows, 32, WIDTH)).astype(np.float32)


def _model(
    nodes: list[onnx.NodeProto], weights: list[np.ndarray], x: np.ndarray, *, as_inputs: bool
) -> tuple[bytes, dict[str, np.ndarray]]:
    named = {f"w{k}": weight for k, weight in enumerate(weights)}
    feeds = {"x": x, **(named if as_inputs else {})}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for name, array in feeds.items()]
    constants = [] if as_inputs else [numpy_helper.from_array(array, name) for name, array in named.items()]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "block", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model.SerializeToString(), feeds


def _measured(model: bytes, feeds: dict[str, np.ndarray]) -> tuple[float, float, np.ndarray]:
    """The seconds to make a session, those of an inference, and the output."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    made, session = _least(5, lambda: ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    inferred, (output,) = _least(30, lambda: session.run(None, feeds))
    return made, inferred, output


def _least(times: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """The least seconds of several calls, and what the last one returned."""
    seconds, found = [], None
    for _ in range(times):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return min(seconds), found


if __name__ == "__main__":
    main()
