"""The judge of the benchmark of the answer, which is outside the package."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.answer.judge import judged, worst


def scaled(path, factors):
    """y = x * factors, channel by channel."""
    constant = onnx.numpy_helper.from_array(np.array(factors, np.float32)[None, :, None], "factors")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, 2]) for name in "xy"]
    node = helper.make_node("Mul", ["x", "factors"], ["y"])
    graph = helper.make_graph([node], "g", values[:1], values[1:], [constant])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize("stacked", [(3, 2, 2), (3, 1, 2, 2)])
def test_a_file_is_judged_on_every_sample_whole_and_cut(stacked, tmp_path):
    samples = tmp_path / "samples.npz"
    values = np.array([[3, 4, 1, 0], [3, 4, 0, 0], [0, 0, 1, 1]], np.float32).reshape(stacked)
    np.savez(samples, x=values)
    paths = scaled(tmp_path / "a.onnx", [1, 1]), scaled(tmp_path / "b.onnx", [1, -1]), samples
    found = judged(*paths, {"y": [1]})
    for mode in ("off", "on", "float"):
        assert found[mode] == pytest.approx([(25 - 1) / 26, 1.0, -1.0])
        assert found[f"{mode}, cut"] == pytest.approx([-1.0, 1.0, -1.0])


def test_the_worst_output_decides_and_no_number_is_no_pass():
    ones = np.ones((1, 2), np.float32)
    assert worst({"a": ones, "b": ones}, {"a": ones, "b": np.array([[1, 0]])}, {}) == pytest.approx(0.5**0.5)
    assert worst({"a": ones}, {"a": ones * np.nan}, {}) == 0.0


@pytest.mark.parametrize(
    ("reference", "found", "right"), [(0.5, 0.2, 0.4), (0.2, 0.5, 0.4), (0.5, 0.5, 1.0), (1, -1, -1)]
)
def test_one_number_has_no_direction(reference, found, right):
    one, other = (np.full((1, 1), value, np.float64) for value in (reference, found))
    assert worst({"p": one}, {"p": other}, {}) == pytest.approx(right)
