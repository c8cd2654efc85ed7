"""The report in a notebook: Plotly figures, and a styled pandas table of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from trt_bisect.analyzer.metrics import BUILT_IN, FRACTIONS, figure_text, loss_text, threshold_text
from trt_bisect.errors import BadInput, install
from trt_bisect.model.cost import instead_of
from trt_bisect.precision import Precision
from trt_bisect.report.answer import FrontPoint
from trt_bisect.report.parts import LayerRow
from trt_bisect.report.words import FIGURES

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler
    from plotly.graph_objects import Figure

    from trt_bisect.report.model import Report

_SUSPECT = {"symbol": "diamond-open", "size": 9, "color": "#8a5a00"}
_THRESHOLD = {"dash": "dash", "color": "#17703c"}
_LEVELS = {"int8": ("full INT8", "#b3201a"), "recipe": ("recipe", "#a35208")}
_EXACT = 1e-9  # the least loss drawn on a logarithmic axis


def curve(report: Report, *, log: bool = True) -> Figure:
    """Returns the curve as a Plotly figure; ``log``: for cosine and top-1, draw 1 - similarity on a logarithmic axis.

    Raises BadInput if Plotly is not installed.
    """
    go, report = graph_objects(), report.titled
    log = log and report.metric in FRACTIONS
    tried = [row for row in report.layers if row.quantizable]
    spare = 0.5 + 0.01 * len(report.layers)
    ends = (-spare, len(report.layers) - 1 + spare)
    standing = [row for row in tried if not (row.culprit or row.suspect)]
    suspects = [row for row in tried if row.suspect and row.similarity is not None]
    culprits = [row for row in tried if row.culprit and row.similarity is not None]
    figure: Figure = go.Figure(
        [
            _trace(go, report, standing, log, "suspects in high precision", mode="lines+markers", marker={"size": 5}),
            _trace(go, report, culprits, log, "culprit", marker={"symbol": "diamond", "size": 11, "color": "#b3201a"}),
            *([_trace(go, report, suspects, log, "suspect", marker=_SUSPECT)] if suspects else []),
            *(
                go.Scatter(x=ends, y=[height(value, log)] * 2, name=name, mode="lines", line=line, hoverinfo="name")
                for name, value, line in _levels(report)
            ),
        ]
    )
    for row in (row for row in tried if row.message):
        figure.add_vrect(row.index - 0.5, row.index + 0.5, fillcolor="#8a5a00", opacity=0.2, line_width=0)
    words = FIGURES.get(report.metric, report.metric)
    title = f"{words[:1].upper()}{words[1:]} of the final outputs, with layers 0 to k in {report.low.upper()}"
    figure.update_layout(title=title, hovermode="closest", margin={"t": 60, "b": 40})
    figure.update_xaxes(title="layer k, in execution order", range=ends)
    figure.update_yaxes(**axis(report.metric, log))
    return figure


def _levels(report: Report) -> Iterator[tuple[str, float, dict[str, str]]]:
    yield f"threshold {threshold_text(report.metric, report.threshold)}", report.threshold, _THRESHOLD
    for plan, (name, colour) in _LEVELS.items() if report.answer is not None else ():
        value = getattr(report.similarity, plan)
        if value is not None:
            yield f"{name} {figure_text(report.metric, value)}", value, {"dash": "dot", "color": colour}


def graph_objects() -> Any:
    """Returns Plotly's ``graph_objects``; raises BadInput if Plotly is not installed."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise BadInput("Plotly is not installed.", install("notebook")) from error
    return plotly.graph_objects


def _trace(go: Any, report: Report, rows: Sequence[LayerRow], log: bool, name: str, **style: Any) -> Any:
    return go.Scatter(
        x=[row.index for row in rows],
        y=[None if row.similarity is None else height(row.similarity, log) for row in rows],
        text=[_hover(report, row) for row in rows],
        hovertemplate="%{text}<extra></extra>",
        name=name,
        **{"mode": "markers", **style},
    )


def height(similarity: float, log: bool) -> float:
    """Returns the y value of a similarity: 1 - similarity if ``log``, else the similarity."""
    return max(_EXACT, 1.0 - similarity) if log else similarity


