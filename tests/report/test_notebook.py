"""The sample notebook runs from its first cell to its last, and its stored outputs are those of this version."""

import re
from pathlib import Path

import ipykernel.kernelapp
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from tests.support.waiting import LIMIT
from trt_bisect.support.progress import NotebookProgress, Silent, default_progress

FOLDER = Path(__file__).parents[2] / "samples"
_VERDICT = re.compile(r"^(?:FAILS|PASSES).*", re.MULTILINE | re.DOTALL)


def outputs(notebook):
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


def plain_texts(notebook):
    return [out.data.get("text/plain", "") if "data" in out else out.get("text", "") for out in outputs(notebook)]


def verdicts(notebook):
    """The labels of the lines of each printed verdict: figures may differ in their last digits."""
    printed = [found[0] for text in plain_texts(notebook) if (found := _VERDICT.search(text))]
    return re.findall(r"^[A-Z][A-Z, ]+(?=: )", "\n".join(printed), re.MULTILINE)


def test_the_notebook_ships_with_outputs_of_three_networks():
    notebook = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert verdicts(notebook).count("FAILS") >= 3
    assert (FOLDER / "lenet.ipynb").stat().st_size < 400_000
    assert not re.search(r"/(home|work|tmp|root)/", (FOLDER / "lenet.ipynb").read_text(encoding="utf-8"))


def test_without_a_kernel_a_call_shows_nothing_even_if_ipykernel_is_imported():
    assert not ipykernel.kernelapp.IPKernelApp.initialized()
    assert isinstance(default_progress(), Silent)


BARS = """
from trt_bisect.support.progress import NotebookProgress
shown = NotebookProgress()
for stage in ("one", "two <b>", "three"):
    shown.stage(stage, 2)
    shown.step("first")
    shown.step("second")
print("between")
shown.left(90.0)
shown.stage("four", None)
{end}
"""


def test_the_bar_escapes_names_and_tells_step_and_count(monkeypatch):
    displays = []

    class Handle:
        def update(self, shown):
            displays.append(shown)

    monkeypatch.setattr("IPython.display.display", lambda shown, display_id: displays.append(shown) or Handle())
    shown = NotebookProgress()
    shown.stage("two <b>", 4)
    shown.step("first", 2)
    shown._shown_at = 0.0
    shown.step("second")
    assert repr(displays[-1]) == "two <b> 2/4, second"
    assert '<progress value="2" max="4"></progress> two &lt;b&gt; 2/4, second' in displays[-1]._repr_html_()
    shown.close()
    assert displays[-1]._repr_html_() == ""


AS_IN_TESTS = """
from functools import partial
import trt_bisect
from trt_bisect.builder import parser
parser.PARSERS = ()  # as in tests/conftest.py
trt_bisect.run = partial(trt_bisect.run, effort="quick", curve="culprits")
"""


@pytest.fixture
def samples(lenet, tmp_path):
    """The samples, with a part of the data of each network, for which the verdicts are the same."""
    (tmp_path / "lenet").symlink_to(lenet)
    for name, network, step in (("detector", "detector.onnx", 20), ("transformer", "encoder.onnx", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / network).symlink_to(FOLDER / name / network)
        with np.load(FOLDER / name / "calibration.npz") as data:
            np.savez(tmp_path / name / "calibration.npz", **{key: data[key][::step] for key in data.files})
    return tmp_path


def assert_all_stages_share_one_bar_which_is_gone_at_the_end(cells):
    shown = [out.data for cell in cells for out in cell.outputs if out.output_type == "display_data"]
    assert [bar["text/plain"] for bar in shown] == ["", "four 0, about 90 s left in all"]
    assert ["<progress" in bar["text/html"] for bar in shown] == [False, True]


@pytest.mark.slow
def test_the_notebook_runs(samples):
    stored = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    notebook = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    bars = [nbformat.v4.new_code_cell(BARS.format(end=end)) for end in ("shown.close()", "")]
    notebook.cells = [nbformat.v4.new_code_cell(AS_IN_TESTS), *notebook.cells, *bars]
    NotebookClient(
        notebook, timeout=int(LIMIT), kernel_name="python3", resources={"metadata": {"path": str(samples)}}
    ).execute()
    assert_all_stages_share_one_bar_which_is_gone_at_the_end(bars)
    rich = next(out for out in outputs(notebook) if "data" in out and out.data.get("text/html"))
    assert "ip2" in rich.data["text/html"]
    texts = plain_texts(notebook)
    assert any("('ip2',)" in text for text in texts)

    assert any("(200, 700)" in text for text in texts)
    there, here = ([kind for kind in verdicts(one) if kind != "HELD OUT"] for one in (stored, notebook))
    assert here == there, "but the bound of held-out inputs: a part of the data has none held out"
