"""The report of a run, and its file ``report.json``."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from trt_bisect.analyzer.changes import Tolerances, changes
from trt_bisect.analyzer.differences import SCHEMA as SCHEMA_PART
from trt_bisect.analyzer.differences import differences, origin
from trt_bisect.analyzer.figures import Figures, LayerFigures
from trt_bisect.analyzer.metrics import JUDGING
from trt_bisect.errors import BadInput
from trt_bisect.model.file import refer_to_weights
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import ANNOTATED, FOLDER, RecipeFiles
from trt_bisect.report.advice import CulpritAdvice
from trt_bisect.report.annotated import annotated
from trt_bisect.report.answer import AnswerFacts
from trt_bisect.report.explanation import EXPLANATION, Explanation
from trt_bisect.report.layer_row import LayerRow, row_from_json
from trt_bisect.report.overflow import Overflow
from trt_bisect.report.regression.run_changes import RunChanges
from trt_bisect.report.saving import WithRecipe
from trt_bisect.report.summary import above_verdict
from trt_bisect.report.verdict import FAILS, UNMEASURED, verdict_in, verdict_of
from trt_bisect.support.files import write_whole
from trt_bisect.support.json_files import read_record
from trt_bisect.support.plain_json import plain, shape_text
from trt_bisect.support.type_checks import checked

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from trt_bisect.report.layer_table import LayerTable

SCHEMA = 2
_READ = (1, SCHEMA)
REPORT = "report.json"
LAYERS = "layers.csv"
RECOVER = "recover"
"""The strategy of a report that is made from a recovery alone."""


@dataclass(frozen=True)
class Report(WithRecipe):
    """The result of a run.

    Attributes:
        similarity: ``int8`` and ``recipe``: the metric for the worst output on the worst of all inputs given; None
            where not measured.
        outputs: for ``int8`` and ``recipe``, by output, every metric on the input where it is worst.
        recipe: ``high``: the layers left high; ``added``: those of them that are no culprits; ``meets``.
        inputs: the samples that were judged, and the distribution over the data set if it was searched.
        notes: further remarks, a sentence each.
        summary: the verdict in lines, each with a word in capitals first; in older reports a paragraph.
        plans: the number of plans measured.
        builds: the number of engines built, of the whole network or of pieces.
        latency: for ``fp32``, ``fp16``, ``int8`` and ``recipe`` the fields of ``Latency``, or None for an engine that
            could not be built; None without a GPU.
        peak_bytes: the most memory that the process held.
        command: the command line; empty for a run from Python.
        started: the time of the start, in seconds since the epoch; 0 in older reports.
        made_of: the content that the fingerprint is made of, by part: ``model``, ``ranges``, ``inputs``, ``engine``,
            ``typing``, ``versions`` and the options that change an engine; empty in older reports.
        budget: the loss that the threshold allows; None in older reports.
        by_input: if several inputs were judged, ``ByInput.facts`` for ``int8`` and ``recipe``.
        answer: the recipe on given and unseen inputs, the calibrators; None in a report of schema 1.
        next_kind: the kind of the step to go on with, a word of ``report.next_step``; empty in older reports.
        next_step: the step, an imperative clause.
        next_command: the command that does it, or that follows it; empty without a folder, and in older reports.
        low: the low precision in question; ``int8`` in the names of plans and columns stands for it.
        stopped: ``interrupted`` or ``time limit`` for a run that was stopped before its end; the same command goes on.
        overflows: the first tensors that leave the range of FP16 or BF16 with all layers in it.
        files: the files of the recipe; None in a report read from a file.
        graph: the value of ``network_facts``; None in a report read from a file.
        explanation: the reasons for the culprits; None where none was made, and in a report read from a file.
        accuracy: the accuracy of ``fp32``, ``int8`` and ``recipe`` on labelled data, None for a plan that could not be
            run; None as a whole without labels or an accuracy function.
    """

    JSON = REPORT
    CSV = LAYERS
    COLUMNS = tuple(LayerRow.__dataclass_fields__)

    model: str
    engine: str
    typing: str
    strategy: str
    arithmetic: str
    metric: str
    threshold: float
    share: float
    precision: str
    versions: Mapping[str, str]
    layers: tuple[LayerRow, ...]
    culprits: tuple[str, ...]
    similarity: Mapping[str, float | None]
    outputs: Mapping[str, Mapping[str, Mapping[str, float]]]
    recipe: Mapping[str, Any]
    ranges: Mapping[str, Any]
    inputs: Mapping[str, Any]
    notes: tuple[str, ...]
    summary: str
    plans: int
    builds: int
    inferences: int
    peak_bytes: int
    seconds: Mapping[str, float]
    fingerprint: str
    exit_code: int
    latency: Mapping[str, Mapping[str, Any] | None] | None = None
    schema: int = SCHEMA
    command: str = ""
    started: float = 0.0
    made_of: Mapping[str, Any] = field(default_factory=dict)
    budget: float | None = None
    by_input: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answer: AnswerFacts | None = None
    next_kind: str = ""
    next_step: str = ""
    next_command: str = ""
    low: str = str(Precision.INT8)
    overflows: tuple[Overflow, ...] = ()
    stopped: str = ""
    accuracy: Mapping[str, float | None] | None = None
    files: RecipeFiles | None = field(default=None, repr=False, compare=False)
    graph: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    explanation: Explanation | None = field(default=None, repr=False, compare=False)

    @property
    def advice(self) -> tuple[CulpritAdvice, ...]:
        """The evidence and the remedies for each culprit, in their order; empty without an explanation."""
        return self.explanation.advice if self.explanation else ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences against a pass: a part that was judged alone, warnings on the data, the doubts of the answer."""
        return (*above_verdict(self.inputs), *(self.answer.doubts if self.answer else ()))

    @property
    def verdict(self) -> str:
        """The verdict on full INT8, in a report of ``recover`` on its recipe: a word of ``report.verdict``."""
        asked = self.strategy == RECOVER or not self.recipe.get("high")
        return verdict_in(self.exit_code, meets=bool(asked and self.recipe.get("meets")))

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts on ``int8`` and on ``recipe``."""
        verdict = self.verdict
        if verdict == UNMEASURED or not self.recipe.get("high"):
            return {"int8": verdict, "recipe": verdict}
        meets = bool(self.recipe.get("meets"))
        of_recipe = verdict if self.strategy == RECOVER else verdict_of(meets=meets, doubted=bool(self.doubts))
        return {"int8": FAILS, "recipe": of_recipe}

    def layer_milliseconds(self, plan: str, layer: str) -> float | None:
        """Returns the time of the engine layers that contain a layer, in milliseconds; None if not known.

        Args:
            plan: ``fp32``, ``fp16``, ``int8`` or ``recipe``.
            layer: its name; fused layers share one time.
        """
        timed = (self.latency or {}).get(plan) or {}
        found = [part["milliseconds"] for part in timed.get("layers", ()) if layer in part["layers"]]
        return sum(found) if found else None

    def table(self) -> LayerTable:
        """Returns the layers as a pandas table, one row a layer, in execution order; ``.style`` is for a notebook."""
        import pandas as pd

        from trt_bisect.report.layer_table import LayerTable

        rows = [{**asdict(row), "rounds": [rounded.tensor for rounded in row.rounds]} for row in self.layers]
        index = pd.Index([row.pop("index") for row in rows], name="index")
        table: LayerTable = LayerTable(rows, index=index)
        table.attrs["metric"] = self.metric
        return table

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``report.json``: JSON types, no NaN and no infinity."""
        left_out = ("files", "graph", "layers", "explanation")
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in left_out}
        layers = [{**vars(row), "rounds": [vars(rounded) for rounded in row.rounds]} for row in self.layers]
        answer = None if self.answer is None else asdict(self.answer)
        overflows = [asdict(each) for each in self.overflows]
        record = {"schema": self.schema, **fields, "layers": layers, "answer": answer, "overflows": overflows}
        types = plain(record)
        assert isinstance(types, dict)
        return types

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Report:
        """Returns the report of a ``report.json`` of schema 1 or 2.

        Raises:
            KeyError, TypeError, ValueError: the record is not one of these schemas.
        """
        if record["schema"] not in _READ:
            raise ValueError(f"report of schema {record['schema']}, this version reads 1 and {SCHEMA}")
        fields = dict(record)
        if record.get("answer") is not None:
            fields["answer"] = AnswerFacts.from_json(record["answer"])
        fields["layers"] = tuple(row_from_json(row) for row in record["layers"])
        fields["overflows"] = tuple(Overflow.from_json(each) for each in record.get("overflows", ()))
        fields["culprits"], fields["notes"] = tuple(record["culprits"]), tuple(record["notes"])
        return checked(cls(**fields))

    def __str__(self) -> str:
        """Returns the summary: the verdict in lines."""
        return self.summary

    def to_markdown(self) -> str:
        """Returns the verdict, the culprits, the calibrators, the inputs and the notes as Markdown."""
        from trt_bisect.report.run_markdown import markdown

        return markdown(self)

    def plot(self, *, log: bool = True) -> Figure:
        """Returns the curve as a Plotly figure.

        Args:
            log: the loss is on a logarithmic axis.

        Raises:
            BadInput: Plotly is not installed.
        """
        from trt_bisect.report.notebook.curve_plot import curve

        return curve(self, log=log)

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows."""
        from trt_bisect.report.notebook.html import compact

        return compact(self)

    def _write_page(self, folder: Path) -> None:
        from trt_bisect.report.page.files import write_page

        write_page(self, folder)

    def compare(self, before: Report, direction: str = "higher") -> RunChanges:
        """Returns the changes from another report to this one.

        Args:
            before: the other report, of the same network or of another version of it.
            direction: which values of a metric of the user's own are better.

        Raises:
            BadInput: the two were judged by different metrics.
        """
        if before.metric != self.metric:
            raise BadInput(
                f"The reports were judged by '{before.metric}' and by '{self.metric}': their figures cannot be "
                "compared.",
                "Run one of them again with the other one's --metric.",
            )
        found = changes(self.figures(direction), [before.figures(direction)], Tolerances())
        differing = differences(before.origin(), self.origin())
        return RunChanges(before.model, self.model, self.metric, found, differing)

    def figures(self, direction: str = "higher") -> Figures:
        """Returns the figures that nightly runs compare. Values that are not finite count as not measured.

        Args:
            direction: for the user's own metric, which values are better, ``higher`` or ``lower``.

        Raises:
            BadInput: the metric is the user's own, and an older version wrote the report, which lacks the metric's
                budget.
        """
        return Figures(
            metric=self._metric_facts(direction),
            threshold=self.threshold,
            similarity=plain(self.similarity),
            high=tuple(self.recipe.get("high", ())),
            meets=bool(self.recipe.get("meets")),
            latency=self._medians(),
            layers={
                row.name: LayerFigures(plain(row.similarity), plain(row.drop), row.culprit, row.outcome, row.obeyed)
                for row in self.layers
                if row.quantizable
            },
            part=self.inputs.get("part", ""),
        )

    def origin(self) -> dict[str, Any]:
        """Returns the parts of the fingerprint and the options in JSON types; see ``differences.origin``."""
        parts: dict[str, Any] = origin(
            plain(self.made_of),
            metric=self.metric,
            threshold=self.threshold,
            share=self.share,
            strategy=self.strategy,
            **{SCHEMA_PART: self.schema},
        )
        return parts

    def _metric_facts(self, direction: str) -> dict[str, Any]:
        if self.metric in JUDGING:
            return JUDGING[self.metric].facts()
        if self.budget is None:
            raise BadInput(
                f"The report on '{self.model}' does not have the loss that the threshold of '{self.metric}' allows.",
                "An older trt-bisect wrote it: run it again.",
            )
        higher = direction == "higher"
        perfect = self.threshold + self.budget if higher else self.threshold - self.budget
        return {"name": self.metric, "perfect": repr(perfect), "higher": higher, "own": True}

    def _medians(self) -> dict[str, float | None] | None:
        if self.latency is None:
            return None
        return {plan: None if timed is None else plain(timed["median_ms"]) for plan, timed in self.latency.items()}

    def records(self) -> list[dict[str, Any]]:
        """Returns the rows of ``layers.csv``: a culprit's tensors separated by spaces, shapes as ``1x3x8``."""
        return [
            {
                **vars(row),
                "shape": None if row.shape is None else shape_text(row.shape),
                "output_shape": None if row.output_shape is None else shape_text(row.output_shape),
                "rounds": " ".join(rounded.tensor for rounded in row.rounds),
                "whole": " ".join(f"{side}={value}" for side, value in (row.whole or {}).items()),
            }
            for row in self.layers
        ]

    def _write_files(self, folder: Path) -> None:
        """Writes ``explanation.json`` and the recipe's annotated network too.

        Without an explanation, that of another report is removed.
        """
        if self.explanation is not None:
            self.explanation.save(folder)
        elif read_record(folder / REPORT) != self.to_json():
            (folder / EXPLANATION).unlink(missing_ok=True)
        super()._write_files(folder)
        if self.files is not None and self.graph is not None:
            model, file = self.files.viewed
            of_layers = annotated(model, self.layers, self.graph)
            refer_to_weights(of_layers, folder / FOLDER / file)
            write_whole(folder / FOLDER / ANNOTATED, of_layers.SerializeToString())

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Prints what IPython shows where it shows text."""
        from trt_bisect.report.screen.run import print_report

        written = io.StringIO()
        print_report(self, Console(file=written, width=120, force_jupyter=False))
        printer.text(written.getvalue())
