"""The layers as a pandas table with a style for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from trt_bisect.report.figure_text import figure_text

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

_CULPRIT = "color: #b3201a; font-weight: bold"
_QUIET = "color: #6b7580"


class LayerTable(pd.DataFrame):
    """A DataFrame whose ``style`` highlights culprits, writes similarities as the screen does, and escapes names.

    ``attrs["metric"]`` names the metric of the column ``similarity``.
    """

    @property
    def _constructor(self) -> type[LayerTable]:
        return LayerTable

    @property
    def style(self) -> Styler:
        """The styled table for a notebook; names are escaped."""
        metric = str(self.attrs.get("metric", ""))

        def text(value: Any) -> str:
            return figure_text(metric, None if pd.isna(value) else value)

        known: dict[Any, Any] = {"similarity": text} if "similarity" in self.columns else {}
        styler: Styler = super().style
        styler.format(known, escape="html", na_rep="", precision=6).apply(_cell_styles, axis=1)
        return styler


def _cell_styles(row: pd.Series[Any]) -> list[str]:
    """Returns the CSS of each cell of a row."""
    style = _CULPRIT if row.get("culprit") is True else _QUIET if row.get("outcome") == "follows" else ""
    return [style] * len(row)
