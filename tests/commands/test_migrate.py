"""``migrate``: caches and precisions of weak typing become one strongly typed network.

The first cache is TensorRT's own: its calibrator wrote it on a GPU (docs/evidence). Scales are read from the written
file with the ``onnx`` package alone.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.conftest import SAMPLES
from tests.support import networks
from trt_bisect import BadInput
from trt_bisect.calibration.cache import parse_cache, scales_for
from trt_bisect.commands.migrate import Deployment, read_deployment
from trt_bisect.precision import Precision

LENET = SAMPLES / "lenet" / "lenet.onnx"
EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence" / "h200-tensorrt-8.6.0.json"
FP16, FP32, INT8 = Precision.FP16, Precision.FP32, Precision.INT8


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The cache that TensorRT 8.6's calibrator wrote for LeNet on an H200."""
    checks = {check["name"]: check for check in json.loads(EVIDENCE.read_text())["checks"]}
    path = tmp_path_factory.mktemp("cache") / "lenet.cache"
    path.write_text(checks["calibrator"]["figures"]["cache"])
    return path


def scales_in(network):
    """By tensor, the bits of the scale of the pair that rounds it, and the operators that read the pair."""
    graph = onnx.load(network).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers = {name: node for node in graph.node for name in node.input}
    found = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants:
            scale = constants[node.input[1]]
            assert scale.dtype == np.float32
            assert np.all(constants[node.input[2]] == 0)
            pair = readers[node.output[0]]
            found[node.input[0]] = (struct.pack(">f", scale).hex(), readers[pair.output[0]].name)
    return found


@pytest.mark.parametrize("base", ["fp32", "fp16"])
def test_the_scales_of_tensorrts_own_cache_are_in_the_network_bit_for_bit(cache, lenet, tmp_path, base):
    found = trt_bisect.migrate(LENET, cache=cache, base=base, inputs=lenet / "digits.npz", output=tmp_path)
    written = scales_in(tmp_path / "network.qdq.onnx")
    bits = dict(line.rsplit(": ", 1) for line in cache.read_text().splitlines()[1:])
    tensors = ("data", "conv1", "pool1", "conv2", "flatten", "relu1")
    assert {tensor: scale for tensor, (scale, _) in written.items()} == {tensor: bits[tensor] for tensor in tensors}
    assert {reader for _, reader in written.values()} == {"conv1", "pool1", "conv2", "pool2", "ip1", "ip2"}
    assert {row.name: row.precision for row in found.layers if row.op_type == "Softmax"} == {"prob": base}
    assert found.proof.difference <= 1e-6
    assert (found.proof.inputs, found.proof.verdict, found.exit_code) == (25, "passes", 0)
    assert found.header == "TRT-8600-EntropyCalibration2"
    assert trt_bisect.load(tmp_path) == found
    assert {choice.kind for choice in found.choices} == {"unquantized layers", "faster in floats"}


def test_the_verdict_is_that_of_run_on_the_same_plan(lenet, tmp_path):
    """LeNet with a culprit: with ``ip2`` in INT8 it fails as ``run`` says, pinned it passes."""
    planted, cache = lenet / "lenet_planted.onnx", tmp_path / "planted.cache"
    network = trt_bisect.load_network(planted)
    ranges = trt_bisect.calibrate(network, trt_bisect.open_dataset(str(lenet / "calibration.npz"), network.inputs))
    cache.write_text(trt_bisect.format_cache(ranges.scales, "TRT-8601-EntropyCalibration2"))
    failing = trt_bisect.migrate(planted, cache=cache, inputs=lenet / "digits.npz", output=tmp_path / "low")
    how = {"explain": "none", "history": "none", "engine": "onnxruntime", "output": tmp_path / "run"}
    run = trt_bisect.run(planted, cache, lenet / "digits.npz", keep_low=["*"], **how)
    assert failing.proof.verdict == run.verdict == "fails"
    assert failing.proof.similarity == pytest.approx(run.similarity.int8, abs=1e-9)
    assert failing.exit_code == 1
    assert failing.proof.is_same
    pins = {"ip2": "fp32"}
    pinned = trt_bisect.migrate(
        planted, cache=cache, layer_precisions=pins, inputs=lenet / "digits.npz", output=tmp_path / "high"
    )
    assert (pinned.proof.verdict, pinned.exit_code) == ("passes", 0)
    assert "No layer has to stay" not in pinned.proof.sentence
    assert next(row for row in pinned.layers if row.name == "ip2").precision == "fp32"
    assert "ip2" not in {reader for _, reader in scales_in(tmp_path / "high" / "network.qdq.onnx").values()}


