"""The network with what a run found written on its nodes, for viewers such as Netron."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx

from trt_bisect.report.layer_row import LayerRow

PREFIX = "trt-bisect."
_IR_VERSION = 10
"""The first version of ONNX files in which nodes have metadata."""
_DIGITS = 6


def annotated(model: onnx.ModelProto, rows: Iterable[LayerRow], graph: Mapping[str, Any]) -> onnx.ModelProto:
    """Returns a copy of a network with metadata on its nodes; nothing that is computed changes.

    Every node that is a layer gets the keys ``trt-bisect.`` and ``precision`` (in the recipe), ``similarity``, ``drop``
    and ``gain`` (where measured), ``culprit`` and ``suspect`` (where it is one), ``why_not`` (where it cannot be INT8)
    and ``scales`` (of the tensors that it reads and makes). The same stands in its ``doc_string``, which older viewers
    show.

    Args:
        model: a model; its nodes have the names of the layers.
        rows: the layers of the report.
        graph: the value of ``network_facts``.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, _IR_VERSION)
    by_name = {row.name: row for row in rows}
    tensors = {layer["name"]: (*layer["inputs"], *layer["outputs"]) for layer in graph["layers"]}
    for node in copy.graph.node:
        if node.name in by_name:
            facts = _facts(by_name[node.name], tensors.get(node.name, ()), graph["tensors"])
            for key, value in facts.items():
                entry = node.metadata_props.add()
                entry.key, entry.value = f"{PREFIX}{key}", value
            node.doc_string = "\n".join(f"{key}: {value}" for key, value in facts.items())
    return copy


def _facts(row: LayerRow, tensors: Iterable[str], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns the metadata for the node of a layer."""
    scales = {name: known[name]["scale"] for name in tensors if name in known and known[name]["scale"] is not None}
    figures = {"similarity": row.similarity, "drop": row.drop, "gain": row.gain, "taken_back": row.taken_back}
    return {
        "precision": row.recipe or row.asked,
        **({"culprit": "yes"} if row.culprit else {}),
        **{name: f"{value:.{_DIGITS}g}" for name, value in figures.items() if value is not None},
        **({"suspect": row.suspect} if row.suspect else {}),
        **({"why_not": row.why_not} if row.why_not else {}),
        **({"scales": ", ".join(f"{name} {scale:.{_DIGITS}g}" for name, scale in scales.items())} if scales else {}),
    }
