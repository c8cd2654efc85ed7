"""The network: its graph, weights and layers."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from trt_bisect.data.feeds import Feeds, TensorSpec
from trt_bisect.errors import BadInput
from trt_bisect.model import existing
from trt_bisect.model.file import (
    ONNX_TYPES,
    Constants,
    Weights,
    detach_weights,
    read_model,
    saved_model,
    tensor_uses,
    weights_digest,
)
from trt_bisect.model.layers import (
    POINTWISE,
    TAKES_TENSORS,
    Layer,
    Rounding,
    Shape,
    TensorTypes,
    layers_of,
    weight_axis,
)
from trt_bisect.model.modules import Place, titles_of
from trt_bisect.model.operators import refusing_invalid
from trt_bisect.model.prepare import (
    NAME_IN_FILE,
    NORM_OPSET,
    UNNOTED_OPSET,
    Shapes,
    detached_in,
    drop_odd_outputs,
    infer_shapes,
    is_integer_layer,
    names_for_parser,
    opset_of,
    prepare,
    refuse_integer_layers,
)
from trt_bisect.model.quantizer import BF16, FLOAT_TYPES, INT8, FloatType, LowPrecision, RoundedWeights, Scales
from trt_bisect.precision import Precision, PrecisionPlan, low_set
from trt_bisect.support.memory import mapped_if_large
from trt_bisect.support.text import counted

if TYPE_CHECKING:
    import torch

Infer = Callable[[Feeds], Feeds]
"""Returns the outputs of a network for feeds, by name."""
Slot = tuple[int, int]
"""A layer's index and the position of one of its inputs."""
_HEADS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"})
_REQUANTIZED = "They are requantized to symmetric INT8 of the same reach, which is measured and written as the recipe"
_KEPT = "They are measured as in the file; 'run' requantizes them to symmetric INT8 of the same reach"
_NEAR = 0.4  # The least ``difflib`` similarity of the names of layers that are suggested.
_FUSED_READERS = frozenset({"Relu", "Clip", "BatchNormalization"})


@dataclass(frozen=True, eq=False)
class Pipeline:
    """The networks that a user's function runs together, merged into one graph.

    Attributes:
        networks: by name, in the order of the merged graph.
        run: runs the function on feeds of the merged network, with an engine for each network. Returns the outputs, and
            the reason if there are none, else an empty text.
        digest: the digest of the function's code.
        calls: by network, the mean number of calls per sample in FP32.
        skeleton: the merged graph; None before merging.
    """

    networks: Mapping[str, Network]
    run: Callable[[Feeds, Mapping[str, Infer]], tuple[Feeds, str]]
    digest: str
    calls: Mapping[str, float] = field(default_factory=dict)
    skeleton: onnx.ModelProto | None = None


