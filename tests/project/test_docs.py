"""The documentation for maintainers names only what is there, and says of the rooms what the import contract says."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FOR_MAINTAINERS = ("docs/architecture.md", "CONTRIBUTING.md")
PAGES = tuple(
    str(page.relative_to(ROOT))
    for place in ("*.md", "docs/**/[a-z]*.md", "samples/*.md", "samples/ci/*.md")
    for page in ROOT.glob(place)
)
_CODE = re.compile(r"`([^`\n]+)`")
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?:\]\(|src=\")([^)\s\"]+)")
_OURS = re.compile(r"(?<![\w./-])(?:benchmarks|docs|samples|tests|tools|trt_bisect)/[\w./-]*\w")
_FILE = re.compile(r"[\w.-]*[\w-]\.(?:py|md|toml|lock|yml)|Makefile|LICENSE")


def words_of(page: str) -> Iterator[str]:
    """Yields what stands between backticks on a page, outside of blocks of code."""
    yield from _CODE.findall(_FENCED.sub("", (ROOT / page).read_text()))


def exists(path: str) -> bool:
    """Returns true if a path from the repository's root exists; of a module the suffix may be left out."""
    return (ROOT / path).exists() or (ROOT / f"{path}.py").is_file()


def found(dotted: str) -> bool:
    """Returns true if a dotted name can be imported: a module, or what it holds."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        return holds(module, parts[length:])
    return False


def holds(module: object, names: list[str]) -> bool:
    """Returns true if attributes lead from a module to the last of ``names``; fields of dataclasses count."""
    if not names:
        return True
    owner = reduce(lambda each, name: getattr(each, name, None), names[:-1], module)
    return hasattr(owner, names[-1]) or names[-1] in getattr(owner, "__annotations__", {})


@pytest.mark.parametrize("page", FOR_MAINTAINERS)
def test_every_path_and_name_of_the_maintainers_pages_exists(page: str) -> None:
    paths, names = 0, 0
    for word in words_of(page):
        path, separator, name = word.partition("::")
        if separator and path != "path":
            module = path.removesuffix(".py").replace("/", ".")
            assert found(f"{module}.{name}"), word
            names += 1
        elif re.fullmatch(r"trt_bisect(\.\w+)+", word):
            assert found(word), word
            names += 1
        elif _OURS.fullmatch(word) or _FILE.fullmatch(word):
            assert exists(word), word
            paths += 1
    assert paths >= 10
    assert names >= 5


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_path_of_the_repository_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in _LINK.findall(text):
        if "://" not in link:
            assert (ROOT / page).parent.joinpath(link.partition("#")[0]).exists(), link
    for path in _OURS.findall(text):
        assert exists(path), path


def test_what_an_example_takes_from_the_package_exists() -> None:
    taken = set()
    for block in [block for page in PAGES for block in _PYTHON.findall((ROOT / page).read_text())]:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("trt_bisect"):
                taken |= {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "trt_bisect":
                taken.add(ast.unparse(node))
    assert "trt_bisect.run" in taken
    assert [name for name in taken if not found(name)] == []


def test_links_to_headings_lead_to_headings() -> None:
    for page in PAGES:
        for link in _LINK.findall((ROOT / page).read_text()):
            if "://" not in link and "#" in link:
                target, _, anchor = link.partition("#")
                there = (ROOT / page).parent / target if target else ROOT / page
                assert anchor in anchors_of(there), f"{page}: {link}"


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_rows_of_rooms_are_the_layers_of_the_import_contract() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (each for each in configuration["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    rows: dict[int, set[str]] = {}
    for number, rooms in re.findall(r"^\| (\d+) \| ([^|]+) \|", (ROOT / FOR_MAINTAINERS[0]).read_text(), re.MULTILINE):
        rows.setdefault(int(number), set()).update(re.findall(r"`trt_bisect/(\w+?)(?:\.py)?`", rooms))
    layers = [{room.strip() for room in layer.split("|")} for layer in contract["layers"]]
    assert [rows[number] for number in sorted(rows)] == layers


def test_drivers_import_nothing_but_precision() -> None:
    for path in (ROOT / "trt_bisect/driver").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trt_bisect"):
                assert re.match(r"trt_bisect\.(driver|precision)\b", node.module or ""), f"{path}: {node.module}"
