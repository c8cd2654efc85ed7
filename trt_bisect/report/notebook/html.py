"""The report in a notebook: compact HTML without scripts, for viewers that run none."""

from __future__ import annotations

from typing import Any

from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.model import LayerRow, Report
from trt_bisect.report.page.headline import headline, recovered_headline
from trt_bisect.report.page.render import environment
from trt_bisect.report.recovery import Recovery
from trt_bisect.report.screen.run import drop_text
from trt_bisect.report.verdict import COLOURS
from trt_bisect.support.figures import shape_text

_LISTED = 20


def compact(report: Report) -> str:
    """Returns the verdict, the figures of full INT8 and the recipe, and the culprits, as HTML; names are escaped."""
    template = environment().get_template("notebook.html.j2")
    culprits = [row for rows in report.ranked_culprits for row in rows]
    return template.render(
        report=report,
        headline=headline(report),
        colour=COLOURS[report.verdict],
        low=report.low.upper(),
        int8=figure_text(report.metric, report.similarity.int8),
        recipe=figure_text(report.metric, report.similarity.recipe),
        culprits=[_cells(report, row) for row in culprits[:_LISTED]],
        more=max(0, len(culprits) - _LISTED),
    )


def compact_recovery(found: Recovery) -> str:
    """Returns a recovery's verdict, layers left high and other scales, as HTML; names are escaped."""
    template = environment().get_template("recovery.html.j2")
    return template.render(
        found=found,
        headline=recovered_headline(found),
        colour=COLOURS[found.verdict],
        high=[(row, found.text(row.back)) for row in found.high[:_LISTED]],
        more=max(0, len(found.high) - _LISTED),
        moves=found.moves[:_LISTED],
        more_moves=max(0, len(found.moves) - _LISTED),
    )


def _cells(report: Report, row: LayerRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "op_type": row.op_type,
        "shape": "?" if row.shape is None else shape_text(row.shape),
        "similarity": figure_text(report.metric, row.similarity) if row.similarity is not None else row.outcome,
        "drop": "" if row.drop is None else drop_text(report.metric, row.drop),
        "gain": "" if row.gain is None else drop_text(report.metric, row.gain),
        "taken_back": "" if row.taken_back is None else figure_text(report.metric, row.taken_back),
    }
