"""The curve of similarity over layers as a Plotly figure.

A notebook needs Plotly's Python figure. The page draws the same curve in JavaScript, from live data.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.metrics import BUILT_IN, FRACTIONS
from trt_bisect.errors import BadInput
from trt_bisect.report.screen.run import drop_text
from trt_bisect.results.figure_text import figure_text
from trt_bisect.results.layer_row import LayerRow
from trt_bisect.results.run_report import Report

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_SUSPECT = {"symbol": "diamond-open", "size": 9, "color": "#8a5a00"}
_LEVELS = {"int8": "#b3201a", "recipe": "#a35208"}
"""The plans whose figure on all inputs is a line across, and its colour."""
_EXACT = 1e-9
"""The least loss drawn on a logarithmic axis; a smaller one is drawn here."""


def curve(report: Report, *, log: bool = True) -> Figure:
    """Returns the similarity over k: a line without the culprits, diamonds for culprits, bands for failed layers.

    Args:
        report: of a run.
        log: for cosine and top-1, draws 1 - similarity on a logarithmic axis, reversed.

    Raises:
        BadInput: Plotly is not installed.
    """
    go = graph_objects()
    log = log and report.metric in FRACTIONS
    tried = [row for row in report.layers if row.quantizable]
    standing = [row for row in tried if not (row.culprit or row.suspect)]
    suspects = [row for row in tried if row.suspect and row.similarity is not None]
    culprits = [row for row in tried if row.culprit and row.similarity is not None]
    failed = [row for row in tried if row.message]
    figure = go.Figure(
        [
            _trace(go, report, standing, log, "suspects ruled out", mode="lines+markers", marker={"size": 5}),
            _trace(go, report, culprits, log, "culprit", marker={"symbol": "diamond", "size": 11, "color": "#b3201a"}),
            *([_trace(go, report, suspects, log, "suspect", marker=_SUSPECT)] if suspects else []),
        ]
    )
    figure.add_hline(height(report.threshold, log), line={"dash": "dash", "color": "#17703c"})
    for plan, colour in _LEVELS.items() if report.answer is not None else ():
        level = report.similarity.get(plan)
        if level is not None:
            figure.add_hline(height(level, log), line={"dash": "dot", "color": colour}, annotation_text=plan)
    for row in failed:
        figure.add_vrect(row.index - 0.5, row.index + 0.5, fillcolor="#8a5a00", opacity=0.2, line_width=0)
    figure.update_layout(hovermode="closest", margin={"t": 30, "b": 40}, legend={"orientation": "h", "y": 1.1})
    figure.update_xaxes(title="layer k, in execution order")
    figure.update_yaxes(**axis(report.metric, log))
    return figure


def graph_objects() -> Any:
    """Returns Plotly's ``graph_objects``; raises BadInput if Plotly is not installed."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise BadInput("Plotly is not installed.", "pip install 'trt-bisect[notebook]'") from error
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
    """Returns the y value of a similarity: 1 - similarity for a logarithmic axis, else the similarity itself."""
    return max(_EXACT, 1.0 - similarity) if log else similarity


def axis(metric: str, log: bool) -> dict[str, Any]:
    """Returns Plotly's settings of the axis for the values of ``height``."""
    if log:
        return {"type": "log", "autorange": "reversed", "title": "1 - similarity"}
    errors = metric in BUILT_IN and metric not in FRACTIONS and "sqnr" not in metric
    return {"type": "log" if errors else "linear", "title": metric}


def _hover(report: Report, row: LayerRow) -> str:
    lines = [f"<b>{escape(row.name)}</b>", f"{row.index} {escape(row.op_type)}"]
    lines.append(figure_text(report.metric, row.similarity))
    if row.drop is not None:
        lines.append(f"drop {drop_text(report.metric, row.drop)}")
    return "<br>".join(lines)
