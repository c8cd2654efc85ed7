"""The kernels of a real engine: which layers read INT8, and the kernels that Q/DQ pairs add."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import onnx

from trt_bisect.analyzer.structure.findings import Finding, found
from trt_bisect.analyzer.structure.graph import DEQUANTIZE, MOVES, PAIR, QUANTIZE, WEIGHTED, FileGraph
from trt_bisect.builder.inspector import EngineLayer

_LOW = frozenset({"int8", "fp8"})
_WAITS = frozenset({"signal", "wait"})
# Generated kernels are named after their operations: __myl_MulMinMaxRounCast_myl0_7 is a quantizer.
_GENERATED = re.compile(r"__myl_(\w+?)_myl\d+_\d+")
_OPERATION = re.compile("[A-Z][a-z0-9]*")
_MOVES = frozenset({"Move", "Tran", "Resh", "Conc", "Slic", "Copy", "Pad"})
_ROUNDS = frozenset({"Mul", "Div", "Min", "Max", "Roun", "Cast"})


@dataclass(frozen=True)
class KernelCounts:
    """The number of kernels of an engine by kind; a kernel counts in the first kind that fits.

    Attributes:
        total: all kernels.
        moves: kernels that only move values: reformats, and the network's own transposes.
        pairs: kernels that only round or dequantize, and may move values.
        low: kernels that read only INT8 or FP8 tensors.
        mixed: kernels that read INT8 or FP8 tensors, and float ones.
        rounding: kernels that read only floats, and round them.
    """

    total: int
    moves: int
    pairs: int
    low: int
    mixed: int
    rounding: int


@dataclass(frozen=True)
class EngineFacts:
    """An engine of a graph with Q/DQ pairs, compared with an engine of the same network without pairs.

    Attributes:
        engine: the engine's name and version.
        fp32: ``kernels`` of the engine without pairs; None if not built.
        low: the layers with pairs that read INT8 or FP8 tensors.
        rounded: the layers with pairs whose kernel reads floats and only rounds them.
        untold: the layers with pairs that no kernel names.
        pair_kernels: for each kernel that only rounds or dequantizes, its Q/DQ nodes, but not those of weights.
        broken: for each kernel of the engine without pairs that the pairs split, the layers of each part.
    """

    engine: str
    kernels: KernelCounts
    fp32: KernelCounts | None
    low: tuple[str, ...]
    rounded: tuple[str, ...]
    untold: tuple[str, ...]
    pair_kernels: tuple[tuple[str, ...], ...]
    broken: tuple[tuple[tuple[str, ...], ...], ...]

    @property
    def summary(self) -> str:
        """A sentence with the numbers of layers, kernels and broken fusions."""
        low, rounded, untold = len(self.low), len(self.rounded), len(self.untold)
        layers = f"layers with pairs {low + rounded + untold} (read low tensors: {low}, only rounded: {rounded}"
        if untold:
            layers += f", not named: {untold}"
        kernels, fp32 = self.kernels, self.fp32
        counts = f"kernels {kernels.total} (only for pairs: {kernels.pairs}, only move values: {kernels.moves})"
        beside = "" if fp32 is None else f", without pairs {fp32.total} (only move values: {fp32.moves})"
        return f"{self.engine}: {layers}); {counts}{beside}; fusions broken: {len(self.broken)}."


def engine_facts(
    engine: str, graph: FileGraph, layers: Sequence[EngineLayer], fp32: Sequence[EngineLayer] | None
) -> EngineFacts:
    """Returns the facts of an engine.

    ``engine`` is its name and version, ``graph`` the graph with Q/DQ pairs, ``layers`` are its layers, and ``fp32``
    those of the engine without pairs, None if not built.
    """
    kernels = _kernels(layers)
    by_state: dict[str, list[str]] = {"low": [], "rounded": [], "untold": []}
    for name, pairs in _layers_with_pairs(graph):
        by_state[_state(name, pairs, kernels)].append(name)
    nodes = {node.name: node for node in graph.nodes}
    in_pairs = {name for name, node in nodes.items() if node.op_type in PAIR and node.output[0] not in graph.constants}
    of_pairs = [kernel.network_layers for kernel in kernels if _is_of_pairs(kernel, nodes)]
    return EngineFacts(
        engine=engine,
        kernels=_counts(kernels, nodes),
        fp32=None if fp32 is None else _counts(_kernels(fp32), nodes),
        **{state: tuple(names) for state, names in by_state.items()},
        pair_kernels=tuple(tuple(name for name in names if name in in_pairs) for names in of_pairs),
        broken=tuple(_broken(_kernels(fp32 or ()), kernels)),
    )


def engine_findings(facts: EngineFacts) -> Iterator[Finding]:
    """Yields the findings on an engine's kernels."""
    for layer in facts.rounded:
        yield found("rounded in float", layer, "its input is rounded inside a float kernel")
    for nodes in facts.pair_kernels:
        yield found("kernel for a pair", nodes, "the kernel does nothing else")
    for parts in facts.broken:
        names = " | ".join(", ".join(part) for part in parts)
        yield found("fusion broken", chain.from_iterable(parts), f"one kernel without pairs, now {names}")


