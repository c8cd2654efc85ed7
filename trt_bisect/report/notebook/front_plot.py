"""The front of accuracy against cost as a Plotly figure.

A notebook needs Plotly's Python figure. The page draws the same front in JavaScript, from live data.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trt_bisect.analyzer.metrics import FRACTIONS
from trt_bisect.errors import BadInput
from trt_bisect.report.answer import FrontPoint
from trt_bisect.report.model import Report
from trt_bisect.report.plots import axis, graph_objects, height
from trt_bisect.support.figures import percent

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_NAMED = 5


def front(report: Report, *, log: bool = True) -> Figure:
    """Returns the figure over the cost in per cent: a diamond is a plan with a name, the dashed line the target.

    Args:
        report: a report with a front.
        log: for cosine and top-1, draws 1 - similarity on a logarithmic axis, reversed.

    Raises:
        BadInput: the front was not measured, or Plotly is not installed.
    """
    go = graph_objects()
    if not report.front:
        raise BadInput("The front was not measured.", "Run with front=True, or --front.")
    log = log and report.figure in FRACTIONS
    points = [point for point in report.front if point.figure is not None]
    figure = go.Figure(
        go.Scatter(
            x=[100.0 * point.cost for point in points],
            y=[None if point.figure is None else height(point.figure, log) for point in points],
            mode="lines+markers+text",
            line={"shape": "hv"},
            marker={
                "symbol": ["diamond" if point.names else "circle" for point in points],
                "size": [11 if point.names else 6 for point in points],
            },
            text=[", ".join(point.names) for point in points],
            textposition=["bottom left" if point.cost > 0.5 else "bottom right" for point in points],
            customdata=[_hover(report, point) for point in points],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    if report.least is not None:
        figure.add_hline(height(report.least, log), line={"dash": "dash", "color": "#17703c"})
    figure.update_layout(hovermode="closest", margin={"t": 30, "b": 40})
    figure.update_xaxes(title="cost: the share of INT8's gain in speed that is given up, %")
    figure.update_yaxes(**axis(report.figure, log))
    return figure


def _hover(report: Report, point: FrontPoint) -> str:
    names = [escape(name) for name in list(point.high)[:_NAMED]]
    more = [f"and {len(point.high) - _NAMED} more"] if len(point.high) > _NAMED else []
    titles = [f"<b>{', '.join(point.names)}</b>"] if point.names else []
    figures = f"cost {percent(point.cost)}, {escape(report.figure)} {report.text(point.figure)}"
    return "<br>".join([*titles, figures, f"{len(point.high)} left high", *names, *more])