LINE = (
    "trtexec --onnx=lenet.onnx --int8 --fp16 --calib=lenet.cache --precisionConstraints=obey "
    "--layerPrecisions=ip2:fp32,'conv1':fp16 --layerOutputTypes=ip2:fp32 --optShapes=data:1x1x28x28 --saveEngine=x"
)
LAYERS = {"ip2": FP32, "conv1": FP16}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("", LINE),
        ("", "ip2:fp32,conv1:fp16"),
        ("build.sh", "#!/bin/sh\n# the engine\n" + LINE.replace(" --layer", " \\\n  --layer", 1)),
        ("layers.json", json.dumps({"ip2": "fp32", "conv1": "FP16"})),
        ("layers.json", json.dumps({"layers": {"ip2": "fp32", "conv1": "half"}})),
        ("layers.json", json.dumps([{"name": "ip2", "precision": "float32"}, {"name": "conv1", "precision": "fp16"}])),
        ("layers.json", json.dumps({"layerPrecisions": "ip2:fp32,conv1:fp16"})),
        ("layers.toml", '[layers]\nip2 = "fp32"\nconv1 = "fp16"\n'),
    ],
)
def test_precisions_are_read_in_every_form_that_users_keep(tmp_path, name, content):
    if name:
        (tmp_path / name).write_text(content)
    found = read_deployment(tmp_path / name if name else content)
    assert found.layers == LAYERS
    if "trtexec" in content:
        assert (found.base, found.shapes, found.obeyed) == (FP16, {"data": (1, 1, 28, 28)}, True)
        assert set(found.gone) == {"--int8", "--fp16", "--calib"} | {
            f"--{option}" for option in ("precisionConstraints", "layerPrecisions", "layerOutputTypes")
        }


def test_nothing_is_known_of_an_engine_without_precisions():
    assert read_deployment("") == Deployment()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("trtexec --onnx=a.onnx --stronglyTyped", "strongly typed"),
        ("trtexec --onnx=a.onnx --fp16", "neither --int8 nor --best"),
        ("conv1", "LAYER:PRECISION"),
        ("layers.json", "does not exist"),
        ("conv1:int3", "int3"),
    ],
)
def test_what_is_no_engine_in_int8_is_refused(given, told):
    with pytest.raises(BadInput, match=told):
        read_deployment(given)


def test_a_layer_that_cannot_be_as_asked_is_listed(cache, tmp_path):
    asked = 'trtexec --int8 "--layerPrecisions=*:fp16,conv1:int8,prob:int8,(Unnamed Layer* 9) [ElementWise]:fp32"'
    found = trt_bisect.migrate(LENET, cache=cache, layer_precisions=asked, output=tmp_path)
    choices = {choice.kind: choice.names for choice in found.choices}
    assert choices["unknown layer"] == ("(Unnamed Layer* 9) [ElementWise]",)
    assert choices["cannot be INT8"] == ("prob",)
    assert "not obeyed" in choices
    assert {row.name: row.precision for row in found.layers if row.precision != "fp16"} == {"conv1": "int8"}


def test_no_printed_command_has_an_option_that_tensorrt_11_lacks(cache, tmp_path, command):
    asked = ["--cache", cache, "--layer-precisions", LINE, "--output", tmp_path, "--json"]
    code, out, err = command("migrate", LENET, *asked)
    assert code == 0, err
    commands = json.loads(out)["commands"]
    assert set(commands) == {"TensorRT 11", "TensorRT-RTX"}
    words = " ".join(commands.values())
    for option in ("--int8", "--fp16", "--calib", "--layerPrecisions", "--layerOutputTypes", "--precisionConstraints"):
        assert option not in words
    assert f"trtexec --onnx={tmp_path}/network.qdq.onnx --stronglyTyped" in commands["TensorRT 11"]
    readme = (tmp_path / "README.md").read_text()
    assert "calibration.cache" not in readme
    assert "--int8" not in readme


def renamed_cache(network, rename):
    """A cache for a network's activations with other names, and the scales by the network's names."""
    scales = {name: np.float32(0.01 * (k + 1)) for k, name in enumerate(network.activations)}
    renamed = {rename(name): scale for name, scale in scales.items() if rename(name)}
    return trt_bisect.format_cache(renamed, "TRT-7103-MinMaxCalibration"), scales


