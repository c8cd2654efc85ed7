"""A result that is shown as tables, as a page."""

from __future__ import annotations

from pathlib import Path

from trt_bisect.report.page.render import render_tables
from trt_bisect.report.page.tables.pages import page_of
from trt_bisect.results.saving import WithTablePage
from trt_bisect.support.files import write_whole


def write_page(found: WithTablePage, folder: Path) -> None:
    """Writes the result's page into its folder; raises BadInput if it cannot."""
    write_whole(folder / found.page_name(), render_tables(page_of(found).data()).encode())
