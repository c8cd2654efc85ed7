"""ONNX files are read and written without copies of their weights, and hold what ``onnx`` reads from them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from tests.support import networks
from tests.support.networks import attached
from tests.support.quantized import plain_run
from trt_bisect.errors import BadInput
from trt_bisect.model import file as file_module
from trt_bisect.model.file import read_model, refer_to_weights, save_model
from trt_bisect.model.network import load_network

RANDOM = np.random.default_rng(5)
LARGE = RANDOM.normal(0, 1, (24, 24)).astype(np.float32)


def value(name: str, shape: list[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes: list[onnx.NodeProto], constants: list[TensorProto], **more: object) -> onnx.ModelProto:
    return networks.model_of(nodes, {"x": ["n", 24]}, {"y": ["n", 24]}, constants, **more)


def mixed() -> onnx.ModelProto:
    """Weights in ``raw_data`` and in lists, large and small ones, and fields before and after the graph."""
    layers = (("MatMul", "xa", "raw"), ("MatMul", "ab", "listed"), ("Add", "by", "small"))
    nodes = [helper.make_node(op, [x, constant], [y], f"node_{y}") for op, (x, y), constant in layers]
    listed = helper.make_tensor("listed", TensorProto.FLOAT, LARGE.shape, LARGE.ravel().tolist())
    small = numpy_helper.from_array(LARGE[0], "small")
    small.doc_string = "kept"
    constants = [numpy_helper.from_array(LARGE, "raw"), listed, small]
    return model_of(nodes, constants, producer_name="test", doc_string="text")


def test_a_file_is_read_as_onnx_reads_it(tmp_path):
    path = tmp_path / "mixed.onnx"
    onnx.save(mixed(), str(path))
    model, weights = read_model(path)
    assert set(weights) == {"raw", "listed"}
    assert all(array.dtype == np.float32 and array.flags.aligned for array in weights.values())
    read, expected = attached(model, weights), onnx.load(str(path))
    for one, other in zip(read.graph.initializer, expected.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))
    for each in (read, expected):
        each.graph.ClearField("initializer")
    assert read == expected


def test_a_truncated_file_is_refused_where_onnx_refuses_it(tmp_path):
    whole = mixed().SerializeToString()
    path = tmp_path / "cut.onnx"
    read = 0
    for size in range(1, len(whole), 61):
        path.write_bytes(whole[:size])
        try:
            onnx.load_from_string(whole[:size])
        except Exception:
            with pytest.raises(BadInput):
                read_model(path)
        else:
            read += 1
    assert read < len(whole) // 61


def test_a_written_file_holds_what_protobuf_would_write(tmp_path):
    model, weights = mixed(), {"raw": LARGE.T, "listed": LARGE}
    onnx.save(model, str(tmp_path / "first.onnx"))
    skeleton, _ = read_model(tmp_path / "first.onnx")
    path = tmp_path / "written.onnx"
    save_model(skeleton, weights, path)
    assert onnx.load(str(path)) == attached(skeleton, weights)
    x = RANDOM.normal(0, 1, (3, 24)).astype(np.float32)
    (found,) = plain_run(path, {"x": x})
    np.testing.assert_allclose(found, x @ LARGE.T @ LARGE + LARGE[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inline", [True, False])
def test_a_graph_refers_to_the_weights_of_a_written_file(inline, tmp_path, monkeypatch):
    """ONNX and ONNX Runtime find them there, inside the file or in the one beside it."""
    if not inline:
        monkeypatch.setattr(file_module, "INLINE_UNTIL_BYTES", 0)
    onnx.save(mixed(), str(tmp_path / "first.onnx"))
    skeleton, weights = read_model(tmp_path / "first.onnx")
    written = save_model(skeleton, weights, tmp_path / "written.onnx")
    assert len(written) == (1 if inline else 2)
    refer_to_weights(skeleton, written[0])
    (tmp_path / "second.onnx").write_bytes(skeleton.SerializeToString())
    assert (tmp_path / "second.onnx").stat().st_size < LARGE.nbytes
    paths = [str(tmp_path / f"{name}.onnx") for name in ("first", "second")]
    first, second = map(onnx.load, paths)
    assert len(first.graph.initializer) == len(second.graph.initializer)
    for one, other in zip(first.graph.initializer, second.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))
    x = RANDOM.normal(0, 1, (3, 24)).astype(np.float32)
    np.testing.assert_array_equal(*(plain_run(path, {"x": x})[0] for path in paths))


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.BOOL])
def test_weights_of_every_type_are_written(kind, tmp_path):
    values = LARGE.astype(helper.tensor_dtype_to_np_dtype(kind))
    skeleton = model_of([helper.make_node("Identity", ["x"], ["y"], "same")], [])
    tensor = skeleton.graph.initializer.add(name="w", dims=values.shape, data_type=kind)
    tensor.data_location = TensorProto.EXTERNAL
    save_model(skeleton, {"w": values}, tmp_path / "typed.onnx")
    (read,) = onnx.load(str(tmp_path / "typed.onnx")).graph.initializer
    assert read.data_type == kind
    np.testing.assert_array_equal(numpy_helper.to_array(read).astype(np.float32), values.astype(np.float32))


def test_external_data_is_read(tmp_path):
    model = mixed()
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    convert_model_to_external_data(model, location="weights.bin", size_threshold=16)
    path = tmp_path / "apart.onnx"
    onnx.save(model, str(path))
    _, weights = read_model(path)
    for name in ("raw", "listed"):
        np.testing.assert_array_equal(weights[name], expected[name])
    x = RANDOM.normal(0, 1, (1, 24)).astype(np.float32)
    loaded = load_network(path)
    np.testing.assert_array_equal(loaded.constant("small"), expected["small"])
    save_model(loaded.skeleton, loaded.weights, tmp_path / "whole.onnx")
    runs = [plain_run(each, {"x": x})[0] for each in (path, tmp_path / "whole.onnx")]
    np.testing.assert_array_equal(*runs)


def test_weights_that_preparing_needs_are_there(tmp_path):
    """Weights that are turned and gathered while constants are folded, that a branch reads, and that are an output."""
    branches = {}
    for name, read in (("then_branch", "inside"), ("else_branch", "turned")):
        node = helper.make_node("MatMul", ["a", read], [name], f"{name}_node")
        branches[name] = helper.make_graph([node], name, [], [value(name, ["n", 24])])
    sketch = networks.Sketch()
    for name, factor in (("turned", 1), ("inside", 2), ("given", 0.5)):
        sketch.constant(name, LARGE * factor)
    sketch.node("MatMul", ["x", sketch.node("Transpose", ["turned"], "turn", perm=[1, 0])], "first", out="a")
    condition = sketch.node(
        "Greater", [sketch.node("ReduceSum", ["a"], "sum", keepdims=0), sketch.constant("0", 0)], "c"
    )
    chosen = sketch.node("If", [condition], "branch", **branches)
    picked = [sketch.node("Shape", ["turned"], "shape"), sketch.constant("1", 1, np.int64)]
    number = sketch.node("Cast", [sketch.node("Gather", picked, "pick")], "cast", to=TensorProto.FLOAT)
    sketch.node("MatMul", [sketch.node("Mul", [chosen, number], "scale"), "given"], "last", out="y")
    model = sketch.model(["n", 24], ["n", 24])
    model.graph.output.append(value("given", [24, 24]))
    path = tmp_path / "folded.onnx"
    onnx.save(model, str(path))
    loaded = load_network(path)
    save_model(loaded.skeleton, loaded.weights, tmp_path / "prepared.onnx")
    for sign in (1, -1):
        x = sign * np.abs(RANDOM.normal(0, 1, (2, 24))).astype(np.float32)
        files = (tmp_path / "prepared.onnx", path)
        found, expected = (plain_run(each, {"x": x})[0] for each in files)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