@pytest.fixture(scope="module")
def residual(tmp_path_factory):
    path = networks.save(networks.residual(width=8), tmp_path_factory.mktemp("residual"), "residual.onnx")
    return trt_bisect.load_network(path)


@pytest.mark.parametrize(
    ("rename", "ways"),
    [
        (lambda name: name, {"name"}),
        (lambda name: name.upper().replace(".", "/"), {"alike"}),
        (lambda name: "onnx::Conv_7" if name == "block1.relu1_out" else name, {"name", "order"}),
        (lambda name: "" if name == "flatten_out" else name, {"name", "moved"}),
    ],
)
def test_tensors_of_other_names_get_their_own_scale(residual, rename, ways):
    text, scales = renamed_cache(residual, rename)
    found = scales_for(residual, parse_cache(text, "it"))
    assert {each.way for each in found.found} == ways
    for each in found.found:
        if each.way != "moved":
            assert np.float32(each.scale) == scales[each.tensor], each


def test_a_tensor_that_the_cache_lacks_leaves_its_layers_in_floats(residual, tmp_path):
    lacking = residual.layer_named("block1.conv1").inputs[0]
    text, _ = renamed_cache(residual, lambda name: "" if name == lacking else name)
    path = tmp_path / "lacking.cache"
    path.write_text(text)
    found = trt_bisect.migrate(residual, cache=path, output=tmp_path)
    (choice,) = (choice for choice in found.choices if choice.kind == "no scale")
    assert "block1.conv1" in choice.names
    assert next(row for row in found.layers if row.name == "block1.conv1").precision == "fp32"
    assert {row.precision for row in found.layers if row.name == "block0.conv1"} == {"int8"}


def test_what_the_cache_says_twice_or_in_part_is_left_out_and_listed(residual, tmp_path):
    text, _ = renamed_cache(residual, lambda name: name)
    twice, cut = "block0.relu1_out", [*residual.rounded_activations][-1]
    lines = [line[:-1] if line.startswith(f"{cut}: ") else line for line in text.splitlines()]
    path = tmp_path / "doubtful.cache"
    path.write_text("\n".join([*lines, f"{twice}: 3f000000"]))
    found = trt_bisect.migrate(residual, cache=path, output=tmp_path)
    unsure = {name: choice.about for choice in found.choices if choice.kind == "unsure" for name in choice.names}
    assert unsure.keys() == {twice, cut}
    assert "2 scales" in unsure[twice]
    assert "7 of 8 digits" in unsure[cut]
    assert not {twice, cut} & {scale.tensor for scale in found.scales}
    assert not {twice, cut} & scales_in(tmp_path / "network.qdq.onnx").keys()


def test_a_cache_of_another_network_is_refused(residual, cache, tmp_path):
    with pytest.raises(BadInput, match="another network"):
        trt_bisect.migrate(residual, cache=cache, output=tmp_path)


def test_a_network_with_pairs_is_not_migrated(cache, tmp_path, command):
    trt_bisect.migrate(LENET, cache=cache, output=tmp_path)
    code, _, err = command("migrate", tmp_path / "network.qdq.onnx", "--cache", cache)
    assert (code, "has Q/DQ pairs" in err) == (2, True)


def test_tensorrt_rtx_builds_the_network(cache, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings")
    trt_bisect.migrate(LENET, cache=cache, layer_precisions=LINE, output=tmp_path)
    engine = trt_bisect.check(tmp_path / "network.qdq.onnx", engine="tensorrt-rtx").engine
    assert {"conv2", "ip1"} <= set(engine.low)


def test_check_and_migrate_predict_the_times_that_run_predicts(cache, lenet, tmp_path):
    how = {"engine": "onnxruntime", "explain": "none", "calibrator": "minmax"}
    report = trt_bisect.run(LENET, lenet / "digits.npz", gpu="T4", **how)
    fp16, int8 = (report.predicted.plans[plan].ms for plan in ("fp16", "int8"))
    told = f"Predicted on T4: FP16 {fp16:.3g} ms, full INT8 {int8:.3g} ms"
    (remark,) = trt_bisect.check(LENET, gpu="T4").remarks
    found = trt_bisect.migrate(LENET, cache=cache, gpu="T4", inputs=lenet / "digits.npz", output=tmp_path)
    assert remark.startswith(told)
    assert found.predicted.startswith(told)
