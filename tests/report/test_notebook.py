"""The sample notebook runs from its first cell to its last, and shows what it says."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.waiting import LIMIT


@pytest.mark.slow
def test_the_notebook_runs():
    folder = Path(__file__).parents[2] / "samples"
    notebook = nbformat.read(folder / "lenet.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=int(LIMIT), kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    shown = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    texts = [out.data.get("text/plain", "") if "data" in out else out.get("text", "") for out in shown]
    rich = next(out for out in shown if "data" in out and "text/html" in out.data)
    assert "is the culprit" in rich.data["text/html"]
    assert any("('ip2',)" in text for text in texts)
    assert any("(200, 700)" in text for text in texts)
