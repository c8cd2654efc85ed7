"""The costs of ``recover``: times of layers, shares, and layers that move together."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.recover_cases import WISHES, planted
from trt_bisect.builder.inspector import named_in
from trt_bisect.builder.timing import LayerTime, latency_of
from trt_bisect.evaluator.speed import layer_times
from trt_bisect.model.cost import shares, units
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision

RUN = {name: wish for name, wish in WISHES.items() if name != "remedies"}


def test_times_from_a_file_decide_what_is_cheap(tmp_path, command):
    """conv2 and conv3 are bad; the file has conv3 as no faster in INT8."""
    path, data, _ = planted("chain-1", tmp_path)
    np.savez(tmp_path / "data.npz", **data)
    names = [layer.name for layer in load_network(path).layers if layer.quantizable]
    rows = [f"{name},1.0,{1.0 if name == 'conv3' else 3.0}" for name in names]
    (tmp_path / "times.csv").write_text("\n".join(["layer,int8,fp32", *rows]) + "\n")
    arguments = ["recover", path, "--calibration", tmp_path / "data.npz", "--engine", "onnxruntime", "--metric", "sqnr"]
    arguments += ["--calibrator", "minmax", "--no-remedies", "-o", tmp_path / "run", "--cost", tmp_path / "times.csv"]
    code, out, _ = command(*arguments)
    assert code == 0
    assert "conv3" in out
    assert json.loads((tmp_path / "run/recovery.json").read_text())["cost"] == pytest.approx(1e-6)
    (tmp_path / "times.csv").write_text("layer,int8,fp32\nconv0,1.0,2.0\n")
    code, _, err = command(*arguments)
    assert code == 2
    assert "'conv1'" in err


def test_times_of_layers_by_hand(tmp_path):
    """Two layers in one kernel share its 4 ms, of which the relu takes none; a change of format belongs to none."""
    network = load_network(networks.save(networks.chain(2), tmp_path))
    parts = (
        LayerTime("conv0 + relu1 || conv1", named_in("conv0 + relu1 || conv1"), 4.0),
        LayerTime("Reformatting CopyNode for Input Tensor 0 to pool + fc", (), 9.0),
        LayerTime("fc", ("fc",), 1.5),
    )
    found = layer_times(latency_of([1.0], parts), network)
    assert {network.layers[k].name: ms for k, ms in found.items()} == {
        "conv0": 2.0,
        "conv1": 2.0,
        "pool": 0.0,
        "fc": 1.5,
    }


def test_shares_by_hand():
    times = {
        0: {Precision.INT8: 1.0, Precision.FP16: 2.0, Precision.FP32: 4.0},
        1: {Precision.INT8: 1.0, Precision.FP16: 1.0, Precision.FP32: 2.0},
        2: {Precision.INT8: 3.0, Precision.FP16: 3.0, Precision.FP32: 2.0},
    }
    found = shares(times)
    assert found[0] == {Precision.FP16: 0.25, Precision.FP32: 0.75}
    assert found[1] == {Precision.FP16: 1e-6, Precision.FP32: 0.25}
    assert found[2] == {Precision.FP16: 1e-6, Precision.FP32: 1e-6}


def test_layers_that_tensorrt_fuses_move_together(tmp_path):
    network = load_network(networks.save(networks.residual(2), tmp_path))
    groups = [{network.layers[k].name for k in unit} for unit in units(network, "fused")]
    assert {"block0.conv2", "block0.add"} in groups
    assert {"block0.conv1"} in groups
    network = load_network(networks.save(networks.transformer(1), tmp_path))
    groups = [{network.layers[k].name for k in unit} for unit in units(network, "fused")]
    assert {"block0.q", "block0.k", "block0.v"} in groups
    assert sorted(k for unit in units(network, "fused") for k in unit) == sorted(network.quantizable)


def test_what_moves_together_is_left_high_together(tmp_path):
    path, data, _ = planted("residual-2", tmp_path)
    found = trt_bisect.recover(path, data, together="fused", **WISHES)
    assert {row.layer for row in found.high} == {"block0.conv2", "block0.add", "block3.conv2", "block3.add"}


def test_a_plan_has_one_price_however_it_was_asked_for(tmp_path):
    """Of 1, 2 and 4 units of time a layer in FP16 gives up 1 of the 3 that INT8 gains over FP32, and all over FP16."""
    path, data, high = planted("chain-1", tmp_path)
    whole = trt_bisect.run(path, data, explain="none", history="none", **RUN)
    found = [
        trt_bisect.recover(path, data, precision="fp16", **WISHES),
        trt_bisect.recover(path, data, precision="mixed", **WISHES),
        trt_bisect.run(path, data, precision="fp16", explain="none", history="none", **RUN),
    ]
    assert {row.layer for each in found[:2] for row in each.high} == set(found[2].recipe.high) == high
    assert [row.precision for each in found[:2] for row in each.high] == ["fp16", "fp16"]
    assert [each.cost for each in found[:2]] + [found[2].answer.cost] == pytest.approx([whole.answer.cost / 3] * 3)
    over_fp16 = trt_bisect.recover(path, data, base="fp16", **WISHES)
    assert over_fp16.cost == pytest.approx(whole.answer.cost)
