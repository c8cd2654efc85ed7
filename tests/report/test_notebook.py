"""The sample notebook runs from its first cell to its last, and its stored outputs are those of this version."""

import re
from pathlib import Path

import ipykernel.kernelapp
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from tests.support.waiting import LIMIT
from trt_bisect.support.progress import Silent, default_progress

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


@pytest.fixture
def samples(lenet, tmp_path):
    """The samples, with a part of the data of each network, for which the verdicts are the same."""
    (tmp_path / "lenet").symlink_to(lenet)
    for name, network, step in (("detector", "detector.onnx", 10), ("transformer", "encoder.onnx", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / network).symlink_to(FOLDER / name / network)
        with np.load(FOLDER / name / "calibration.npz") as data:
            np.savez(tmp_path / name / "calibration.npz", **{key: data[key][::step] for key in data.files})
    return tmp_path


@pytest.mark.slow
def test_the_notebook_runs(samples):
    stored = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    notebook = nbformat.read(FOLDER / "lenet.ipynb", as_version=4)
    NotebookClient(
        notebook, timeout=int(LIMIT), kernel_name="python3", resources={"metadata": {"path": str(samples)}}
    ).execute()
    rich = next(out for out in outputs(notebook) if "data" in out and "text/html" in out.data)
    assert "ip2" in rich.data["text/html"]
    texts = plain_texts(notebook)
    assert any("('ip2',)" in text for text in texts)

    assert any("(200, 700)" in text for text in texts)
    there, here = ([kind for kind in verdicts(one) if kind != "UNSEEN"] for one in (stored, notebook))
    assert here == there, "but the bound of unseen inputs: a part of the data has none held out"
