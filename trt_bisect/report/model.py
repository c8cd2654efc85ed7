"""The report of a run, with the fields of ``report.json``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from trt_bisect.analyzer.doubts import Bound
from trt_bisect.analyzer.judge import ByInput
from trt_bisect.analyzer.metrics import ACCURACY, AGREEMENT, FRACTIONS, figure_text
from trt_bisect.analyzer.overflow import Overflow
from trt_bisect.builder.base import Latency
from trt_bisect.errors import BadInput, NothingMeasured
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import FOLDER, RecipeFiles, write_network
from trt_bisect.report.answer import Accuracies, AnswerFacts, FrontPoint, Goal, PredictedTimes, RecipeLayers
from trt_bisect.report.choices import Choice, predicted_ms
from trt_bisect.report.explanation import DIGITS, EXPLANATION, PICTURES, CulpritAdvice, Explanation, Pictures
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.parts import (
    COLOURS,
    FRONT,
    LAYERS,
    PASSES,
    REPORT,
    SCHEMA,
    UNMEASURED,
    ByPlan,
    JudgedInputs,
    LayerRow,
    NetworkRow,
    NextStep,
    Part,
    RangesFacts,
    Seconds,
    verdict_of,
)
from trt_bisect.report.result import Overview, Result, Shown, file_in, loaded
from trt_bisect.report.words import headline, put_back_remark, titled, titles_in
from trt_bisect.runs.progress_file import FINISHED
from trt_bisect.support.codec import encode_lines, shortened, write
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.table import csv_of, table_of
from trt_bisect.support.text import Line, Note, percent, shape_text

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

    from trt_bisect.report.changes import RunChanges
    from trt_bisect.report.comparison import Comparison, Profile
    from trt_bisect.report.losses import Sensitivity, WorstReport
    from trt_bisect.report.plots import LayerTable
    from trt_bisect.report.structure import CheckReport, Migration


_ATTACHED = ("files", "graph", "explanation", "remedy_files", "pictures")
"""The class variables of a report."""


@dataclass(frozen=True, repr=False)
class Report(Shown):
    """The result of a run. What does not exist, or is not known yet, is None or empty.

    Attributes:
        state: ``running``, ``interrupted`` or ``finished``.
        verdict: on full INT8: ``passes``, ``passes with doubts``, ``fails`` or ``not measured``.
        lines: the verdict in words, a sentence each.
        low: the low precision; called ``int8`` in the names of plans and columns.
        precision: the high precision.
        budget: the loss that the threshold allows.
        share: a layer that loses at least this share of ``budget`` on the curve is a suspect.
        layers: in execution order.
        constants: constants that TensorRT has as layers, with the figures of the layer before them.
        culprits: the layers with which back in INT8 the recipe was measured to miss the threshold.
        similarity: the metric on the worst output and the worst given input.
        outputs: by output and metric, the figure on the worst input.
        by_input: the figures of each input, if there are several.
        refused: the reasons why TensorRT cannot build the network.
        answer: the recipe on given and held-out inputs, and the calibrators.
        bound: the upper bound on the share of similar inputs that miss the threshold with the recipe.
        accuracy: the accuracies on labelled data.
        goal: the goal of the recipe, besides the threshold.
        networks: the networks of a pipeline, each measured as the only one in low precision.
        front: the plans that no other beats in both cost and figure, and the named plans.
        choices: the plans that a user may ship.
        latency: the latencies of ``fp32``, ``fp16``, ``int8`` and ``recipe``, None for an engine that could not be
            built; None without a GPU.
        predicted: the predicted times of ``fp32``, ``fp16``, ``int8`` and ``recipe``.
        overflows: the first tensors that overflow if all layers are in FP16 or BF16.
        base_high: the layers whose values overflow in the base, if full INT8 meets the threshold with them in FP32.
        next: the recommended next step.
        stopped: ``interrupted``, ``time limit`` or ``no room`` (on the disk) if the run stopped early.
        plans: the number of plans measured.
        builds: the number of engines built.
        peak_bytes: the most memory that the process took.
        command: the command line; empty for a run from Python.
        started: the time of the start, in seconds since the epoch.
        network: the digest of the network as read.
        accept: a doubted pass counts as a pass.
        made_of: by part, the content of the fingerprint.

    Not in ``report.json``, and None or empty in a report read from a file:
    ``files`` (the recipe's), ``graph``, ``explanation``, ``pictures``, and ``remedy_files``, which has by path in the
    run folder a network, or the bytes of a calibration cache, that applies a remedy.
    """

    # Without annotations, so that they are no fields.
    files = cast("RecipeFiles | None", None)
    graph = cast("Graph | None", None)
    explanation = cast("Explanation | None", None)
    remedy_files = cast("Mapping[str, Network | bytes]", {})
    pictures = cast("Pictures | None", None)

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
    fingerprint: str
    schema: int = SCHEMA
    state: str = FINISHED
    verdict: str = UNMEASURED
    lines: tuple[Line, ...] = ()
    low: str = str(Precision.INT8)
    budget: float = 0.0
    layers: tuple[LayerRow, ...] = ()
    constants: tuple[LayerRow, ...] = ()
    culprits: tuple[str, ...] = ()
    similarity: ByPlan[float | None] = field(default_factory=lambda: ByPlan(None, None))
    outputs: ByPlan[Mapping[str, Mapping[str, float | None]]] = field(default_factory=lambda: ByPlan({}, {}))
    by_input: ByPlan[ByInput | None] = field(default_factory=lambda: ByPlan(None, None))
    recipe: RecipeLayers = field(default_factory=RecipeLayers)
    ranges: RangesFacts = field(default_factory=RangesFacts)
    inputs: JudgedInputs = field(default_factory=JudgedInputs)
    refused: tuple[Line, ...] = ()
    answer: AnswerFacts | None = None
    bound: Bound | None = None
    accuracy: Accuracies | None = None
    goal: Goal = field(default_factory=Goal)
    networks: tuple[NetworkRow, ...] = ()
    front: tuple[FrontPoint, ...] = ()
    choices: tuple[Choice, ...] = ()
    latency: Mapping[str, Latency | None] | None = None
    predicted: PredictedTimes | None = None
    overflows: tuple[Overflow, ...] = ()
    base_high: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    next: NextStep | None = None
    stopped: str = ""
    plans: int = 0
    builds: int = 0
    inferences: int = 0
    peak_bytes: int = 0
    seconds: Seconds = field(default_factory=Seconds)
    command: str = ""
    started: float = 0.0
    network: str = ""
    accept: bool = False
    made_of: Mapping[str, Part] = field(default_factory=dict)

    def changed(self, **fields: Any) -> Report:
        """Returns a copy with these fields changed; what is not in ``report.json`` may be given too."""
        extras = {name: fields.pop(name, getattr(self, name)) for name in _ATTACHED}
        result = replace(self, **fields)
        vars(result).update(extras)
        return result

    @property
    def titled(self) -> Report:
        """This report with layers named as in the user's program."""
        titles = titles_in(self.layers)
        extras = {name: getattr(self, name) for name in _ATTACHED}
        return titled(self, titles).changed(**{**extras, "explanation": titled(self.explanation, titles)})

    @property
    def exit_code(self) -> int:
        """The exit code of ``run``: 0 if full INT8 passes without doubts, 3 if nothing was measured, else 1."""
        return {PASSES: 0, UNMEASURED: NothingMeasured.exit_code}.get(self.verdict, 1)

    @property
    def passed(self) -> bool:
        """True if full INT8 passes without doubts."""
        return self.exit_code == 0

    @property
    def summary(self) -> str:
        """The lines of the verdict as text."""
        return "\n".join(line.text for line in self.titled.lines)

    def plot(self, *, log: bool = True) -> Figure:
        """Returns the curve as a Plotly figure.

        Args:
            log: for cosine and top-1, draw 1 - similarity on a logarithmic axis.

        Raises:
            BadInput: Plotly is not installed.
        """
        from trt_bisect.report.plots import curve

        return curve(self, log=log)

    def plot_front(self, *, log: bool = True) -> Figure:
        """Returns the front of accuracy against cost as a Plotly figure.

        Args:
            log: for cosine and top-1, draw 1 - similarity on a logarithmic axis.

        Raises:
            BadInput: the front was not measured, or Plotly is not installed.
        """
        from trt_bisect.report.plots import front

        return front(self, log=log)

    @property
    def figure(self) -> str:
        """The name of the figure that decides: the metric, or ``accuracy``."""
        return ACCURACY if self.goal.drop else self.metric

    @property
    def least(self) -> float | None:
        """The worst acceptable value of ``figure``; None if not known."""
        if self.goal.drop:
            return None if self.accuracy is None else self.accuracy.least
        return self.threshold

    def text(self, value: float | None) -> str:
        """Returns a value of ``figure`` as text."""
        return figure_text(self.figure, value, self.least)

    @property
    def predicted_ms(self) -> tuple[float, float] | None:
        """The predicted milliseconds of an inference at cost 0, and those that cost 1 adds; None if costs are not
        times.
        """
        return predicted_ms(self.choices, Precision(self.low), self.goal.costs)

    def ms_of(self, cost: float) -> float | None:
        """Returns the predicted milliseconds of a plan from its cost; None if costs are not times."""
        times = self.predicted_ms
        return None if times is None else times[0] + cost * times[1]

    def cost_text(self, cost: float | None) -> str:
        """Returns a cost as text: the predicted time, else the share of the speedup given up; ``-`` for None."""
        if cost is None:
            return "-"
        ms = self.ms_of(cost)
        return percent(cost) if ms is None else f"{ms:.3g} ms"

    @property
    def of_unchanged(self) -> str:
        """The words that follow ``culprits`` if the recipe changes the network; else empty."""
        return " of the unchanged network" if self.answer is not None and self.answer.changes else ""

    @property
    def put_back_title(self) -> str:
        """The title of the column of figures with a culprit back in INT8."""
        return f"If put back in {self.low.upper()}"

    def put_back_text(self, row: LayerRow) -> str:
        """Returns the recipe's figure with a layer back in INT8, as text; with ``or worse`` if not all inputs were
        run.
        """
        return f"{self.text(row.put_back)}{put_back_remark(self, row)}"

    @property
    def figures(self) -> ByPlan[float | None]:
        """The figure that decides, of full INT8 and of the recipe."""
        if self.goal.drop:
            return ByPlan(None, None) if self.accuracy is None else ByPlan(self.accuracy.int8, self.accuracy.recipe)
        return self.similarity

    @property
    def ranked_culprits(self) -> tuple[tuple[LayerRow, ...], tuple[LayerRow, ...]]:
        """The rows of the culprits and of the weak culprits, both by decreasing loss with the culprit in INT8."""
        ranked, weak = (self.answer.ranked, set(self.answer.weak)) if self.answer is not None else ((), set())
        places = {name: rank for rank, name in enumerate(ranked)}
        rows = sorted((row for row in self.layers if row.culprit), key=lambda row: places.get(row.name, 0))
        return (tuple(row for row in rows if row.name not in weak), tuple(row for row in rows if row.name in weak))

    @property
    def advice(self) -> tuple[CulpritAdvice, ...]:
        """The evidence and the remedies for each culprit; empty in a report read from a file."""
        return self.explanation.advice if self.explanation else ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """The sentences that contradict a pass."""
        random = (self.inputs.random,) if self.inputs.random else ()
        refused = [line.text for line in self.refused]
        part = (self.inputs.part,) if self.inputs.part else ()
        of_answer = [line.text for line in self.answer.doubts] if self.answer else []
        return (*random, *refused, *part, *self.inputs.warnings, *of_answer)

    @property
    def has_recipe(self) -> bool:
        """True if the recipe is not just full INT8 of the user's network."""
        return bool(self.recipe.high or (self.answer and self.answer.changes))

    @property
    def verdicts(self) -> ByPlan[str]:
        """The verdicts on full INT8 and on the recipe."""
        if self.verdict == UNMEASURED or not self.has_recipe:
            return ByPlan(self.verdict, self.verdict)
        return ByPlan(self.verdict, verdict_of(meets=self.recipe.meets, doubted=bool(self.doubts)))

    def milliseconds(self, plan: str) -> float | None:
        """Returns the mean milliseconds of an inference of a plan, such as ``int8``; None if not timed."""
        timed = (self.latency or {}).get(plan)
        return timed.mean_ms if timed else None

    def layer_milliseconds(self, plan: str, layer: str) -> float | None:
        """Returns the summed milliseconds of a plan's engine layers that contain a layer; None if not known."""
        timed = (self.latency or {}).get(plan)
        parts = [part.milliseconds for part in (timed.layers if timed else ()) if layer in part.layers]
        return sum(parts) if parts else None

    def table(self) -> LayerTable:
        """Returns a pandas table of the layers in execution order; ``.style`` is for a notebook."""
        import pandas as pd

        from trt_bisect.report.plots import LayerTable

        rows = [{**asdict(row), "rounds": [rounded.tensor for rounded in row.rounds]} for row in self.layers]
        index = pd.Index([row.pop("index") for row in rows], name="index")
        table: LayerTable = LayerTable(rows, index=index)
        table.attrs["metric"] = self.metric
        return table

    def quant_cfg(self, *, as_dictionary: bool = False) -> dict[str, Any]:
        """Returns the recipe as the config for ``mtq.quantize`` of NVIDIA's ModelOpt on PyTorch.

        Args:
            as_dictionary: return a dictionary by quantizer, as ModelOpt before 0.47 takes it, not a list.

        Raises:
            BadInput: nothing was measured, the recipe changes the network, its low precision is not INT8 or FP8, or the
                PyTorch modules are not known.
        """
        from trt_bisect.recipe import dialects

        if self.verdict == UNMEASURED:
            raise BadInput("This run has no recipe.", "Run it to its end.")
        if self.answer and self.answer.changes:
            raise BadInput(f"The recipe is for the network with {self.answer.changes}.", "Run it with as_is=True.")
        told = [
            dialects.ToldLayer(row.name, row.op_type, row.module, Precision(row.recipe))
            for row in self.layers
            if row.quantizable
        ]
        config = dialects.quant_cfg(told, Precision(self.low))
        return dialects.as_dictionary(config) if as_dictionary else config

    @classmethod
    def load(cls, folder: str | Path) -> Report:
        """Returns the report in a run folder, or in its ``report.json``.

        Raises:
            BadInput: there is no report, or this version cannot read it.
        """
        return loaded(cls, file_in(folder, REPORT), SCHEMA, "run")

    def save(self, folder: str | Path, *, recipe: bool = True) -> Path:
        """Writes the report's files into a folder, made if missing, and returns its path.

        Args:
            recipe: false if the folder has the recipe's files already.

        Raises:
            BadInput: the folder cannot be written.
        """
        from trt_bisect.report.network_graph import write_annotated
        from trt_bisect.report.page import write_page

        path, text = make_folder(Path(folder)), encode_lines(self)
        if self.explanation is not None:
            write(path / EXPLANATION, shortened(self.explanation, DIGITS))
            for name, content in self.remedy_files.items():
                make_folder((path / name).parent)
                if isinstance(content, bytes):
                    write_whole(path / name, content)
                else:
                    write_network(path / name, content.skeleton, content.weights)
        elif not (path / REPORT).is_file() or (path / REPORT).read_bytes() != text:
            (path / EXPLANATION).unlink(missing_ok=True)
            (path / PICTURES).unlink(missing_ok=True)
        if self.pictures is not None:
            write(path / PICTURES, self.pictures)
        elif self.explanation is not None:
            (path / PICTURES).unlink(missing_ok=True)
        if self.files is not None and recipe:
            self.files.write(path / FOLDER)
        if self.graph is not None:
            write(path / NETWORK, self.graph)
        write_whole(path / LAYERS, self.to_csv().encode())
        if self.front:
            write_whole(path / FRONT, csv_of(FrontPoint, self.front, **self.names).encode())
        else:
            (path / FRONT).unlink(missing_ok=True)
        write_whole(path / REPORT, text)
        if self.files is not None and self.graph is not None:
            write_annotated(self.files, self.layers, self.graph, path)
        write_page(self, path)
        return path

    def front_table(self) -> pd.DataFrame:
        """Returns a pandas table of the front's plans, the cheapest first."""
        return table_of(FrontPoint, self.front, **self.names)

    def to_csv(self) -> str:
        """Returns a row for each layer and constant as CSV, as in ``layers.csv``."""
        return csv_of(LayerRow, self.rows)

    @property
    def rows(self) -> tuple[LayerRow, ...]:
        """The layers in execution order, each after the constants that it is first to read."""
        return tuple(sorted((*self.constants, *self.layers), key=lambda row: row.index))

    @property
    def names(self) -> Mapping[str, str]:
        """The texts for ``{low}``, ``{metric}`` and ``{figure}`` in the titles of columns."""
        metric = self.metric.capitalize() if self.metric == AGREEMENT.name else self.metric
        return {
            "low": self.low.upper(),
            "metric": "Similarity" if metric in FRACTIONS else metric,
            "figure": self.figure,
        }

    def to_markdown(self) -> str:
        """Returns the verdict, culprits, calibrators, inputs and notes as Markdown."""
        from trt_bisect.report.screen.run import markdown

        return markdown(self)

    def compare(self, before: Report, direction: str = "higher") -> RunChanges:
        """Returns the changes from another report to this one.

        Args:
            direction: the better values of a user's own metric: ``higher`` or ``lower``.

        Raises:
            BadInput: the two were judged by different metrics.
        """
        from trt_bisect.report.changes import compared

        return compared(before, self, direction)

    @property
    def overview(self) -> Overview:
        """The verdict, the next step, and the culprits with the recipe's figure if the culprit is in INT8."""
        from trt_bisect.report.screen.run import culprit_cells, next_lines, plan_texts, verdict_first

        if self.titled.layers != self.layers:
            return self.titled.overview
        verdict, reasons = verdict_first(self)
        steps, plans, culprits = next_lines(self), plan_texts(self), []
        for row in itertools.chain(*self.ranked_culprits):
            name, op_type, put_back, *losses = culprit_cells(self, row)
            culprits.append((name, put_back, op_type, "?" if row.shape is None else shape_text(row.shape), *losses))
        return Overview(
            headline(self, self.state),
            f"{self.arithmetic} on {self.engine} · {self.model}",
            COLOURS[self.verdict],
            (f"Culprit{self.of_unchanged}", self.put_back_title, "Op", "Shape", "Loss", "Alone"),
            culprits,
            [
                *(line.text for line in verdict),
                *([f"PLANS: {', '.join(plans)}."] if plans else []),
                *steps[:1],
                *(f"  {command}" for command in steps[1:]),
                *(line.text for line in reasons),
            ],
            [note.text for note in self.notes],
            {
                ".plot()": "the curve",
                **({".plot_front()": "the front of accuracy against cost"} if self.front else {}),
                ".table().style": "every layer",
                ".save(folder)": "the whole page, report.html",
            },
            " · ".join(plans),
        )


def read_report(path: Path) -> Report | None:
    """Returns the report in a file, or None if this version cannot read it."""
    try:
        return Report.load(path)
    except BadInput:
        return None


@overload
def load(path: str | Path, file: Literal["report.json"]) -> Report: ...
@overload
def load(path: str | Path, file: Literal["sensitivity.json"]) -> Sensitivity: ...
@overload
def load(path: str | Path, file: Literal["compare.json"]) -> Comparison: ...
@overload
def load(path: str | Path, file: Literal["profile.json"]) -> Profile: ...
@overload
def load(path: str | Path, file: Literal["worst.json"]) -> WorstReport: ...
@overload
def load(path: str | Path, file: Literal["check.json"]) -> CheckReport: ...
@overload
def load(path: str | Path, file: Literal["migrate.json"]) -> Migration: ...
@overload
def load(path: str | Path, file: None = None) -> Report | Result: ...
def load(path: str | Path, file: str | None = None) -> Report | Result:
    """Returns the result of a command.

    Args:
        path: the command's output folder, or a JSON file in it.
        file: the JSON file in the folder, such as ``report.json``; None for the first that is there.

    Raises:
        BadInput: there is no result, or this version cannot read it.
    """
    from trt_bisect.report.comparison import Comparison, Profile
    from trt_bisect.report.losses import Sensitivity, WorstReport
    from trt_bisect.report.structure import CheckReport, Migration

    tables = (Sensitivity, Comparison, Profile, WorstReport, CheckReport, Migration)
    kinds: dict[str, type[Report | Result]] = {REPORT: Report}
    kinds |= {f"{kind.COMMAND}.json": kind for kind in tables}
    if Path(path).is_file():
        names = [name for name in (Path(path).name,) if file in (None, name)]
    else:
        names = [name for name in kinds if (Path(path) / name).is_file() and file in (None, name)]
    if not names or names[0] not in kinds:
        wanted = f"'{file}'" if file in kinds else "result of trt-bisect"
        raise BadInput(f"'{path}' holds no {wanted}.", f"Give a folder with one of {', '.join(kinds)}.")
    return kinds[names[0]].load(path)
