"""The sample notebook runs from its first cell to its last, and its stored outputs are those of this version."""

import ast
import re
from functools import partial
from pathlib import Path

import ipykernel.kernelapp
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import trt_bisect
from tests.support.waiting import LIMIT
from trt_bisect.support.progress import NotebookProgress, Silent, default_progress

FOLDER = Path(__file__).parents[2] / "samples"
_VERDICT = re.compile(r"^(?:FAILS|PASSES).*", re.MULTILINE | re.DOTALL)


def outputs(notebook):
    return [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]


def plain_texts(notebook):
    return [out.data.get("text/plain", "") if "data" in out else out.get("text", "") for out in outputs(notebook)]


def verdicts(texts):
    """The labels of the lines of each printed verdict: figures may differ in their last digits."""
    printed = [found[0] for text in texts if (found := _VERDICT.search(text))]
    return re.findall(r"^[A-Z][A-Z, ]+(?=: )", "\n".join(printed), re.MULTILINE)


def test_the_notebook_ships_with_outputs_of_three_networks():
    notebook = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert verdicts(plain_texts(notebook)).count("FAILS") >= 3
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


@pytest.mark.slow
def test_all_stages_share_one_bar_which_is_gone_at_the_end():
    cells = [nbformat.v4.new_code_cell(BARS.format(end=end)) for end in ("shown.close()", "")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=LIMIT, kernel_name="python3").execute()
    bars = [out.data for out in outputs(notebook) if out.output_type == "display_data"]
    assert [bar["text/plain"] for bar in bars] == ["", "four 0, about 90 s left in all"]
    assert ["<progress" in bar["text/html"] for bar in bars] == [False, True]


def test_the_bar_escapes_names_and_tells_step_and_count(monkeypatch):
    displays = []

    class Handle:
        def update(self, shown, raw):
            displays.append(shown)

    monkeypatch.setattr("IPython.display.display", lambda shown, **_: displays.append(shown) or Handle())
    shown = NotebookProgress()
    shown.stage("two <b>", 4)
    shown.step("first", 2)
    shown._shown_at = 0.0
    shown.step("second")
    html = '<progress value="2" max="4"></progress> two &lt;b&gt; 2/4, second'
    assert displays[-1] == {"text/plain": "two <b> 2/4, second", "text/html": html}
    shown.close()
    assert displays[-1]["text/html"] == ""


@pytest.fixture
def samples(lenet, tmp_path):
    """The samples, with a part of the data of each network, for which the verdicts are the same."""
    (tmp_path / "lenet").symlink_to(lenet)
    for name, network, step in (("detector", "detector.onnx", 40), ("transformer", "encoder.onnx", 16)):
        (tmp_path / name).mkdir()
        (tmp_path / name / network).symlink_to(FOLDER / name / network)
        with np.load(FOLDER / name / "calibration.npz") as data:
            np.savez(tmp_path / name / "calibration.npz", **{key: data[key][::step] for key in data.files})
    return tmp_path


def ran(notebook) -> list:
    """Runs the cells in this process; returns the value of each that ends in an expression."""
    scope, values = {}, []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), scope)
        if last is not None:
            values.append(eval(compile(last, "cell", "eval"), scope))
    return values


@pytest.mark.slow
def test_the_notebook_runs(samples, monkeypatch, capsys):
    notebook = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    monkeypatch.chdir(samples)
    monkeypatch.setattr(trt_bisect, "run", partial(trt_bisect.run, effort="quick", curve="culprits"))
    values = ran(notebook)
    printed = capsys.readouterr().out
    assert "ip2" in values[0]._repr_html_()
    assert all(value._repr_html_() for value in values if hasattr(value, "_repr_html_"))
    assert any("('ip2',)" in repr(value) for value in values)
    assert "(200, 700)" in repr(values[-1])
    there = [kind for kind in verdicts(plain_texts(notebook)) if kind != "HELD OUT"]
    here = [kind for kind in verdicts([repr(values[0]), printed]) if kind != "HELD OUT"]
    assert here == there, "but the bound of held-out inputs: a part of the data has none held out"
