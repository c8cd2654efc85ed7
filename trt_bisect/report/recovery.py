"""The result of ``recover``: the plan, and the front of accuracy against cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trt_bisect.analyzer.judge import DEFAULT_SHARE, ByInput
from trt_bisect.builder.timing import Latency
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import FOLDER
from trt_bisect.report.figure_text import ACCURACY, figure_text
from trt_bisect.report.model import (
    FOLLOWS,
    NO_INPUTS,
    NOT_TRIED,
    RECOVER,
    Accuracies,
    AnswerFacts,
    ByPlan,
    Holder,
    LayerRow,
    RecipeLayers,
    Report,
    Seconds,
)
from trt_bisect.report.network_graph import NETWORK, Graph, GraphLayer
from trt_bisect.report.overview import Overview
from trt_bisect.report.result import file_in
from trt_bisect.report.summary import doubt_lines, over_inputs, recipe_holds_on, with_ranges
from trt_bisect.report.verdict import COLOURS, code_of, spoken, verdict_of
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED
from trt_bisect.support.codec import read, write
from trt_bisect.support.figures import listed, percent
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.notes import Line, Note
from trt_bisect.support.table import Column, csv_of, table_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
RECOVERY, FRONT = "recovery.json", "front.csv"
ALL_HIGH, RECIPE, KNEE = "all high", "recipe", "knee"


@dataclass(frozen=True)
class Target:
    """The target of ``recover``.

    Attributes:
        kind: ``similarity`` or ``accuracy``.
        least: the worst figure that is good.
        reference: the figure of FP32.
        most: the largest cost, where one was given.
    """

    kind: str
    least: float
    reference: float | None
    most: float | None = None


@dataclass(frozen=True)
class Measured:
    """The figures of full INT8, of the recipe, and of no layer low, on all inputs given, with the recipe's scales."""

    int8: float | None
    recipe: float | None
    high: float | None


@dataclass(frozen=True)
class LeftHigh:
    """One layer that the plan leaves high.

    Attributes:
        cost: the share of the low precision's gain in speed that it gives up.
        back: the plan's figure with this layer, and the layers grouped with it, taken back; None where that was not
            measured.
    """

    layer: str
    op_type: str
    precision: str
    cost: float
    back: float | None


@dataclass(frozen=True)
class FrontPoint:
    """One plan of the front.

    Attributes:
        cost: the share of the low precision's gain in speed that it gives up.
        figure: the measured similarity or accuracy.
        loss: the loss of that figure; None if the plan has none.
        names: the plan's, such as ``recipe`` or ``knee``; may be empty.
        high: the precision of each layer that is not low, by its name.
    """

    cost: float
    figure: Annotated[float | None, Column("", key="{figure}")]
    loss: float | None
    names: Annotated[tuple[str, ...], Column("")]
    high: Annotated[Mapping[str, str], Column("")]

    @property
    def layers(self) -> Annotated[int, Column("")]:
        """The number of layers that are not low."""
        return len(self.high)


@dataclass(frozen=True)
class Move:
    """A tensor's scale by another calibrator than that of the other tensors, at no cost in speed."""

    tensor: str
    calibrator: str
    scale_before: float
    scale: float


