"""The report of a run, and its file ``report.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.precision import Precision
from trt_bisect.results.advice import CulpritAdvice
from trt_bisect.results.annotated import ANNOTATED, annotated
from trt_bisect.results.answer import AnswerFacts
from trt_bisect.results.explanation import EXPLANATION, Explanation
from trt_bisect.results.overflow import Overflow
from trt_bisect.results.recipe_files import FOLDER, RecipeFiles, write_network
from trt_bisect.results.saving import WithRecipe
from trt_bisect.support.json_files import read_record
from trt_bisect.support.plain_json import plain, shape_text
from trt_bisect.support.type_checks import checked

if TYPE_CHECKING:
    from trt_bisect.results.layer_table import LayerTable
    from trt_bisect.results.run_changes import RunChanges

SCHEMA = 2
_READ = (1, SCHEMA)
REPORT = "report.json"
LAYERS = "layers.csv"
FOLLOWS = "follows"
NOT_TRIED = "not tried"
NOT_JUDGED = "not judged"
RECOVER = "recover"
"""The strategy of a report that is made from a recovery alone."""


@dataclass(frozen=True)
class RoundedTensor:
    """One rounding of a culprit: the tensor or weight, its producer, its consumer and its scale.

    Attributes:
        kind: ``activation``, ``weight`` or ``output``.
        scale: of the rounding, the largest of a per-channel scale; None for FP16 and BF16, which have none.
        also_for: other INT8 layers that read the same rounded tensor.
    """

    tensor: str
    kind: str
    producer: str
    consumer: str
    scale: float | None
    also_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerRow:
    """One layer in the report.

    Attributes:
        similarity: of the final outputs with this layer and all before it in INT8, earlier suspects high.
        drop: the loss that the layer added there, in the metric's units; for cosine a fraction of 1.
        culprit: the layer stays high, and taking it back to INT8 was measured to miss the threshold.
        sqnr: of the same trial, in dB.
        outcome: ``measured``, ``build failed``, ``inference failed``, ``out of memory``, ``timed out``,
            ``lost`` with its worker, ``not finite``, ``follows`` for a layer that does not change the engine,
            or whose precision the user fixed, ``not tried`` where the strategy did not need it.
        asked: the precision that the trial requested.
        ran: the precision that the engine reports; empty where it reports none; ``region`` or ``dla`` where the layer
            ran in a region that TensorRT compiled as one.
        obeyed: true if the engine ran the requested precision; None where that is not known.
        recipe: the layer's precision in the recipe.
        why_not: the reason why the layer is not quantizable; empty for one that is.
        message: of a failed trial.
        rounds: the roundings of a culprit.
        whole: the similarity on whole engines ``without`` and ``with`` the layer in INT8, for a layer that was blamed
            by pieces that are other engines; else None.
        gain: the loss that full INT8 sheds when this layer alone stays high; None if not measured.
        taken_back: of a culprit, the similarity of the recipe with this layer in INT8 too, on an input that misses.
        suspect: for a layer with a large drop that is no culprit, the reason why it is none.
        fixed: the precision that the user fixed, which every plan has; empty for a layer left to the search.
        output_shape: of the final output ``output``, which was compared; ``shape`` is that of the layer's own output.
    """

    index: int
    name: str
    op_type: str
    shape: tuple[int | str | None, ...] | None
    quantizable: bool
    similarity: float | None
    drop: float | None
    culprit: bool
    outcome: str
    asked: str
    ran: str
    obeyed: bool | None = None
    sqnr: float | None = None
    output: str = ""
    recipe: str = ""
    why_not: str = ""
    message: str = ""
    rounds: tuple[RoundedTensor, ...] = ()
    whole: Mapping[str, float | None] | None = None
    gain: float | None = None
    taken_back: float | None = None
    suspect: str = ""
    fixed: str = ""
    output_shape: tuple[int | str | None, ...] | None = None


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
        by_input: where several inputs were judged, ``ByInput.facts`` for ``int8`` and ``recipe``.
        answer: the recipe on given and unseen inputs, the calibrators; None in a report of schema 1.
        next_command: the command that uses the recipe, or that searches on; empty without a folder, and in older
            reports.
        low: the low precision in question; ``int8`` in the names of plans and columns stands for it.
        overflows: where values first leave the range of FP16 or BF16 with all layers in it.
        files: of the recipe; None in a report read from a file.
        graph: the value of ``network_facts``; None in a report read from a file.
        explanation: the reasons for the culprits; None where none was made, and in a report read from a file.
        accuracy: of ``fp32``, ``int8`` and ``recipe`` on labelled data, None for a plan that could not be run; None
            as a whole without labels or an accuracy function.
    """

    PRESENTER = "run"
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
    next_command: str = ""
    low: str = str(Precision.INT8)
    overflows: tuple[Overflow, ...] = ()
    accuracy: Mapping[str, float | None] | None = None
    files: RecipeFiles | None = field(default=None, repr=False, compare=False)
    graph: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    explanation: Explanation | None = field(default=None, repr=False, compare=False)

    @property
    def advice(self) -> tuple[CulpritAdvice, ...]:
        """The evidence and the remedies for each culprit, in their order; empty without an explanation."""
        return self.explanation.advice if self.explanation else ()

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

        from trt_bisect.results.layer_table import LayerTable

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
        fields["layers"] = tuple(_row(row) for row in record["layers"])
        fields["overflows"] = tuple(Overflow.from_json(each) for each in record.get("overflows", ()))
        fields["culprits"], fields["notes"] = tuple(record["culprits"]), tuple(record["notes"])
        return checked(cls(**fields))

    def __str__(self) -> str:
        """Returns the summary: the verdict in lines."""
        return self.summary

    def to_markdown(self) -> str:
        """Returns the verdict, the culprits, the calibrators, the inputs and the notes as Markdown."""
        text: str = self._present("markdown")
        return text

    def compare(self, before: Report, direction: str = "higher") -> RunChanges:
        """Returns the changes from another report to this one.

        Args:
            before: the other report, of the same network or of another version of it.
            direction: of a metric of the user's own, which values are better.

        Raises:
            BadInput: the two were judged by different metrics.
        """
        from trt_bisect.results.run_changes import changes_between

        return changes_between(self, before, direction)

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
            model, weights = self.files.viewed
            write_network(folder / FOLDER / ANNOTATED, annotated(model, self.layers, self.graph), weights)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Prints what IPython shows where it shows text."""
        printer.text(self._present("text"))


def _row(record: Mapping[str, Any]) -> LayerRow:
    fields = dict(record)
    fields |= {key: tuple(record[key]) for key in ("shape", "output_shape") if record.get(key) is not None}
    fields["rounds"] = tuple(
        checked(RoundedTensor(**{**rounded, "also_for": tuple(rounded["also_for"])})) for rounded in record["rounds"]
    )
    return checked(LayerRow(**fields))
