"""The network's graph for the page, and a network annotated with a run's findings, for Netron."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import AttributeProto, helper

from trt_bisect.model.file import refer_to_weights
from trt_bisect.model.layers import Layer
from trt_bisect.model.merged import prefix_of
from trt_bisect.model.modules import METADATA_IR_VERSION
from trt_bisect.model.network import Network
from trt_bisect.recipe.files import ANNOTATED, FOLDER, RecipeFiles
from trt_bisect.support.files import write_whole

if TYPE_CHECKING:
    from trt_bisect.report.parts import LayerRow

NETWORK = "network.json"
_LONGEST_TEXT = 200


@dataclass(frozen=True)
class GraphLayer:
    """A layer of the graph.

    Attributes:
        inputs: the tensors that it reads, constants too.
        outputs: the tensors that it makes.
        attributes: the attributes as text.
        module, code: the layer's module and source line in PyTorch.
    """

    index: int
    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, str]
    module: str = ""
    code: str = ""


@dataclass(frozen=True)
class GraphTensor:
    """A tensor of the graph.

    Attributes:
        shape: the shape; of a layer's first output the shape on the judged input; None if not known.
        dtype: empty if not known.
        scale: the INT8 scale, the largest of a per-channel scale; None without one.
    """

    shape: tuple[int | str | None, ...] | None
    dtype: str
    scale: float | None


@dataclass(frozen=True)
class Graph:
    """The network's layers and tensors, for ``network.json`` and the page.

    Attributes:
        layers: in execution order.
        tensors: by name.
        inputs: the network's inputs.
        outputs: the network's outputs.
    """

    layers: tuple[GraphLayer, ...]
    tensors: Mapping[str, GraphTensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def graph_of(network: Network, scales: Mapping[str, np.float32]) -> Graph:
    """Returns the graph of a network; ``scales``: by tensor, for activations without a Q/DQ pair."""
    nodes, by_tensor = network.skeleton.graph.node, {name: float(scale) for name, scale in scales.items()}
    layers = tuple(_layer(layer, nodes[layer.index]) for layer in network.layers)
    for rounding in (rounding for layer in network.layers for rounding in layer.roundings):
        for quantizer in rounding.fixed:
            by_tensor[rounding.tensor] = max(by_tensor.get(rounding.tensor, 0.0), float(quantizer.scale.max()))
    used = dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs))
    used.update(dict.fromkeys(spec.name for spec in (*network.inputs, *network.outputs)))
    types = network.types
    shapes = {**types.shapes, **{layer.outputs[0]: layer.shape for layer in network.layers if layer.outputs}}
    dtypes = {name: str(dtype) for name, dtype in types.dtypes.items() if dtype is not None}
    return Graph(
        layers,
        {name: GraphTensor(shapes.get(name), dtypes.get(name, ""), by_tensor.get(name)) for name in used},
        tuple(spec.name for spec in network.inputs),
        tuple(spec.name for spec in network.outputs),
    )


def _layer(layer: Layer, node: onnx.NodeProto) -> GraphLayer:
    read = dict.fromkeys((*(name for name in node.input if name), *layer.inputs))
    attributes = {attribute.name: attribute_text(attribute) for attribute in node.attribute}
    tensors = tuple(read), tuple(layer.outputs)
    return GraphLayer(layer.index, layer.name, layer.op_type, *tensors, attributes, layer.module, layer.code)


def attribute_text(attribute: AttributeProto) -> str:
    """Returns an attribute of a node as text, of a tensor or a graph only its size."""
    if attribute.type == AttributeProto.TENSOR:
        return f"{helper.tensor_dtype_to_np_dtype(attribute.t.data_type)} {list(attribute.t.dims)}"
    if attribute.type == AttributeProto.GRAPH:
        return f"a body of {len(attribute.g.node)} nodes"
    value = helper.get_attribute_value(attribute)
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


PREFIX = "trt-bisect."
_DIGITS = 6


def annotated(model: onnx.ModelProto, rows: Iterable[LayerRow], graph: Graph, prefix: str = "") -> onnx.ModelProto:
    """Returns a copy of a network with a run's findings as metadata of its nodes, and as ``doc_string`` for older
    viewers.

    The row of a node has the node's name with ``prefix`` before it. The keys begin with ``trt-bisect.``: ``precision``
    (in the recipe), ``similarity``, ``loss``, ``alone``, ``put_back``, ``culprit``, ``suspect``, ``why_not`` (if it
    cannot be INT8) and ``scales``.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, METADATA_IR_VERSION)
    by_name = {row.name: row for row in rows}
    tensors = {layer.name: (*layer.inputs, *layer.outputs) for layer in graph.layers}
    for node in copy.graph.node:
        name = prefix + node.name
        if name in by_name:
            facts = _facts(by_name[name], tensors.get(name, ()), graph.tensors)
            for key, value in facts.items():
                node.metadata_props.add(key=f"{PREFIX}{key}", value=value)
            node.doc_string = "\n".join(f"{key}: {value}" for key, value in facts.items())
    return copy


def write_annotated(files: RecipeFiles, rows: Iterable[LayerRow], graph: Graph, folder: Path) -> None:
    """Writes a copy of each network of the recipe into a run folder, with the findings as metadata (``annotated``)."""
    by_folder = {prefix_of(name): part for name, part in files.parts.items()} or {"": files}
    for prefix, own in by_folder.items():
        model, file = own.viewed
        of_layers = annotated(model, rows, graph, prefix)
        refer_to_weights(of_layers, folder / FOLDER / prefix / file)
        write_whole(folder / FOLDER / prefix / ANNOTATED, of_layers.SerializeToString())


def _facts(row: LayerRow, names: Iterable[str], tensors: Mapping[str, GraphTensor]) -> dict[str, str]:
    scales = {name: tensors[name].scale for name in names if name in tensors and tensors[name].scale is not None}
    figures = {"similarity": row.similarity, "loss": row.loss, "alone": row.alone, "put_back": row.put_back}
    return {
        "precision": row.recipe or row.asked,
        **({"culprit": "yes"} if row.culprit else {}),
        **{name: f"{value:.{_DIGITS}g}" for name, value in figures.items() if value is not None},
        **({"suspect": row.suspect} if row.suspect else {}),
        **({"why_not": row.why_not} if row.why_not else {}),
        **({"scales": ", ".join(f"{name} {scale:.{_DIGITS}g}" for name, scale in scales.items())} if scales else {}),
    }