def axis(metric: str, log: bool) -> dict[str, Any]:
    """Returns Plotly's settings of a metric's y axis; ``log``: for 1 - similarity, logarithmic."""
    if log:
        powers = range(-9, 1)
        ticks = {"tickvals": [10.0**power for power in powers], "ticktext": [_tick(power) for power in powers]}
        return {"type": "log", "autorange": "reversed", "title": metric, **ticks}
    errors = metric in BUILT_IN and metric not in FRACTIONS and "sqnr" not in metric
    return {"type": "log" if errors else "linear", "title": metric}


def _tick(power: int) -> str:
    return "equal" if 10.0**power <= _EXACT else f"{100.0 * (1.0 - 10.0**power):.{max(0, -power - 2)}f}%"


def _hover(report: Report, row: LayerRow) -> str:
    figure = figure_text(report.metric, row.similarity)
    lost = [] if row.loss is None else [f"loss {loss_text(report.metric, row.loss)}"]
    return "<br>".join([f"<b>{escape(row.name)}</b>", f"{row.index} {escape(row.op_type)}", figure, *lost])


_MOST_LAYERS = 5


def front(report: Report, *, log: bool = True) -> Figure:
    """Returns the front as a Plotly figure; ``log``: as for ``curve``.

    Raises BadInput if the front was not measured, or Plotly is not installed.
    """
    go = graph_objects()
    if not report.front:
        raise BadInput("The front was not measured.", "Run with front=True, or --front.")
    log = log and report.figure in FRACTIONS
    points = [point for point in report.front if point.figure is not None]
    low = Precision(report.low)
    costs = [_drawn_cost(report, point.cost) for point in points]
    middle = (min(costs, default=0.0) + max(costs, default=0.0)) / 2.0
    figure: Figure = go.Figure(
        go.Scatter(
            x=costs,
            y=[None if point.figure is None else height(point.figure, log) for point in points],
            mode="lines+markers+text",
            line={"shape": "hv"},
            marker={
                "symbol": ["diamond" if point.names else "circle" for point in points],
                "size": [11 if point.names else 6 for point in points],
            },
            text=[", ".join(point.names) for point in points],
            textposition=["bottom left" if cost > middle else "bottom right" for cost in costs],
            customdata=[_front_hover(report, point) for point in points],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    if report.least is not None:
        figure.add_hline(height(report.least, log), line={"dash": "dash", "color": "#17703c"})
    figure.update_layout(hovermode="closest", margin={"t": 30, "b": 40})
    title = f"cost: the share of {low.upper()}'s speedup over {instead_of(low).upper()} that is given up, %"
    if report.predicted_ms is not None:
        title = "cost: the predicted time, ms"
    figure.update_xaxes(title=title)
    figure.update_yaxes(**axis(report.figure, log))
    return figure


def _drawn_cost(report: Report, cost: float) -> float:
    ms = report.ms_of(cost)
    return 100.0 * cost if ms is None else ms


def _front_hover(report: Report, point: FrontPoint) -> str:
    names = [escape(name) for name in list(point.high)[:_MOST_LAYERS]]
    more = [f"and {len(point.high) - _MOST_LAYERS} more"] if len(point.high) > _MOST_LAYERS else []
    titles = [f"<b>{', '.join(point.names)}</b>"] if point.names else []
    figures = f"cost {report.cost_text(point.cost)}, {escape(report.figure)} {report.text(point.figure)}"
    return "<br>".join([*titles, figures, f"{len(point.high)} left high", *names, *more])


_CULPRIT = "color: #b3201a; font-weight: bold"
_QUIET = "color: #6b7580"


class LayerTable(pd.DataFrame):
    """A DataFrame of layers; ``style`` marks culprits, and writes similarities of the metric ``attrs["metric"]``."""

    @property
    def _constructor(self) -> type[LayerTable]:
        return LayerTable

    @property
    def style(self) -> Styler:
        """The table for a notebook."""
        metric = str(self.attrs.get("metric", ""))

        def text(value: Any) -> str:
            return figure_text(metric, None if pd.isna(value) else value)

        def cell_styles(row: pd.Series[Any]) -> list[str]:
            style = _QUIET if row.get("outcome") == "follows" else ""
            if row.get("culprit") is True:
                style = _CULPRIT
            return [style] * len(row)

        texts: dict[Any, Any] = {"similarity": text} if "similarity" in self.columns else {}
        styler: Styler = super().style
        styler.format(texts, escape="html", na_rep="", precision=6).apply(cell_styles, axis=1)
        return styler
