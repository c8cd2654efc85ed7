"""Mistakes that new users make: each is told in a line or two, with what to do, and exit code 2."""

import json
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.support.networks import Sketch, model_of

CHANNELS = 3


BUILT_FROM = "the ONNX network that it was built from"
RIGHT = "run net.onnx --calibration right.npz"
MISTAKES = {
    "NHWC for NCHW": (
        "run net.onnx --calibration nhwc.npz",
        "shape [1, 8, 6, 3]",
        "from NHWC to NCHW: array.transpose(0, 3, 1, 2)",
    ),
    "uint8 for float": ("run net.onnx --calibration uint8.npz", "dtype uint8", "array.astype(np.float32) / 255"),
    "no channel axis": ("run grey.onnx --calibration no_channel.npz", "shape [5, 8, 6]", "numpy.expand_dims(array, 1)"),
    "pixels in one row": ("run net.onnx --calibration one_row.npz", "shape [4, 144]", "array.reshape(-1, 3, 8, 6)"),
    "array of another name": ("run net.onnx --calibration other_name.npz", "no input 'y'", "'x' float32[1, 3, 8, 6]"),
    "engine by its content": ("run net.bin --calibration right.npz", "a TensorRT engine", BUILT_FROM),
    "engine by its name": ("run net.plan --calibration right.npz", "a TensorRT engine", BUILT_FROM),
    "PyTorch file": ("run net.pt --calibration right.npz", "a PyTorch file", "torch.onnx.export"),
    "TensorFlow Lite": ("run net.tflite --calibration right.npz", "TensorFlow Lite", "tf2onnx"),
    "Git LFS pointer": ("run pointer.onnx --calibration right.npz", "Git LFS pointer", "git lfs pull"),
    "a folder": ("run . --calibration right.npz", "a folder", ".onnx"),
    "swapped": ("run right.npz --calibration net.onnx", "arrays (.npz)", "were the two swapped?"),
    "the network as data": ("run net.onnx --calibration net.onnx", "an ONNX network, not data", "after --calibration"),
    "weights as data": ("run net.onnx --calibration net.pt", "a PyTorch file, not data", ".npz"),
    "threshold in per cent": (f"{RIGHT} --threshold 99", "in percent", "--threshold 0.99"),
    "percentile as a share": (f"{RIGHT} --calibrator percentile=0.9999", "per cent", "percentile=99.99"),
    "held-out share in per cent": (f"{RIGHT} --validation 20", "--validation cannot be 20", "--validation 0.2"),
    "memory in bytes": (f"{RIGHT} --memory 4294967296", "MiB", "--memory 4096"),
    "unknown column": ("sensitivity net.onnx --calibration none.npz --sort losses", "column 'losses'", "loss, gain"),
    "metric of no task": (
        "sensitivity net.onnx --calibration none.npz --task detect --sort cosine",
        "column 'cosine'",
        "macs, agreement",
    ),
    "FP16 network": ("run half.onnx --calibration half.npz", "16-bit floats", "--precision fp16"),
    "quantized network": ("run integers.onnx --calibration right.npz", "quantized already", "Give the FP32 network"),
    "shape without a name": (f"{RIGHT} --shape 1x3x8x6", "cannot be read", "--shape NAME:1x3x8x6"),
    "shape with commas": (f"{RIGHT} --shape x:1,3,8,6", "cannot be read", "--shape x:1x3x8x6"),
    "shape without the batch": (
        "run dynamic.onnx --calibration right.npz --shape x:3x8x6",
        "?x3x?x?",
        "--shape x:1x3x8x6",
    ),
    "shape of a fixed input": (f"{RIGHT} --shape x:1x3x9x9", "1x3x8x6", "Leave --shape out"),
    "no data": ("run net.onnx", "calibration data", "folder of pictures"),
    "misspelt data": ("run net.onnx --calibration rigth.npz", "does not exist", "right.npz'?"),
    "misspelt network": ("run nett.onnx --calibration right.npz", "does not exist", "net.onnx'?"),
    "empty folder": ("run net.onnx --calibration empty", "no picture", "one file for each sample"),
    "no command": ("net.onnx --calibration right.npz", "no command", "trt-bisect run"),
    "misspelt metric": (f"{RIGHT} --metric cosin", "'cosin'", "cosine"),
    "unknown output": (f"{RIGHT} --outputs z", "no output 'z'", "'conv_out'"),
    "scale that multiplies": (f"{RIGHT} --scale 0.00392157", "larger", "--scale 255"),
    "networks of other inputs": (
        "compare net.onnx grey.onnx --input right.npz",
        "'x' float32[1, 3, 8, 6], and",
        "two networks of the same inputs",
    ),
    "folders of runs": ("compare ran ran", "ran' is a folder", "trt-bisect view"),
    "a function that is not there": (f"{RIGHT} --accuracy nowhere:share", "No module named", "module:function"),
    "labels that are not there": (f"{RIGHT} --dataset right.npz --labels l.npy", "l.npy", "labels"),
    "quiet and verbose": (f"{RIGHT} -q -v", "contradict", "one of the two"),
}
"""A command line, and words of the problem and of the remedy."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("mistakes")
    _write_networks(place)
    _write_data(place)
    (place / "net.bin").write_bytes(b"ftrt" + bytes(200))
    (place / "net.plan").write_bytes(b"\x11\x12" * 100)
    (place / "net.tflite").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    with zipfile.ZipFile(place / "net.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"weights")
    (place / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (place / "empty").mkdir()
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
    np.savez(place / "right.npz", x=values)
    np.savez(place / "nhwc.npz", x=values.transpose(0, 2, 3, 1))
    np.savez(place / "uint8.npz", x=(values * 255).astype(np.uint8))
    np.savez(place / "half.npz", x=values.astype(np.float16))
    np.savez(place / "no_channel.npz", x=values[:, 0])
    np.savez(place / "one_row.npz", x=values[:4].reshape(4, -1))
    np.savez(place / "other_name.npz", y=values)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_remedy_is_told(mistake, folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    asked, problem, remedy = MISTAKES[mistake]
    code, out, err = command(*asked.split())
    told = err.splitlines()
    assert (code, out) == (2, "")
    assert told[0].startswith("trt-bisect: ")
    assert len(told) <= 2
    assert problem in told[0]
    assert remedy in " ".join(told)


@pytest.mark.parametrize("rest", [(), ("net.onnx", "--calibration", "x.npz", "--budget", "5%"), ("--help",)])
def test_recover_which_was_a_command_once_names_run_and_its_goals(command, rest):
    assert "recover" not in command("--help")[1]
    code, out, err = command("recover", *rest)
    problem, remedy = err.splitlines()
    assert (code, out) == (2, "")
    assert problem == "trt-bisect: There is no command 'recover'."
    assert "trt-bisect run" in remedy
    assert "--front" in remedy
    code, out, _ = command("recover", *rest, "--json")
    assert code == 2
    told = {"exit_code": 2, "problem": problem.removeprefix("trt-bisect: "), "remedy": remedy}
    assert json.loads(out)["error"] == told


def test_the_right_command_for_all_of_these(folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    code, _, err = command(*RIGHT.split(), "--history", "none", "-q")
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


@pytest.mark.parametrize("goal", [(), ("--budget", "5%", "--front")], ids=["run", "run with a goal"])
def test_a_folder_with_the_run_of_another_network_is_left_as_it_is(command, two_networks, monkeypatch, goal):
    monkeypatch.chdir(two_networks)
    assert command("run", "da/model.onnx", *HOW, *goal)[0] == 0
    folder = two_networks / "trt-bisect-model"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for again in ((), ("--budget", "5%", "--front")):
        code, _, err = command("run", "db/model.onnx", *HOW[:6], *again)
        assert (code, "'da/model.onnx'" in err, "--output" in err) == (2, True, True)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    shutil.copy("db/model.onnx", "da/model.onnx")
    assert command("run", two_networks / "da/model.onnx", *HOW, *goal)[0] == 0


def test_a_network_that_was_moved_goes_on_in_its_folder(command, two_networks, monkeypatch):
    monkeypatch.chdir(two_networks)
    assert command("run", "da/model.onnx", *HOW, "-o", "out")[0] == 0
    (two_networks / "da/model.onnx").rename(two_networks / "moved.onnx")
    assert command("run", "moved.onnx", *HOW, "-o", "out")[0] == 0


def test_a_calibration_cache_goes_into_a_pipe(command, two_networks):
    pipe = two_networks / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        read = other.submit(pipe.read_text)
        job = ["calibrate", two_networks / "da/model.onnx", "--calibration", two_networks / "x.npy", "-o", pipe]
        code, _, _ = command(*job)
        assert (code, "Calibration" in read.result().splitlines()[0]) == (0, True)
    assert pipe.is_fifo()
