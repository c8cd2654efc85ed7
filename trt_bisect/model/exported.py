"""The module and the source line of each layer, where PyTorch's exporter wrote them into the file.

Source: the metadata of nodes in the documentation of ``torch.onnx`` ("Metadata", PyTorch 2.6 and later).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

_SCOPES, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_TRACE = "pkg.torch.onnx.stack_trace"
_TEXT = re.compile(r"'([^']*)'")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+)')
_NOT_OWN = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]|^<")
"""PyTorch itself, and code that it generates."""
_LONGEST = 300


@dataclass(frozen=True)
class Exported:
    """The place of a layer in the user's program.

    Attributes:
        module: the path of the module that has it, and its class: ``layer1.0.conv1 (Conv2d)``; empty if not known.
        code: the innermost line that is no line of PyTorch: ``/nets/model.py:12``; empty if not known.
    """

    module: str = ""
    code: str = ""


def exported_from(nodes: Iterable[onnx.NodeProto]) -> dict[str, Exported]:
    """Returns by the names of nodes what the exporter says of them; nothing of nodes of which it says nothing."""
    said = {node.name: {entry.key: entry.value for entry in node.metadata_props} for node in nodes}
    found = {name: Exported(_module(metadata), _code(metadata)) for name, metadata in said.items()}
    return {name: each for name, each in found.items() if each != Exported()}


def _module(metadata: Mapping[str, str]) -> str:
    """The scopes go from the network, which has no name, to the operator, which is none."""
    scopes, classes = (_TEXT.findall(metadata.get(key, ""))[:-1] for key in (_SCOPES, _CLASSES))
    path, kind = (each[-1] if each else "" for each in (scopes, classes))
    kind = kind.rpartition(".")[2]
    return (f"{path} ({kind})" if path and kind else path or kind)[:_LONGEST]


def _code(metadata: Mapping[str, str]) -> str:
    frames = _FRAME.findall(metadata.get(_TRACE, ""))
    own = [frame for frame in frames if not _NOT_OWN.search(frame[0])]
    return ":".join((own or frames)[-1])[:_LONGEST] if frames else ""
