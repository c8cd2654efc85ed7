"""Modules of PyTorch as networks; the tests that need PyTorch run in the environment of ``test_modelopt_notebook``."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.preparation import pytorch

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
MINMAX = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "history": "none"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def net():\n    return 3", "returned a int"),
        ("def net():\n    raise ValueError('no weights')", "ValueError: no weights"),
        ("", "no attribute 'net'"),
        pytest.param(
            "import torch", "'torch' is not installed", marks=pytest.mark.skipif(HAS_TORCH, reason="PyTorch is here")
        ),
    ],
)
def test_a_function_that_returns_no_module_is_told(tmp_path, command, text, problem):
    (tmp_path / "nets.py").write_text(text)
    code, _, err = command("run", f"{tmp_path}/nets.py:net", "--calibration", "data.npz", "--output", tmp_path / "run")
    assert code == 2
    assert problem in err


def test_files_and_networks_are_no_modules(tmp_path):
    onnx.save(networks.chain(depth=2), tmp_path / "a:b")
    for network in (str(tmp_path / "a:b"), tmp_path / "net.onnx", networks.chain(depth=2), len):
        assert pytorch.exported(network, [], {}, None) is None


def small():
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x))) + x

    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return nn.Sequential(nn.Conv2d(3, 8, 3), Block(), head)


def batches(count=3):
    import torch

    torch.manual_seed(1)
    pictures = torch.utils.data.TensorDataset(torch.randn(2 * count - 1, 3, 12, 12), torch.zeros(2 * count - 1))
    return torch.utils.data.DataLoader(pictures, batch_size=2)


@needs_torch
def test_a_module_and_its_loader_are_all_that_a_run_needs(tmp_path):
    module = small().train()
    report = trt_bisect.run(module, batches(), output=tmp_path / "run", **MINMAX)
    assert report.model == "Sequential"
    assert report.inputs.searched == 5  # batches of 2, 2 and 1, each sample by itself
    assert {"0", "1.conv", "1/Relu", "1/Add", "2.2"} <= {row.name for row in report.layers}
    assert [row.module for row in report.layers if row.name == "1.conv"] == ["1.conv (Conv2d)"]
    assert any("differ from the module's by at most" in note.text for note in report.notes)
    assert module.training
    assert module[1].norm.training


@needs_torch
@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ("tensor", ["picture"]),
        ("tuple", ["picture"]),
        ("two", ["picture", "mask"]),
        ("nested", ["picture", "mask"]),
        ("dict", ["mask", "picture"]),
    ],
)
def test_labels_and_what_the_module_does_not_take_are_left_out(tmp_path, sample, names):
    import torch

    class Masked(torch.nn.Module):
        def forward(self, picture, mask=None):
            return picture.mean((2, 3)) * (1 if mask is None else mask)

    class Both(torch.nn.Module):
        def forward(self, picture, mask):
            return picture.mean((2, 3)) * mask

    picture, mask, label = torch.ones(4, 3, 5, 5), torch.ones(4, 1), torch.zeros(4)
    batch = {
        "tensor": picture,
        "tuple": (picture, label),
        "two": [picture, mask, label],
        "nested": ((picture, mask), label),
        "dict": {"mask": mask, "label": label, "picture": picture, "id": 3},
    }[sample]
    module = Masked() if sample in ("tensor", "tuple", "dict") else Both()
    made = pytorch.exported(module, [None, [batch]], {}, tmp_path)
    inputs = {spec.name: spec.shape for spec in trt_bisect.load_network(made.path).inputs}
    assert sorted(inputs) == sorted(names)
    assert inputs["picture"] == (1, 3, 5, 5)


@needs_torch
def test_torchscript_exports_what_dynamo_does_not_and_its_layers_have_the_same_names(tmp_path, monkeypatch):
    import torch

    export = torch.onnx.export

    def fails(*args, dynamo, **options):
        if dynamo:
            raise RuntimeError("data-dependent")
        return export(*args, dynamo=dynamo, **options)

    by_dynamo = trt_bisect.load_network(pytorch.exported(small(), [batches()], {}, tmp_path).path)
    monkeypatch.setattr(torch.onnx, "export", fails)
    made = pytorch.exported(small(), [batches()], {}, tmp_path)
    assert "TorchScript" in made.note
    modules = {layer.name: layer.module for layer in trt_bisect.load_network(made.path).layers}
    named = {"0": "0 (Conv2d)", "1.conv": "1.conv (Conv2d)", "1/Add": "1 (Block)", "2.2": "2.2 (Linear)"}
    assert named.items() <= modules.items()
    assert named.items() <= {layer.name: layer.module for layer in by_dynamo.layers}.items()


@needs_torch
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([None], "no sample"),
        ([iter([1])], "only once"),
        ([[np.zeros((1, 4, 12, 12), np.float32)]], "does not take the first sample"),
        ([[{"x": np.zeros(1)}]], "forward takes input"),
    ],
)
def test_what_is_missing_is_told(tmp_path, data, problem):
    with pytest.raises(BadInput, match=problem):
        pytorch.exported(small(), data, {}, tmp_path)


@needs_torch
def test_check_counts_the_calls_of_modules():
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower, self.act = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()), nn.ReLU()
            self.blocks, self.aux = nn.ModuleList([nn.Conv2d(3, 4, 1)]), nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            levels = [self.tower(level) for level in (x, 2 * x, 3 * x)]
            tokens = self.blocks[0](self.act(self.act(sum(levels)) + 1)).flatten(2).transpose(1, 2)
            return self.attention(tokens, tokens, tokens)[0]

    found = trt_bisect.check(Net(), shapes={"x": (1, 3, 4, 4)}).findings
    said = {each.what for each in found if each.kind.startswith("module")}
    calls = {"tower": 3, "act": 2, "aux": 0}
    assert said == {f"module '{name}' is called {count} times" for name, count in calls.items()}


@needs_torch
@pytest.mark.parametrize("exporter", ["dynamo", "TorchScript"])
def test_every_module_is_compared_beside_the_file_that_is_its_export(tmp_path, monkeypatch, exporter):
    """One weight of the file is half of the module's: what is before it is equal, what is behind it is not."""
    import torch

    module = small().eval()
    statistics = module[1].norm.running_mean, module[1].norm.running_var
    for values in statistics:
        values.copy_(torch.rand(8) + 0.5)
    monkeypatch.setattr(pytorch, "_EXPORTERS", {exporter: exporter == "dynamo"})
    path = pytorch.exported(module, [batches()], {}, tmp_path).path
    pictures = networks.normal(0, 4, 3, 12, 12)
    samples = [(torch.as_tensor(picture[None]),) for picture in pictures]
    rows = trt_bisect.compare(module, other=path, inputs=samples).tensors
    assert [row.origin.tensor for row in rows] == ["0", "1.norm", "1", "2.0", "2.1", "2.2"]
    assert min(row.figures.cosine for row in rows) == pytest.approx(1.0, abs=1e-6)
    changed = onnx.load(path)
    (weight,) = [t for t in changed.graph.initializer if list(t.dims) == [5, 8] or list(t.dims) == [8, 5]]
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) / 2, weight.name))
    onnx.save(changed, path)
    by_module = {row.origin.tensor: row for row in trt_bisect.compare(module, other=path, inputs=samples).tensors}
    by_file = trt_bisect.compare(path, other=module, inputs={"input": pictures}).tensors
    with torch.no_grad():
        before = module[2][:2](module[1](module[0](torch.as_tensor(pictures))))
        halved = (before @ module[2][2].weight.T / 2).numpy()
    assert by_module["2.2"].figures.mse == pytest.approx(np.mean(halved**2), rel=1e-4)
    assert by_module["2.1"].figures.cosine == pytest.approx(1.0, abs=1e-6)
    assert [row.figures.mse for row in by_file] == pytest.approx([row.figures.mse for row in by_module.values()])
    assert by_file[-1].origin.layer == "2.2"
    found = trt_bisect.worst(path, other=module, dataset={"input": pictures}, metric="mse")
    wanted = (halved.reshape(4, -1) ** 2).mean(axis=1)
    assert found.values == pytest.approx(wanted, rel=1e-4)


