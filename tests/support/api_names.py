"""The names of TensorRT's and PyCUDA's Python interfaces that the code uses, read from its source."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "trt_bisect" / "builder"
CHECKS = ROOT / "tools" / "gpu_check"
MODULE = "*"
"""In place of a class: the module itself."""

COMMON = ("tensorrt_build.py", "tensorrt_engine.py")
"""The files that run with TensorRT of every version and with TensorRT-RTX."""

RTX_ALONE = ("tensorrt_rtx.py",)
"""The files that run with TensorRT-RTX only."""

SINCE_10_8 = ("debug_tensors.py",)
"""The files that run with TensorRT since 10.8 only."""

WEAK = ("tensorrt_weak.py",)
"""The files that run with TensorRT before 11 only."""

MODULES = {"trt", "rt.module", "self._rt.module", "rt.rt.module"}
"""Expressions that stand for TensorRT's module."""

OBJECTS = {
    "rt.builder": "Builder",
    "rt.logger": "ILogger",
    "config": "IBuilderConfig",
    "parser": "OnnxParser",
    "profile": "IOptimizationProfile",
    "cache": "ITimingCache",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "loaded.engine": "ICudaEngine",
    "context": "IExecutionContext",
    "loaded.context": "IExecutionContext",
    "inspector": "EngineInspector",
    "runtime_config": "IRuntimeConfig",
    "definition.network": "INetworkDefinition",
    "trt_layer": "ILayer",
    "step.layer": "ILayer",
    "_as(trt.IConstantLayer, layer)": "IConstantLayer",
    "_as(trt.IElementWiseLayer, step.layer)": "IElementWiseLayer",
}
"""Expressions that stand for an object of a class, in all files."""

IN_FILE = {
    "tensorrt_weak.py": {"definition": "INetworkDefinition", "parsed": "INetworkDefinition", "tensor": "ITensor"},
    "tensorrt_build.py": {"network": "INetworkDefinition"},
}
"""Expressions that stand for an object of a class in one file; ours elsewhere."""

IN_CHECKS = {"config": "IBuilderConfig", "rt.builder": "Builder"}
"""The same in tools/gpu_check, where an ``engine`` is one of ours."""

OURS = {"rt.logger": {"records", "layers"}, "network": {"inputs", "source"}}
"""Attributes of our own subclasses, and of our own objects of the same name."""


@dataclass(frozen=True)
class Called:
    """A call of TensorRT in the source.

    Attributes:
        name: ``Class.method``, or ``Class`` for its constructor.
        positional: the number of arguments without a name.
        keywords: the names of the others.
    """

    name: str
    positional: int
    keywords: tuple[str, ...]

    def fits(self, arguments: str) -> bool:
        """Returns true if the arguments are those of a signature, as ``tools/binding_names.py`` writes it."""
        known = arguments.split()
        names = [one.rstrip("=") for one in known]
        given = {*names[: self.positional], *self.keywords}
        required = {one for one in known if not one.endswith("=")}
        doubled = set(names[: self.positional]) & set(self.keywords)
        return self.positional <= len(names) and required <= given <= set(names) and not doubled


def calls_in(path: Path) -> list[Called]:
    """Returns the calls of TensorRT in a file, and TensorRT's calls of its subclasses; none with ``*`` arguments."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            kind, name = _class_of(ast.unparse(node.func.value), node.func.attr, _objects(path)), node.func.attr
            keywords = tuple(keyword.arg for keyword in node.keywords if keyword.arg)
            is_plain = len(keywords) == len(node.keywords) and not any(isinstance(a, ast.Starred) for a in node.args)
            if kind and is_plain:
                is_made = name == "__init__"
                if kind == MODULE:
                    called = name
                else:
                    called = kind if is_made else f"{kind}.{name}"
                found.append(Called(called, len(node.args) - is_made, keywords))
        else:
            found += [
                Called(f"{kind}.{method.name}", len(method.args.args) - 1, ()) for kind, method in _overridden(node)
            ]
    return found


def _class_of(of: str, name: str, objects: dict[str, str]) -> str:
    """Returns the class of TensorRT whose attribute ``name`` is taken of an expression; empty if it is none of these.

    ``MODULE`` stands for the module.
    """
    module, _, kind = of.rpartition(".")
    if of in MODULES:
        return MODULE
    if module in MODULES:
        return kind
    return objects.get(of, "") if name not in OURS.get(of, ()) else ""


def _overridden(node: ast.AST) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the public methods of a subclass of TensorRT's, each with the name of that class."""
    for base in node.bases if isinstance(node, ast.ClassDef) else ():
        of, _, kind = ast.unparse(base).rpartition(".")
        for part in node.body:
            if of in MODULES and isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                yield kind, part


def signatures_in(path: Path) -> dict[str, list[str]]:
    """Returns, by function, the arguments of its signatures in a file that ``tools/binding_names.py`` wrote."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        name, _, arguments = line.rstrip(")").partition("(")
        found[name].append(arguments)
    return found


def _objects(path: Path) -> dict[str, str]:
    return IN_CHECKS if path.parent == CHECKS else OBJECTS | IN_FILE.get(path.name, {})


def names_used(path: Path) -> dict[str, set[str]]:
    """Returns, by class, the names of TensorRT that a file uses; ``*`` stands for the module."""
    objects, found = _objects(path), defaultdict(set)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
            found[_class_of(ast.unparse(node.value), node.attr, objects)].add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and len(node.args) > 1:
            of, name = node.args[:2]
            if isinstance(name, ast.Constant):
                found[_class_of(ast.unparse(of), name.value, {**objects, "layer": "ILayer"})].add(name.value)
        for kind, method in _overridden(node):
            found[kind].add(method.name)
    found.pop("", None)
    return found


def cuda_names_used() -> set[str]:
    """Returns the names of ``pycuda.driver`` that the code uses, methods of its objects as ``Class.method``."""
    objects = {"begin": "Event", "end": "Event", "self.context": "Context"}
    objects |= {"loaded.stream": "Stream", "stream": "Stream"}
    modules = {"cuda", "self._cuda", "device.cuda", "self.cuda", "loaded.device.cuda"}
    found = set()
    for path in (BUILDER / "tensorrt_engine.py", BUILDER / "debug_tensors.py", *sorted(CHECKS.glob("*_checks.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                of = ast.unparse(node.value)
                kind = "Context" if of.endswith("cuda.Context") else objects.get(of)
                if of in modules:
                    found.add(node.attr)
                elif kind:
                    found.add(f"{kind}.{node.attr}")
    return found | {"Device.retain_primary_context"}


def names_in(path: Path) -> dict[str, set[str]]:
    """Returns, by class, the names in a file that ``tools/binding_names.py`` wrote."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {kind: set(names) for kind, *names in lines}
