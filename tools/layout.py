"""Counts the house, and compares it with its bounds: ``make lint`` runs this.

    python tools/layout.py

A bound is the figure that the house must not exceed, and it moves down as the house gets smaller; the goals are those
of the plan of November 2026. A module is too small if it has under ``SMALL`` lines and one importer.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALL, LONG_MODULE, LONG_FUNCTION = 60, 800, 60


@dataclass(frozen=True)
class Row:
    """A figure of the house.

    Attributes:
        name: what is counted.
        value: the count.
        bound: the most that ``make lint`` accepts.
        goal: the figure aimed at.
    """

    name: str
    value: float
    bound: float
    goal: float


@dataclass(frozen=True)
class Module:
    """A module of the package."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Its source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)

    @property
    def name(self) -> str:
        """Its dotted name."""
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    @property
    def lines(self) -> int:
        """The number of its lines."""
        return self.text.count("\n")

    @property
    def code_lines(self) -> int:
        """The number of lines with code: without blank lines, comments and docstrings."""
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        texts = {
            line
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        code = {
            line
            for token in tokenize.generate_tokens(io.StringIO(self.text).readline)
            if token.type not in skipped and token.type != tokenize.ENDMARKER
            for line in range(token.start[0], token.end[0] + 1)
        }
        return len(code - texts)

    @property
    def import_lines(self) -> int:
        """The number of lines of its import statements."""
        imports = (node for node in ast.walk(self.tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
        return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports)

    @property
    def imported(self) -> set[str]:
        """The names of the modules that it imports, and of what it imports from them."""
        names = set[str]()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        return names

    @property
    def dataclasses(self) -> int:
        """The number of its dataclasses."""
        classes = (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))
        return sum(any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list) for node in classes)

    @property
    def long_functions(self) -> int:
        """The number of its functions of more than ``LONG_FUNCTION`` lines."""
        functions = (node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        return sum((node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION for node in functions)


def lines_in(folder: str, *kinds: str) -> int:
    """Returns the number of lines of a folder's files that Git knows."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.splitlines() if name.endswith(kinds)]
    return sum(file.read_bytes().count(b"\n") for file in files if file.is_file())


def options_in_help(*words: str) -> int:
    """Returns the number of options that a help lists."""
    command = [sys.executable, "-m", "trt_bisect", *words]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum(line.startswith("  -") for line in text.splitlines())


def rows() -> Iterator[Row]:
    """Yields the figures."""
    modules = [Module(path) for path in sorted((ROOT / "trt_bisect").rglob("*.py"))]
    lines = sum(module.lines for module in modules)
    importers = Counter(name for module in modules for name in module.imported)
    single = [module for module in modules if module.path.name != "__init__.py" and importers[module.name] == 1]
    small = sum(module.lines < SMALL for module in single)
    yield Row("lines of the package", lines, 53_802, 36_000)
    yield Row("lines of its code", sum(module.code_lines for module in modules), 35_335, 22_500)
    yield Row("modules", len(modules), 196, 190)
    yield Row("dataclasses", sum(module.dataclasses for module in modules), 298, 160)
    yield Row("share of imports, %", round(100 * sum(module.import_lines for module in modules) / lines, 1), 6.5, 6)
    yield Row(f"modules under {SMALL} lines with one importer", small, 0, 0)
    yield Row(f"modules over {LONG_MODULE} lines", sum(module.lines > LONG_MODULE for module in modules), 0, 0)
    yield Row(f"functions over {LONG_FUNCTION} lines", sum(module.long_functions for module in modules), 0, 0)
    yield Row("options in run --help", options_in_help("run", "--help"), 32, 32)
    yield Row("options in run --help-all", options_in_help("run", "--help-all"), 65, 65)
    yield Row(
        "lines of options and command line",
        lines_in("trt_bisect/options", ".py") + lines_in("trt_bisect/cli", ".py"),
        2_750,
        1_900,
    )
    yield Row("lines of tests", lines_in("tests", ".py"), 46_130, 30_000)
    yield Row("lines of benchmarks", lines_in("benchmarks", ".py"), 4_500, 4_500)
    yield Row("lines of tools in Python", lines_in("tools", ".py"), 2_660, 2_500)
    yield Row("lines of the page's scripts", lines_in("tools/web/page", ".js"), 4_301, 4_000)


def main() -> int:
    """Prints the table; returns 1 if a figure exceeds its bound."""
    table = list(rows())
    width = max(len(row.name) for row in table)
    print(f"{'':{width}}  {'now':>8}  {'bound':>8}  {'goal':>8}")
    for row in table:
        over = "  over its bound" if row.value > row.bound else ""
        print(f"{row.name:{width}}  {row.value:8,g}  {row.bound:8,g}  {row.goal:8,g}{over}")
    return int(any(row.value > row.bound for row in table))


if __name__ == "__main__":
    sys.exit(main())
