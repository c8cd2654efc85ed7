"""Each layer alone: figures against sessions of their own and weights rounded by hand, multiply-adds against paper."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.model.test_unquantized import swish, with_pairs
from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.networks import Sketch
from tests.support.quantized import plain_run
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.commands import losses
from trt_bisect.model import session
from trt_bisect.model.cost import macs
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import int8_set


@pytest.fixture(scope="module")
def digit(lenet):
    return {"data": np.load(lenet / "calibration.npz")["data"][:1]}


@pytest.fixture(scope="module")
def planted(lenet, digit):
    return trt_bisect.sensitivity(lenet / "lenet_planted.onnx", lenet / "calibration.npz", digit, engine="onnxruntime")


def test_the_planted_culprit_is_its_activation_not_its_weight(planted):
    rows = {(op.op_name, op.sensitive_type): op for op in planted.ops}
    assert [op.op_name for op in planted.ops[:2]] == ["ip2", "ip2"]
    assert rows["ip2", "activation"].loss > 0.3
    assert rows["ip2", "weight"].loss < 1e-4
    assert rows["ip2", "both"].alone == pytest.approx(planted.full, abs=1e-6)
    assert max(op.loss for op in planted.ops if op.op_name != "ip2") < 1e-3


def test_poolings_have_no_weights_and_are_rounded_in_one_way(planted):
    assert {op.sensitive_type for op in planted.ops if op.op_type == "MaxPool"} == {"both"}
    assert {op.sensitive_type for op in planted.ops if op.op_type == "Conv"} == {"both", "weight", "activation"}


def test_multiply_adds_are_those_on_paper(planted):
    """20 filters of 5x5 on 24x24; 50 of 20x5x5 on 8x8; 800 to 500; 500 to 10."""
    known = {"conv1": 20 * 24 * 24 * 25, "conv2": 50 * 8 * 8 * 20 * 25, "ip1": 800 * 500, "ip2": 500 * 10}
    found = {op.op_name: op.macs for op in planted.ops}
    assert {name: found[name] for name in known} == known
    assert found["pool1"] == 0
    assert sum(op.share for op in planted.ops if op.sensitive_type == "both") == pytest.approx(1.0)


def test_multiply_adds_of_a_transposed_convolution_and_a_transposed_gemm(tmp_path):
    sketch = Sketch(1)
    up = sketch.constant("up.weight", sketch.random.normal(0, 1, (3, 5, 2, 2)))
    x = sketch.node("ConvTranspose", ["x", up], "up", strides=[2, 2])
    x = sketch.node("Reshape", [x, sketch.constant("to", [20, 16], np.int64)], "reshape")
    sketch.nodes.append(
        onnx.helper.make_node("Gemm", [x, sketch.constant("w", np.ones((20, 7)))], ["y"], name="fc", transA=1)
    )
    network = load_network(networks.save(sketch.model([1, 3, 4, 4], [16, 7]), tmp_path))
    found = macs(network, facts_for(network, {"x": np.ones((1, 3, 4, 4), np.float32)}))
    names = {layer.name: found[layer.index] for layer in network.layers}
    assert names["up"] == (3 * 4 * 4) * (5 * 2 * 2)
    assert names["fc"] == (16 * 7) * 20


def test_weights_alone_are_the_network_with_rounded_weights(lenet, digit):
    """absmax / 127 a channel, half to even, by hand, in the file itself."""
    found = trt_bisect.sensitivity(lenet / "lenet.onnx", lenet / "calibration.npz", digit, engine="onnxruntime")
    network = load_network(lenet / "lenet.onnx")
    model = onnx.load(str(lenet / "lenet.onnx"))
    (reference,) = plain_run(lenet / "lenet.onnx", digit)
    for name in ("conv1", "conv2", "ip1", "ip2"):
        (rounding,) = [each for each in network.layer_named(name).roundings if each.is_weight]

        def rounded(values, axis=rounding.axis):
            others = tuple(other for other in range(values.ndim) if other != axis)
            scale = np.abs(values).max(axis=others, keepdims=True) / np.float32(127)
            return np.rint(values / scale) * scale

        altered = onnx.ModelProto()
        altered.CopyFrom(model)
        networks.scale_constant(altered, rounding.tensor, rounded)
        (output,) = plain_run(altered, digit)
        (op,) = [op for op in found.ops if (op.op_name, op.sensitive_type) == (name, "weight")]
        assert op.metrics["cosine"] == pytest.approx(cosine(reference, output), abs=1e-7)
        assert op.metrics["mse"] == pytest.approx(float(np.mean((reference - output) ** 2)), rel=1e-2, abs=1e-16)


def test_sorting_and_the_columns_of_sensitive_ops(planted):
    table = planted.table()
    assert list(table.columns[:4]) == ["index", "op_name", "sensitive_type", "op_type"]
    assert {"cosine", "sqnr", "mse", "loss", "alone", "macs", "worth"} <= set(table.columns)
    cosines = [op.metrics["cosine"] for op in planted.sorted_by("cosine", descending=False)]
    assert cosines == sorted(cosines)
    for figure in ("cosine", "sqnr"):
        assert planted.sorted_by(figure) == planted.sorted_by(figure, descending=False), "the most sensitive first"
    assert planted.sorted_by("mse") == planted.sorted_by("mse", descending=True)
    gains = [op.alone for op in planted.sorted_by("alone", way="both")]
    assert gains == sorted(gains, reverse=True)
    with pytest.raises(trt_bisect.BadInput, match="no column 'beauty'"):
        planted.sorted_by("beauty")


def test_with_unquantized_layers_rounded_whole_engines_are_measured(command, tmp_path):
    """The layers' pieces do not add up there; the command has no --strategy to say so with."""
    model = swish()
    path, data = networks.given(model, tmp_path, 3)
    np.savez(tmp_path / "data.npz", **data)
    network = load_network(path)
    scales = calibrate(network, [{"x": data["x"][k : k + 1]} for k in range(3)], "minmax").scales
    builder = OnnxRuntimeBuilder(network, scales, BuildOptions(unquantized_round=True))
    plans = int8_set(len(network.layers), ()), int8_set(len(network.layers), network.quantizable)
    fp32, int8 = (builder.build(plan).infer({"x": data["x"][:1]})["y"] for plan in plans)
    np.savez(tmp_path / "one.npz", x=data["x"][:1])
    code, _, _ = command(
        "sensitivity", path, "--calibration", tmp_path / "data.npz", "--calibrator", "minmax",
        "--input", tmp_path / "one.npz", "--unquantized", "int8", "--output", tmp_path / "out",
    )  # fmt: skip
    assert code == 0
    found = trt_bisect.Sensitivity.load(tmp_path / "out")
    assert found.full == pytest.approx(1 - cosine(fp32, int8), rel=1e-4)
    rows = {op.op_name: op for op in found.ops if op.op_name in ("swish", "relu", "turn", "gate", "last")}
    assert set(rows) == {"swish", "relu", "turn", "gate"}, "the output is never rounded"
    for name, row in rows.items():
        at = next(layer.outputs[0] for layer in network.layers if layer.name == name)
        rounded = with_pairs(model, {at: scales[at]}, [])
        (by_hand,) = plain_run(rounded, {"x": data["x"][:1]})
        assert row.loss == pytest.approx(1 - cosine(fp32, by_hand), rel=1e-3, abs=1e-9)


