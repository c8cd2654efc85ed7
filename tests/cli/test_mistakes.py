"""Mistakes at the command line and in its files: each is told in two lines, with what to do, and exit code 2."""

import shlex
import shutil
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.networks import Sketch, model_of
from trt_bisect.options.declare import read_toml

CHANNELS = 3
MISTAKES = read_toml(Path(__file__).with_name("mistakes.toml"), "table", "")
COMMANDS = {**MISTAKES["commands"], **MISTAKES["beginners"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, lenet):
    place = tmp_path_factory.mktemp("mistakes")
    shutil.copy(lenet / "lenet_planted.onnx", place / "lenet.onnx")
    shutil.copy(lenet / "calibration.npz", place / "data.npz")
    _write_networks(place)
    _write_data(place)
    (place / "faulty.py").write_text(
        "def feeds():\n    yield {'data': [[[[0.0] * 28] * 28]]}\n    raise OSError('gone')\n"
    )
    (place / "list.json").write_text("[1, 2]")
    (place / "net.bin").write_bytes(b"ftrt" + bytes(200))
    (place / "net.plan").write_bytes(b"\x11\x12" * 100)
    (place / "net.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with zipfile.ZipFile(place / "net.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    (place / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (place / "empty").mkdir()
    (place / "two").mkdir()
    for name in ("two/0.npz", "two/1.npz"):
        shutil.copy(lenet / "calibration.npz", place / name)
    (place / "ran").mkdir()
    (place / "ran" / "report.json").write_text("{}")
    return place


def _network(place, dims, kind=TensorProto.FLOAT, channels=CHANNELS):
    dtype = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    weight = np.random.default_rng(0).normal(0, 0.3, (4, channels, 3, 3)).astype(dtype)
    conv = helper.make_node("Conv", ["x", "w"], ["conv_out"], name="conv", pads=[1] * 4)
    ends, constants = ({"x": dims}, {"conv_out": [dims[0], 4, *dims[2:]]}), [numpy_helper.from_array(weight, "w")]
    onnx.save(model_of([conv], *ends, constants, kind=kind), place)


def _write_networks(place):
    _network(place / "net.onnx", [1, CHANNELS, 8, 6])
    _network(place / "grey.onnx", [1, 1, 8, 6], channels=1)
    _network(place / "half.onnx", [1, CHANNELS, 8, 6], TensorProto.FLOAT16)
    _network(place / "dynamic.onnx", ["n", CHANNELS, "h", "w"])
    node = helper.make_node("ConvInteger", ["q", "w"], ["conv_out"], name="conv", pads=[1] * 4)
    quantize = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="quantize")
    weight = numpy_helper.from_array(np.ones((4, CHANNELS, 3, 3), np.int8), "w")
    model = model_of([quantize, node], {"x": [1, CHANNELS, 8, 6]}, {"conv_out": [1, 4, 8, 6]}, [weight])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    onnx.save(model, place / "integers.onnx")


def _write_data(place):
    values = np.random.default_rng(1).random((5, CHANNELS, 8, 6), np.float32)
    np.savez(place / "unnamed.npz", np.zeros((2, 1, 28, 28), np.float32))
    np.savez(place / "right.npz", x=values)
    np.savez(place / "nhwc.npz", x=values.transpose(0, 2, 3, 1))
    np.savez(place / "uint8.npz", x=(values * 255).astype(np.uint8))
    np.savez(place / "half.npz", x=values.astype(np.float16))
    np.savez(place / "no_channel.npz", x=values[:, 0])
    np.savez(place / "one_row.npz", x=values[:4].reshape(4, -1))
    np.savez(place / "other_name.npz", y=values)


def told(call, words):
    """The problem and the remedy that a wrong command line is answered with; nothing else is printed or written."""
    code, out, err = call(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 2)
    assert err.startswith("trt-bisect: ")
    assert not list(Path().glob("trt-bisect-*"))
    return err.splitlines()


@pytest.mark.parametrize("asked", COMMANDS)
def test_the_right_use_is_told(asked, folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    problem, remedy = told(command, shlex.split(asked))
    in_problem, in_remedy = COMMANDS[asked]
    assert in_problem in problem
    assert in_remedy in remedy


@pytest.mark.parametrize(("of", "text"), [(of, text) for of, texts in MISTAKES["files"].items() for text in texts])
def test_a_bad_file_is_refused_before_anything_is_run(of, text, folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    config = folder / "options.toml"
    config.write_text(text)
    arguments = [] if of in ("engines", "history", "view", "demo") else [folder / "net.onnx"]
    problem, remedy = told(command, [of, *arguments, "--config", config])
    in_problem, in_remedy = MISTAKES["files"][of][text]
    assert in_problem in problem
    assert in_remedy in remedy


def test_the_right_command_for_these(folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    code, _, err = command(*"run net.onnx --calibration right.npz --history none -q".split())
    assert (code in (0, 1), err) == (True, "")
    shutil.rmtree("trt-bisect-net")


@pytest.fixture
def two_networks(tmp_path):
    """``da/model.onnx`` and ``db/model.onnx``: the same layers with other weights, and data for both."""
    for seed, name in enumerate(("da", "db")):
        sketch = Sketch(seed)
        sketch.dense("x", "dense", 6, 4)
        (tmp_path / name).mkdir()
        onnx.save(sketch.model({"x": [1, 6]}, {"dense_bias_out": [1, 4]}), tmp_path / name / "model.onnx")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32))
    return tmp_path


HOW = "--calibration x.npy --engine onnxruntime --history none --explain none --calibrator minmax".split()


def test_a_folder_with_the_run_of_another_network_is_left_as_it_is(command, two_networks, monkeypatch):
    monkeypatch.chdir(two_networks)
    assert command("run", "da/model.onnx", *HOW)[0] == 0
    folder = two_networks / "trt-bisect-model"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for again in ((), ("--budget", "5%", "--front")):
        code, _, err = command("run", "db/model.onnx", *HOW[:6], *again)
        assert (code, "'da/model.onnx'" in err, "--output" in err) == (2, True, True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    shutil.copy("db/model.onnx", "da/model.onnx")
    assert command("run", two_networks / "da/model.onnx", *HOW)[0] == 0


def test_a_network_that_was_moved_goes_on_in_its_folder(command, two_networks, monkeypatch):
    monkeypatch.chdir(two_networks)
    assert command("run", "da/model.onnx", *HOW, "-o", "out")[0] == 0
    (two_networks / "da/model.onnx").rename(two_networks / "moved.onnx")
    assert command("run", "moved.onnx", *HOW, "-o", "out")[0] == 0