@dataclass(frozen=True, eq=False)
class Network:
    """An FP32 network, ready for a precision plan.

    Attributes:
        skeleton: the prepared graph, without its large weights.
        has_pairs: true if the file has Q/DQ pairs, whose scales are in the layers' roundings.
        base: the precision of unquantized layers, and of the float tensors at INT8 and FP8 layers. None: the high
            precision of each plan, and float32 at those layers.
        typed_in_file: true if the low precision is FP16 or BF16, and the file has layers in this type.
        one_scale: the indices of layers whose weights have one scale, not one per channel.
        scales: the INT8 scales that the user gave, by activation.
        part: a sentence on the part of the file that this is; empty for the whole.
        properties: the file's ``metadata_props``.
        restored: the activations that Q/DQ pairs of the file replaced, each a Clip now.
        changes: in words, the changes of weights made to lose less in INT8; empty without any.
        on_grid: weights that INT8 layers round instead of their own: near INT8 levels, but not always the nearest.
        rounded: a cache of rounded weights, shared by networks with the same weights.
        pipeline: the networks that were merged into this one; None if it is not merged.
    """

    source: str
    skeleton: onnx.ModelProto
    weights: Weights
    layers: tuple[Layer, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    has_pairs: bool
    low: LowPrecision = INT8
    base: Precision | None = None
    notes: tuple[str, ...] = ()
    typed_in_file: bool = False
    one_scale: frozenset[int] = frozenset()
    scales: Scales = field(default_factory=dict)
    part: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    restored: tuple[existing.RestoredActivation, ...] = ()
    changes: str = ""
    on_grid: Weights = field(default_factory=dict)
    rounded: RoundedWeights = field(default_factory=RoundedWeights, repr=False)
    pipeline: Pipeline | None = None

    def calls(self, name: str) -> float:
        """The mean number of calls per sample of the network that layer ``name`` is part of; 1 without a pipeline."""
        return 1.0 if self.pipeline is None else self.pipeline.calls.get(name.partition("/")[0], 1.0)

    @property
    def opset(self) -> int:
        """The version of the ONNX operators (opset)."""
        return opset_of(self.skeleton)

    @cached_property
    def quantizable(self) -> tuple[int, ...]:
        """The indices of the layers that can run in the low precision."""
        return tuple(layer.index for layer in self.layers if layer.quantizable)

    @cached_property
    def _following(self) -> frozenset[int]:
        return frozenset(layer.index for layer in self.layers if layer.follows)

    @cached_property
    def movable(self) -> tuple[int, ...]:
        """The indices of the quantizable layers whose precision the user did not fix."""
        return tuple(k for k in self.quantizable if self.layers[k].fixed is None)

    def plan(self, chosen: Iterable[int], high: Precision) -> PrecisionPlan:
        """Returns the plan with the ``chosen`` layers in low precision and the others in ``high``.

        Unquantized layers are in the base, and fixed layers keep their precision.
        """
        plan = self.in_base(self.free_plan(chosen, high), high)
        return replace(plan, precisions=tuple(layer.fixed or plan.precisions[layer.index] for layer in self.layers))

    def in_base(self, plan: PrecisionPlan, high: Precision) -> PrecisionPlan:
        """Returns ``plan`` with unquantized layers in the base, or in ``high`` without a base."""
        return plan.keeping(self._following, self.base or high)

    def used_precisions(self, plan: PrecisionPlan) -> frozenset[Precision]:
        """Returns the precisions in an engine of ``plan``, float tensors at INT8 and FP8 layers included."""
        return frozenset(plan.precisions) | ({self.base} if self.base is not None and plan.lowered else set())

    @property
    def base_type(self) -> FloatType | None:
        """The type of the tensors at INT8 and FP8 layers; None for float32."""
        return FLOAT_TYPES.get(self.base) if self.base is not None and self.low.needs_ranges else None

    @cached_property
    def for_parser(self) -> Network:
        """This network with nodes renamed whose names TensorRT's parser may give to layers that it adds."""
        constants = {tensor.name for tensor in self.skeleton.graph.initializer}
        names = names_for_parser([layer.name for layer in self.layers], constants)
        if not names:
            return self
        skeleton = deepcopy(self.skeleton)
        for node in skeleton.graph.node:
            if node.name in names:
                node.doc_string, node.name = f"{NAME_IN_FILE}{node.name}", names[node.name]
        renamed = self._changing(lambda layer: replace(layer, name=names.get(layer.name, layer.name)))
        return replace(renamed, skeleton=skeleton)

    def _changing(self, change: Callable[[Layer], Layer]) -> Network:
        return replace(self, layers=tuple(map(change, self.layers)))

    def with_base(self, base: Precision) -> Network:
        """Returns this network with another base; raises BadInput if its opset is too old."""
        if self.opset < self.low.oldest_opset(base):
            raise BadInput(
                f"'{self.source}' was loaded for another base and cannot be measured on one in {base.upper()}.",
                f"Load it again: load_network(path, base=Precision.{base.name}), or give its path.",
            )
        return replace(self, base=base)

    def free_plan(self, chosen: Iterable[int] = (), high: Precision = Precision.FP32) -> PrecisionPlan:
        """Returns the plan with the ``chosen`` layers in low precision and all others, also fixed ones, in ``high``."""
        return low_set(len(self.layers), chosen, high, self.low.precision)

    def all_in(self, precision: Precision) -> PrecisionPlan:
        """Returns the plan with every layer in a float precision, except layers that the user fixed in another float
        precision.
        """

        def is_free(layer: Layer) -> bool:
            return bool(layer.refused) or (layer.fixed is not None and layer.fixed.needs_scale)

        free = self._changing(lambda layer: replace(layer, fixed=None) if is_free(layer) else layer)
        return replace(free, base=precision).plan((), precision)

    def full(self, high: Precision) -> PrecisionPlan:
        """Returns the plan with all movable layers in low precision; unquantized ones in the base or, without one,
        ``high``.
        """
        return self.plan(self.movable, high)

    def fixing(self, precisions: Mapping[int, Precision]) -> Network:
        """Returns this network with the precisions of some layers (by index) fixed."""
        return self._changing(lambda layer: replace(layer, fixed=precisions.get(layer.index, layer.fixed)))

    def refusing(self, reasons: Mapping[int, str], high: Precision) -> Network:
        """Returns this network with the layers in ``reasons`` (by index) fixed in ``high``, because engines refuse them
        in the low precision.
        """
        network = self.fixing(dict.fromkeys(reasons, high))
        return network._changing(lambda layer: replace(layer, refused=reasons.get(layer.index, layer.refused)))

    @property
    def is_static(self) -> bool:
        """True if no input has a dynamic axis."""
        return all(None not in spec.shape for spec in self.inputs)

    @cached_property
    def constants(self) -> Constants:
        """The constants of the graph."""
        return Constants(self.skeleton.graph, self.weights)

    def has_constant(self, name: str) -> bool:
        """Returns true for the name of a constant of the graph."""
        return name in self.constants

    def constant(self, name: str) -> np.ndarray:
        """The values of a constant of the graph; raises KeyError for another name."""
        return self.constants[name]

    @cached_property
    def types(self) -> TensorTypes:
        """The dtypes and shapes of the tensors, if known."""
        return TensorTypes.of(self.skeleton.graph)

    @cached_property
    def activations(self) -> tuple[str, ...]:
        """The float32 tensors that are not constants, inputs first, in execution order."""
        made = [spec.name for spec in self.inputs if spec.dtype == np.float32]
        rounded = set(self.rounded_activations)
        for layer in self.layers:
            made += [out for out in layer.outputs if self.types.dtypes.get(out) == np.float32 or out in rounded]
        return tuple(dict.fromkeys(made))

    @cached_property
    def rounded_activations(self) -> tuple[str, ...]:
        """The activations that a quantizable layer rounds and whose scale comes from calibration, not from the file."""
        if not self.low.needs_ranges:
            return ()
        roundings = (rounding for layer in self.layers for rounding in layer.roundings)
        return tuple(dict.fromkeys(r.tensor for r in roundings if not r.is_weight and not r.fixed))

    @property
    def unscaled(self) -> tuple[str, ...]:
        """The activations that a layer may round and that have no scale from the user."""
        low = (k for k in self.quantizable if (fixed := self.layers[k].fixed) is None or fixed.needs_scale)
        read = {rounding.tensor for k in low for rounding in self.layers[k].roundings}
        return tuple(name for name in self.rounded_activations if name in read and name not in self.scales)

    @cached_property
    def producers(self) -> Mapping[str, Layer]:
        """The layer that computes each tensor."""
        return {out: layer for layer in self.layers for out in layer.outputs}

    @cached_property
    def uses(self) -> Counter[str]:
        """The number of readers of each tensor."""
        return tensor_uses(self.skeleton.graph)

    @cached_property
    def readers(self) -> Mapping[str, Sequence[Slot]]:
        """By tensor, its reads as (layer index, input position), in execution order, without graphs inside nodes."""
        slots: defaultdict[str, list[Slot]] = defaultdict(list)
        for index, node in enumerate(self.skeleton.graph.node):
            for slot, name in enumerate(node.input):
                slots[name].append((index, slot))
        return dict(slots)

    @cached_property
    def operands(self) -> Mapping[str, int]:
        """By name of a float constant that is a layer in TensorRT, the index of the first layer that reads it."""
        first: dict[str, int] = {}
        for layer in self.layers:
            for name in self.skeleton.graph.node[layer.index].input if layer.op_type in TAKES_TENSORS else ():
                if self.has_constant(name) and self.types.dtypes[name].kind == "f":
                    first.setdefault(name, layer.index)
        return first

    def layer_named(self, name: str) -> Layer:
        """Returns the layer with this name; raises BadInput, with similar names, if there is none."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise self.no_layer(name, name)

    def no_layer(self, asked: str, plain: str) -> BadInput:
        """Returns the error that there is no layer ``asked``, with names of layers similar to ``plain``: ``asked``
        without wildcards.
        """
        near = difflib.get_close_matches(plain, [layer.name for layer in self.layers], 3, _NEAR)
        hint = "Did you mean " + ", ".join(f"'{name}'" for name in near) + "? " if near else ""
        remedy = f"{hint}'trt-bisect layers {self.source}' lists them."
        return BadInput(f"'{self.source}' has no layer '{asked}'.", remedy)

    def keeping_high(self, reasons: Mapping[int, str]) -> Network:
        """Returns this network with the layers in ``reasons`` (by index) no longer quantizable."""
        return self._changing(lambda layer: layer.kept_high(reasons[layer.index]) if layer.index in reasons else layer)

    def with_low(self, low: LowPrecision) -> Network:
        """Returns this network with another low precision.

        Raises BadInput if its Q/DQ pairs have another low precision, or its opset is too old.
        """
        if self.has_pairs or self.typed_in_file or self.opset < low.opset:
            raise BadInput(
                f"'{self.source}' was loaded for {self.low.title} and cannot be measured in {low.title}.",
                f"Load it again: load_network(path, low=LOWS['{low.precision}']), or give its path.",
            )
        layers = layers_of(self.skeleton.graph, self.weights, existing.ExistingPairs(), low)
        shapes = {layer.outputs[0]: layer.shape for layer in self.layers if layer.shape is not None}
        return replace(self, layers=layers, low=low).with_shapes(shapes)

    def with_shapes(self, shapes: Mapping[str, Shape]) -> Network:
        """Returns this network with ``shapes``, by output tensor, as the output shapes of its layers."""
        return self._changing(lambda layer: replace(layer, shape=shapes.get(layer.outputs[0], layer.shape)))

    @cached_property
    def asymmetric(self) -> tuple[Rounding, ...]:
        """The roundings whose quantizers in the file TensorRT refuses."""
        return tuple(rounding for layer in self.layers for rounding in layer.roundings if rounding.asymmetric)

    def as_in_file(self) -> Network:
        """Returns this network with all Q/DQ pairs of its file, also asymmetric ones and those of layers kept in high
        precision, and no base.
        """
        if not self.has_pairs:
            return self

        def in_file(layer: Layer) -> Layer:
            roundings = tuple(rounding.as_in_file() for rounding in layer.roundings)
            return replace(layer, roundings=roundings, why_not="" if roundings else layer.why_not)

        notes = tuple(note.replace(_REQUANTIZED, _KEPT) for note in self.notes)
        return replace(self._changing(in_file), base=None, notes=notes)

    @property
    def has_scales(self) -> bool:
        """True if all scales come from the file's Q/DQ pairs."""
        return self.has_pairs and not self.rounded_activations

    @property
    def stand_in(self) -> float | None:
        """The scale that all Q/DQ pairs on activations in the file share, a placeholder; None if two differ, or one
        tensor alone has pairs.
        """
        # ModelOpt's autotune writes such files: it chooses the places of pairs, and leaves the scales to calibration.
        rounded = [rounding for layer in self.layers for rounding in layer.roundings if not rounding.is_weight]
        scales = {float(np.max(quantizer.scale)) for rounding in rounded for quantizer in rounding.fixed}
        return scales.pop() if len(scales) == 1 and len({rounding.tensor for rounding in rounded}) > 1 else None

    def without_scales(self) -> Network:
        """Returns this network with its Q/DQ pairs in place, and their scales left to calibration."""

        def without(layer: Layer) -> Layer:
            node, roundings = self.skeleton.graph.node[layer.index], list[Rounding]()
            for rounding in layer.roundings:
                axis = weight_axis(node, rounding.slot, self.types) if rounding.is_weight else None
                roundings.append(replace(rounding, axis=axis, fixed=(), asymmetric=()))
            return replace(layer, roundings=tuple(roundings))

        return self._changing(without)

    def with_one_scale_a_weight(self, chosen: Iterable[int] | None = None) -> Network:
        """Returns this network with one scale per weight in ``chosen`` layers (default: all); quantizers of the file
        stay.
        """
        indices, layers = frozenset(range(len(self.layers)) if chosen is None else chosen), list(self.layers)
        for k in indices:
            roundings = (r if r.fixed else replace(r, axis=None) for r in layers[k].roundings)
            layers[k] = replace(layers[k], roundings=tuple(roundings))
        return replace(self, layers=tuple(layers), one_scale=self.one_scale | indices)

    def digest(self) -> str:
        """Returns the SHA-256 of graph, weights, base, quantizable layers and the tensors that they round."""
        self.rounded.digest = self.rounded.digest or weights_digest(self.weights)
        sha = hashlib.sha256(self.skeleton.SerializeToString(deterministic=True))
        sha.update(self.rounded.digest.encode())
        if self.low is not INT8:
            sha.update(self.low.title.encode())
        if self.base_type is not None:
            sha.update(f"on a base in {self.base_type.name}".encode())
        if self.on_grid:
            sha.update(f"rounded by {weights_digest(self.on_grid)}".encode())
        if self.one_scale:
            sha.update(f"one scale a weight of {sorted(self.one_scale)}".encode())
        for layer in self.layers:
            sha.update(f"{layer.quantizable}".encode())
            if layer.fixed is not None and not layer.quantizable:
                sha.update(b"not free to follow")
            for rounding in layer.roundings:
                sha.update(repr((rounding.slot, [quantizer.key() for quantizer in rounding.fixed])).encode())
        return sha.hexdigest()


GivenModel: TypeAlias = "str | Path | onnx.ModelProto | Network | torch.nn.Module | torch.export.ExportedProgram"
"""A network as Python takes it."""


def load_network(
    path: str | Path | onnx.ModelProto | Callable[..., object],
    shapes: Shapes | None = None,
    low: LowPrecision = INT8,
    base: Precision | None = None,
    *,
    fuse_norms: bool = False,
    unseen: Collection[str] = (),
    opset: int = 0,
) -> Network:
    """Reads an ONNX file of opset 9 or later and prepares it for measuring.

    Functions are inlined, constants and BatchNormalization folded, unnamed nodes named, Q/DQ pairs removed and their
    scales kept. If ONNX Runtime cannot run a node, the part before it is kept, with a note.

    Args:
        path: the file, with external data in the same folder; or the network as ``onnx.load`` returns it. A function
            is refused.
        shapes: sizes of dynamic axes, by input; others stay dynamic.
        low: the low precision; Q/DQ pairs that are all in FP8 make it FP8.
        base: the precision of unquantized layers; None: the high precision of each plan.
        fuse_norms: make one node of each decomposed LayerNormalization (opset 17).
        unseen: the names of restored activations (Clips) to leave out.
        opset: the oldest opset of the result; 0: the oldest that measuring needs.

    Raises:
        BadInput: the file or a shape cannot be used.
    """
    if not isinstance(path, ONNX_TYPES):
        raise BadInput(
            f"A network is an ONNX file or an onnx.ModelProto, not {type(path).__name__}.",
            "Export it as ONNX, and give the path. compare also takes a session, and a function, as 'other'.",
        )
    path = saved_model(path)
    with refusing_invalid(Path(path)):
        return _prepared(*read_model(Path(path)), shapes or {}, str(path), low, base, fuse_norms, unseen, opset)


def _prepared(
    model: onnx.ModelProto,
    weights: Weights,
    shapes: Shapes,
    source: str,
    low: LowPrecision,
    base: Precision | None,
    fuse_norms: bool,
    unseen: Collection[str],
    asked_opset: int,
) -> Network:
    dropped, opset = drop_odd_outputs(model.graph, source), opset_of(model)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    existing.refuse_other_pairs(model.graph, source)
    oldest = max(low.oldest_opset(base), NORM_OPSET if fuse_norms else 0, asked_opset)
    integers = sum(is_integer_layer(node.op_type) for node in model.graph.node)
    graph, cut, places = prepare(model, weights, shapes, source, oldest, fuse_norms=fuse_norms)
    refuse_integer_layers(graph, source)
    pairs = existing.take_out_pairs(graph, unseen)
    low = existing.low_of_pairs(pairs, low, source)
    in_type = existing.take_out_types(graph, low, source) if low.float_type and not pairs else None
    in_base = (
        existing.take_out_types(graph, BF16, source)
        if pairs and existing.has_type(graph, FLOAT_TYPES[Precision.BF16])
        else None
    )
    skeleton = _export(graph, source)
    weights = mapped_if_large(detached_in(graph) | detach_weights(skeleton))
    skeleton = infer_shapes(skeleton)
    layers = _in_program(layers_of(skeleton.graph, weights, pairs, low), places)
    if in_type is not None:
        why = "the network has it in float32"
        layers = tuple(layer if layer.name in in_type else layer.kept_high(why) for layer in layers)
    if in_base is not None:
        layers, base = _others_in_fp32(layers, in_base), Precision.BF16
    if not layers:
        raise BadInput(f"'{source}' has no layers: all of it is constant.", "Give the network as it was exported.")
    part, notes = (cut[0], [cut[1]]) if cut else ("", [])
    if opset < UNNOTED_OPSET:
        notes.append(f"the file has opset {opset}: ONNX's own converter made opset {opset_of(skeleton)} of it")
    if integers:
        notes.append(f"the file has {integers} integer layers, read as the same layers in floats between Q/DQ pairs")
    notes += [*_notes_of(layers, pairs, low, in_type, in_base), *dropped]
    return Network(
        source=source,
        skeleton=skeleton,
        weights=weights,
        layers=layers,
        inputs=tuple(spec_of(value) for value in skeleton.graph.input),
        outputs=tuple(spec_of(value) for value in skeleton.graph.output),
        has_pairs=bool(pairs),
        low=low,
        base=base,
        notes=tuple(notes),
        typed_in_file=in_type is not None,
        part=part,
        properties=properties,
        restored=tuple(pairs.restored),
    )


def _in_program(layers: tuple[Layer, ...], places: dict[str, Place]) -> tuple[Layer, ...]:
    titles = titles_of(((layer.name, layer.op_type, layer.has_weight) for layer in layers), places)
    placed = []
    for layer in layers:
        place = places.get(layer.name, Place())
        placed.append(replace(layer, title=titles.get(layer.name, ""), module=place.module, code=place.code))
    return tuple(placed)


def _others_in_fp32(layers: Iterable[Layer], in_base: Collection[str]) -> tuple[Layer, ...]:
    return tuple(
        replace(layer, fixed=Precision.FP32)
        if layer.follows and layer.dtype == np.float32 and layer.name not in in_base and layer.op_type != "Cast"
        else layer
        for layer in layers
    )


def _notes_of(
    layers: tuple[Layer, ...],
    pairs: existing.ExistingPairs,
    low: LowPrecision,
    in_type: Collection[str] | None,
    in_base: Collection[str] | None,
) -> Iterator[str]:
    roundings = [rounding for layer in layers for rounding in layer.roundings]
    # A tensor counts once, however many layers read it or have a pair of their own for it.
    in_file = {rounding.tensor for rounding in roundings if rounding.fixed}
    asymmetric = list(dict.fromkeys(rounding.tensor for rounding in roundings if rounding.asymmetric))
    if asymmetric:
        yield (
            f"{len(asymmetric)} of the {len(in_file)} tensors that the file rounds to eight bits have asymmetric Q/DQ "
            f"pairs, '{asymmetric[0]}' the first: TensorRT refuses zero points, and reads UINT8 as INT8. {_REQUANTIZED}"
        )
    if pairs.unproven:
        yield (
            f"the range of a pair begins at zero after {len(pairs.unproven)} layers ('{pairs.unproven[0]}' the first), "
            "but this does not prove that a Relu was removed there, and none is restored. If a Relu was removed, "
            "give the network before quantizing as --reference, or quantize again with QDQKeepRemovableActivations in "
            "ONNX Runtime's extra_options"
        )
    if any(quantizer.dtype == np.float16 for rounding in roundings for quantizer in rounding.fixed):
        yield (
            f"the network is in FP16: so is all that is not in {low.title}, including the reference, which is called "
            "FP32"
        )
    if low.wide:
        yield f"{low.title} is an experiment, emulated only: INT16 activations, INT8 weights; no engine has it"
    if in_type is not None:
        count = sum(layer.quantizable for layer in layers)
        yield (
            f"the network is in {low.title}: the {count} layers that compute in it in the file are in question, and "
            "FP32 means the file's weights in float32 arithmetic"
        )
    if in_base is not None:
        yield "all that is not in eight bits is in BF16, as in the file, and so are the tensors at its Q/DQ pairs"
    stuck = [layer.name for layer in layers if layer.op_type in ("QuantizeLinear", "DequantizeLinear")]
    if stuck:
        yield (
            f"every plan, including FP32, keeps {counted(len(stuck), 'Q/DQ node')} that cannot be switched (Q or DQ "
            "alone, not INT8, in blocks, with computed scales, or with other parameters in Q than in DQ): "
            f"'{stuck[0]}' is the first"
        )


def _export(graph: gs.Graph, source: str) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=False)
    except Exception as error:
        raise BadInput(
            f"ONNX-GraphSurgeon cannot write a part of '{source}': {type(error).__name__}: {error}",
            "Optional and sequence types are the usual reason; export only the part of the network that is quantized.",
        ) from error
    model.ir_version = min(max(model.ir_version, 8), 10)
    model.producer_name = "trt_bisect"
    return model


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec:
    """Returns name, dtype and shape of an input or output; a dynamic axis is None."""
    tensor = value.type.tensor_type
    dims = tuple(
        int(dim.dim_value) if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in tensor.shape.dim
    )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.float32
    return TensorSpec(value.name, np.dtype(dtype), dims)


