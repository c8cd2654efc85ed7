"""The shape of an object in a JSON file: its keys with their types and descriptions, read from a dataclass."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Key:
    """One key of an object.

    Attributes:
        type: the type in Python; a ``Shape`` for an object, or a list or a mapping of it.
        words: its description.
        required: files of every release have it.
    """

    type: Any
    words: str = ""
    required: bool = True


@dataclass(frozen=True)
class Shape:
    """An object in a file: its keys in their order."""

    name: str
    words: str
    keys: Mapping[str, Key]

    def without(self, *names: str) -> Shape:
        """Returns the shape without some keys."""
        return replace(self, keys={name: key for name, key in self.keys.items() if name not in names})

    def plus(self, *others: Shape, **types: Any) -> Shape:
        """Returns the shape with the keys of others, and with other types for some of its keys."""
        keys = dict(self.keys)
        for other in others:
            keys.update(other.keys)
        keys.update({name: replace(keys[name], type=kind) for name, kind in types.items()})
        return replace(self, keys=keys)

    def named(self, prefix: str, words: str) -> Shape:
        """Returns the shape with a prefix before each name, and words before each description."""
        return replace(
            self,
            keys={
                f"{prefix}{name}": replace(key, words=f"{words}: {key.words}" if key.words else words)
                for name, key in self.keys.items()
            },
        )

    def optional(self) -> Shape:
        """Returns the shape with values that may be null."""
        return replace(self, keys={name: replace(key, type=key.type | None) for name, key in self.keys.items()})


@dataclass(frozen=True)
class ListOf:
    """A list of objects of a shape; ``named`` makes it an object with one entry a name; ``lack`` allows null."""

    shape: Shape
    named: bool = False


@dataclass(frozen=True)
class Maybe:
    """An object of a shape, or a list of it, or null."""

    shape: Shape | ListOf


_COMMON = {
    "arithmetic": "`emulated` or `measured`.",
    "builds": "the number of engines built.",
    "calibrator": "the calibrator, such as `entropy` or `percentile 99.99`.",
    "layer": "the name of the layer.",
    "notes": "remarks, a sentence each.",
    "schema": "the version of the form of the file.",
    "text": "the text to type.",
    "tool": "the program that the command is for.",
    "asked": "the precision that was asked for.",
    "consumer": "the layer that reads the rounded tensor.",
    "count": "the number of values.",
    "culprits": "the names of the culprits, in execution order.",
    "dtype": "the tensor's type.",
    "engine": "`onnxruntime`, `tensorrt` or `tensorrt-rtx`.",
    "fingerprint": "the digest of `made_of`: trials are reused only under the same one.",
    "index": "the index of the layer in execution order, from 0.",
    "inferences": "the number of inferences.",
    "exit_code": "the exit code of the command.",
    "max": "the largest value.",
    "mean": "the mean of the finite values.",
    "metric": "the metric that decides.",
    "min": "the smallest value.",
    "model": "the network's file, as it was given.",
    "name": "the name.",
    "nonfinite": "the number of values that are NaN or infinite.",
    "op_type": "the ONNX operator.",
    "outcome": "the outcome, with the words of the journal.",
    "output": "the final output that is worst with the layer in INT8, or the group of its places that is.",
    "precision": "the precision of layers that are not in INT8.",
    "producer": "the layer that makes the tensor.",
    "quantizable": "TensorRT can run the layer in INT8.",
    "seconds": "the time it took.",
    "shape": "the shape of the output.",
    "share": "a suspect costs at least this share of the budget.",
    "std": "the standard deviation.",
    "strategy": "`branch`, `bisect` or `exhaustive`.",
    "summary": "the verdict in lines.",
    "tensor": "the tensor's name.",
    "threshold": "the worst value of the metric that is still good.",
    "typing": "TensorRT's: `weak` or `strong`.",
    "var": "the variance.",
    "variance": "the variance.",
    "versions": "the versions of trt-bisect, Python, the packages, the device and the processor.",
}
"""Descriptions of keys that mean the same in every file; a docstring comes first."""


def shape_of(kind: type) -> Shape:
    """Returns the shape of a dataclass, with the descriptions of its docstring."""
    types, words = typing.get_type_hints(kind), dict(_COMMON)
    for base in reversed(kind.__mro__):
        words.update(_attributes(base))
    keys = {
        each.name: Key(types[each.name], words.get(each.name, ""), each.default is each.default_factory is MISSING)
        for each in fields(kind)
    }
    return Shape(kind.__name__, _first_paragraph(kind), keys)


def _first_paragraph(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _attributes(kind: type) -> dict[str, str]:
    """The descriptions under ``Attributes:`` in a docstring, by name; a line of several names counts for each."""
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n(?=    ))+)", inspect.getdoc(kind) or "", re.MULTILINE)
    found = {}
    for names, words in re.findall(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE):
        found.update({name: _plain(words) for name in names.split(", ")})
    return found


def _plain(words: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(words.replace("``", "`").split()))
