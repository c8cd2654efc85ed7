"""Asks TensorRT-RTX's parser what it refuses, writes it as a table, and compares the rules of ``check`` with it.

    python tools/parser_table.py

It writes ``trt_bisect/analyzer/structure/refused.json`` (``operators.py`` beside it describes the keys). It prints each
of ONNX's own tests of operators on which table and rules differ from the parser. It needs TensorRT-RTX, and no GPU.

*Operators* are those that the parser itself says it has no importer for. *Plugins* are operators that fail in all tests
for the lack of a plugin. For *types*, each test with a single node that the parser takes is changed: all inputs of one
type get another type that ONNX allows there. A type is refused if the parser takes none of these.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from trt_bisect.analyzer.structure.findings import ERROR
from trt_bisect.analyzer.structure.graph import PAIR, FileGraph
from trt_bisect.analyzer.structure.operators import FROM_PLUGINS, TABLE, ParserTable, RefusedTypes
from trt_bisect.builder.parser import Refusal, refusals_of
from trt_bisect.builder.tensorrt_build import RTX, TensorRT, start_tensorrt
from trt_bisect.support.codec import write
from trt_bisect.support.files import ScratchFolder

TYPES = ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "INT32", "INT64", "BOOL")
"""The types that TensorRT has for some operator; all others are refused as such."""
NOT_TRIED = frozenset({*PAIR, "Clip", "If", "Loop", "Range", "Scan"})
"""Pairs have checks of their own, Clip a rule; bodies have types of their own; the inputs of Range say a shape."""


def operator_tests() -> dict[str, onnx.ModelProto]:
    """Returns ONNX's tests of operators by name; those named ``_expanded`` have ONNX's functions written out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case.model for case in collect_testcases() if case.model is not None}


class Parser:
    """TensorRT-RTX's parser, in this process."""

    def __init__(self) -> None:
        self._rt: TensorRT = start_tensorrt(RTX)
        self.name = f"{RTX} {self._rt.module.__version__}"

    def refusals(self, model: onnx.ModelProto) -> tuple[Refusal, ...]:
        """Returns the errors of the parser on a model; empty if it takes it."""
        with ScratchFolder() as folder:
            path = folder / "network.onnx"
            path.write_bytes(model.SerializeToString())
            return tuple(refusals_of(self._rt, path))

    def unknown(self) -> tuple[str, ...]:
        """Returns the operators of ONNX that it has no importer for."""
        parser: Any = self._rt.module.OnnxParser(self._rt.builder.create_network(0), self._rt.logger)
        names = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
        return tuple(name for name in names if not parser.supports_operator(name))


def table_of(parser: Parser, tests: Mapping[str, onnx.ModelProto]) -> tuple[ParserTable, frozenset[str]]:
    """Returns the table, and the names of the tests that the parser refuses."""
    refused = {name: refusals for name, model in tests.items() if (refusals := parser.refusals(model))}
    unknown = parser.unknown()
    first = {name: model.graph.node[0] for name, model in tests.items() if len(model.graph.node) == 1}
    alone = {name: node.op_type for name, node in first.items() if not node.domain}
    taken = {operator for name, operator in alone.items() if name not in refused}
    lacking = {alone[name] for name in alone if name in refused and "lugin" in refused[name][0].reason}
    table = ParserTable(
        parser=parser.name,
        onnx=onnx.__version__,
        operators=unknown,
        plugins=tuple(sorted(lacking - taken - set(unknown))),
        types=_types(parser, [model for name, model in tests.items() if name in alone and name not in refused]),
        tests=len(tests),
        refused=len(refused),
    )
    return table, frozenset(refused)


def _types(parser: Parser, models: Sequence[onnx.ModelProto]) -> tuple[RefusedTypes, ...]:
    answers: dict[tuple[str, int], dict[str, set[bool]]] = defaultdict(lambda: defaultdict(set))
    for model in models:
        operator = model.graph.node[0].op_type
        if operator in NOT_TRIED:
            continue
        for slot, element, changed in _with_other_types(model):
            name = str(np.dtype(helper.tensor_dtype_to_np_dtype(element)))
            answers[operator, slot][name].add(not parser.refusals(changed))
    rows = []
    for (operator, slot), by_type in sorted(answers.items()):
        refused = sorted(name for name, taken in by_type.items() if taken == {False})
        if refused:
            rows.append(RefusedTypes(operator, slot, tuple(refused)))
    return tuple(rows)


def _with_other_types(model: onnx.ModelProto) -> Iterator[tuple[int, int, onnx.ModelProto]]:
    """Yields, for each type of an input and each other one, the first slot, the other type and the changed model."""
    node = model.graph.node[0]
    schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version, node.domain)
    if len(node.input) == 1 and schema.inputs[0].option == schema.inputs[0].option.Variadic:
        return  # Max of a single tensor is that tensor, of whatever type
    allowed = {each.type_param_str: set(each.allowed_type_strs) for each in schema.type_constraints}
    inputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    formal = [schema.inputs[min(slot, len(schema.inputs) - 1)].type_str for slot in range(len(node.input))]
    for old in dict.fromkeys(inputs.values()):
        slots = [k for k, name in enumerate(node.input) if inputs.get(name) == old and formal[k] in allowed]
        variables = {formal[slot] for slot in slots}
        for new in (getattr(TensorProto, name) for name in TYPES):
            word = f"tensor({TensorProto.DataType.Name(new).lower()})"
            if not slots or not all(word in allowed[variable] for variable in variables):
                continue
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            names = {node.input[slot] for slot in slots}
            for slot, name in enumerate(node.output):
                if schema.outputs[min(slot, len(schema.outputs) - 1)].type_str in variables:
                    names.add(name)
            for value in (*changed.graph.input, *changed.graph.output):
                if value.name in names:
                    value.type.tensor_type.elem_type = new
            yield slots[0], new, changed


def main() -> None:
    """Writes the table and prints where table and rules differ from the parser."""
    from trt_bisect.analyzer.structure.check import structure_findings

    tests = operator_tests()
    table, refused = table_of(Parser(), tests)
    write(TABLE, table)
    outcomes: Counter[tuple[bool, bool]] = Counter()
    for name, model in tests.items():
        found = [each for each in structure_findings(FileGraph.of(model, name)) if each.severity == ERROR]
        outcomes[name in refused, bool(found)] += 1
        if (name in refused) != bool(found):
            print("refused, and not found:" if name in refused else f"taken, and found {found[0].what}:", name)
    print(f"{table.parser}, ONNX {table.onnx}: {len(tests)} tests, {len(refused)} refused")
    print(f"by (refused, found): {dict(outcomes)}")
    print(f"TensorRT has a plugin: {', '.join(sorted(FROM_PLUGINS))}")


if __name__ == "__main__":
    main()
