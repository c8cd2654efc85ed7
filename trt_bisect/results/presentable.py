"""The import by name through which a result uses its presentation in ``report``, a room above ``results``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Presentable:
    """Base of results of which ``report`` makes files or views.

    Attributes:
        PRESENTER: the name of the module in ``report.presenters``, imported at its first use.
    """

    PRESENTER: ClassVar[str]

    def _present(self, view: str, *arguments: Any, **options: Any) -> Any:
        """Calls the presenter's function ``view`` with this result and the arguments."""
        presenter = importlib.import_module(f"trt_bisect.report.presenters.{self.PRESENTER}")
        return getattr(presenter, view)(self, *arguments, **options)


class Plottable(Presentable):
    """Base of results that notebooks plot and show."""

    def plot(self, *, log: bool = True) -> Figure:
        """Returns the result's curve as a Plotly figure.

        Args:
            log: the loss is on a logarithmic axis.

        Raises:
            BadInput: Plotly is not installed.
        """
        return self._present("plot", log=log)

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook shows."""
        html: str = self._present("html")
        return html
