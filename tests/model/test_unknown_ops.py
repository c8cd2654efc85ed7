"""Networks with operators that ONNX Runtime does not have: what is left of them, and what is said of it."""

import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch, model_of
from tests.support.quantized import in_plan, plain_session
from tests.support.records import texts
from trt_bisect.errors import BadInput
from trt_bisect.model import operators, session as sessions
from trt_bisect.model.network import load_network
from trt_bisect.options.concerns import RunOptions
from trt_bisect.report.answer import RecipeLayers
from trt_bisect.report.given import PART
from trt_bisect.report.parts import PASSES, WITH_DOUBTS, JudgedInputs
from trt_bisect.report.words import headline

COMPILER = shutil.which("cc") or shutil.which("gcc")


def with_unknown(domain="my.plugins", op="Wobble", typed=True):
    """conv1, relu1, conv2, then a node of an unknown operator, then conv3 and a sum with what relu1 makes."""
    sketch = Sketch(5)
    relu = sketch.node("Relu", [sketch.conv("x", "conv1", 3, 4)], "relu1")
    before = sketch.conv(relu, "conv2", 4, 4)
    sketch.node(op, [before], "wobble", out="wobbled", domain=domain)
    sketch.node("Add", [sketch.conv("wobbled", "conv3", 4, 4), relu], "add")
    model = sketch.model({"x": ["n", 3, 8, 8]}, {"add_out": ["n", 4, 8, 8]})
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    if typed:
        wobbled = helper.make_tensor_value_info("wobbled", TensorProto.FLOAT, ["n", 4, 8, 8])
        model.graph.value_info.append(wobbled)
    return model


@pytest.mark.parametrize(("domain", "op"), [("my.plugins", "Wobble"), ("", "EfficientNMS_TRT")])
def test_what_comes_before_is_kept_and_computes_the_same(domain, op):
    """The tensors that the rest would read are outputs; they are those of the same network without the rest."""
    network = load_network(with_unknown(domain, op))
    assert [layer.name for layer in network.layers] == ["conv1", "relu1", "conv2"]
    assert {spec.name for spec in network.outputs} == {"conv2_out", "relu1_out"}
    (note,) = network.notes
    for word in (op, "'wobble'", "'conv2_out'", "'relu1_out'", "'conv3'", "--plugin"):
        assert word in note
    model = with_unknown(domain, op)
    del model.graph.node[3:]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in ("conv2_out", "relu1_out"))
    feeds = {"x": networks.normal(0, 2, 3, 8, 8)}
    expected = plain_session(model).run(["conv2_out", "relu1_out"], feeds)
    found = in_plan(network, network.free_plan(), feeds)
    for name, array in zip(("conv2_out", "relu1_out"), expected, strict=True):
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_run_judges_what_comes_before_and_its_pass_is_no_pass_of_the_network(tmp_path):
    """Full INT8 of the part meets the threshold by far. The exit code is 1, and the first line says why."""
    data = {"x": networks.normal(1, 8, 3, 8, 8)}
    model = with_unknown()
    command = {"threshold": 0.9, "calibrator": "minmax", "explain": "none", "strategy": "bisect"}
    report = trt_bisect.run(model, data, **command)
    assert set(report.outputs.int8) == {"conv2_out", "relu1_out"}
    assert any("'conv3'" in note for note in texts(report.notes))
    assert report.recipe == RecipeLayers(meets=True)
    assert report.lines[0].kind == PART
    for word in ("before", "'wobble'", "3 of 6 nodes"):
        assert word in report.lines[0].text
    assert report.exit_code == 1
    accepted = trt_bisect.run(model, data, **command, accept=True)
    assert (report.verdict, accepted.verdict, accepted.exit_code) == (WITH_DOUBTS, PASSES, 0)
    assert accepted.lines[0] == report.lines[0]
    assert headline(accepted) != headline(replace(accepted, inputs=JudgedInputs()))


