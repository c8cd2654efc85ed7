"""Runs ``samples/lenet.ipynb`` and stores its outputs in it; progress bars and paths of this machine are left out.

python tools/make_notebook.py
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parent.parent / "samples" / "lenet.ipynb"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_LARGEST = 100_000
"""An output of more letters, such as a figure with the whole of Plotly, is stored in its other forms alone."""


def main() -> None:
    """Runs the notebook in its folder."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    ).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell{number}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_small(out) for out in cell.outputs if _is_result(out)]
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, NOTEBOOK)


def _is_result(output: nbformat.NotebookNode) -> bool:
    return output.get("name") != "stderr" and _WIDGET not in output.get("data", {})


def _small(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    if "data" in output:
        output.data = nbformat.from_dict({k: v for k, v in output.data.items() if len(str(v)) <= _LARGEST})
    return output


if __name__ == "__main__":
    main()
