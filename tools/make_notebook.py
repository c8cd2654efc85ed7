"""Runs ``samples/lenet.ipynb`` and stores its outputs in it; progress bars and paths of this machine are left out.

Each plot is stored as a picture too, drawn in Chromium, for viewers that do not draw Plotly's figures.

python tools/make_notebook.py
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import Browser
from plotly.offline import get_plotlyjs

from tests.support.browser import chromium

NOTEBOOK = Path(__file__).resolve().parent.parent / "samples" / "lenet.ipynb"
_PLOTLY = "application/vnd.plotly.v1+json"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_LARGEST = 100_000
"""An output of more letters, such as a figure with the whole of Plotly, is stored in its other forms alone."""


def main() -> None:
    """Runs the notebook in its folder."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook,
        timeout=900,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    ).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell{number}"
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_small(out) for out in cell.outputs if _is_result(out)]
    _add_pictures(notebook)
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, NOTEBOOK)


def _add_pictures(notebook: nbformat.NotebookNode) -> None:
    with chromium() as browser:
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                if _PLOTLY in output.get("data", {}):
                    output.data["image/png"] = base64.b64encode(_picture(browser, output.data[_PLOTLY])).decode()


def _picture(browser: Browser, figure: nbformat.NotebookNode) -> bytes:
    """Returns a PNG of a figure."""
    page = browser.new_page(viewport={"width": 900, "height": 500})
    page.set_content('<body style="margin: 0"><div id="plot" style="width: 900px"></div></body>')
    page.add_script_tag(content=get_plotlyjs())
    drawn = json.dumps({"data": figure["data"], "layout": figure["layout"], "config": {"staticPlot": True}})
    page.evaluate(f"() => Plotly.newPlot('plot', {drawn}).then(() => null)")
    png = page.locator("#plot").screenshot()
    page.close()
    return png


def _is_result(output: nbformat.NotebookNode) -> bool:
    return output.get("name") != "stderr" and _WIDGET not in output.get("data", {})


def _small(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    if "data" in output:
        output.data = nbformat.from_dict({k: v for k, v in output.data.items() if len(str(v)) <= _LARGEST})
    return output


if __name__ == "__main__":
    main()
