"""Counts the house, and compares it with its bounds: ``make lint`` runs this.

    python tools/layout.py

It counts what formatting cannot change: tokens, words of docstrings, dense expressions, named numbers. A bound is the
figure that the house must not exceed: it goes down as the house gets smaller, and a feature that needs more raises it
by what it needs, which the commit says. The goals are those of the plan of November 2026.
"""

from __future__ import annotations

import ast
import gc
import io
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONG_FUNCTION = 60
_NO_TOKENS = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


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
    """A Python file."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Its source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of its syntax tree."""
        return list(ast.walk(ast.parse(self.text)))

    @cached_property
    def docstrings(self) -> list[str]:
        """Its docstrings, and the strings that describe a name."""
        texts = []
        for node in self.nodes:
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                texts.append(node.value.value)
        return texts

    @cached_property
    def tokens(self) -> int:
        """The number of its tokens, without comments and docstrings."""
        found = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type not in _NO_TOKENS for token in found) - len(self.docstrings)

    @property
    def statements(self) -> int:
        """The number of its statements, without docstrings."""
        return self.count(ast.stmt) - len(self.docstrings)

    @property
    def dataclasses(self) -> int:
        """The number of its dataclasses."""
        count = 0
        for node in self.nodes:
            if isinstance(node, ast.ClassDef):
                count += any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        return count

    @property
    def long_functions(self) -> int:
        """The number of its functions of more than ``LONG_FUNCTION`` lines."""
        count = 0
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                count += (node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION
        return count

    @property
    def tuning_numbers(self) -> int:
        """The number of its constants that are numbers, or tuples with numbers."""
        count = 0
        (tree,) = self.nodes[:1]
        assert isinstance(tree, ast.Module)
        for node in tree.body:
            if isinstance(node, ast.Assign):
                targets = node.targets
            elif isinstance(node, ast.AnnAssign):
                targets = [node.target]
            else:
                continue
            if isinstance(node.value, (ast.Dict, ast.Call)):
                continue
            is_constant = any(isinstance(name, ast.Name) and name.id.lstrip("_").isupper() for name in targets)
            count += is_constant and any(map(_is_number, ast.walk(node)))
        return count

    @property
    def imports(self) -> set[str]:
        """The names that it imports, those in functions too, but not those for type checkers alone."""
        left_out = set[ast.AST]()
        names = set[str]()
        for node in self.nodes:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                left_out |= set(node.body)
            elif isinstance(node, ast.ImportFrom) and node not in left_out:
                names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        return names

    def count(self, *kinds: type[ast.AST]) -> int:
        """Returns the number of its nodes of some kinds."""
        return sum(isinstance(node, kinds) for node in self.nodes)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def files_in(folder: str, *kinds: str) -> list[Path]:
    """Returns the files of a folder that Git knows and that have one of some endings."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.splitlines() if name.endswith(kinds)]
    return [file for file in files if file.is_file()]


def in_circles(modules: Iterable[Module]) -> int:
    """Returns the number of modules of the package that import themselves through others."""
    edges = {}
    for module in modules:
        name = ".".join(module.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        edges[name] = module.imports - {name}
    count = 0
    for name, imported in edges.items():
        reached, ahead = set[str](), list(imported)
        while ahead:
            module_name = ahead.pop()
            if module_name in edges and module_name not in reached:
                reached.add(module_name)
                ahead += edges[module_name]
        count += name in reached
    return count


@cache
def module_at(path: Path) -> Module:
    """Returns the module of a file, which is read once."""
    return Module(path)


def tokens_in(*folders: str) -> int:
    """Returns the number of tokens of the Python files of some folders."""
    return sum(module_at(path).tokens for folder in folders for path in files_in(folder, ".py"))


def options_in_help(*words: str) -> int:
    """Returns the number of options that a help lists."""
    command = [sys.executable, "-m", "trt_bisect", *words]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sum(line.startswith("  -") for line in text.splitlines())


def rows() -> Iterator[Row]:
    """Yields the figures."""
    modules = [module_at(path) for path in files_in("trt_bisect", ".py")]
    total = Counter[str]()
    for module in modules:
        total["tokens"] += module.tokens
        total["words"] += sum(len(text.split()) for text in module.docstrings)
        total["statements"] += module.statements
        total["ternaries"] += module.count(ast.IfExp)
        total["comprehensions"] += module.count(*_COMPREHENSIONS)
        total["dataclasses"] += module.dataclasses
        total["numbers"] += module.tuning_numbers
        total["long functions"] += module.long_functions
    thousands = total["statements"] / 1000
    numbers = sum(module_at(path).tuning_numbers for path in files_in("trt_bisect/answer", ".py"))
    numbers += sum(module_at(path).tuning_numbers for path in files_in("trt_bisect/driver", ".py"))
    search = tokens_in("trt_bisect/answer", "trt_bisect/driver", "trt_bisect/evaluator", "trt_bisect/commands/run")
    yield Row("tokens of the package", total["tokens"], 437_854, 300_000)
    yield Row("tokens of answer, driver, evaluator, commands/run", search, 82_078, 60_000)
    yield Row("tokens of options and cli", tokens_in("trt_bisect/options", "trt_bisect/cli"), 17_819, 14_000)
    yield Row("tokens of tests", tokens_in("tests"), 453_974, 330_000)
    yield Row("tokens of benchmarks and tools", tokens_in("benchmarks", "tools"), 79_829, 50_000)
    yield Row("words of docstrings", total["words"], 74_488, 70_000)
    yield Row("ternaries in 1,000 statements", round(total["ternaries"] / thousands), 58, 30)
    yield Row("comprehensions in 1,000 statements", round(total["comprehensions"] / thousands), 97, 60)
    yield Row("tuning numbers", total["numbers"], 404, 250)
    yield Row("tuning numbers of answer and driver", numbers, 63, 25)
    yield Row("modules", len(modules), 222, 190)
    yield Row("modules in circles of imports", in_circles(modules), 0, 0)
    yield Row("dataclasses", total["dataclasses"], 273, 200)
    yield Row(f"functions over {LONG_FUNCTION} lines", total["long functions"], 0, 0)
    yield Row("options in run --help", options_in_help("run", "--help"), 32, 32)
    yield Row("options in run --help-all", options_in_help("run", "--help-all"), 66, 65)
    scripts = sum(len(path.read_text(encoding="utf-8").split()) for path in files_in("tools/web/page", ".js"))
    yield Row("words of the page's scripts", scripts, 22_722, 12_000)


def main() -> int:
    """Prints the table; returns 1 if a figure exceeds its bound."""
    gc.disable()  # the syntax trees stay to the end: collecting among them is a third of the time
    table = list(rows())
    width = max(len(row.name) for row in table)
    print(f"{'':{width}}  {'now':>8}  {'bound':>8}  {'goal':>8}")
    for row in table:
        over = "  over its bound" if row.value > row.bound else ""
        print(f"{row.name:{width}}  {row.value:8,.6g}  {row.bound:8,.6g}  {row.goal:8,.6g}{over}")
    return int(any(row.value > row.bound for row in table))


if __name__ == "__main__":
    sys.exit(main())
