"""A wrong kernel: found by the engine's inner tensors, else by the layer whose error explains most.

Without inner tensors, one graph adds an error to each layer's output y, with two numbers a and b as inputs:
``y + a y + b |y|``. An activation may also be left out, as if it were fused into a scale that does not clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.debug_tensors import EngineTensor, engine_tensors
from trt_bisect.commands.verify.emulation import DOMAIN, SCALED, SIZED, UNCLIPPED, Change, Emulation, Held, edit_nodes
from trt_bisect.commands.verify.suspicions import Suspicion
from trt_bisect.data.feeds import match_names
from trt_bisect.model.file import Written, save_model
from trt_bisect.model.observe import observe
from trt_bisect.model.pieces import Boundaries
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.support.files import make_folder, write_whole

KERNEL, CLIP_FUSED = "kernel", "clip-fused"
_NUMBERS = "__verify"
_FIRST_STEP, _MOST_REFINED, _REFINING_STEPS = 0.1, 6, 4
_RANGE = (-2.0, 8.0)
_ACTIVATIONS = ("Relu", "Clip")
_MOST_LAYERS = 150


def parted(e: Emulation, tensors: Sequence[Outputs]) -> tuple[EngineTensor, ...]:
    """Returns the engine's inner tensors in execution order, each compared with what the emulation makes of the
    engine's tensors before; empty if no name matches.

    Args:
        tensors: for each sample, the engine's tensors by name.
    """
    writer = e.builder.writer
    graph = writer.write(e.plan).model.graph
    names = match_names([name for node in graph.node for name in node.output if name], tensors[0])
    if not names:
        return ()
    shown = ({ours: each[theirs] for ours, theirs in names.items()} for each in tensors)
    return engine_tensors(writer, e.plan, lambda _: next(shown), e.feeds)


class WithErrors:
    """A network in which an error is added to each layer's output, multiplied by a number that is an input of the
    graph.
    """

    def __init__(self, e: Emulation) -> None:
        self._ways = list[tuple[str, str]]()
        self._places = dict[str, list[int]]()
        activations = [layer.index for layer in e.network.layers if layer.op_type in _ACTIVATIONS]
        for k in dict.fromkeys((*e.network.quantizable[:_MOST_LAYERS], *activations[:_MOST_LAYERS])):
            layer = e.network.layers[k]
            if layer.outputs[0] not in e.network.types.float32:
                continue
            for term in (UNCLIPPED,) if layer.op_type in _ACTIVATIONS else (SCALED, SIZED):
                self._places.setdefault(layer.outputs[0], []).append(len(self._ways))
                self._ways.append((layer.name, term))

    def _edit(self, written: Written) -> Written:
        edited = edit_nodes(self._with_error, written)
        numbers = helper.make_tensor_value_info(_NUMBERS, TensorProto.FLOAT, [len(self._ways)])
        edited.model.graph.input.append(numbers)
        return edited

    def _with_error(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        out = node.output[0]
        places = self._places.get(out, [])
        made = right = f"{out}{_NUMBERS}"
        if places:
            node.output[0] = right
        yield node
        for place in places:
            inputs = [made, right, node.input[0], _NUMBERS]
            made = out if place == places[-1] else f"{right}{place}"
            here = numpy_helper.from_array(np.int64(place))
            yield helper.make_node(self._ways[place][1], inputs, [made], domain=DOMAIN, place=here)

    def _wrong(self, place: int, number: float) -> Change:
        numbers = np.zeros(len(self._ways), np.float32)
        numbers[place] = number

        def change(e: Emulation) -> Emulation:
            return replace(e, feeds=[{**sample, _NUMBERS: numbers} for sample in e.feeds], edits=(*e.edits, self._edit))

        return change

    def suspicions(self, held: Held) -> Iterator[Suspicion]:
        """Yields suspicions of activations left out, and of the wrong kernels that explain most of the difference, each
        with the error that fits the engine's outputs.
        """

        def at(place: int, number: float) -> np.ndarray:
            return held.vector(self._wrong(place, number)(held.file).outputs(held.places))

        right, shares = at(0, 0.0), list[tuple[float, int, float]]()
        for place, (name, term) in enumerate(self._ways):
            if term == UNCLIPPED:
                text = f"leaves out '{name}': a scale that does not clip stands for it"
                yield Suspicion(CLIP_FUSED, text, self._wrong(place, 1.0), (name,))
                continue
            response = at(place, _FIRST_STEP) - right
            power, along = float(response @ response), float((held.of_engine - right) @ response)
            if power:
                shares.append((along**2 / power, place, _FIRST_STEP * along / power))
        for _, place, number in sorted(shares, reverse=True)[:_MOST_REFINED]:
            tried = list[tuple[float, float]]()
            for _ in range(_REFINING_STEPS):  # Gauss's and Newton's steps
                number = float(np.clip(number, *_RANGE))
                rest = held.of_engine - at(place, number)
                tried.append((float(np.linalg.norm(rest)), number))
                step = _FIRST_STEP**2 * (abs(number) + _FIRST_STEP)
                response = (at(place, number + step) - held.of_engine + rest) / step
                number += float(rest @ response) / (float(response @ response) or 1.0)
            yield self._kernel(place, min(tried)[1])
            if self._ways[place][1] == SCALED:
                yield self._kernel(place, -1.0)

    def _kernel(self, place: int, number: float) -> Suspicion:
        name, term = self._ways[place]
        wrong = f"y {number:+.3g} |y|"
        if term == SCALED:
            wrong = f"{1 + number:.3g} y, not y"
        text = f"has a wrong kernel for '{name}': it gives about {wrong}"
        return Suspicion(KERNEL, text, self._wrong(place, number), (name,))


def write_minimal(e: Emulation, layers: Sequence[str], folder: Path) -> Path:
    """Writes the named layers, and all between them, as a network in the plan's precisions, with the inputs of a
    sample.

    Returns the folder; its ``README.md`` has the command for trtexec.
    """
    network = e.network
    chosen = [layer.index for layer in network.layers if layer.name in layers]
    piece = Boundaries(network).piece(min(chosen), max(chosen) + 1)
    values = next(observe(network, piece.reads, e.feeds[:1]))
    written = PlanWriter(network, e.builder.scales, GraphTarget.TENSORRT).write(e.plan, piece)
    loaded = []
    make_folder(folder)
    for place, given in enumerate(written.model.graph.input):
        array = np.ascontiguousarray(values[given.name])
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        given.CopyFrom(helper.make_tensor_value_info(given.name, kind, array.shape))
        write_whole(folder / f"input{place}.bin", array.tobytes())
        loaded.append(f"'{given.name}':input{place}.bin")
    save_model(written.model, written.weights, folder / "network.onnx")
    command = f'trtexec --onnx=network.onnx --loadInputs="{",".join(loaded)}" --exportOutput=output.json'
    text = f"The layers {', '.join(layers)} of {network.source}, alone.\n\n    {command}\n"
    write_whole(folder / "README.md", text.encode())
    return folder
