"""The result of ``recover``: the plan, and the front of accuracy against cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.precision import Precision
from trt_bisect.recipe.files import RecipeFiles
from trt_bisect.report.answer import AnswerFacts
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.saving import WithRecipe
from trt_bisect.report.verdict import code_of, verdict_of
from trt_bisect.support.plain_json import csv_text, plain
from trt_bisect.support.type_checks import checked

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SCHEMA = 1
RECOVERY, FRONT = "recovery.json", "front.csv"
ACCURACY = "accuracy"
ALL_HIGH, RECIPE, KNEE = "all high", "recipe", "knee"


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
        loss: the loss of that figure.
        names: the plan's, such as ``recipe`` or ``knee``; may be empty.
        high: the precision of each layer that is not low, by its name.
    """

    cost: float
    figure: float | None
    loss: float
    names: tuple[str, ...]
    high: Mapping[str, str]


@dataclass(frozen=True)
class Move:
    """A tensor's scale by another calibrator than that of the other tensors, at no cost in speed."""

    tensor: str
    calibrator: str
    scale_before: float
    scale: float


@dataclass(frozen=True)
class Recovery(WithRecipe):
    """The plan that meets the target at the least cost, or the most accurate one within a cost.

    Attributes:
        target: ``kind`` is ``similarity`` or ``accuracy``; ``least`` the worst figure that is good; ``reference`` the
            figure of FP32; ``most`` the largest cost, where one was given.
        figure: the name of the figure, such as ``cosine`` or ``accuracy``.
        costs: the source of the costs: ``macs``, ``measured`` or a file.
        measured: the figures of ``int8``, ``recipe`` and ``high`` on all inputs given, with the recipe's scales.
        meets: the plan meets the target.
        minimal: every plan with one of its layers (or groups) taken back was measured, and misses the target.
        cost: the share of the low precision's gain in speed that the plan gives up.
        front: with the recipe's scales, on all inputs given.
        plans: the number of plans measured.
        started: the time of its start, in seconds since the epoch; 0 in older files.
        stopped: it was stopped after the recipe was found, before the front and the latencies were measured; the same
            command completes it.
        answer: the ranges, and the inputs on which the recipe holds; None in older files.
        by_input: if several inputs were judged, ``ByInput.facts`` of the similarity for ``int8`` and ``recipe``;
            empty where an accuracy decides.
        low: the low precision; ``int8`` in the names of plans stands for it.
        part: a sentence on the part of the network that was judged; empty if it was all of it.
        accepted: a plan that meets the target counts as a pass even if it is doubted.
        doubts: sentences against the plan: on the data, and those of the answer.
        files: the files of the recipe; None in a recovery read from a file.
        graph: the value of ``network_facts``; None in a recovery read from a file.
    """

    JSON = RECOVERY
    CSV = FRONT

    model: str
    engine: str
    typing: str
    arithmetic: str
    metric: str
    target: Mapping[str, Any]
    figure: str
    costs: str
    precision: str
    measured: Mapping[str, float | None]
    meets: bool
    minimal: bool
    cost: float
    high: tuple[LeftHigh, ...]
    moves: tuple[Move, ...]
    front: tuple[FrontPoint, ...]
    latency: Mapping[str, Any] | None
    plans: int
    builds: int
    inferences: int
    seconds: float
    notes: tuple[str, ...]
    summary: str
    versions: Mapping[str, str]
    fingerprint: str
    schema: int = SCHEMA
    started: float = 0.0
    stopped: bool = False
    by_input: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answer: AnswerFacts | None = None
    low: str = str(Precision.INT8)
    part: str = ""
    accepted: bool = False
    doubts: tuple[str, ...] = ()
    files: RecipeFiles | None = field(default=None, repr=False, compare=False)
    graph: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @property
    def exit_code(self) -> int:
        """0 if the plan meets the target and nothing that is not accepted speaks against it; else 1."""
        return code_of(self.verdict)

    @property
    def verdict(self) -> str:
        """The verdict on the plan: a word of ``report.verdict``."""
        doubted = bool(self.part or self.doubts) and not self.accepted
        return verdict_of(meets=self.meets, doubted=doubted)

    def records(self) -> list[dict[str, Any]]:
        """Returns the plans of the front, the cheapest first."""
        return [
            {
                "cost": point.cost,
                self.figure: point.figure,
                "loss": point.loss,
                "names": ", ".join(point.names),
                "layers": len(point.high),
                "high": " ".join(f"{layer}:{precision}" for layer, precision in point.high.items()),
            }
            for point in self.front
        ]

    def text(self, value: float | None) -> str:
        """Returns a value of ``figure`` as text: an accuracy in per cent, a metric as ``figure_text`` writes it."""
        return f"{value:.4%}" if value is not None and self.figure == ACCURACY else figure_text(self.figure, value)

    def plot(self, *, log: bool = True) -> Figure:
        """Returns the front as a Plotly figure.

        Args:
            log: the loss is on a logarithmic axis.

        Raises:
            BadInput: Plotly is not installed.
        """
        from trt_bisect.report.notebook.front_plot import front

        return front(self, log=log)

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows."""
        from trt_bisect.report.notebook.html import compact_recovery

        return compact_recovery(self)

    def _write_page(self, folder: Path) -> None:
        from trt_bisect.report.page.files import write_recovered_page

        write_recovered_page(self, folder)

    def to_csv(self) -> str:
        """Returns the front as CSV."""
        return csv_text(self.records(), ("cost", self.figure, "loss", "names", "layers", "high"))

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``recovery.json``: JSON types, no NaN and no infinity."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("files", "graph")}
        lists = {name: [asdict(each) for each in record[name]] for name in ("high", "moves", "front")}
        answer = None if self.answer is None else asdict(self.answer)
        types = plain({**record, **lists, "answer": answer})
        assert isinstance(types, dict)
        return types

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Recovery:
        """Returns the recovery of a ``recovery.json``; an unknown loss is infinite.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: the record is not one of this schema.
        """
        if record["schema"] != SCHEMA:
            raise ValueError(f"recovery of schema {record['schema']}, this version reads {SCHEMA}")
        lists = {
            "high": tuple(checked(LeftHigh(**row)) for row in record["high"]),
            "moves": tuple(checked(Move(**move)) for move in record["moves"]),
            "front": tuple(_point(point) for point in record["front"]),
            "notes": tuple(record["notes"]),
            "doubts": tuple(record.get("doubts", ())),
            "answer": AnswerFacts.from_json(record["answer"]) if record.get("answer") else None,
        }
        found = checked(cls(**{**record, **lists}))
        figures = (found.target["least"], found.measured["int8"], found.measured["recipe"])
        if not all(value is None or isinstance(value, (int, float)) for value in figures):
            raise TypeError(f"figures that are no numbers: {figures!r:.80}")
        return found


def _point(record: Mapping[str, Any]) -> FrontPoint:
    loss = math.inf if record["loss"] is None else record["loss"]
    point = FrontPoint(**{**record, "loss": loss, "names": tuple(record["names"]), "high": dict(record["high"])})
    return checked(point)