def _kernels(layers: Iterable[EngineLayer]) -> tuple[EngineLayer, ...]:
    return tuple(layer for layer in layers if layer.kind not in _WAITS)


def _counts(kernels: Sequence[EngineLayer], nodes: dict[str, onnx.NodeProto]) -> KernelCounts:
    kinds = [_kind(kernel, nodes) for kernel in kernels]
    counted = {kind: kinds.count(kind) for kind in ("moves", "pairs", "low", "mixed", "rounding")}
    return KernelCounts(total=len(kinds), **counted)


def _kind(kernel: EngineLayer, nodes: dict[str, onnx.NodeProto]) -> str:
    reads = set(kernel.inputs)
    if _operations(kernel) and _operations(kernel) <= _MOVES:
        return "moves"
    if _is_of_pairs(kernel, nodes):
        return "pairs"
    if reads & _LOW:
        return "low" if reads <= _LOW else "mixed"
    rounds = any(nodes[name].op_type == QUANTIZE for name in kernel.network_layers if name in nodes)
    return "rounding" if rounds else "float"


def _operations(kernel: EngineLayer) -> frozenset[str]:
    match = _GENERATED.fullmatch(kernel.name)
    return frozenset(_OPERATION.findall(match[1])) if match else frozenset()


def _is_of_pairs(kernel: EngineLayer, nodes: dict[str, onnx.NodeProto]) -> bool:
    operations = _operations(kernel)
    if not operations & _ROUNDS or not operations <= _ROUNDS | _MOVES:
        return False
    # It may name a weighted layer, for which it pads the rounded tensor or multiplies the sums by the scale.
    named = [nodes[name].op_type for name in kernel.network_layers if name in nodes]
    return any(op in PAIR for op in named) and all(op in (*PAIR, *WEIGHTED, *MOVES) for op in named)


def _layers_with_pairs(graph: FileGraph) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for node in graph.nodes:
        if node.op_type in (*PAIR, *MOVES):
            continue
        pairs = []
        for name in (name for name in node.input if name and name not in graph.constants):
            dequantizer = graph.makers.get(graph.moved_from(name))
            if dequantizer is not None and dequantizer.op_type == DEQUANTIZE:
                quantizer = graph.makers.get(graph.moved_from(dequantizer.input[0]))
                pairs.append((dequantizer.name, quantizer.name if quantizer is not None else ""))
        if pairs:
            yield node.name, pairs


def _state(layer: str, pairs: Sequence[tuple[str, str]], kernels: Sequence[EngineLayer]) -> str:
    # The field of EngineFacts for the layer.
    inside = [kernel for kernel in kernels if layer in kernel.network_layers]
    for kernel in inside:
        names = frozenset(kernel.network_layers)
        from_memory = any(dq in names and q not in names for dq, q in pairs)
        if _LOW & set(kernel.inputs) and (from_memory or set(kernel.inputs) <= _LOW):
            return "low"
    return "rounded" if inside else "untold"


def _broken(before: Sequence[EngineLayer], after: Sequence[EngineLayer]) -> Iterator[tuple[tuple[str, ...], ...]]:
    # Kernels that share a layer are connected: an INT8 convolution is often a kernel for the sums, and another for the
    # scale, the bias and the fused layers.
    named = {name for kernel in after for name in kernel.network_layers}
    for kernel in before:
        layers = [name for name in kernel.network_layers if name in named]
        parts: list[set[str]] = []
        for joined in (set(layers) & set(kernel_after.network_layers) for kernel_after in after):
            if joined:
                apart = [part for part in parts if part.isdisjoint(joined)]
                parts = [*apart, joined.union(*(part for part in parts if part not in apart))]
        if len(parts) > 1:
            yield tuple(tuple(name for name in layers if name in part) for part in parts)