def followed_tensors(network: Network, int8: Collection[int]) -> frozenset[str]:
    """Returns the tensors of unquantized layers that TensorRT may hold in INT8 if the layers ``int8`` are in INT8."""
    chosen = {k for k in int8 if network.layers[k].quantizable}
    fed, read = set[str](), set[str]()
    for layer in network.layers:
        if layer.index in chosen or (layer.follows and not fed.isdisjoint(layer.inputs)):
            fed.update(layer.outputs)
    for layer in reversed(network.layers):
        if layer.index in chosen or (layer.follows and not read.isdisjoint(layer.outputs)):
            read.update(layer.inputs)
    results = {spec.name for spec in network.outputs}
    return frozenset((fed & read) - results - _inside_kernels(network, chosen))


def tensors_in_low(network: Network) -> frozenset[str]:
    """Returns the activations that some plan may have in INT8."""
    return followed_tensors(network, network.quantizable) | frozenset(network.rounded_activations)


def _inside_kernels(network: Network, int8: Collection[int]) -> set[str]:
    makers = network.producers
    reads = ((tensor, layer) for layer in network.layers for tensor in layer.inputs if tensor in makers)
    return {name for name, layer in reads if network.uses[name] == 1 and _is_fused(makers[name], layer, name, int8)}


def _is_fused(maker: Layer, reader: Layer, tensor: str, int8: Collection[int]) -> bool:
    if reader.quantizable:
        bare = reader.op_type == "Add" and all(rounding.tensor != tensor for rounding in reader.roundings)
        return bare and reader.index in int8
    if maker.op_type in POINTWISE and not maker.quantizable and reader.op_type in POINTWISE:
        return True
    adds_bias = reader.op_type == "Add" and len(reader.inputs) == 1
    return maker.op_type in _HEADS and (adds_bias or reader.op_type in _FUSED_READERS)
