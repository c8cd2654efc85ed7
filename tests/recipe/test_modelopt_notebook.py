"""``samples/modelopt.ipynb``, in an environment of its own.

Make it with ``pip install -e . nvidia-modelopt[onnx]==0.47.0 torch torchvision timm``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "samples" / "modelopt.ipynb"
NEEDED = ("torch", "torchvision", "modelopt")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED), reason="PyTorch or ModelOpt is not installed"
)
def test_modelopt_leaves_the_modules_of_the_recipe_alone(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            exec(cell.source, names)
    rows = [row for row in names["report"].layers if row.quantizable and row.op_type == "Conv"]
    modules = dict(names["quantized"].named_modules())
    on = {row.name: modules[row.name].weight_quantizer.is_enabled for row in rows}
    assert on == {row.name: row.recipe == "int8" for row in rows}
    assert len(on) == 26  # SqueezeNet's convolutions
