"""Results with layers named as in the user's program, for the screen and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from trt_bisect.recipe.commands import Command
from trt_bisect.report.parts import LayerRow

_Tree = TypeVar("_Tree")
_WORD = re.compile(r"[^\s'\",;()]*[^\s'\",;().:]")
# Fields without names of layers, or with names from the file.
_AS_THEY_ARE = ("code", "command", "commands", "made_of", "model", "module", "reference")


def titles_in(rows: tuple[LayerRow, ...]) -> dict[str, str]:
    """Returns by layer its name in the user's program, if it differs."""
    return {row.name: row.title for row in rows if row.title not in ("", row.name)}


def titled(tree: _Tree, titles: Mapping[str, str]) -> _Tree:
    """Replaces the names of layers by titles in dataclasses, mappings and sequences: as whole texts and as words of
    texts.

    A row keeps the old name as ``node``.
    """
    if not titles:
        return tree
    named: _Tree = _titled(tree, titles)
    return named


def _titled(tree: Any, titles: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return titles[tree] if tree in titles else _WORD.sub(lambda word: titles.get(word[0], word[0]), tree)
    if isinstance(tree, Mapping):
        return {_titled(key, titles): _titled(value, titles) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_titled(each, titles) for each in tree)
    if not is_dataclass(tree) or isinstance(tree, (type, Command)):
        return tree
    changed = {}
    for field in fields(tree):
        value = getattr(tree, field.name)
        new = value if field.name in _AS_THEY_ARE else _titled(value, titles)
        if new is not value:
            changed[field.name] = new
    if isinstance(tree, LayerRow) and tree.name in titles:
        changed |= {"title": "", "node": tree.name}
    return replace(tree, **changed) if changed else tree
