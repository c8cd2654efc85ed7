"""Tensors that other tools saved: trtexec's and Triton's files as their sources write them, Polygraphy's own."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from trt_bisect import BadInput, open_dataset
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.data.saved import inferences, inferences_for

LENET = "samples/lenet/lenet.onnx"
DATA, PROB = TensorSpec("data", np.dtype(np.float32), (1, 1, 28, 28)), TensorSpec("prob", np.dtype(np.float32), (1, 10))


def trtexec_json(path, outputs):
    """Writes ``--exportOutput``: ``exportJSONOutput`` of samples/common/sampleReporting.cpp, whose streams print %g."""
    lines, separator = ["["], "  "
    for name, values in outputs.items():
        lines.append(f'{separator}{{ "name" : "{name}"')
        separator = ", "
        lines.append(f'  , "dimensions" : "{"x".join(map(str, values.shape))}"')
        lines.append(f'  , "values" : [ {", ".join(f"{value:g}" for value in values.ravel().tolist())} ]\n  }}')
    path.write_text("\n".join([*lines, "]\n"]))


def trtexec_dump(folder, tensors, side):
    """Writes ``--dumpRawBindingsToFile``: ``dumpRawBindingToFiles`` of samples/common/sampleInference.cpp."""
    kinds = {"float32": "Float", "float16": "Half", "int64": "Int64", "int32": "Int32"}
    for name, values in tensors.items():
        sizes = ".".join(map(str, values.shape))
        (folder / f"{name.replace('/', '_')}.{side}.{sizes}.{kinds[str(values.dtype)]}.raw").write_bytes(
            values.tobytes()
        )


def triton_json(path, side, tensors):
    """Writes a request or a response of Triton's HTTP protocol."""
    kinds = {"float32": "FP32", "int64": "INT64"}
    entries = [
        {
            "name": name,
            "datatype": kinds[str(values.dtype)],
            "shape": list(values.shape),
            "data": values.ravel().tolist(),
        }
        for name, values in tensors.items()
    ]
    path.write_text(json.dumps({f"{side}s": entries}))


def digits(count=2):
    """Returns some digits of the sample."""
    with np.load("samples/lenet/digits.npz") as data:
        return np.array(data["data"][:count], np.float32).reshape(count, 1, 28, 28)


def outputs_of(images):
    session = ort.InferenceSession(LENET)
    return [session.run(None, {"data": image[np.newaxis]})[0] for image in images]


@pytest.mark.slow
def test_polygraphy_saves_inputs_and_outputs(tmp_path):
    inputs, outputs = tmp_path / "inputs.json", tmp_path / "outputs.json"
    tool = str(Path(sys.executable).with_name("polygraphy"))
    saving = ["--save-inputs", str(inputs), "--save-outputs", str(outputs)]
    subprocess.run([tool, "run", LENET, "--onnxrt", *saving], check=True, capture_output=True)
    (feeds,) = open_dataset(inputs, (DATA,))
    (found,) = inferences(outputs)
    np.testing.assert_array_equal(found["prob"], outputs_of(feeds["data"])[0])


def test_trtexec_exports_outputs_with_six_digits(tmp_path):
    values = np.array([[0.123456789, 1e-12, 3.0, np.nan, np.inf, -np.inf]], np.float32)
    trtexec_json(tmp_path / "out.json", {"prob": values, "count": np.array(7), "empty": np.zeros((0, 4))})
    (found,) = inferences(tmp_path / "out.json", specs=[TensorSpec("count", np.dtype(np.int64), ())])
    assert (found["prob"].shape, found["prob"].dtype, found["empty"].shape) == ((1, 6), np.float32, (0, 4))
    np.testing.assert_allclose(found["prob"], values, rtol=5e-6)
    assert (found["count"].shape, found["count"].dtype, int(found["count"])) == ((), np.int64, 7)


def test_raw_bytes_have_type_and_shape_of_the_network(tmp_path):
    images = digits(3)
    (tmp_path / "x.bin").write_bytes(images.tobytes())
    for given in (f"data:{tmp_path}/x.bin", f"'data':{tmp_path}/x.bin", str(tmp_path / "x.bin")):
        np.testing.assert_array_equal(np.concatenate([f["data"] for f in open_dataset(given, (DATA,))]), images)
    (tmp_path / "half.bin").write_bytes(np.ones((1, 10), np.float16).tobytes())
    (found,) = inferences(tmp_path / "half.bin", specs=[PROB])
    assert (found["prob"].dtype, found["prob"].shape) == (np.float16, (1, 10))


