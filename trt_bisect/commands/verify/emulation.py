"""Emulations of an engine: a network under a plan, on samples, with changes; and the distance between outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import onnx
from onnx import helper, parser

from trt_bisect.builder.base import BuildOptions, Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder, OnnxRuntimeEngine
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.cost import PRODUCTS
from trt_bisect.model.file import Written, refill
from trt_bisect.model.layers import POINTWISE
from trt_bisect.model.network import Network
from trt_bisect.model.prepare import opset_of
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.session import CPU_DEVICE, make_session
from trt_bisect.precision import PrecisionPlan

Outcome = Mapping[int, Outputs] | Sequence[Outputs]  # outputs by the index of the sample
Change = Callable[["Emulation"], "Emulation"]
Infer = Callable[[Feeds], Outputs]
Edit = Callable[[Written], Written]
# a function from a node, which it may change, to the nodes that replace it
NodeEdit = Callable[[onnx.NodeProto], Iterable[onnx.NodeProto]]
# the relative noise on weights and inputs that simulates other kernels: ten to a hundred times the effect of another
# order of sums, as in Winograd's convolutions
JITTER = 3e-6
# noisy emulations, and the multiple of the largest distance among them that counts as noise
_NOISY_RUNS, _NOISE_MULTIPLE = 3, 2.5
_LEAST_FLOOR = 1e-5  # from the six digits of trtexec's JSON
_FAR = 1e3  # the distance that stands for NaN and infinite values, in units of an output's own magnitude
_LEAST_CHANNEL = 1e-2
# operators that are fused with the layer that makes their input, if nothing else reads it
_FUSED = {*POINTWISE, "QuantizeLinear"}
DOMAIN = "trt_bisect"
TF32, FP16, BF16 = "TF32", "FP16", "BF16"
SCALED, SIZED, UNCLIPPED = "Scaled", "Sized", "Unclipped"
_TERMS = {SCALED: "Identity (right)", SIZED: "Abs (right)", UNCLIPPED: "Sub (x, right)"}
_WRONG = """ <place: tensor> (y, right, x, numbers) => (z) {{
    here = Constant <value: tensor = @place> ()
    number = Gather (numbers, here)
    term = {}
    wrong = Mul (number, term)
    z = Add (y, wrong)
}}"""
_ROUNDED = (
    """TF32 (x) => (y) {
    splitter = Constant <value = float {8193.0}> ()
    large = Mul (x, splitter)
    rest = Sub (large, x)
    y = Sub (large, rest)
}""",
    """FP16 (x) => (y) {
    narrow = Cast <to = 10> (x)
    y = Cast <to = 1> (narrow)
}""",
    """BF16 (x) => (y) {
    narrow = Cast <to = 16> (x)
    y = Cast <to = 1> (narrow)
}""",
)
# ONNX functions for edits. TF32 rounds to eleven significant bits by Veltkamp's splitting with 2^13 + 1. The last three
# add to y a multiple of a term; ``place`` is the index of the multiple in an input.
_FUNCTIONS = (*_ROUNDED, *(name + _WRONG.format(term) for name, term in _TERMS.items()))


@dataclass(frozen=True)
class Emulation:
    """The emulation of a network under a plan, on samples; ``edits`` change the graph, ``after`` the outputs of each
    sample.
    """

    builder: OnnxRuntimeBuilder
    plan: PrecisionPlan
    feeds: Sequence[Feeds]
    edits: tuple[Edit, ...] = ()
    after: tuple[Callable[[Outputs], Outputs], ...] = ()

    @property
    def network(self) -> Network:
        """The emulated network."""
        return self.builder.network

    def outputs(self, places: Iterable[int], infer: Infer | None = None) -> dict[int, Outputs]:
        """Returns the outputs of the samples with the indices ``places``, by index; raises TrialFailed if ONNX Runtime
        fails.

        Args:
            infer: runs a sample in place of this emulation's own session.
        """
        infer = infer or session_of(self.builder, self.plan, self.edits).infer
        found = {}
        for place in places:
            found[place] = infer(self.feeds[place])
            for change in self.after:
                found[place] = change(found[place])
        return found

    def noisy(self, seed: int) -> Emulation:
        """Returns this emulation with relative noise of 3e-6 on float weights and inputs, as ``seed`` decides."""
        random = np.random.default_rng(seed)

        def noise(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            noisy = dict(tensors)
            for name, values in tensors.items():
                if values.dtype == np.float32:
                    factors = 1 + JITTER * random.standard_normal(values.shape, np.float32)
                    noisy[name] = np.asarray(values * factors, np.float32)
            return noisy

        def edit(written: Written) -> Written:
            return Written(written.model, noise(written.weights))

        return replace(self, feeds=[noise(sample) for sample in self.feeds], edits=(*self.edits, edit))


def builder_of(network: Network, scales: Scales, *, unquantized: bool = False) -> OnnxRuntimeBuilder:
    """Returns the builder of a network with scales; with ``unquantized``, outputs of unquantized layers are rounded
    too.
    """
    return OnnxRuntimeBuilder(network, scales, BuildOptions(device=CPU_DEVICE, unquantized_round=unquantized))


@lru_cache(maxsize=3)
def session_of(builder: OnnxRuntimeBuilder, plan: PrecisionPlan, edits: tuple[Edit, ...]) -> OnnxRuntimeEngine:
    """Returns the ONNX Runtime session of a plan, with ``edits`` made in its graph."""
    written = builder.writer.write(plan)
    for edit in edits:
        written = edit(written)
    return OnnxRuntimeEngine(make_session(written), {})


def edit_nodes(edit: NodeEdit, written: Written) -> Written:
    """Returns a graph in which each node is replaced by the nodes that ``edit`` returns for it."""
    model, nodes = onnx.ModelProto(), list[onnx.NodeProto]()
    model.CopyFrom(written.model)
    for node in model.graph.node:
        nodes += edit(node)
    refill(model.graph.node, nodes)
    opsets = f'<opset_import: ["": {opset_of(model)}], domain: "{DOMAIN}">'
    for text in _FUNCTIONS:
        model.functions.append(parser.parse_function(f"{opsets} {text}"))
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return Written(model, written.weights)


def reading_in(kind: str, network: Network, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yields ``node``, and before it nodes that round its inputs to the type ``kind``: ``TF32``, ``FP16`` or ``BF16``.

    TF32 rounds the operands of products; FP16 and BF16 round all tensors that other kernels made.
    """
    for slot, name in enumerate(node.input):
        if node.op_type in PRODUCTS:
            reads = slot < 2
        else:
            inside = node.op_type in _FUSED and network.uses[name] == 1
            reads = kind != TF32 and not inside and not network.has_constant(name)
        if reads and network.types.dtypes.get(name) == np.float32:
            node.input[slot] = f"{node.output[0]}__{kind}{slot}"
            yield helper.make_node(kind, [name], [node.input[slot]], domain=DOMAIN)
    yield node


