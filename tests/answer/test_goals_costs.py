"""The costs of layers: their times, from a file too, and their shares of INT8's gain in speed."""

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.goal_cases import QUICK, kept_high, planted
from trt_bisect.builder.base import Latency, LayerTime
from trt_bisect.builder.inspector import named_in
from trt_bisect.evaluator.speed import layer_times
from trt_bisect.model.cost import shares
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision
from trt_bisect.report.answer import PlanFigures


def test_times_from_a_file_decide_what_is_cheap(tmp_path, command):
    """conv2 and conv3 are bad; the file has conv3 as no faster in INT8."""
    path, data, _ = planted("chain-1", tmp_path)
    np.savez(tmp_path / "data.npz", **data)
    names = [layer.name for layer in load_network(path).layers if layer.quantizable]
    rows = [f"{name},1.0,{'1.0,1.0' if name == 'conv3' else '2.0,3.0'}" for name in names]
    (tmp_path / "times.csv").write_text("\n".join(["layer,int8,fp16,fp32", *rows]) + "\n")
    arguments = ["run", path, "--calibration", tmp_path / "data.npz", "--engine", "onnxruntime", "--metric", "sqnr"]
    arguments += ["--threshold", "20", "--effort", "quick", "--explain", "none"]
    arguments += ["--calibrator", "minmax", "-o", tmp_path / "run", "--cost", tmp_path / "times.csv"]
    code, out, _ = command(*arguments)
    assert code == 1
    assert "conv3" in out
    report = trt_bisect.Report.load(tmp_path / "run")
    assert (report.recipe.high, report.recipe.meets) == (("conv3",), True)
    assert report.goal.costs == str(tmp_path / "times.csv")
    assert report.answer.cost == pytest.approx(1e-6)
    (tmp_path / "times.csv").write_text("layer,int8,fp32\nconv0,1.0,2.0\n")
    code, _, err = command(*arguments)
    assert code == 2
    assert "'conv1'" in err
    without_fp16 = [",".join(row.split(",")[k] for k in (0, 1, 3)) for row in rows]
    (tmp_path / "times.csv").write_text("\n".join(["layer,int8,fp32", *without_fp16]) + "\n")
    code, _, err = command(*arguments)
    assert code == 2
    assert "Add a column fp16" in err
    code, _, err = command(*arguments, "--low", "fp16")
    assert code == 2
    assert "as the time of layer 'conv0' in fp16" in " ".join(err.split()), "with FP16 low, its column is needed"
    code, _, err = command(*arguments[:-1], "none.csv")
    assert (code, "none.csv" in err, "Traceback" in err) == (2, True, False)


def test_times_of_layers_by_hand(tmp_path):
    """Two layers in one kernel share its 4 ms, of which the relu takes none; a change of format belongs to none."""
    network = load_network(networks.save(networks.chain(2), tmp_path))
    parts = (
        LayerTime("conv0 + relu1 || conv1", named_in("conv0 + relu1 || conv1"), 4.0),
        LayerTime("Reformatting CopyNode for Input Tensor 0 to pool + fc", (), 9.0),
        LayerTime("fc", ("fc",), 1.5),
    )
    found = layer_times(Latency.of([1.0], parts), network)
    expected = {"conv0": 2.0, "conv1": 2.0, "pool": 0.0, "fc": 1.5}
    assert {network.layers[k].name: ms for k, ms in found.items()} == expected


def test_shares_by_hand():
    times = {
        0: {Precision.INT8: 1.0, Precision.FP16: 2.0, Precision.FP32: 4.0},
        1: {Precision.INT8: 1.0, Precision.FP16: 1.0, Precision.FP32: 2.0},
        2: {Precision.INT8: 3.0, Precision.FP16: 3.0, Precision.FP32: 2.0},
    }
    found = shares(times)
    assert found[0] == {Precision.FP16: 1.0, Precision.FP32: 3.0}
    assert found[1] == {Precision.FP16: 1e-6, Precision.FP32: 1.0}
    assert found[2] == {Precision.FP16: 1e-6, Precision.FP32: 1e-6}


def test_a_plan_has_one_cost_however_it_was_asked_for(tmp_path):
    """Of 1, 2 and 4 units of time a layer in FP32 gives up 3 of the 1 that INT8 gains over FP16, one in FP16 1."""
    path, data, high = planted("chain-1", tmp_path)
    whole, fp16, usual, over_fp16 = (
        trt_bisect.run(path, data, **{**QUICK, "precision": precision}, base=base)
        for precision, base in (("fp32", None), ("fp16", None), (None, None), (None, "fp16"))
    )
    assert kept_high(fp16) == kept_high(usual) == dict.fromkeys(high, "fp16")
    assert [each.answer.cost for each in (fp16, usual)] == pytest.approx([whole.answer.cost / 3] * 2)
    assert whole.answer.cost > 0.15, "else the recipe would stay in FP32"
    figures = PlanFigures(whole.answer.cost, whole.recipe.high, whole.similarity.recipe, meets=True)
    assert usual.answer.in_fp32 == figures
    assert usual.culprits == whole.culprits
    assert over_fp16.answer.cost == pytest.approx(whole.answer.cost / 3)
