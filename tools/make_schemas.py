"""Makes the JSON Schemas of the files that trt-bisect writes, and the page docs/reference/json.md.

``python tools/make_schemas.py`` writes the page. The site's build calls ``on_files`` (``hooks`` in mkdocs.yml), which
adds the schemas. msgspec makes them from the dataclasses that the files are written from, descriptions come from the
docstrings of these.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.comparison import Comparison, Profile
from trt_bisect.report.explanation import Explanation, Pictures
from trt_bisect.report.losses import Sensitivity, WorstReport
from trt_bisect.report.model import Report
from trt_bisect.report.network_graph import Graph
from trt_bisect.report.nightly import Regression
from trt_bisect.report.structure import CheckReport
from trt_bisect.report.verification import Verification
from trt_bisect.support.table import Column

if typing.TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "json.md"


@dataclass(frozen=True)
class TrialLine(Trial):
    """One plan tried.

    Attributes:
        ran: by layer the precision that it ran in: `as asked`, or pairs of a precision (null if it is not known) and
            the number of layers in a row that ran in it.
    """

    ran: str | tuple[tuple[str | int | None, ...], ...] = ()  # type: ignore[assignment]


@dataclass(frozen=True)
class JournalLine:
    """A line of the journal. The first line of a fingerprint has ``about`` and ``id``, the others have ``trial``.

    Attributes:
        run: the fingerprint.
        about: the content that the fingerprint is made of.
        id: the id of the journal; the history knows a run by it.
        trial: one plan tried.
    """

    run: str
    about: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    trial: TrialLine | None = None


FILES: Mapping[str, tuple[type, str]] = {
    "report.json": (Report, "Written by `run`. `run.json` has the same keys while a run goes on."),
    "sensitivity.json": (Sensitivity, "Written by `sensitivity`."),
    "worst.json": (WorstReport, "Written by `worst`."),
    "compare.json": (Comparison, "Written by `compare`; the channels are in `channels.csv` only."),
    "profile.json": (Profile, "Written by `profile`."),
    "check.json": (CheckReport, "Written by `check`."),
    "explanation.json": (Explanation, "Written by `run`: causes and remedies. Floats have 7 significant digits."),
    "pictures.json": (Pictures, "Written by `run` with `--task`: the worst images, for the page."),
    "verify.json": (Verification, "Written by `verify`."),
    "regression.json": (Regression, "Written by `regress`."),
    "network.json": (Graph, "Written by `run`, before anything is measured."),
    "journal.jsonl": (JournalLine, "Written by `run` and `sensitivity`. The schema is that of one line."),
}
"""By file the class that it is written from, and what is said of it."""
_HEAD = """# JSON files and schemas

