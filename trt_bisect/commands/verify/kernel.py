"""A wrong kernel: by the engine's inner tensors, else the layer whose wrongness explains most; and its minimal network.

Without inner tensors one graph lets each layer be wrong by two numbers, which are inputs of it: y becomes
(1 + a) y + b |y|. An activation may leave its input as it is, as where it is fused into a scale that does not clip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx import TensorProto, helper, numpy_helper

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.debug_tensors import ENGINE, EngineTensor, engine_tensors
from trt_bisect.commands.verify.emulation import Emulation, Yardstick
from trt_bisect.commands.verify.suspicions import CLIP_FUSED, KERNEL, Suspicion
from trt_bisect.data.feeds import match_names
from trt_bisect.model.file import Written, refill
from trt_bisect.model.layers import Layer
from trt_bisect.model.observe import observe
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.support.files import make_folder, write_whole

_NUMBERS = "__verify"
_STEP, _REFINED, _ROUNDS = 0.1, 6, 4
"""The first step along each way of being wrong, the ways that are refined, and the steps for that."""
_RANGE = (-2.0, 8.0)
_ACTIVATIONS = ("Relu", "Clip")
_MOST_LAYERS = 150


def parted(e: Emulation, tensors: Sequence[Outputs]) -> tuple[EngineTensor, ...]:
    """Returns the engine's tensors in execution order, each with its emulation from the engine's tensors before it."""
    graph = e.writer.write(e.plan).model.graph
    names = match_names([name for node in graph.node for name in node.output if name], tensors[0])
    if not names:
        return ()
    saved = {
        id(feeds): {ours: each[theirs] for ours, theirs in names.items()}
        for feeds, each in zip(e.feeds, tensors, strict=True)
    }
    return engine_tensors(e.writer, e.plan, lambda feeds: saved[id(feeds)], e.feeds)


def of_tensors(rows: Sequence[EngineTensor]) -> Iterator[Suspicion]:
    """Yields the wrong kernel of the first tensor that the engine does not compute from its own tensors before."""
    for row in rows:
        if row.cause == ENGINE:
            layers = row.layers or (row.layer,)
            text = f"has a wrong kernel for {' + '.join(layers)}: given its own inputs, it gives another output"
            yield Suspicion(KERNEL, text, lambda e: e, layers)
            return


class Spoiled:
    """An emulation in which layers may be wrong by numbers, two a layer: a factor of y, and of |y| or, for an
    activation, of what it took away.
    """

    def __init__(self, e: Emulation) -> None:
        network = e.writer.network
        chosen = [network.layers[k] for k in network.quantizable[:_MOST_LAYERS]]
        chosen += [layer for layer in network.layers if layer.op_type in _ACTIVATIONS][:_MOST_LAYERS]
        floats = network.types.float32
        self._layers = [layer for layer in chosen if layer.outputs[0] in floats and layer.shape != ()]
        self._edit = partial(_spoilable, {layer.outputs[0]: layer for layer in self._layers})

    def _emulation(self, wrong: Mapping[int, float], e: Emulation) -> Emulation:
        """Returns an emulation with some of the numbers, by place; all others leave a layer right."""
        values = np.zeros(2 * len(self._layers), np.float32)
        values[::2] = 1.0
        for place, number in wrong.items():
            values[place] += np.float32(number)
        feeds = tuple({**sample, _NUMBERS: values} for sample in e.feeds)
        return replace(e, feeds=feeds, edits=(*e.edits, self._edit))

    def suspicions(self, e: Emulation, engine: np.ndarray, yard: Yardstick) -> Iterator[Suspicion]:
        """Yields the activations left out, and the wrong kernels that explain most, their numbers fitted.

        Args:
            engine: the engine's outputs for the samples of ``e``, as ``yard`` measures them.
        """

        def at(wrong: Mapping[int, float]) -> np.ndarray:
            return yard.vector(self._emulation(wrong, e).outputs())

        right = at({})
        shares: list[tuple[float, int, float]] = []
        for place in range(2 * len(self._layers)):
            layer = self._layers[place // 2]
            if layer.op_type in _ACTIVATIONS:
                if place % 2:
                    text = f"leaves out '{layer.name}': a scale that does not clip stands for it"
                    yield Suspicion(CLIP_FUSED, text, partial(self._emulation, {place: 1.0}), (layer.name,))
                continue
            response = (at({place: _STEP}) - right) / _STEP
            power, along = float(response @ response), float((engine - right) @ response)
            if power:
                shares.append((along**2 / power, place, along / power))
        for _, place, number in sorted(shares, reverse=True)[:_REFINED]:
            yield self._kernel(place, _fitted(lambda x, place=place: at({place: x}), number, engine))  # type: ignore[misc]
            if not place % 2:
                yield self._kernel(place, -1.0)

    def _kernel(self, place: int, number: float) -> Suspicion:
        name = self._layers[place // 2].name
        wrong = f"y {number:+.3g} |y|" if place % 2 else f"{1 + number:.3g} y, not y"
        text = f"has a wrong kernel for '{name}': it gives about {wrong}"
        return Suspicion(KERNEL, text, partial(self._emulation, {place: number}), (name,))


def _spoilable(layers: Mapping[str, Layer], written: Written) -> Written:
    """Returns a graph in which the layers that make tensors can be wrong by the numbers of the input ``_NUMBERS``."""
    model = onnx.ModelProto()
    model.CopyFrom(written.model)
    graph, nodes = model.graph, list[onnx.NodeProto]()
    parts = {out: (f"{out}{_NUMBERS}a", f"{out}{_NUMBERS}b") for out in layers}
    for node in graph.node:
        nodes.append(node)
        for slot, out in enumerate(node.output):
            if out not in layers:
                continue
            right, size, first, second = (f"{out}{_NUMBERS}{part}" for part in ("right", "size", "first", "second"))
            node.output[slot] = right
            if layers[out].op_type in _ACTIVATIONS:
                nodes.append(helper.make_node("Sub", [node.input[0], right], [size]))
            else:
                nodes.append(helper.make_node("Abs", [right], [size]))
            nodes.append(helper.make_node("Mul", [right, parts[out][0]], [first]))
            nodes.append(helper.make_node("Mul", [size, parts[out][1]], [second]))
            nodes.append(helper.make_node("Add", [first, second], [out]))
    names = [name for pair in parts.values() for name in pair]
    split = helper.make_node("Split", [_NUMBERS], names, axis=0)
    if any(entry.domain == "" and entry.version >= 18 for entry in model.opset_import):
        split.attribute.append(helper.make_attribute("num_outputs", len(names)))
    refill(graph.node, [split, *nodes])
    graph.input.append(helper.make_tensor_value_info(_NUMBERS, TensorProto.FLOAT, [len(names)]))
    return Written(model, written.weights)


def _fitted(at: Callable[[float], np.ndarray], number: float, engine: np.ndarray) -> float:
    """Returns the number whose outputs are nearest to the engine's, by Gauss's and Newton's steps."""
    tried = list[tuple[float, float]]()
    for _ in range(_ROUNDS):
        number = float(np.clip(number, *_RANGE))
        here = at(number)
        tried.append((float(np.linalg.norm(engine - here)), number))
        step = _STEP**2 * (abs(number) + _STEP)
        response = (at(number + step) - here) / step
        number += float((engine - here) @ response) / (float(response @ response) or 1.0)
    return min(tried)[1]