@dataclass(frozen=True, slots=True, repr=False)
class Recovery(Holder):
    """The plan that meets the target at the least cost, or the most accurate one within a cost.

    Attributes:
        figure: the name of the figure, such as ``cosine`` or ``accuracy``.
        costs: the source of the costs: ``macs``, ``measured`` or a file.
        meets: the plan meets the target.
        minimal: every plan with one of its layers (or groups) taken back was measured, and misses the target.
        cost: the share of the low precision's gain in speed that the plan gives up.
        front: with the recipe's scales, on all inputs given.
        plans: the number of plans measured.
        started: the time of its start, in seconds since the epoch; 0 in older files.
        stopped: it was stopped after the recipe was found, before the front and the latencies were measured; the same
            command completes it.
        answer: the ranges, and the inputs on which the recipe holds; None in older files.
        by_input: the similarity on each input, if several were judged; None where an accuracy decides.
        low: the low precision; ``int8`` in the names of plans stands for it.
        part: a sentence on the part of the network that was judged; empty if it was all of it.
        accepted: a plan that meets the target counts as a pass even if it is doubted.
        doubts: sentences against the plan: on the data, and those of the answer.
    """

    model: str
    engine: str
    typing: str
    arithmetic: str
    metric: str
    target: Target
    figure: str
    costs: str
    precision: str
    measured: Measured
    meets: bool
    minimal: bool
    cost: float
    high: tuple[LeftHigh, ...]
    moves: tuple[Move, ...]
    front: tuple[FrontPoint, ...]
    latency: Mapping[str, Latency | None] | None
    plans: int
    builds: int
    inferences: int
    seconds: float
    notes: tuple[Note, ...]
    lines: tuple[Line, ...]
    versions: Mapping[str, str]
    fingerprint: str
    schema: int = SCHEMA
    started: float = 0.0
    stopped: bool = False
    by_input: ByPlan[ByInput | None] = NO_INPUTS
    answer: AnswerFacts | None = None
    low: str = str(Precision.INT8)
    part: str = ""
    accepted: bool = False
    doubts: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 if the plan meets the target and nothing that is not accepted speaks against it; else 1."""
        return code_of(self.verdict)

    @property
    def verdict(self) -> str:
        """The verdict on the plan: a word of ``report.verdict``."""
        doubted = bool(self.part or self.doubts) and not self.accepted
        return verdict_of(meets=self.meets, doubted=doubted)

    def save(self, folder: str | Path) -> Path:
        """Writes ``recovery.json``, ``front.csv`` and ``report.html`` into a folder, which is made if it is missing.

        A recovery that is not read from a file writes the recipe and ``network.json`` too.

        Returns:
            The folder.

        Raises:
            BadInput: the folder cannot be written.
        """
        from trt_bisect.report.page.files import write_recovered_page

        path, made = make_folder(Path(folder)), self.attached
        if made.files is not None:
            made.files.write(path / FOLDER)
        if made.graph is not None:
            write(path / NETWORK, made.graph)
        write_whole(path / FRONT, self.to_csv().encode())
        write(path / RECOVERY, self)
        write_recovered_page(self, path)
        return path

    def table(self) -> pd.DataFrame:
        """Returns the front as a pandas table."""
        return table_of(FrontPoint, self.front, figure=self.figure)

    def text(self, value: float | None) -> str:
        """Returns a value of ``figure`` as text."""
        return figure_text(self.figure, value, self.target.least)

    def to_csv(self) -> str:
        """Returns the front as CSV."""
        return csv_of(FrontPoint, self.front, figure=self.figure)

    @classmethod
    def load(cls, folder: str | Path) -> Recovery:
        """Returns the recovery that ``save`` wrote.

        Args:
            folder: the folder that was saved into, or ``recovery.json`` in it.

        Raises:
            BadInput: there is no such file, or it is of another version.
        """
        path = file_in(folder, RECOVERY)
        found = read_recovery(path)
        if found is None:
            raise BadInput(
                f"'{path}' cannot be read as a recovery.", "Give the folder that was the --output of the command."
            )
        return found

    @property
    def overview(self) -> Overview:
        """The verdict, and the layers in high precision with what the network measures if each is put back."""
        from trt_bisect.report.page.headline import recovered_headline

        moves = [f"{move.tensor}: scale {move.scale:.4g} by {move.calibrator}" for move in self.moves]
        return Overview(
            recovered_headline(self),
            f"{self.arithmetic} on {self.engine} · {self.model}",
            COLOURS[self.verdict],
            ("In high precision", f"If put back in {self.low.upper()}", "Precision", "Op", "Cost"),
            [(row.layer, self.text(row.back), row.precision, row.op_type, percent(row.cost)) for row in self.high],
            [line.text for line in self.lines],
            [*moves, *(note.text for note in self.notes)],
            {".plot()": "the front", ".table()": "its plans", ".save(folder)": "the whole page, report.html"},
        )

    def as_report(self, graph: Graph | None) -> Report:
        """Returns the recovery as a report without a curve, for a folder in which no ``run`` was made.

        Args:
            graph: the graph of the same network; without it there are no layers.
        """
        high = {row.layer: row.precision for row in self.high}
        movable = next((point.high for point in self.front if ALL_HIGH in point.names), high)
        accuracy = Accuracies(self.target.reference, self.measured.int8, self.measured.recipe)
        return Report(
            model=self.model,
            engine=self.engine,
            typing=self.typing,
            strategy=RECOVER,
            arithmetic=self.arithmetic,
            metric=self.figure,
            threshold=self.target.least,
            share=DEFAULT_SHARE,
            precision=self.precision,
            low=self.low,
            versions=self.versions,
            fingerprint=self.fingerprint,
            verdict=self.verdict,
            lines=self.lines,
            layers=tuple(_row(layer, graph, movable, high, self.low) for layer in (graph.layers if graph else ())),
            similarity=ByPlan(self.measured.int8, self.measured.recipe),
            recipe=RecipeLayers(tuple(high), (), self.meets),
            notes=self.notes,
            plans=self.plans,
            builds=self.builds,
            inferences=self.inferences,
            seconds=Seconds(total=self.seconds),
            latency=self.latency,
            started=self.started,
            state=INTERRUPTED if self.stopped else FINISHED,
            accuracy=accuracy if self.figure == ACCURACY else None,
        )


def _row(
    layer: GraphLayer, graph: Graph | None, movable: Mapping[str, str], high: Mapping[str, str], low: str
) -> LayerRow:
    """The row of a layer. Those that can be in INT8 are those that the plan without INT8 names."""
    can_move = layer.name in movable
    tensor = graph.tensors.get(layer.outputs[0]) if graph is not None and layer.outputs else None
    return LayerRow(
        index=layer.index,
        name=layer.name,
        op_type=layer.op_type,
        shape=None if tensor is None else tensor.shape,
        quantizable=can_move,
        similarity=None,
        drop=None,
        culprit=False,
        outcome=NOT_TRIED if can_move else FOLLOWS,
        asked="",
        ran="",
        recipe=high.get(layer.name, low) if can_move else "",
    )


def read_recovery(path: Path) -> Recovery | None:
    """Returns the recovery in a file; None if the file cannot be read, or is of another version."""
    found = read(Recovery, path)
    return found if found is not None and found.schema == SCHEMA else None


def recovered_in(path: Path) -> Report | None:
    """Returns a ``recovery.json`` as a report, for a folder without a run's; None if it cannot be read."""
    found = read_recovery(path)
    return None if found is None else found.as_report(read(Graph, path.with_name(NETWORK)))