Made by `python tools/make_schemas.py` from the dataclasses of the package. Each file has a
[JSON Schema](https://json-schema.org/) (2020-12), which the site has in `schemas`; a test checks real files. To check
a file of yours:

```
pip install check-jsonschema
check-jsonschema --schemafile build/site/schemas/report.schema.json trt-bisect-network/report.json
```

`make site` builds `build/site`.

- A figure that is not finite is `null`.
- New keys may come without a new number in `schema`. Keys that exist keep their names and meanings.
- In the tables `a[]` is each entry of a list, and `a.*` each entry of an object by name. An object that occurs in
  several places is described once; the other places refer to it.
- A similarity is a fraction of 1; the screen prints per cent.
- A file of another schema is refused: run the command again.
"""
_COMMON = {
    "arithmetic": "`emulated` or `measured`.",
    "consumer": "the layer that reads the rounded tensor.",
    "count": "the number of values.",
    "dtype": "the tensor's type.",
    "engine": "`onnxruntime`, `tensorrt` or `tensorrt-rtx`.",
    "fingerprint": "the digest of `made_of`: trials are reused only under the same one.",
    "index": "the index of the layer in execution order, from 0.",
    "inferences": "the number of inferences.",
    "layer": "the name of the layer.",
    "max": "the largest value.",
    "mean": "the mean of the finite values.",
    "metric": "the metric that decides.",
    "min": "the smallest value.",
    "model": "the network's file, as it was given.",
    "name": "the name.",
    "notes": "further remarks.",
    "op_type": "the ONNX operator.",
    "producer": "the layer that makes the tensor.",
    "quantizable": "TensorRT can run the layer in INT8.",
    "samples": "the number of samples.",
    "schema": "the version of this form; keys may be added without a new number.",
    "std": "the standard deviation.",
    "strategy": "`emulation` (one session for all plans), `bisect` or `exhaustive`.",
    "tensor": "the tensor's name.",
    "text": "the text to type.",
    "threshold": "the worst value of the metric that is still good.",
    "tool": "the program that the command is for.",
    "typing": "TensorRT's: `weak` or `strong`.",
    "variance": "the variance.",
    "versions": "the versions of trt-bisect, Python, the packages, the device and the processor.",
}
"""Descriptions of keys that mean the same in every file; a docstring comes first."""


def schema(file: str) -> dict[str, Any]:
    """Returns the JSON Schema of a file."""
    kind = FILES[file][0]
    made = msgspec.json.schema(kind, schema_hook=_of_custom)
    for described in _classes(kind, set()):
        for name, part in made["$defs"].items():
            if name == described.__name__ or name.startswith(f"{described.__name__}_"):
                _describe(part, described)
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"trt-bisect: {file}"}
    return {**about, **made}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the schemas to the site; mkdocs calls this."""
    from mkdocs.structure.files import File

    for file in FILES:
        files.append(File.generated(config, f"schemas/{schema_name(file)}", content=json.dumps(schema(file), indent=1)))
    return files


def schema_name(file: str) -> str:
    """Returns the name of a file's schema."""
    return f"{file.partition('.')[0]}.schema.json"


def page() -> str:
    """Returns the page with the keys of all files."""
    described: dict[str, str] = {}
    return "\n".join([_HEAD, *(_section(file, described) for file in FILES)])


def _of_custom(kind: type) -> dict[str, Any]:
    """Returns the schema of a type that msgspec does not know: a path is text."""
    if issubclass(kind, Path):
        return {"type": "string"}
    raise TypeError(f"{kind} has no JSON Schema")


def _classes(kind: Any, seen: set[type]) -> Iterator[type]:
    """Yields a dataclass and those of its fields, each once."""
    origin = typing.get_origin(kind)
    if origin is not None and dataclasses.is_dataclass(origin):
        yield from _classes(origin, seen)
    for inner in typing.get_args(kind):
        yield from _classes(inner, seen)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        yield kind
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            yield from _classes(hint, seen)


def _describe(part: dict[str, Any], kind: type) -> None:
    """Adds the descriptions of a class's docstring to its schema."""
    doc = inspect.getdoc(kind) or ""
    part["description"] = _plain(doc.split("\n\n")[0])
    own_words = {name: words for base in reversed(kind.__mro__) for name, words in _attributes(base).items()}
    words = {**_columns(kind), **_COMMON, **own_words}
    for name, key in part.get("properties", {}).items():
        if name in words:
            key["description"] = words[name]


def _attributes(kind: type) -> dict[str, str]:
    """The descriptions under ``Attributes:`` in a docstring, by name; a line of several names counts for each."""
    doc = inspect.cleandoc(kind.__doc__ or "")
    section = re.search(r"^Attributes:\n((?:    .*\n?|\n(?=    ))+)", doc, re.MULTILINE)
    descriptions = {}
    for names, words in re.findall(r"^ {4}([\w, ]+): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE):
        descriptions.update({name: _plain(words) for name in names.split(", ")})
    return descriptions


def _columns(kind: type) -> dict[str, str]:
    """The phrases on the columns of a table, by field, where no docstring says more."""
    names = {"low": "INT8", "high": "FP32", "metric": "the metric", "figure": "the figure"}
    hints = typing.get_type_hints(kind, include_extras=True).items()
    marks = ((name, mark) for name, hint in hints for mark in getattr(hint, "__metadata__", ()))
    helps = {name: mark.help.format_map(names) for name, mark in marks if isinstance(mark, Column) and mark.help}
    return {name: f"{_lower(words)}." for name, words in helps.items()}


def _plain(words: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(words.replace("``", "`").split()))


def _section(file: str, described: dict[str, str]) -> str:
    """Returns the table of a file; ``described`` has the place of the keys of each class, and gains those of this file.

    Files have different classes of one name, so a class is known by its name and its keys.
    """
    full, about = schema(file), FILES[file][1]
    top = full["$ref"].rpartition("/")[2]
    described.setdefault(_identity(top, full["$defs"]), _anchor(file))
    rows = [f"| `{path}` | {kind} | {words} |" for path, kind, words in _rows(top, full["$defs"], file, "", described)]
    table = ["| key | type | |", "| --- | --- | --- |", *rows]
    return "\n".join([f"## {file}", "", about, "", *table, ""])


def _anchor(file: str) -> str:
    return f"[{file}](#{file.replace('.', '')})"


def _rows(
    owner: str, defined: dict[str, Any], file: str, before: str, described: dict[str, str]
) -> Iterator[tuple[str, str, str]]:
    """Yields path, type and description of each key of a class; classes that are described elsewhere are named."""
    for name, key in defined[owner]["properties"].items():
        kind, suffix, target = _kind(key)
        path = f"{before}{name}{suffix}"
        words = key.get("description") or (_lower(defined[target]["description"]) if target else "")
        has_keys = target and "properties" in defined[target]
        identity = _identity(target, defined) if has_keys else ""
        elsewhere = described.get(identity)
        if elsewhere is not None:
            words = f"{words} Keys as in {elsewhere.removesuffix(f' of {_anchor(file)}')}.".strip()
        yield path, kind, words.replace("|", "\\|")
        if has_keys and elsewhere is None:
            described[identity] = f"`{path}` of {_anchor(file)}"
            yield from _rows(target, defined, file, f"{path}.", described)


def _identity(name: str, defined: dict[str, Any]) -> str:
    return " ".join([name, *defined[name]["properties"]])


def _kind(key: dict[str, Any]) -> tuple[str, str, str]:
    """Returns the type as text, what stands for its entries, and the definition of these, if there is one."""
    if "$ref" in key:
        return "object", "", key["$ref"].rpartition("/")[2]
    if "anyOf" in key:
        kinds = [_kind(each) for each in key["anyOf"]]
        suffix, target = next(((each[1], each[2]) for each in kinds if each[2]), ("", ""))
        return " or ".join(dict.fromkeys(each[0] for each in kinds)), suffix, target
    if key.get("type") == "array":
        kind, suffix, target = _kind(key.get("items") or {})
        return f"list of {kind}", f"[]{suffix}" if target else "", target
    if isinstance(key.get("additionalProperties"), dict):
        kind, suffix, target = _kind(key["additionalProperties"])
        return f"by name: {kind}", f".*{suffix}" if target else "", target
    words = key.get("type", "any")
    return words if isinstance(words, str) else " or ".join(words), "", ""


def _lower(text: str) -> str:
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