def write_minimal(e: Emulation, layers: Sequence[str], folder: Path) -> Path:
    """Writes the layers alone as a network, in the precisions of the plan, with their inputs for one sample.

    trtexec builds ``network.onnx`` and reads the ``.bin`` files; ``README.md`` has the command.
    """
    network = e.writer.network
    chosen = [layer for layer in network.layers if layer.name in layers]
    made = {name for layer in chosen for name in layer.outputs}
    used = {name for layer in network.layers if layer not in chosen for name in layer.inputs}
    used |= {spec.name for spec in network.outputs}
    read = [name for name in dict.fromkeys(name for layer in chosen for name in layer.inputs) if name not in made]
    given = sorted(made & used)
    values = next(observe(network, [*read, *given], e.feeds[:1]))
    written = PlanWriter(network, e.scales, GraphTarget.TENSORRT).write(e.plan)
    for tensor in written.model.graph.initializer:
        if tensor.name in written.weights:
            tensor.CopyFrom(numpy_helper.from_array(written.weights[tensor.name], tensor.name))
    graph = gs.import_onnx(written.model)
    tensors = graph.tensors()
    for name in (*read, *given):
        tensors[name].dtype, tensors[name].shape = values[name].dtype, values[name].shape
    for name in read:
        tensors[name].inputs.clear()
    graph.inputs, graph.outputs = [tensors[name] for name in read], [tensors[name] for name in given]
    onnx.save(gs.export_onnx(graph.cleanup().toposort()), str(make_folder(folder) / "network.onnx"))
    loaded = []
    for place, name in enumerate(read):
        write_whole(folder / f"input{place}.bin", np.ascontiguousarray(values[name]).tobytes())
        loaded.append(f"'{name}':input{place}.bin")
    command = f'trtexec --onnx=network.onnx --loadInputs="{",".join(loaded)}" --exportOutput=output.json'
    text = f"The layers {', '.join(layers)} of {network.source}, alone.\n\n    {command}\n"
    write_whole(folder / "README.md", text.encode())
    return folder
