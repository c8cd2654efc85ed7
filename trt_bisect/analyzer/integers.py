"""Outputs of integers and booleans, such as labels and masks, judged by equality."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median_low

import numpy as np
import onnx

from trt_bisect.analyzer.metrics import ALL_EQUAL, EQUAL, KAPPA
from trt_bisect.analyzer.rows import common_region, rows_at, rows_axis, with_rows
from trt_bisect.builder.base import Outputs
from trt_bisect.evaluator.trial import OutputFigures
from trt_bisect.model.file import attribute
from trt_bisect.model.network import Network
from trt_bisect.support.text import percent

CLASSES, LABELS = "classes", "labels"
"""The keys of ``OutputFigures.pooled`` for elements that differ beyond chance, and for elements that differ in an
output of few.
"""
FEW_ELEMENTS = 20
"""With fewer elements, an output has no Cohen's kappa."""
CLASSES_MISSED = 0.75
"""Next to float outputs, an integer output that loses more than this share of the agreement beyond chance is a miss."""
_MOST_CLASSES = 4096  # With more distinct values none is equal by chance.
_IN_PLACE = ("Cast", "Identity")  # Their outputs keep every element at its index.
# Their outputs keep every element, perhaps at another index.
_MOVING = ("Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose")
# Their outputs are labels, indices or truth values.
_DISCRETE = frozenset(
    "ArgMax ArgMin NonZero NonMaxSuppression Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Not".split()
)
# Their outputs are rows that may come in any order, along this axis of two.
_ROWS = {"NonMaxSuppression": 0, "NonZero": 1}
_TURNING = (*_IN_PLACE, "Transpose", "Squeeze")  # If one of the last two lies between, the rows are along the other.
_LEVEL_TYPES = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)


@dataclass(frozen=True)
class Integers:
    """The outputs of integers that are compared in special ways.

    Attributes:
        sets: by name of each output of indices, the axis along which their order has no meaning.
        levels: outputs of 8-bit quantities, such as pixels, which are judged like floats.
        selections: by name of each output whose rows may come in any order, such as NonMaxSuppression's, the axis of
            the rows.
        as_floats: float outputs cast from labels, indices or truth values, judged like integers.
    """

    sets: Mapping[str, int] = field(default_factory=dict)
    levels: frozenset[str] = frozenset()
    selections: Mapping[str, int] = field(default_factory=dict)
    as_floats: frozenset[str] = frozenset()

    def of(self, outputs: Outputs) -> tuple[str, ...]:
        """Returns the names of the ``outputs`` judged by equality."""
        return tuple(name for name, value in outputs.items() if self.is_one(name, value))

    def is_one(self, name: str, value: object) -> bool:
        """Returns true if output ``name`` with this ``value`` is judged by equality."""
        if not isinstance(value, np.ndarray):
            return False
        return name in self.as_floats or (value.dtype.kind in "iub" and name not in self.levels)


PLAIN = Integers()


def integers_of(network: Network) -> Integers:
    """Finds a network's outputs that are indices of TopK, rows of NonMaxSuppression, points of NonZero, 8-bit
    quantities, or labels cast to floats.
    """
    makers = {name: node for node in network.skeleton.graph.node for name in node.output}
    sets: dict[str, int] = {}
    levels: set[str] = set()
    selections: dict[str, int] = {}
    as_floats: set[str] = set()
    for spec in network.outputs:
        name = _behind(spec.name, makers, _IN_PLACE)
        node = makers.get(name)
        if node is not None and (node.op_type, name) == ("TopK", node.output[-1]):
            sets[spec.name] = attribute(node, "axis", -1)
        turned = makers.get(_behind(spec.name, makers, _TURNING))
        if turned is not None and turned.op_type in _ROWS:
            axis = _ROWS[turned.op_type]
            selections[spec.name] = axis if turned is node else 1 - axis
        rounding = makers.get(_behind(spec.name, makers, _MOVING))
        if rounding is not None and _rounds(rounding, network):
            levels.add(spec.name)
        discrete = _behind(spec.name, makers, (*_MOVING, "Cast"))
        node = makers.get(discrete) if spec.dtype.kind == "f" else None
        if node is not None and (node.op_type in _DISCRETE or (node.op_type, discrete) == ("TopK", node.output[-1])):
            as_floats.add(spec.name)
    return Integers(sets, frozenset(levels), selections, frozenset(as_floats))


def _behind(name: str, makers: Mapping[str, onnx.NodeProto], passed: Sequence[str]) -> str:
    while (node := makers.get(name)) is not None and node.op_type in passed:
        name = node.input[0]
    return name


def _rounds(node: onnx.NodeProto, network: Network) -> bool:
    if node.op_type != "Cast":
        return node.op_type == "QuantizeLinear"
    return (
        attribute(node, "to", 0) in _LEVEL_TYPES and network.types.dtypes.get(node.input[0], np.dtype(bool)).kind == "f"
    )


def integers_text(name: str, values: Mapping[str, float | None]) -> str:
    """Returns a clause on the elements of output ``name`` that differ from FP32's, from its figures ``values``; empty
    if none do.
    """
    equal, worst, kappa = (values.get(figure) for figure in (ALL_EQUAL, EQUAL.name, KAPPA))
    if equal is None or worst is None or equal == 1.0:
        return ""
    beyond = "" if kappa is None else f"; Cohen's kappa {kappa:.2f}"
    input_worst = f"{percent(1.0 - worst)} on the worst input"
    return f"{percent(1.0 - equal)} of the elements of '{name}' get another value ({input_worst}{beyond})"