def test_raw_bytes_that_do_not_fit_are_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(100))
    for given, message in ((f"data:{tmp_path}/x.bin", "100 bytes"), (f"other:{tmp_path}/x.bin", "'other'")):
        with pytest.raises(BadInput, match=message):
            open_dataset(given, (DATA,))
    with pytest.raises(BadInput, match="not known"):
        list(inferences(tmp_path / "x.bin"))
    dynamic = TensorSpec("y", np.dtype(np.float32), (None, 3, None, 5))
    with pytest.raises(BadInput, match="--shape"):
        list(inferences(tmp_path / "x.bin", specs=[dynamic]))


def test_a_folder_that_trtexec_dumped_into_is_one_inference(tmp_path):
    images = digits(1)
    trtexec_dump(tmp_path, {"data": images}, "input")
    trtexec_dump(tmp_path, {"prob": np.full((1, 10), 0.5, np.float16), "n/m": np.arange(4)}, "output")
    (feeds,) = open_dataset(tmp_path, (DATA,))
    np.testing.assert_array_equal(feeds["data"], images)
    (found,) = inferences(tmp_path)
    assert {name: (values.dtype.name, values.shape) for name, values in found.items()} == {
        "prob": ("float16", (1, 10)),
        "n_m": ("int64", (4,)),
    }


def test_debug_tensors_of_trtexec_are_named_after_their_files(tmp_path):
    for name, values in {"0000_conv1": np.ones((1, 2)), "0001_relu_to_float": np.zeros(3)}.items():
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "tensor_summary.json").write_text("{}")
    (found,) = inferences(tmp_path)
    assert {name: values.shape for name, values in found.items()} == {"conv1": (1, 2), "relu": (3,)}


def test_triton_requests_and_responses(tmp_path):
    images = digits(1)
    triton_json(tmp_path / "in.json", "input", {"data": images})
    triton_json(tmp_path / "out.json", "output", {"prob": np.full((1, 10), 0.25, np.float32)})
    np.testing.assert_array_equal(next(iter(open_dataset(tmp_path / "in.json", (DATA,))))["data"], images)
    (found,) = inferences(tmp_path / "out.json")
    assert (found["prob"].shape, found["prob"].dtype) == ((1, 10), np.float32)


def test_the_input_data_of_perf_analyzer(tmp_path):
    steps = [{"data": {"content": image.ravel().tolist(), "shape": [1, 1, 28, 28]}} for image in digits(2)]
    results = [{"prob": [0.5] * 10}, {"prob": [0.25] * 10}]
    (tmp_path / "data.json").write_text(json.dumps({"data": steps, "validation_data": results}))
    found = np.concatenate([feeds["data"] for feeds in open_dataset(tmp_path / "data.json", (DATA,))])
    np.testing.assert_array_equal(found, digits(2))
    assert [run["prob"][0] for run in inferences(tmp_path / "data.json", specs=[PROB])] == [0.5, 0.25]


@pytest.mark.parametrize("text", ["{}", "[1, 2]", '[{"name": "a"}]', '{"outputs": [{"name": "a"}]}', "nonsense"])
def test_other_json_is_refused_in_words(text, tmp_path):
    (tmp_path / "out.json").write_text(text)
    with pytest.raises(BadInput, match=r"out\.json"):
        list(inferences(tmp_path / "out.json"))


def test_stacked_outputs_are_those_of_several_inferences(tmp_path):
    stacked = np.arange(30, dtype=np.float32).reshape(3, 10)
    np.savez(tmp_path / "rows.npz", prob=stacked)
    np.savez(tmp_path / "apart.npz", prob=stacked[:, np.newaxis])
    np.save(tmp_path / "rows.npy", stacked)
    for file in ("rows.npz", "apart.npz", "rows.npy"):
        found = inferences_for(tmp_path / file, 3, [PROB])
        assert [run["prob"].shape for run in found] == [(1, 10)] * 3
        np.testing.assert_array_equal(np.concatenate([run["prob"] for run in found]), stacked)
    with pytest.raises(BadInput, match="2 samples"):
        inferences_for(tmp_path / "rows.npz", 2, [PROB])
