"""The result of ``verify``: an engine's outputs compared with those of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.report.result import Result, TablePage
from trt_bisect.support.table import NAME, PERCENT, Column
from trt_bisect.support.text import counted, listed, percent

SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"
VERIFY_CSV, ENGINE_CSV, DIFFERENT_CSV = "verify.csv", "engine.csv", "different.csv"
_EXIT = {SAME: 0, DIFFERS: 1, UNKNOWN: 3}


@dataclass(frozen=True)
class Tried:
    """A possible cause of the engine's difference (a suspicion), emulated on all inputs.

    Attributes:
        kind: the kind of cause, such as ``scales`` or ``kernel``.
        text: the cause as a clause on the engine.
        left: the distance between the engine and this emulation.
        explained: the share of the squared difference between engine and file that the cause explains.
        reproduces: ``left`` is no more than kernels of the same arithmetic differ by.
        layers: the layers that the cause names.
    """

    kind: Annotated[str, Column("Kind", rank=1)]
    text: Annotated[str, Column("The engine", kind=NAME, rank=0)]
    left: Annotated[float, Column("Left", "Distance to this emulation", PERCENT, rank=0)]
    explained: Annotated[float, Column("Explained", "Share of the squared difference", PERCENT, rank=0)]
    reproduces: Annotated[bool, Column("Reproduces", rank=2)] = False
    layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class DifferentLayer:
    """A layer that two engines run differently, by the layer information of both."""

    layer: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    first: Annotated[str, Column("First engine", "Precision, and the layers that it is fused with", rank=0)]
    second: Annotated[str, Column("Second engine", rank=0)]


@dataclass(frozen=True)
class Verdict:
    """An engine compared with its file; distances are relative to the magnitude of the file's outputs.

    What is not known is None.

    Attributes:
        outputs: the source of the engine's outputs.
        answer: ``same``, ``differs`` or ``unknown``.
        cause: the suspicion that reproduces the outputs.
        text: the answer in a sentence.
        layers: the layers to blame.
        nearest: the suspicion that explains most, if none reproduces the outputs.
        explained: the share of the squared difference that ``cause`` or ``nearest`` explains.
        similarity: the cosine of the engine's outputs and the file's; None, as ``distance``, if a value is missing or
            not finite in only one of them.
        distance: the distance between the engine's outputs and the file's.
        floor: the distance that other kernels and the order of sums explain.
        next: the next steps, a line each; commands are indented.
        tried: the suspicions, the best first.
    """

    outputs: str
    answer: str
    cause: str | None
    text: str
    layers: tuple[str, ...]
    nearest: str | None
    explained: float | None
    similarity: float | None
    distance: float | None
    floor: float
    next: tuple[str, ...]
    tried: tuple[Tried, ...]


@dataclass(frozen=True, repr=False)
class Verification(Result, Verdict):
    """One engine, or two, compared with their file.

    Attributes:
        asked: the computation asked of the engine, such as ``FP32``.
        source: the source of the inputs.
        tensors: the engine's inner tensors, compared with the file's.
        other: the result of the second engine; None without one.
        different: the layers that the two engines run differently.
    """

    COMMAND = "verify"

    model: str
    asked: str
    source: str
    samples: int
    tensors: tuple[EngineTensor, ...] = ()
    other: Verdict | None = None
    different: tuple[DifferentLayer, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if the engines compute what their file says, 1 if one differs, 3 if unknown."""
        answers = [self.answer] if self.other is None else [self.answer, self.other.answer]
        return next(_EXIT[answer] for answer in (DIFFERS, UNKNOWN, SAME) if answer in answers)

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {
            VERIFY_CSV: (Tried, self.tried),
            ENGINE_CSV: (EngineTensor, self.tensors),
            DIFFERENT_CSV: (DifferentLayer, self.different),
        }

    @property
    def lines(self) -> list[str]:
        """The answers and the next steps, a line each."""
        lines = []
        for verdict in (self, self.other):
            if verdict is not None:
                apart = (
                    "values missing or not finite"
                    if verdict.distance is None
                    else f"distance {percent(verdict.distance)}"
                )
                figures = f"{apart}, float noise up to {percent(verdict.floor)}"
                lines += [f"{verdict.text} ({verdict.outputs}: {figures})", *verdict.next]
        names = [row.layer for row in self.different]
        if names:
            lines.append(f"The engines run {counted(len(names), 'layer')} in different ways: {listed(names, 3)}.")
        return lines

    def page(self) -> TablePage:
        """Returns the content of ``verify.html``."""
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=self.text,
            facts={"Asked": self.asked, "Inputs": f"{self.source}, {self.samples}", "Outputs": self.outputs},
            notes=[*self.lines, *self.notes],
            sections=[
                *self.section("suspicions", "Suspicions", VERIFY_CSV, filters=("kind",), red=("reproduces", True)),
                *self.section("tensors", "The engine's own tensors", ENGINE_CSV, filters=("cause",)),
                *self.section("different", "Layers that differ between the engines", DIFFERENT_CSV),
            ],
        )