@dataclass(frozen=True)
class Held:
    """An engine's outputs compared with those of its file (``reference``), on the samples with the indices ``places``.

    Distances are in units of each channel's root mean square (axis 1).
    """

    file: Emulation
    reference: Outcome
    engine: Outcome
    places: Sequence[int]

    @cached_property
    def _units(self) -> dict[str, np.ndarray]:
        return {
            name: _unit([self.reference[place][name] for place in range(len(self.reference))])
            for name in self.engine[0]
        }

    def vector(self, outputs: Outcome) -> np.ndarray:
        """Returns outputs as one vector, scaled so that the vector of the file's outputs has a norm of about 1.

        More values than the file's are cut off; a very large number stands for a missing, NaN or infinite one.
        """
        parts = []
        for place in self.places:
            for name, unit in self._units.items():
                values = np.full(np.shape(self.reference[place][name]), np.nan)
                given = np.ravel(outputs[place][name])[: values.size]
                values.flat[: given.size] = given
                scaled = (values / unit).clip(-2 * _FAR, 2 * _FAR).ravel()
                parts.append(np.nan_to_num(scaled, nan=_FAR) / math.sqrt(max(scaled.size, 1)))
        return np.concatenate(parts) / math.sqrt(len(parts))

    @cached_property
    def of_engine(self) -> np.ndarray:
        """The engine's outputs on these samples as one vector, scaled by the size of the file's outputs."""
        return self.vector(self.engine)

    @cached_property
    def of_file(self) -> np.ndarray:
        """The file's outputs on these samples as one vector, scaled to a norm of about 1."""
        return self.vector(self.reference)

    @cached_property
    def distance(self) -> float:
        """The distance between the engine's and the file's outputs; about 1 is as large as the file's outputs."""
        return float(np.linalg.norm(self.of_engine - self.of_file))

    @property
    def is_far(self) -> bool:
        """True if the engine lacks a value, or a value is finite in one of the two only: the distance then has no
        meaning.
        """
        for place in self.places:
            for name in self._units:
                file, engine = (np.ravel(outputs[place][name]) for outputs in (self.reference, self.engine))
                engine = engine[: file.size]
                if engine.size < file.size or not np.array_equal(np.isfinite(file), np.isfinite(engine)):
                    return True
        return False

    def apart(self, emulation: Emulation) -> float:
        """Returns the distance between the outputs of an emulation and of the file."""
        return float(np.linalg.norm(self.vector(emulation.outputs(self.places)) - self.of_file))

    def floor(self, emulation: Emulation, there: np.ndarray) -> float:
        """Returns the noise floor of an emulation: the distance from its outputs that other kernels may cause.

        Args:
            there: ``vector`` of the emulation's outputs.
        """
        others = [emulation.noisy(seed).outputs(self.places) for seed in range(_NOISY_RUNS)]
        if emulation.plan.lowered and not emulation.edits and emulation.builder.has_plain(emulation.plan):
            plain = emulation.builder.plain(emulation.plan)
            others.append(emulation.outputs(self.places, plain.infer))
        apart = max(float(np.linalg.norm(self.vector(other) - there)) for other in others)
        return max(_LEAST_FLOOR * float(np.linalg.norm(there)), _NOISE_MULTIPLE * apart)

    def worst(self, count: int) -> Held:
        """Returns the same comparison on only the ``count`` samples on which engine and file differ most."""
        apart = {place: replace(self, places=[place]).distance for place in self.places}
        return replace(self, places=sorted(apart, key=apart.__getitem__, reverse=True)[:count])


def _unit(samples: Sequence[np.ndarray]) -> np.ndarray:
    # the root mean square of each channel, at least a hundredth of that of all values; of all values if there are no
    # channels or the shapes differ
    values = np.concatenate([np.ravel(each) for each in samples]).astype(np.float64)
    squares, shape = np.square(np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)), np.shape(samples[0])
    whole = np.sqrt(squares.mean()) if squares.any() else np.float64(1.0)
    if 0 in shape or len(shape) < 2 or any(np.shape(each) != shape for each in samples):
        return np.asarray(whole)
    other_axes = (0, 1, *range(3, len(shape) + 1))
    of_channels = squares.reshape(len(samples), *shape).mean(axis=other_axes, keepdims=True)[0]
    return np.asarray(np.maximum(np.sqrt(of_channels), _LEAST_CHANNEL * whole))