def test_a_network_of_nothing_else_is_refused():
    model = model_of([helper.make_node("Wobble", ["x"], ["y"], "only", domain="my")], {"x": [1, 3]}, {"y": [1, 3]})
    model.opset_import.append(helper.make_opsetid("my", 1))
    with pytest.raises(BadInput, match=r"Wobble.* before it"):
        load_network(model)


def test_an_operator_that_onnx_runtime_has_is_not_cut():
    """Gelu of com.microsoft is not ONNX's, and ONNX Runtime runs it: the layers after it stay, and can be in INT8."""
    network = load_network(with_unknown("com.microsoft", "Gelu", typed=False))
    assert [layer.name for layer in network.layers if layer.quantizable] == ["conv1", "conv2", "conv3", "add"]
    assert network.notes == ()


def test_two_unknown_operators_one_after_the_other():
    model = with_unknown()
    model.graph.node[-1].op_type, model.graph.node[-1].domain = "Blend", "other"
    model.opset_import.append(helper.make_opsetid("other", 1))
    network = load_network(model)
    assert [layer.name for layer in network.layers] == ["conv1", "relu1", "conv2"]
    assert "Wobble" in network.notes[0]


def test_a_library_that_is_none_is_refused(tmp_path):
    library = tmp_path / "ops.so"
    library.write_bytes(b"no library")
    with pytest.raises(BadInput, match=r"ops\.so"):
        sessions.use_libraries([library])
    with pytest.raises(BadInput, match=r"gone\.so"):
        sessions.digests_of([tmp_path / "gone.so"])


@pytest.mark.subprocess
@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="there is no C compiler for Linux")
def test_every_session_gets_the_operators_of_a_library(tmp_path):
    """A library that registers nothing and counts how often ONNX Runtime asks it to."""
    source, library, count = tmp_path / "ops.c", tmp_path / "ops.so", tmp_path / "count"
    source.write_text(
        "#include <stdio.h>\n"
        "void *RegisterCustomOps(void *options, const void *api) {\n"
        f'  FILE *file = fopen("{count}", "a"); fputs("x", file); fclose(file); return 0;\n'
        "}\n"
    )
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    other = tmp_path / "plugins.so"
    other.write_bytes(b"initLibNvInferPlugins")
    build = RunOptions(plugins=[str(library), str(other)]).build_options()
    assert (build.operators, build.plugins) == ((str(library),), (str(other),))
    path = tmp_path / "network.onnx"
    onnx.save(with_unknown(), path)
    script = (
        "import sys, numpy as np, trt_bisect; "
        "data = {'x': np.ones((8, 3, 8, 8), np.float32)}; "
        "report = trt_bisect.run(sys.argv[1], data, plugins=[sys.argv[2]], explain='none', strategy='bisect', "
        "calibrator='minmax'); "
        "assert report.made_of['versions']['operators']"
    )
    subprocess.run([sys.executable, "-c", script, str(path), str(library)], check=True, cwd=tmp_path)
    assert len(count.read_text()) > 5


def test_an_operator_from_a_library_leaves_the_shape_open_where_nobody_knows_it(monkeypatch):
    """ONNX Runtime gives the type of what it makes, and an empty shape: that is no scalar."""
    made = SimpleNamespace(name="wobbled", type="tensor(float)", shape=[])
    session = SimpleNamespace(get_outputs=lambda: [made])
    monkeypatch.setattr(operators, "make_session", lambda *_, **__: session)
    model = with_unknown(typed=False)
    operators.add_types(model, {})
    (value,) = [value for value in model.graph.value_info if value.name == "wobbled"]
    assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    assert not value.type.tensor_type.HasField("shape")


def test_a_network_runs_whole_with_the_operators_of_a_real_library():
    """NegPos of onnxruntime-extensions splits a tensor by sign; the layer after it is quantizable."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    model = with_unknown("ai.onnx.contrib", "NegPos", typed=False)
    next(node for node in model.graph.node if node.op_type == "NegPos").output.append("positive")
    sessions.use_libraries([extensions.get_library_path()])
    network = load_network(model)
    assert [layer.name for layer in network.layers if layer.quantizable] == ["conv1", "conv2", "conv3", "add"]