class IntegerJudge:
    """Compares an integer output with FP32's on the same inputs, ``reference``.

    Args:
        unordered: the axis along which indices are compared as sets; None to compare each element at its index.
        rows: the axis of rows that may come in any order; else None.
    """

    def __init__(
        self, reference: Sequence[np.ndarray], unordered: int | None = None, *, rows: int | None = None
    ) -> None:
        self._reference = [np.asarray(array) for array in reference]
        self._unordered, self._rows = unordered, rows
        self._are_indices = unordered is not None or rows is not None
        self._axis = rows_axis(self._reference)
        self._few = median_low([array.size for array in self._reference]) < FEW_ELEMENTS

    def figures(self, outputs: Sequence[np.ndarray]) -> OutputFigures:
        """Returns the figures of an output, one array for each input; the share of equal elements is that of the worst
        input. Inputs on which neither output has elements do not count, unless this is so on all inputs.
        """
        compared = [self._compared(place, np.asarray(output)) for place, output in enumerate(outputs)]
        both = [common for common, *_ in compared]
        equal, elements = (sum(numbers) for numbers in zip(*(counts for _, *counts in compared), strict=True))
        shares: tuple[float | None, ...] = (1.0,) * len(outputs)
        if elements:
            shares = tuple(same / of_all if of_all else None for _, same, of_all in compared)
        values = {EQUAL.name: min(share for share in shares if share is not None)}
        if elements:
            values |= {ALL_EQUAL: equal / elements, **self._beyond_chance(both, equal, elements)}
        pooled = self._pooled(elements - equal, elements)
        by_input: dict[str, tuple[float | None, ...]] = {}
        if len(shares) > 1:
            differ = [None if share is None else 1.0 - share for share in shares]
            beyond = tuple(None if share is None else share / (1.0 - self._chance) for share in differ)
            by_kind = {CLASSES: beyond, LABELS: tuple(differ)}
            by_input = {EQUAL.name: shares, **{kind: by_kind[kind] for kind in pooled}}
        return with_rows(OutputFigures(values, inputs=by_input, pooled=pooled), self._reference, outputs, self._axis)

    def at(self, place: int, output: np.ndarray) -> OutputFigures:
        """Returns the figures for the input of index ``place``."""
        _, equal, elements = self._compared(place, output)
        rows = rows_at(self._reference[place], output, self._axis)
        values = {EQUAL.name: equal / elements} if elements else {}
        return OutputFigures(values, pooled={**self._pooled(elements - equal, elements), **rows})

    def _compared(self, place: int, output: np.ndarray) -> tuple[tuple[np.ndarray, np.ndarray], int, int]:
        # Returns the common region in both outputs, and the numbers of equal and of all its elements; if only one
        # output has elements, all of them differ.
        reference, alike = self._reference[place], self._reference[place].shape == output.shape
        common = (reference, output) if alike else common_region(reference, output)
        if (self._rows is not None or not alike) and reference.ndim == output.ndim:
            equal = _in_equal_rows(reference, output, self._rows or 0)
        else:
            equal = self._equal(*common)
        return common, equal, common[0].size or max(reference.size, output.size)

    def _equal(self, reference: np.ndarray, output: np.ndarray) -> int:
        if self._unordered is None or not reference.ndim or not reference.size:
            return int((reference == output).sum())
        both = np.sort(np.concatenate([reference, output], self._unordered), self._unordered)
        return int((np.diff(both, axis=self._unordered) == 0).sum())

    def _beyond_chance(
        self, both: Sequence[tuple[np.ndarray, np.ndarray]], equal: int, elements: int
    ) -> dict[str, float]:
        if elements < FEW_ELEMENTS:
            return {}
        a, b = (_counts([pair[side] for pair in both]) for side in (0, 1))
        if self._are_indices or len(a) > _MOST_CLASSES:
            return {KAPPA: equal / elements}
        return {KAPPA: kappa(a, b, equal)}

    def _pooled(self, differ: int, elements: int) -> dict[str, tuple[float, float]]:
        pooled = {CLASSES: (differ / (1.0 - self._chance), float(elements))}
        if self._few:
            return {**pooled, LABELS: (float(differ), float(elements))}
        return pooled

    @cached_property
    def _chance(self) -> float:
        counts = _counts(self._reference)
        elements = sum(counts.values())
        if self._are_indices or len(counts) > _MOST_CLASSES or len(counts) < 2:
            return 0.0
        return sum((count / elements) ** 2 for count in counts.values())


def kappa(before: Counter[int], after: Counter[int], equal: float) -> float:
    """Returns Cohen's kappa (Cohen, 1960) of two labellings of the same elements, of which ``equal`` have the same
    label: 1 for equal ones, 0 for chance. ``before`` and ``after`` count the elements by label.
    """
    elements = before.total()
    by_chance = sum(count * after[label] for label, count in before.items()) / elements**2
    if by_chance == 1.0:
        return 1.0
    return (equal / elements - by_chance) / (1.0 - by_chance)


def _in_equal_rows(reference: np.ndarray, output: np.ndarray, rows_axis: int) -> int:
    sizes = zip(reference.shape, output.shape, strict=True)
    axis = next((k for k, (size, other) in enumerate(sizes) if size != other), rows_axis)
    rows = [np.moveaxis(array, axis, 0).astype(np.int64) for array in (reference, output)]
    reference_rows, output_rows = (Counter(row.tobytes() for row in array) for array in rows)
    return (reference_rows & output_rows).total() * int(np.prod(rows[0].shape[1:]))


def _counts(arrays: Sequence[np.ndarray]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for array in arrays:
        values, numbers = np.unique(array, return_counts=True)
        counts.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    return counts
