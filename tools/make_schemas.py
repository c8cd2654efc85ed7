"""Writes the JSON Schemas of the files that trt-bisect writes, docs/schemas, and the page docs/reference/json.md.

python tools/make_schemas.py

Both follow from ``tools/schemas``, which reads the dataclasses of the package.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Union

from tools.schemas.files import FILES
from tools.schemas.shapes import ListOf, Maybe, Shape, shape_of

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs" / "schemas"
PAGE = ROOT / "docs" / "reference" / "json.md"

_PLAIN = {str: "string", int: "integer", bool: "boolean", type(None): "null", Path: "string"}
_ABOUT = {
    "report.json": "Written by `run`.",
    "recovery.json": "Written by `recover`.",
    "sensitivity.json": "Written by `sensitivity`.",
    "worst.json": "Written by `worst`.",
    "compare.json": "Written by `compare`.",
    "profile.json": "Written by `profile`.",
    "check.json": "Written by `check`.",
    "explanation.json": "Written by `run`: why, and what to do. Floats have 6 significant digits.",
    "regression.json": "Written by `regress`.",
    "network.json": "Written by `run`, before anything is measured.",
    "journal.jsonl": "Written by `run`, `recover` and `sensitivity`. The schema is that of one line.",
}
_HEAD = """# JSON files and schemas

Made by `python tools/make_schemas.py` from the dataclasses of the package. Each file has a
[JSON Schema](https://json-schema.org/) (2020-12); a test holds real files against them. To check a file of yours:

```
pip install check-jsonschema
check-jsonschema --schemafile docs/schemas/report.schema.json trt-bisect-network/report.json
```

- A figure that is not finite is `null`.
- New keys may come without a new number in `schema`. Keys that exist keep their names and meanings.
- In the tables `a[]` is each entry of a list, and `a.*` each entry of an object by name.
- A similarity is a fraction of 1; the screen prints per cent.
- `report.json` of schema 1 (trt-bisect 0.1.0) is still read: `view`, the page, the history and `regress` take it. It
  has no `answer` and no `next_command`. Its culprits are the curve's suspects, and it was judged on fewer inputs. Where
  the history or `regress` compares one with a report of schema 2, it says so.
"""


class _Schemas:
    """The schema of one file: objects are definitions, by name."""

    def __init__(self) -> None:
        self.defined: dict[str, Any] = {}
        self._shapes: dict[str, Shape] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Returns the schema of a type."""
        if isinstance(kind, Maybe):
            return {"anyOf": [self.of(kind.shape), {"type": "null"}]}
        if isinstance(kind, ListOf):
            return _held(self.of(kind.shape), kind.named)
        if isinstance(kind, Shape):
            return self._reference(kind)
        if dataclasses.is_dataclass(kind):
            return self._reference(shape_of(typing.cast(type, kind)))
        if kind is Any:
            return {}
        if kind is float:  # what is not finite is written as null
            return {"type": ["number", "null"]}
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        return self._composed(kind)

    def _composed(self, kind: Any) -> dict[str, Any]:
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (Union, types.UnionType):
            return _union([self.of(each) for each in inner])
        if origin is tuple:
            return _held(self.of(inner[0]), named=False)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _held(self.of(inner[1]), named=True)
        raise TypeError(f"no schema for {kind!r}")

    def _reference(self, shape: Shape) -> dict[str, Any]:
        if self._shapes.setdefault(shape.name, shape) != shape:
            raise TypeError(f"two shapes are named {shape.name}")
        if shape.name not in self.defined:
            self.defined[shape.name] = {}
            self.defined[shape.name] = self.object(shape)
        return {"$ref": f"#/$defs/{shape.name}"}

    def object(self, shape: Shape) -> dict[str, Any]:
        """Returns the schema of an object."""
        properties = {
            name: {**self.of(key.type), **({"description": key.words} if key.words else {})}
            for name, key in shape.keys.items()
        }
        required = [name for name, key in shape.keys.items() if key.required]
        return {"description": shape.words, "type": "object", "properties": properties, "required": required}


def _held(schema: dict[str, Any], named: bool) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema} if named else {"type": "array", "items": schema}


def _union(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    if all(set(schema) == {"type"} for schema in schemas):
        words = [schema["type"] for schema in schemas]
        flat = [one for each in words for one in (each if isinstance(each, list) else [each])]
        return {"type": list(dict.fromkeys(flat))}
    return {"anyOf": schemas}


def schema(file: str) -> dict[str, Any]:
    """Returns the JSON Schema of a file."""
    made = _Schemas()
    top = made.object(FILES[file])
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trt-bisect: {file}"}
    return {**about, **top, "$defs": made.defined}


def path_of(file: str) -> Path:
    """The place of a file's schema."""
    return SCHEMAS / f"{file.partition('.')[0]}.schema.json"


def page() -> str:
    """Returns the page with the keys of all files."""
    return "\n".join([_HEAD, *(_section(file) for file in FILES)])


def _section(file: str) -> str:
    full = schema(file)
    link = f"[Schema](../schemas/{path_of(file).name})."
    rows = [f"| `{path}` | {kind} | {words} |" for path, kind, words in _rows(full, full["$defs"], "", set())]
    table = ["| key | type | |", "| --- | --- | --- |", *rows]
    return "\n".join([f"## {file}", "", f"{_ABOUT[file]} {link}", "", *table, ""])


def _rows(part: dict[str, Any], defined: dict[str, Any], before: str, seen: set[str]) -> Iterator[tuple[str, str, str]]:
    for name, key in part["properties"].items():
        kind, suffix, target = _kind(key)
        words = key.get("description", "")
        known = target in seen
        if known:
            words = f"{words} Keys as above for {_lower(defined[target]['description'])}".strip()
        yield f"{before}{name}{suffix}", kind, words.replace("|", "\\|")
        if target and not known:
            seen.add(target)
            yield from _rows(defined[target], defined, f"{before}{name}{suffix}.", seen)


def _kind(key: dict[str, Any]) -> tuple[str, str, str]:
    """Returns the type as text, what stands for its entries, and the definition of these, if there is one."""
    if "$ref" in key:
        return "object", "", key["$ref"].rpartition("/")[2]
    if "anyOf" in key:
        found = [_kind(each) for each in key["anyOf"]]
        suffix, target = next(((each[1], each[2]) for each in found if each[2]), ("", ""))
        return " or ".join(dict.fromkeys(each[0] for each in found)), suffix, target
    if key.get("type") == "array":
        kind, suffix, target = _kind(key["items"])
        return f"list of {kind}", f"[]{suffix}" if target else "", target
    if "additionalProperties" in key:
        kind, suffix, target = _kind(key["additionalProperties"])
        return f"by name: {kind}", f".*{suffix}" if target else "", target
    words = key.get("type", "any")
    return words if isinstance(words, str) else " or ".join(words), "", ""


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def main() -> None:
    """Writes the schemas and the page."""
    SCHEMAS.mkdir(exist_ok=True)
    for file in FILES:
        path_of(file).write_text(json.dumps(schema(file), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