NAMED = 12
"""The most layers or tensors that are named."""


def recovery_lines(found: Recovery) -> list[Line]:
    """Returns the verdict on a recovery in lines: doubts; all layers low, the recipe, its cost, where it holds."""
    answer = found.answer
    ranges = with_ranges(answer) if answer else ""
    parts = [f"Full {found.low.upper()} measures {_measured(found, 'int8')} ({found.figure}{ranges}).", _recipe(found)]
    parts += [*_target(found), *(recipe_holds_on(answer, found.text, "The recipe") if answer else ())]
    doubted = doubt_lines(answer) if answer else []
    return [*doubted, Line(found.verdict, f"{spoken(found.verdict).upper()}: {' '.join(parts)}")]


def _figure(found: Recovery, value: float | None) -> str:
    return "no figure" if value is None else found.text(value)


def _measured(found: Recovery, plan: str) -> str:
    return _figure(found, getattr(found.measured, plan)) + over_inputs(getattr(found.by_input, plan), found.text)


def _recipe(found: Recovery) -> str:
    """Returns the sentence on the recipe's changes, its figure and its cost."""
    scales = listed([move.tensor for move in found.moves], NAMED) if found.moves else ""
    changed = f"other scales for {scales} (at no cost in speed) and " if scales else ""
    left = (
        f"{listed([row.layer for row in found.high], NAMED)} in high precision"
        if found.high
        else f"all layers in {found.low.upper()}"
    )
    return (
        f"With {changed}{left}, the network measures {_measured(found, 'recipe')} and gives up "
        f"{percent(found.cost)} of {found.low.upper()}'s gain in speed by {_costs(found)}."
    )


def _target(found: Recovery) -> list[str]:
    """Returns the sentences on the target."""
    least = _figure(found, found.target.least)
    if found.target.most is not None:
        return [
            f"No plan tried within {percent(found.target.most)} is more accurate.",
            f"The target is {least}: {'met' if found.meets else 'missed'}.",
        ]
    if not found.meets:
        high = found.measured.high
        all_high = "" if high is None else f"; all layers in high precision measure {_figure(found, high)}"
        return [f"This misses the target of {least}{all_high}."]
    margin = found.answer.margin if found.answer else 0.0
    met = [f"This meets the target of {least}{f' with a margin of {percent(margin)}' if margin else ''}."]
    if found.high and found.minimal:
        back = f"With any of these layers put back in {found.low.upper()} the network misses the target"
        met.append(f"{back}{' or its margin' if margin else ''}.")
    return met


def _costs(found: Recovery) -> str:
    return {"macs": "multiply-adds", "measured": "the times measured"}.get(found.costs, f"'{found.costs}'")