def test_a_stopped_sensitivity_of_unquantized_layers_goes_on(tmp_path, monkeypatch):
    """The journal is cut behind its first trial of an unquantized layer: the others alone are measured again."""
    model = swish()
    given = {"engine": "onnxruntime", "calibrator": "minmax", "unquantized": "int8", "output": tmp_path / "out"}
    path, data = networks.given(model, tmp_path, 3)
    whole = trt_bisect.sensitivity(path, data, **given)
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    of_unquantized = [k for k, line in enumerate(lines) if b'"unquantized ' in line]
    assert len(of_unquantized) == 2 * 4, "each of four unquantized layers alone, and left out of full INT8"
    journal.write_bytes(b"".join(lines[: of_unquantized[0] + 1]))
    made = []
    monkeypatch.setattr(losses, "make_session", lambda *args: made.append(args) or session.make_session(*args))
    assert trt_bisect.sensitivity(path, data, **given).ops == whole.ops
    assert len(made) == 2 * 4 - 1
    assert trt_bisect.sensitivity(path, data, **given).ops == whole.ops
    assert len(made) == 2 * 4 - 1


def test_a_metric_of_the_users_own(lenet, digit):
    def half(reference, output):
        return -0.5 * float(np.abs(reference - output).sum())

    data = lenet / "calibration.npz", digit
    found = trt_bisect.sensitivity(lenet / "lenet_planted.onnx", *data, metric=half, engine="onnxruntime")
    assert found.ops[0].op_name == "ip2"
    assert found.ops[0].loss == pytest.approx(-found.ops[0].metrics["half"])


def test_the_command(lenet, tmp_path, command):
    asked = [lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "run"]
    code, out, _ = command("sensitivity", *asked, "--top", 3)
    assert code == 0
    assert "3 of 14 rows" in out
    record = json.loads((tmp_path / "run/sensitivity.json").read_text())
    assert record["ops"][0]["op_name"] == "ip2"
    assert out.splitlines()[1].split()[1:4] == ["ip2", record["ops"][0]["sensitive_type"], "Gemm"]
    assert len((tmp_path / "run/sensitivity.csv").read_text().splitlines()) == 15
    lines = (tmp_path / "run/journal.jsonl").read_bytes().count(b"\n")
    _, out, err = command("sensitivity", *asked, "--way", "weight", "--sort", "sqnr", "--order", "ascending")
    assert re.search(r"Continuing with \d+ trials", err)
    assert (tmp_path / "run/journal.jsonl").read_bytes().count(b"\n") == lines
    assert all(line.split()[2] == "weight" for line in out.splitlines()[1:5])