@needs_torch
def test_a_network_is_judged_by_a_module_that_a_function_returns(tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text("from tests.preparation.test_pytorch import small\n")
    path = pytorch.exported(small(), [batches()], {}, tmp_path).path
    pictures = {"input": networks.normal(0, 4, 3, 12, 12)}
    asked = {**MINMAX, "reference": f"{tmp_path}/nets.py:small"}
    report, own = trt_bisect.run(path, pictures, **asked), trt_bisect.run(path, pictures, **MINMAX)
    assert report.similarity.int8 == pytest.approx(own.similarity.int8, abs=1e-6)
    again = small()
    again[2][2].weight.data[0] += 1
    first, second = (trt_bisect.run(path, pictures, **{**MINMAX, "reference": each}) for each in (small(), again))
    assert first.made_of["judged_by"] == report.made_of["judged_by"] != second.made_of["judged_by"]
    assert second.similarity.int8 < 0.999 < first.similarity.int8


@needs_torch
def test_an_exported_program_is_compared_node_by_node_with_its_module(tmp_path):
    import torch

    module, picture = small().eval(), torch.randn(1, 3, 12, 12)
    program = torch.export.export(module, (picture,))
    rows = trt_bisect.compare(module, other=program, inputs=[picture]).tensors
    assert min(row.figures.cosine for row in rows) == pytest.approx(1.0, abs=1e-6)
    assert [row.origin.tensor for row in rows][:4] == ["0", "1.conv", "1.norm", "1"]
    assert not trt_bisect.check(program, shapes={"input": (1, 3, 12, 12)}).findings
    made = {"of program": program, "of module": module}
    reports = [trt_bisect.run(net, [picture], output=tmp_path / name, **MINMAX) for name, net in made.items()]
    assert reports[0].similarity.int8 == pytest.approx(reports[1].similarity.int8, abs=1e-6)
    with pytest.raises(EngineUnavailable, match="cuda:7"):
        trt_bisect.compare(module, other=program, inputs=[picture], device="cuda:7")


@needs_torch
def test_shapes_stand_for_data_and_a_session_of_diagnosis_takes_a_module(tmp_path):
    assert trt_bisect.check(small(), shapes={"input": (1, 3, 12, 12)}).nodes
    qa = trt_bisect.Analysis(small(), batches(), output=tmp_path, engine="onnxruntime", calibrator="minmax")
    assert "1.conv" in [op.op_name for op in qa.sensitivity(inputs=batches()).ops]


@needs_torch
def test_an_export_that_computes_something_else_is_refused(tmp_path, monkeypatch):
    import torch

    other = SimpleNamespace(export=torch.onnx.export)

    def exports_zeros(module, *args, **options):
        for parameter in module.parameters():
            parameter.data.zero_()
        other.export(module, *args, **options)

    monkeypatch.setattr(torch.onnx, "export", exports_zeros)
    with pytest.raises(BadInput, match="its outputs differ"):
        pytorch.exported(small(), [batches()], {}, tmp_path)
