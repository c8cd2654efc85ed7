"""The cost of layers and plans: in multiply-adds, in measured times, or in predicted times.

The cost of a layer is that of the plan in which only this layer is in high precision. Predicted times, and their
correction by the profile of an engine: docs/concepts/time.md.

# The kernels

**Fusions** ("Types of Fusions" in the TensorRT developer guide; docs/evidence/engines; engines of TensorRT-RTX,
tests/model/test_plan_kernels.py). One kernel computes:

- A convolution or matrix product with a weight, and the elementwise layers after it (bias, BatchNormalization,
  activation, SiLU), if nothing else reads the tensors in between and none is broadcast. On a base in FP16 or BF16, a
  layer in FP32 begins a new kernel.
- The sum of a residual block, with the branch that has no Q/DQ pair; without pairs, with the later branch.
- Elementwise layers that follow each other, also before a softmax or a normalization.
- An INT8 convolution of a picture (at most four channels) and the MaxPool after it.
- Attention in FP16 or BF16: product of two activations, scale and mask, softmax, second product. With FP32 or a Q/DQ
  pair inside, these are three kernels.

A change of shape alone (Reshape, Flatten) needs no kernel. All other layers (pooling, Concat, Resize, Transpose) are
kernels that only move bytes; an unknown operator, a *region*, also widens the range of the prediction.

**Tensors between kernels.** A layer reads INT8 if the plan rounds the tensor for it, else the precision in which it
computes. INT8 kernels and generated kernels (pointwise, softmax, normalization) write INT8 or floats; float
convolutions, poolings and the network's inputs only their own precision. Hence:

- If all readers want INT8 and the kernel can write it, the Q/DQ pair costs nothing.
- Otherwise the tensor is stored in floats, and a kernel, a *reformat*, makes each other precision wanted.
- Layers that only move values (MaxPool, Resize, Transpose, Slice) stay in INT8 between such kernels and readers.
- An INT8 convolution stores floats 32 channels wide, a float convolution reads 8 (FP16) or 4 (FP32): one more reformat.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.file import attribute
from trt_bisect.model.gpu_time import BYTES, PICTURE, Gpu, Kernel, Kind, Predicted, Product, ranged, seconds, start_of
from trt_bisect.model.layers import CONVOLUTIONS, POINTWISE, Layer, TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import FLOAT_TYPES
from trt_bisect.precision import Precision, PrecisionPlan

Times = Mapping[int, Mapping[Precision, float]]
"""The time of each layer in each precision, by layer index, in any unit."""
Costs = Mapping[int, Mapping[Precision, float]]
"""The share of the low precision's speedup that a layer gives up, by layer index and high precision."""
UNITS = {Precision.INT8: 1.0, Precision.FP8: 1.0, Precision.FP16: 2.0, Precision.BF16: 2.0, Precision.FP32: 4.0}
"""The time of a multiply-add relative to INT8: peaks of dense tensor cores in NVIDIA's A100 and (FP8) H100 datasheets.
"""
_HIGHER = (Precision.FP16, Precision.BF16, Precision.FP32)
NEARLY_FREE = 1e-6
_COLUMNS = "CSV with the columns layer, int8, fp32 and, where layers may be in FP16 or BF16, fp16 or bf16"


def macs(network: Network, facts: TensorFacts) -> dict[int, int]:
    """Returns the multiply-adds of each layer by index; 0 for layers that multiply nothing."""
    engine = EngineModel(network, facts)
    products = [engine.product(layer.index, Precision.FP32) for layer in network.layers]
    return {k: product.macs if product else 0 for k, product in enumerate(products)}


def times_by_macs(network: Network, facts: TensorFacts) -> Times:
    """Returns the time of each quantizable layer in each precision, in arbitrary units, from the number of its
    multiply-adds, or of its output values if it multiplies nothing.
    """
    counts, shapes = macs(network, facts), facts.shapes
    work = {
        k: counts[k] or max(math.prod(shapes.get(network.layers[k].outputs[0], ())), 1) for k in network.quantizable
    }
    return {k: {precision: count * units for precision, units in UNITS.items()} for k, count in work.items()}


