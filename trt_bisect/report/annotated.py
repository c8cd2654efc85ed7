"""The network with what a run found written on its nodes, for viewers such as Netron."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from trt_bisect.model.file import refer_to_weights
from trt_bisect.recipe.files import ANNOTATED, FOLDER, RecipeFiles
from trt_bisect.report.model import LayerRow
from trt_bisect.report.network_graph import Graph, GraphTensor
from trt_bisect.support.files import write_whole

PREFIX = "trt-bisect."
_IR_VERSION = 10
"""The first version of ONNX files in which nodes have metadata."""
_DIGITS = 6


def annotated(model: onnx.ModelProto, rows: Iterable[LayerRow], graph: Graph) -> onnx.ModelProto:
    """Returns a copy of a network with metadata on its nodes; nothing that is computed changes.

    Every node that is a layer gets the keys ``trt-bisect.`` and ``precision`` (in the recipe), ``similarity``, ``drop``
    and ``gain`` (where measured), ``culprit`` and ``suspect`` (where it is one), ``why_not`` (where it cannot be INT8)
    and ``scales`` (of the tensors that it reads and makes). The same stands in its ``doc_string``, which older viewers
    show.

    Args:
        model: a model; its nodes have the names of the layers.
        rows: the layers of the report.
        graph: the network's graph.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, _IR_VERSION)
    by_name = {row.name: row for row in rows}
    tensors = {layer.name: (*layer.inputs, *layer.outputs) for layer in graph.layers}
    for node in copy.graph.node:
        if node.name in by_name:
            facts = _facts(by_name[node.name], tensors.get(node.name, ()), graph.tensors)
            for key, value in facts.items():
                entry = node.metadata_props.add()
                entry.key, entry.value = f"{PREFIX}{key}", value
            node.doc_string = "\n".join(f"{key}: {value}" for key, value in facts.items())
    return copy


def write_annotated(files: RecipeFiles, rows: Iterable[LayerRow], graph: Graph, folder: Path) -> None:
    """Writes the recipe's network with its metadata beside the recipe's files in a run folder."""
    model, file = files.viewed
    of_layers = annotated(model, rows, graph)
    refer_to_weights(of_layers, folder / FOLDER / file)
    write_whole(folder / FOLDER / ANNOTATED, of_layers.SerializeToString())


def _facts(row: LayerRow, tensors: Iterable[str], known: Mapping[str, GraphTensor]) -> dict[str, str]:
    """Returns the metadata for the node of a layer."""
    scales = {name: known[name].scale for name in tensors if name in known and known[name].scale is not None}
    figures = {"similarity": row.similarity, "drop": row.drop, "gain": row.gain, "taken_back": row.taken_back}
    return {
        "precision": row.recipe or row.asked,
        **({"culprit": "yes"} if row.culprit else {}),
        **{name: f"{value:.{_DIGITS}g}" for name, value in figures.items() if value is not None},
        **({"suspect": row.suspect} if row.suspect else {}),
        **({"why_not": row.why_not} if row.why_not else {}),
        **({"scales": ", ".join(f"{name} {scale:.{_DIGITS}g}" for name, scale in scales.items())} if scales else {}),
    }
