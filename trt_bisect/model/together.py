"""Groups of layers that change precision together: with only one of them changed, TensorRT adds a reformat."""

from __future__ import annotations

from trt_bisect.model.network import Network

LAYERS, FUSED = "layers", "fused"
TOGETHER = (LAYERS, FUSED)
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def units(network: Network, together: str) -> tuple[tuple[int, ...], ...]:
    """Groups the movable layers that change precision together, each group in execution order.

    Args:
        together: ``layers``: each layer is a group. ``fused``: an Add is grouped with the convolution or matrix product
            before it, which TensorRT fuses with it (developer guide, "Types of Fusions"), and so are layers with
            weights that read the same tensor, which would otherwise be kept in two formats.
    """
    if together == LAYERS:
        return tuple((k,) for k in network.movable)
    leader = {k: k for k in network.movable}

    def find(k: int) -> int:
        while leader[k] != k:
            k = leader[k]
        return k

    for one, other in (*_sums(network), *_siblings(network)):
        if one not in leader or other not in leader:
            continue
        first, second = sorted((find(one), find(other)))
        leader[second] = first
    groups: dict[int, list[int]] = {}
    for k in network.movable:
        groups.setdefault(find(k), []).append(k)
    return tuple(tuple(group) for group in groups.values())


def _sums(network: Network) -> list[tuple[int, int]]:
    """Pairs each quantizable Add with the last layer with weights that computes an input for this Add only."""
    readers: dict[str, int] = {}
    for layer in network.layers:
        for tensor in layer.inputs:
            readers[tensor] = readers.get(tensor, 0) + 1
    pairs = []
    for layer in network.layers:
        if layer.op_type != "Add" or not layer.quantizable:
            continue
        makers = (network.producers[tensor] for tensor in layer.inputs if tensor in network.producers)
        fusible = [
            maker.index
            for maker in makers
            if maker.quantizable and maker.op_type in _WEIGHTED and readers[maker.outputs[0]] == 1
        ]
        if fusible:
            pairs.append((max(fusible), layer.index))
    return pairs


def _siblings(network: Network) -> list[tuple[int, int]]:
    """Pairs of layers with weights that read the same activation."""
    first: dict[str, int] = {}
    pairs = []
    for k in network.quantizable:
        layer = network.layers[k]
        if layer.op_type in _WEIGHTED and any(rounding.is_weight for rounding in layer.roundings):
            for rounding in layer.roundings:
                if not rounding.is_weight and not rounding.at_output:
                    pairs.append((first.setdefault(rounding.tensor, k), k))
    return [(one, other) for one, other in pairs if one != other]