def instead_of(low: Precision) -> Precision:
    """Returns the precision that a low one is compared with: FP32 for FP16 and BF16, else FP16."""
    return Precision.FP32 if low in FLOAT_TYPES else Precision.FP16


def shares(times: Times, low: Precision = Precision.INT8) -> dict[int, dict[Precision, float]]:
    """Returns the share of the low precision's speedup that each layer gives up, by layer index and higher precision.

    The speedup is that of all layers over FP16; with FP16 or BF16 as ``low``, over FP32. A layer that is no faster in
    ``low`` gives up 1e-6.
    """
    other = instead_of(low)
    gain = sum(max(by[other] - by[low], 0.0) for by in times.values()) or 1.0
    return {
        k: {p: max((time - by[low]) / gain, NEARLY_FREE) for p, time in by.items() if p is not low}
        for k, by in times.items()
    }


def times_from_csv(path: Path, network: Network) -> Times:
    """Reads each layer's measured times from a CSV: columns ``layer``, the low precision (``int8``) and ``fp32``, and
    optionally ``fp16`` and ``bf16``.

    Raises BadInput if the file cannot be read, lacks a column or a quantizable layer, or a value is not a time.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"The costs '{path}' cannot be read: {first_line(error)}", f"Give {_COLUMNS}.") from error
    row_of = {row.get("layer"): row for row in rows}
    times: dict[int, dict[Precision, float]] = {}
    for k in network.quantizable:
        name = network.layers[k].name
        if name not in row_of:
            raise BadInput(f"'{path}' has no row for layer '{name}'.", f"Give {_COLUMNS}, a row for each layer.")
        row, low = row_of[name], network.low.precision
        times[k] = {p: _time(row, p, path) for p in (low, *_HIGHER) if p in (low, Precision.FP32) or row.get(str(p))}
    return times


def _time(row: Mapping[str, str | None], precision: Precision, path: Path) -> float:
    text = row.get(str(precision))
    with suppress(ValueError):
        time = float(text or "")
        if 0.0 <= time < math.inf:
            return time
    problem = f"'{path}' has '{text or ''}' as the time of layer '{row['layer']}' in {precision}."
    raise BadInput(problem, f"Give {_COLUMNS}.")


PRODUCTS = frozenset({*CONVOLUTIONS, "Gemm", "MatMul"})
_POINTWISE = POINTWISE | frozenset(
    "Min Max Where Cast Not And Or Equal Less Greater LessOrEqual GreaterOrEqual Round Floor Ceil Sign Sin Cos "
    "Reciprocal Identity Dropout".split()
)
_NORMS = frozenset(
    "Softmax LogSoftmax LayerNormalization RMSNormalization InstanceNormalization GroupNormalization".split()
)
_GENERATED = _POINTWISE | _NORMS
_SHAPES = frozenset("Reshape Flatten Squeeze Unsqueeze Constant Shape Size ConstantOfShape Range".split())
_STREAMS = frozenset(
    "MaxPool AveragePool GlobalAveragePool GlobalMaxPool LpPool ReduceMean ReduceSum ReduceMax ReduceMin "
    "ReduceProd ReduceL2 ReduceL1 ReduceSumSquare ArgMax ArgMin LRN Concat Split Slice Gather GatherElements "
    "GatherND Expand Tile Pad Resize Upsample Transpose DepthToSpace SpaceToDepth ScatterND ScatterElements TopK "
    "CumSum LpNormalization Trilu".split()
)
# The number of channels that the tensor cores' formats store together.
_WIDTHS = {Precision.INT8: 32, Precision.FP8: 16, Precision.FP16: 8, Precision.BF16: 8, Precision.FP32: 4}
# Operators that write INT8 if they read INT8, so that a Q/DQ pair can move across them.
_CARRIES = frozenset("Transpose Resize Upsample Slice Split DepthToSpace SpaceToDepth Pad Tile Expand MaxPool".split())


@dataclass(frozen=True)
class Group:
    """Layers, by index, that become one kernel.

    Attributes:
        head: the layer with the matrix product; None without one.
        writes: the results that other kernels read, or that are outputs of the network.
    """

    layers: tuple[int, ...]
    head: int | None
    kind: Kind
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class EngineModel:
    """A prediction of the kernels of TensorRT's engine for each plan of a network."""

    def __init__(self, network: Network, facts: TensorFacts) -> None:
        self.network, self.facts = network, facts
        self._nodes, self._outputs = network.skeleton.graph.node, {spec.name for spec in network.outputs}
        self._readers: defaultdict[str, list[int]] = defaultdict(list)
        for layer in network.layers:
            for tensor in layer.inputs:
                self._readers[tensor].append(layer.index)
        self.made: dict[Hashable, _Made] = {}

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All layers, as fused into kernels, in execution order."""
        fused: dict[int, set[int]] = {}
        for layer in self.network.layers:
            fused[layer.index] = self._fused(layer, fused)
        taken, groups = set[int](), []
        for layer in reversed(self.network.layers):
            if layer.index not in taken:
                members = fused[layer.index] - taken
                taken |= members
                groups.append(self.group_of(tuple(sorted(members))))
        return tuple(sorted(groups, key=lambda group: group.layers[-1]))

    @cached_property
    def attentions(self) -> tuple[tuple[Group, tuple[Group, ...]], ...]:
        """For each attention, the group of all its layers as one kernel; and its groups as three kernels."""
        writers = {group.writes[0]: group for group in self.groups if len(group.writes) == 1}
        attentions = []
        for last in self.groups:
            softmax = writers.get(self._nodes[last.head].input[0]) if last.head is not None else None
            if softmax is None or self.network.layers[softmax.layers[-1]].op_type != "Softmax":
                continue
            makers = [writers[name] for name in softmax.reads if name in writers]
            three = (*(group for group in makers if group.head is not None), softmax, last)
            attention = self.group_of(tuple(sorted(k for group in three for k in group.layers)))
            heads = [group.head for group in three if group.head is not None]
            if attention.writes == last.writes and len(heads) == 2 and not any(map(self._has_weight, heads)):
                attentions.append((attention, three))
        return tuple(attentions)

    def _kind(self, layer: Layer) -> Kind:
        floats = [name for name in layer.outputs if name in self.facts.dtypes and self.facts.dtypes[name].kind == "f"]
        if layer.op_type in _SHAPES or not floats:
            return Kind.NOTHING
        if layer.op_type in PRODUCTS:
            return Kind.PRODUCT
        return Kind.STREAM if layer.op_type in _GENERATED or layer.op_type in _STREAMS else Kind.REGION

    def _fused(self, last: Layer, before: Mapping[int, set[int]]) -> set[int]:
        members, layers, producers = {last.index}, self.network.layers, self.network.producers
        if last.op_type not in _GENERATED or self._kind(last) is not Kind.STREAM:
            return members
        has_head, refused = last.op_type in _NORMS, set[int]()
        while True:
            makers = {producers[name].index for k in members for name in layers[k].inputs if name in producers}
            open_ = [k for k in makers - members - refused if self._is_read_only_by(layers[k], members)]
            if not open_:
                return members
            rounded = {rounding.tensor for k in members for rounding in layers[k].roundings}
            chosen = max(open_, key=lambda k: (rounded.isdisjoint(layers[k].outputs), k))
            heads = any(layers[k].op_type in PRODUCTS for k in before[chosen])
            if heads and self._values(layers[chosen]) < self._values(last):
                refused.add(chosen)
                continue
            joins = layers[chosen].op_type in _POINTWISE or (heads and self._has_weight(chosen))
            if joins and self._kind(layers[chosen]) is not Kind.NOTHING and not (heads and has_head):
                members |= before[chosen]
                has_head = has_head or heads
            else:
                refused.add(chosen)

    def _values(self, layer: Layer) -> int:
        return math.prod(self.facts.shapes.get(layer.outputs[0], ()))

    def _has_weight(self, k: int) -> bool:
        return self.network.has_constant(self._nodes[k].input[1])

    def _is_read_only_by(self, maker: Layer, members: Collection[int]) -> bool:
        readers = [k for name in maker.outputs for k in self._readers[name]]
        return self._outputs.isdisjoint(maker.outputs) and all(k in members for k in readers)

    def group_of(self, members: tuple[int, ...]) -> Group:
        """Returns the layers with the indices ``members`` as the group of one kernel."""
        layers = [self.network.layers[k] for k in members]
        made = {name for layer in layers for name in layer.outputs}
        reads = dict.fromkeys(name for layer in layers for name in layer.inputs if name not in made)
        outside = [name for name in made if name in self._outputs or not set(self._readers[name]) <= set(members)]
        head = next((layer.index for layer in layers if layer.op_type in PRODUCTS), None)
        kind = Kind.PRODUCT if head is not None else self._kind(layers[-1])
        return Group(members, head, kind, tuple(reads), tuple(sorted(outside)))

    def kernels(self, plan: PrecisionPlan) -> tuple[Kernel, ...]:
        """Returns the kernels of a plan's engine in order, each followed by the reformats of its outputs."""
        return _Planned(self, plan).kernels()

    def products(self, group: Group) -> int:
        """The number of matrix products in a kernel: two in an attention."""
        return sum(self.network.layers[k].op_type in PRODUCTS for k in group.layers)

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """The original of each tensor that is only a reshaped copy, by the copy's name."""
        same: dict[str, str] = {}
        for layer in self.network.layers:
            if layer.op_type in _SHAPES and layer.inputs:
                same[layer.outputs[0]] = same.get(layer.inputs[0], layer.inputs[0])
        return same

    def size(self, tensor: str, precision: Precision) -> int:
        """The bytes of a tensor in a precision; more than four channels are padded to the format's width."""
        shape, dtype = self.facts.shapes.get(tensor), self.facts.dtypes.get(tensor)
        if shape is None or dtype is None or dtype.kind != "f":
            return self.facts.size(tensor)
        values = math.prod(shape)
        if len(shape) > 3 and shape[1] > PICTURE:
            values = values // shape[1] * math.ceil(shape[1] / _WIDTHS[precision]) * _WIDTHS[precision]
        return values * BYTES[precision]

    def product(self, k: int | None, precision: Precision) -> Product | None:
        """The matrix product of layer ``k``; None for no layer, a layer without one, or unknown shapes."""
        if k is None or self._nodes[k].op_type not in PRODUCTS:
            return None
        node, shapes = self._nodes[k], self.facts.shapes
        first, second, out = (shapes.get(name) for name in (node.input[0], node.input[1], node.output[0]))
        if not first or second is None or out is None:
            return None
        groups = attribute(node, "group", 1)
        if node.op_type == "Conv":
            rows = out[0] * math.prod(out[2:])
            return Product(rows, second[0] // groups, second[1], math.prod(second[2:]), precision, groups)
        if node.op_type == "ConvTranspose":
            columns = second[1] * math.prod(second[2:])
            return Product(first[0] * math.prod(first[2:]), columns, first[1] // groups, 1, precision, groups)
        depth = first[-2 if attribute(node, "transA", 0) else -1]
        batch = 1 if self._has_weight(k) else max(math.prod(out[:-2]), 1)
        return Product(math.prod(out[:-1]) // batch, out[-1] if out else 1, depth, 1, precision, batch)

    def weights(self, group: Group, precision: Precision) -> int:
        """Returns the bytes of the weights in a group's matrix product; 0 without weights."""
        if group.head is None or not self._has_weight(group.head):
            return 0
        return math.prod(self.facts.shapes.get(self._nodes[group.head].input[1], (0,))) * BYTES[precision]


# The kernel and reformats of a group in a plan; the tensors read, with the precisions wanted; true for a product in
# floats.
_Made = tuple[tuple[Kernel, ...], tuple[tuple[str, Precision], ...], bool]


class _Planned:
    def __init__(self, model: EngineModel, plan: PrecisionPlan) -> None:
        self._model, self._plan = model, plan
        self._layers = model.network.layers
        self._widest = BYTES[model.network.base or Precision.FP32]
        self._wanted: defaultdict[str, set[Precision]] = defaultdict(set)
        self._by_floats = set[str]()  # tensors that a float product reads
        self._carried: dict[Group, Precision] = {}  # groups that only move values and pass on INT8
        self._pools: dict[str, tuple[Group, list[Kernel]]] = {}  # by tensor: the MaxPool that reads it, and its kernels
        for spec in model.network.outputs:
            self._wanted[self._root(spec.name)].add(Precision.FP32)

    # Groups are taken from last to first: a group's kernel depends on what the groups after it read.
    def kernels(self) -> tuple[Kernel, ...]:
        by_group: list[list[Kernel]] = []
        for fused in reversed(self._groups()):
            for group in reversed(self._parts(fused)):
                made, reads, is_float_product = self._made(group)
                kernels = self._with_pool(group, list(made))
                if self._layers[group.layers[0]].op_type == "MaxPool":
                    self._pools[group.reads[0]] = group, kernels
                for name, precision in reads:
                    self._wanted[name].add(precision)
                    if is_float_product:
                        self._by_floats.add(name)
                by_group.append(kernels)
        for spec in reversed(self._model.network.inputs):
            by_group.append(self._reformats(spec.name, Precision.FP32, self._wanted[spec.name]))
        return tuple(kernel for kernels in reversed(by_group) for kernel in kernels)

    def _groups(self) -> list[Group]:
        groups = {group.layers[-1]: group for group in self._model.groups}
        for attention, three in self._model.attentions:
            if all(not self._is_low(k) and BYTES[self._float(k)] == BYTES[Precision.FP16] for k in attention.layers):
                for group in three:
                    del groups[group.layers[-1]]
                groups[attention.layers[-1]] = attention
        return [groups[k] for k in sorted(groups)]

    def _made(self, group: Group) -> _Made:
        precisions = tuple([self._plan.precisions[k] for k in group.layers])
        after = tuple([(frozenset(self._wanted[self._root(name)]), name in self._by_floats) for name in group.writes])
        key = (group.layers[0], group.layers[-1], precisions, after)
        if key not in self._model.made:
            self._model.made[key] = self._make(group)
        return self._model.made[key]

    def _make(self, group: Group) -> _Made:
        if group.kind is Kind.NOTHING:
            return (self._kernel(group, group, {}),), (), False
        after = {precision for name in group.writes for precision in self._wanted[self._root(name)]}
        if len(after) == 1 and next(iter(after)).needs_scale and self._layers[group.layers[0]].op_type in _CARRIES:
            self._carried[group] = after.pop()
        stored = {name: self._stored(group, name) for name in group.writes}
        kernels = [self._kernel(group, group, stored)]
        is_low_product = group.head is not None and self._is_low(group.head)
        for name, precision in stored.items():
            relaid = is_low_product and name in self._by_floats
            kernels += self._reformats(name, precision, self._wanted[self._root(name)], relaid=relaid)
        reads = tuple([(self._root(name), self._reads_in(group, name)) for name in group.reads])
        return tuple(kernels), reads, group.head is not None and not is_low_product

    def _with_pool(self, group: Group, kernels: list[Kernel]) -> list[Kernel]:
        if group.head is None or len(group.writes) != 1 or group.writes[0] not in self._pools:
            return kernels
        pool, kernels_of_pool = self._pools[group.writes[0]]
        product = self._model.product(group.head, Precision.INT8)
        in_low = self._is_low(group.head) and self._is_low(pool.layers[0]) and len(self._wanted[group.writes[0]]) == 1
        if product is None or not product.reads_picture or not in_low:
            return kernels
        after, kernels_of_pool[:] = kernels_of_pool[1:], []
        return [self._kernel(group, pool, {name: self._stored(pool, name) for name in pool.writes}), *after]

    def _parts(self, group: Group) -> list[Group]:
        # A layer in a wider type than the base begins a new kernel.
        if group.head is None or len(group.layers) == 1 or self._widest == BYTES[Precision.FP32]:
            return [group]
        wide = [k for k in group.layers if k != group.head and BYTES[self._float(k)] > self._widest]
        if not wide or BYTES[self._float(group.head)] > self._widest:
            return [group]
        before = tuple(k for k in group.layers if k < min(wide))
        return [self._model.group_of(before), self._model.group_of(group.layers[len(before) :])]

    def _root(self, tensor: str) -> str:
        return self._model.aliases.get(tensor, tensor)

    def _is_low(self, k: int) -> bool:
        return self._plan.precisions[k] in (Precision.INT8, Precision.FP8) and self._layers[k].quantizable

    def _float(self, k: int) -> Precision:
        precision = self._plan.precisions[k]
        return (self._model.network.base or Precision.FP32) if precision.needs_scale else precision

    def _computes_in(self, group: Group) -> Precision:
        if group in self._carried:
            return self._carried[group]
        k = group.head if group.head is not None else group.layers[0]
        return self._plan.precisions[k] if self._is_low(k) else self._float(k)

    def _reads_in(self, group: Group, tensor: str) -> Precision:
        if group in self._carried:
            return self._carried[group]
        readers = [k for k in group.layers if tensor in self._layers[k].inputs]
        if all(
            self._is_low(k) and any(r.tensor == tensor and not r.is_weight for r in self._layers[k].roundings)
            for k in readers
        ):
            return self._plan.precisions[readers[0]]
        return self._float(readers[0])

    def _adds_floats(self, group: Group) -> bool:
        if group.head is None:
            return False
        own = self._layers[group.head].inputs
        branches = [name for name in group.reads if name not in own and len(self._model.facts.shapes.get(name, ())) > 1]
        return any(not self._reads_in(group, name).needs_scale for name in branches)

    def _stored(self, group: Group, tensor: str) -> Precision:
        readers_want, computed = self._wanted[self._root(tensor)], self._computes_in(group)
        can_write_low = all(self._layers[k].op_type in _GENERATED for k in group.layers)
        can_write_low = can_write_low or (computed.needs_scale and not self._adds_floats(group))
        if len(readers_want) == 1 and (can_write_low or self._model.products(group) > 1):
            return next(iter(readers_want))
        if not computed.needs_scale:
            return computed
        floats = [precision for precision in readers_want if not precision.needs_scale]
        return min(floats, key=BYTES.__getitem__, default=self._float(group.layers[-1]))

    def _kernel(self, group: Group, last: Group, stored: Mapping[str, Precision]) -> Kernel:
        layers = group.layers if last is group else (*group.layers, *last.layers)
        name = " + ".join(self._layers[k].name for k in layers)
        if group.kind is Kind.NOTHING:
            return Kernel(name, Kind.NOTHING, 0, layers=layers)
        computed = self._computes_in(group)
        product = self._model.product(group.head, computed)
        if product:
            product = replace(product, channels=product.channels * self._model.products(group))
        moved = sum(self._model.size(tensor, self._reads_in(group, tensor)) for tensor in group.reads)
        moved += sum(self._model.size(tensor, precision) for tensor, precision in stored.items())
        return Kernel(name, group.kind, moved + self._model.weights(group, computed), product, layers=layers)

    def _reformats(
        self, tensor: str, stored: Precision, readers_want: Collection[Precision], *, relaid: bool = False
    ) -> list[Kernel]:
        shape, dtype = self._model.facts.shapes.get(tensor, ()), self._model.facts.dtypes.get(tensor)
        if dtype is None or dtype.kind != "f":
            return []
        made = sorted({*readers_want} - {stored}, key=BYTES.__getitem__)
        if relaid and not stored.needs_scale and stored in readers_want:
            made.append(stored)
        is_narrow, read = len(shape) > 3 and shape[1] <= PICTURE, self._model.size(tensor, stored)
        moved = {precision: read + self._model.size(tensor, precision) for precision in made}
        return [Kernel(f"{tensor}: {stored} to {p}", Kind.REFORMAT, moved[p], is_narrow=is_narrow) for p in made]


MOST_LAYERS = 1000
"""Plans of larger networks cost the sum of their layers: pricing an engine of this size takes some 4 ms."""
NO_GAIN = 0.05
"""Costs are divided by the speedup, or by this share of the low precision's time if that is larger."""


@dataclass(frozen=True)
class TimedKernel:
    """A kernel and its predicted time.

    Attributes:
        name: the names of the kernel's layers; for a reformat, the tensor and both precisions.
    """

    name: str
    ms: float


class TimeCosts:
    """The costs of a network's plans on a GPU, by predicted time.

    Args:
        gpu: the GPU; FP32 is predicted without TF32.
        profile: the kernels of a measured engine of the network, with their seconds; empty without one.
        user: if ``network`` is a changed copy, the costs of the original: all costs are shares of its speedup; else
            None.
    """

    def __init__(
        self,
        network: Network,
        facts: TensorFacts,
        gpu: Gpu,
        profile: Sequence[tuple[Kernel, float]] = (),
        user: TimeCosts | None = None,
    ) -> None:
        without_tf32 = dict(gpu.tera)
        without_tf32.pop(Precision.FP32, None)
        self.network, self.gpu = network, replace(gpu, tera=without_tf32)
        self._profile = profile
        self._user = user or self
        self.engine = EngineModel(network, facts)
        self.full = network.free_plan(network.quantizable)
        self._known: dict[PrecisionPlan, float] = {}
        self._timed: dict[Kernel, float] = {}

    def seconds(self, plan: PrecisionPlan) -> float:
        """The predicted time of one inference under a plan, in seconds."""
        if plan not in self._known:
            self._known[plan] = math.fsum(taken for _, taken in self._timed_kernels(plan))
        return self._known[plan]

    def _timed_kernels(self, plan: PrecisionPlan) -> list[tuple[Kernel, float]]:
        return [(kernel, self._seconds_of(kernel)) for kernel in self.engine.kernels(plan)]

    def _seconds_of(self, kernel: Kernel) -> float:
        if kernel not in self._timed:
            self._timed[kernel] = seconds(kernel, self.gpu) * self._ratio(kernel) * self.network.calls(kernel.name)
        return self._timed[kernel]

    def _ratio(self, kernel: Kernel) -> float:
        # Of reformats: that of all measured reformats; of layers that the profile does not name: that of the engine. In
        # another precision its root, because half of an error belongs to the layer's shape, half to the kernel.
        if not self._profile:
            return 1.0
        inside, product = frozenset(kernel.layers), kernel.product
        if kernel.kind is Kind.REFORMAT:
            alike = [(part, taken) for part, taken in self._profile if part.kind is Kind.REFORMAT]
        else:
            alike = [(part, taken) for part, taken in self._profile if not inside.isdisjoint(part.layers)]
        parts = alike or self._profile
        ratio = math.fsum(taken for _, taken in parts) / math.fsum(seconds(part, self.gpu) for part, _ in parts)
        types = {part.product.precision for part, _ in parts if part.product}
        return ratio if product is None or product.precision in types else math.sqrt(ratio)

    def in_all(self, precision: Precision) -> PrecisionPlan:
        """The plan with every layer in one precision, a float type."""
        return PrecisionPlan((precision,) * len(self.network.layers), self.network.low.precision)

    @cached_property
    def _gain(self) -> float:
        least = self.seconds(self.full)
        return max(self.seconds(self.in_all(instead_of(self.network.low.precision))) - least, NO_GAIN * least)

    def _over(self, plan: PrecisionPlan, other: TimeCosts) -> float:
        return max((self.seconds(plan) - other.seconds(other.full)) / self._user._gain, 0.0)

    def cost(self, plan: PrecisionPlan) -> float:
        """The share of the low precision's speedup that a plan gives up; 0 if predicted no slower."""
        return self._over(plan, self._user)

    @property
    def by_plan(self) -> bool:
        """True if the time of each whole plan is predicted; false, above 1000 layers, if a plan costs the sum of its
        layers.
        """
        return len(self.network.layers) <= MOST_LAYERS

    def layers(self, precisions: Iterable[Precision]) -> dict[int, dict[Precision, float]]:
        """The share of the low precision's speedup that each quantizable layer, by index, gives up in each of the
        higher ``precisions``.
        """
        higher = [precision for precision in precisions if precision is not self.network.low.precision]
        if self.by_plan:
            return {
                k: {p: max(self._over(self.full.keeping({k}, p), self), NEARLY_FREE) for p in higher}
                for k in self.network.quantizable
            }
        low, high = self._of_layers(self.full), {p: self._of_layers(self.in_all(p)) for p in higher}
        return {
            k: {p: max((times[k] - low[k]) / self._gain, NEARLY_FREE) for p, times in high.items()}
            for k in self.network.quantizable
        }

    def _of_layers(self, plan: PrecisionPlan) -> dict[int, float]:
        times = dict.fromkeys(self.network.quantizable, 0.0)
        for kernel, taken in self._timed_kernels(plan):
            inside = [k for k in kernel.layers if k in times]
            heads = [k for k in inside if self.network.layers[k].has_weight] or inside
            for k in heads:
                times[k] += taken / len(heads)
        return times

    def predicted(self, plan: PrecisionPlan) -> Predicted:
        """The predicted time of one inference under a plan, with its range."""
        return ranged(((kernel.kind, taken) for kernel, taken in self._timed_kernels(plan)), self.gpu)

    def slowest(self, plan: PrecisionPlan, count: int) -> tuple[TimedKernel, ...]:
        """The ``count`` kernels of a plan that take longest, slowest first."""
        timed = [TimedKernel(kernel.name, taken * 1e3) for kernel, taken in self._timed_kernels(plan)]
        return tuple(sorted(timed, key=lambda kernel: -kernel.ms)[:count])

    def starts(self, plan: PrecisionPlan) -> float:
        """The predicted milliseconds that kernel launches take in one inference under a plan."""
        return math.fsum(1e3 * start_of(kernel, self.gpu) for kernel in self.engine.kernels(plan))

    def in_attentions(self, plan: PrecisionPlan) -> float:
        """The predicted milliseconds that the kernels of attention take in one inference under a plan."""
        inside = {k for attention, _ in self.engine.attentions for k in attention.layers}
        timed = self._timed_kernels(plan)
        return 1e3 * math.fsum(taken for kernel, taken in timed if kernel.layers and inside.issuperset(kernel.layers))

    def no_faster(self, plan: PrecisionPlan, than: PrecisionPlan) -> float:
        """The predicted milliseconds, without launches, of the kernels of ``plan`` that are no faster than the kernels
        of the same layers under ``than``.
        """
        before = {kernel.layers: taken for kernel, taken in self._timed_kernels(than) if kernel.layers}
        total = 0.0
        for kernel, taken in self._timed_kernels(plan):
            if taken >= before.get(kernel.layers, math.inf):
                total += taken - start_of(kernel, self.gpu)
        return 1e3 * total

    def added_reformats(self, plan: PrecisionPlan, than: PrecisionPlan | None = None) -> tuple[TimedKernel, ...]:
        """The reformats of a plan that the plan ``than`` (default: all layers in low precision) does not have."""
        before = {kernel.name for kernel in self.engine.kernels(than or self.full)}
        added = []
        for kernel, taken in self._timed_kernels(plan):
            if kernel.kind is Kind.REFORMAT and kernel.name not in before:
                added.append(TimedKernel(kernel.name, taken * 1e3))
        return tuple(added)
