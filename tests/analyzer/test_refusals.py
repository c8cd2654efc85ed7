"""Refusals of TensorRT: the table and the rules beside TensorRT-RTX's own parser, and who has the last word."""

import importlib
import pkgutil
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as cases

import trt_bisect
from tests.support import networks
from tests.support.editions import FULL
from tests.support.flawed_pairs import pairs
from tools import parser_table
from trt_bisect.analyzer.structure import refusals
from trt_bisect.analyzer.structure.check import structure_findings
from trt_bisect.analyzer.structure.findings import ERROR
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.operators import FROM_PLUGINS, TABLE, operator_findings, parser_table as table
from trt_bisect.builder.parser import Refusal
from trt_bisect.support.codec import encode_lines

FLOATS, LONGS, INTS = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
BYTES, SIGNED = TensorProto.UINT8, TensorProto.INT8


@pytest.fixture(scope="module")
def rtx():
    pytest.importorskip("tensorrt_rtx_bindings")
    return parser_table.Parser()


@pytest.mark.slow
def test_the_table_agrees_with_the_parser_on_onnxs_own_tests(rtx, monkeypatch):
    """The rest is told otherwise: old opsets, a layout that the parser ignores, plugins that TensorRT alone has.

    ``make test`` makes those of every twelfth operator, none of which pools in Python.
    """
    if (table().parser, table().onnx) != (rtx.name, onnx.__version__):
        pytest.skip("the table is of other versions: python tools/parser_table.py")
    if not FULL:
        few = sorted(module.name for module in pkgutil.iter_modules(cases.__path__, f"{cases.__name__}."))[3::12]
        monkeypatch.setattr(cases, "import_recursive", lambda _: [importlib.import_module(name) for name in few])
    tests = parser_table.operator_tests()
    assert 60 < len(tests) <= table().tests == 1884
    refused = {name for name, model in tests.items() if rtx.refusals(model)}
    found = {}
    for name, model in tests.items():
        findings = structure_findings(FileGraph.of(model, name))
        found[name] = {each.kind for each in findings if each.severity == ERROR}
    missed = {name for name in refused if not found[name]}
    called_refused = {name: kinds for name, kinds in found.items() if kinds and name not in refused}
    assert {tests[name].graph.node[0].op_type for name in missed} <= {*FROM_PLUGINS}
    assert set.union(*called_refused.values()) <= {"opset too old", "operator ignored"}
    assert (len(tests), len(refused), len(missed), len(called_refused)) == (1884, 871, 8, 31) or not FULL


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="the parser answers ten thousand questions: make full")
def test_the_table_is_what_the_tool_writes(rtx):
    """python tools/parser_table.py"""
    written, _ = parser_table.table_of(rtx, parser_table.operator_tests())
    assert TABLE.read_bytes() == encode_lines(written)


def network(*nodes, constants=None, opset=18, output=FLOATS, **inputs):
    """A network of nodes, whose last one makes ``y``; an input is its shape, or its type and shape."""
    made = [numpy_helper.from_array(np.asarray(values), name) for name, values in (constants or {}).items()]
    typed = {name: (FLOATS, given) if isinstance(given, list) else given for name, given in inputs.items()}
    values = [helper.make_tensor_value_info(name, *given) for name, given in (typed or {"x": (FLOATS, X)}).items()]
    graph = helper.make_graph(list(nodes), "g", values, [helper.make_tensor_value_info("y", output, None)], made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node(op, reads="x", makes="y", **attributes):
    return helper.make_node(op, reads.split(), makes.split(), name=f"the_{op}", **attributes)


def of(op, element, reads="x", shape=(2, 3, 4), **attributes):
    return network(node(op, reads, **attributes), output=element, **dict.fromkeys(reads.split(), (element, shape)))


X = [2, 3, 4]
AXES = (LONGS, [1])
ONE = {"axes": np.int64([1])}
QKV = {name: [2, 3, 4, 8] for name in "qkv"}
LATER = partial(network, opset=24)
EMPTY = {"empty": np.float32([])}
INDICES = {"i": np.int64([[[0]]])}
REFUSED = {
    "bytes moved": of("Transpose", BYTES),
    "bytes between nodes": network(node("Cast", "x", "u", to=BYTES), node("Cast", "u", to=FLOATS)),
    "bytes clipped": of("Clip", BYTES),
    "integers clipped at an input": of("Clip", SIGNED, "x low"),
    "norms along one axis": network(node("LpPool", kernel_shape=[2])),
    "integers multiplied": of("MatMul", INTS, "x x", (4, 4)),
    "axes as an input": network(node("ReduceSum", "x axes"), x=X, axes=AXES),
    "axes that are computed": network(node("Shape", "x", "axes", start=0, end=1), node("ReduceMax", "x axes")),
    "Squeeze": network(node("Squeeze", "x axes"), x=[2, 1, 4], axes=AXES),
    "Unsqueeze": network(node("Unsqueeze", "x axes"), x=X, axes=AXES),
    "a sum while scattering": network(
        node("ScatterElements", "x i x2", reduction="add"), x=X, x2=[1] * 3, constants=INDICES
    ),
    "a remainder of floats": of("Mod", FLOATS, "x x2"),
    "a third norm": network(node("LpPool", kernel_shape=[2], p=3)),
    "Attention's keys": LATER(node("Attention", "q k v", "y keys values"), **QKV),
    "softcap": LATER(node("Attention", "q k v", softcap=2.0), **QKV),
    "a mask and causal": LATER(node("Attention", "q k v m", is_causal=1), **QKV, m=[4, 4]),
    "values of another size": LATER(node("Attention", "q k v"), **{**QKV, "v": [2, 3, 4, 10]}),
    "scales as an input": network(node("Resize", "x empty n", mode="nearest"), x=X, n=[3], constants=EMPTY),
    "a depth in floats": network(node("OneHot", "i n v"), i=(LONGS, [3]), n=[], constants={"v": np.float32([0, 1])}),
    "a range from an input": network(node("Range", "a n d"), n=[], constants={"a": np.float32(0), "d": np.float32(1)}),
    "a vector times matrices": network(node("MatMul", "x w"), x=[4], constants={"w": np.ones((2, 4, 3), "f")}),
    "antialias": network(
        node("Resize", "x empty s", mode="linear", antialias=1),
        x=[1, 1, 4, 4],
        constants=EMPTY | {"s": np.float32([1, 1, 0.5, 0.5])},
    ),
    "another mode": network(
        node("Resize", "x empty s", mode="linear", coordinate_transformation_mode="half_pixel_symmetric"),
        x=[1, 1, 4, 4],
        constants=EMPTY | {"s": np.float32([1, 1, 2, 2])},
        opset=19,
    ),
    "a last part of nothing": network(node("Split", "x", "y b c d e", num_outputs=5), x=[6]),
}
"""Networks of users' kinds that rules and parser refuse, each at its last node or the one before."""
TAKEN = {
    "bytes cast": network(node("Cast", to=FLOATS), x=(BYTES, [2, 3])),
    "bytes given out": network(node("Cast", to=BYTES), output=BYTES),
    "constant axes": network(node("ReduceSum", "x axes"), constants=ONE),
    "axes from constants": network(node("Identity", "axes", "same"), node("ReduceSum", "x same"), constants=ONE),
    "no axes": network(node("ReduceMean")),
    "scattered": network(node("ScatterElements", "x i x2"), x=X, x2=[1] * 3, constants=INDICES),
    "a remainder of integers": of("Mod", INTS, "x x2"),
    "fmod of floats": of("Mod", FLOATS, "x x2", fmod=1),
    "integers clipped": network(node("Clip", "x low"), x=(SIGNED, [2]), constants={"low": np.int8(1)}, output=SIGNED),
    "a second norm": network(node("LpPool", kernel_shape=[2, 2], p=2), x=[1, 3, 4, 4]),
    "Attention": LATER(node("Attention", "q k v", is_causal=1, softcap=0.0), **QKV),
    "Attention with a mask": LATER(node("Attention", "q k v m"), **QKV, m=[4, 4]),
    "scales from a shape": network(
        node("Shape", "x", "sizes"),
        node("Cast", "sizes", "n", to=FLOATS),
        node("Div", "n n", "s"),
        node("Resize", "x empty s", mode="nearest"),
        constants=EMPTY,
    ),
    "a range from a shape": network(
        node("Shape", "x", "n", start=0, end=1),
        node("Squeeze", "n", "one"),
        node("Range", "a one d"),
        constants={"a": np.int64(0), "d": np.int64(1)},
        output=LONGS,
    ),
    "a vector times a matrix": network(node("MatMul", "x w"), x=[4], constants={"w": np.ones((4, 3), "f")}),
    "parts of unlike size": network(node("Split", "x", "y b c", num_outputs=3), x=[7]),
    "bytes that are a constant": network(
        node("Cast", "b", "c", to=FLOATS), node("Add", "x c"), constants={"b": np.uint8([1])}
    ),
}


def kinds(model):
    return [each.kind for each in operator_findings(FileGraph.of(model, "planted")) if each.severity == ERROR]


@pytest.mark.parametrize("case", REFUSED)
def test_rules_and_parser_refuse_it(case, rtx):
    assert rtx.refusals(REFUSED[case])
    assert kinds(REFUSED[case])


@pytest.mark.parametrize("case", TAKEN)
def test_rules_and_parser_take_it(case, rtx):
    assert rtx.refusals(TAKEN[case]) == ()
    assert kinds(TAKEN[case]) == []


@pytest.mark.parametrize(("axes", "found"), [("inside", []), ("x", ["operator restricted"])])
def test_a_constant_in_a_body_is_a_constant_there(axes, found):
    """A branch of an If sums along axes that stand in the branch, or that are an input of the network."""
    inside = node("Constant", "", "inside", value_ints=[1])
    summed = helper.make_node("ReduceSum", ["z", axes], ["s"], name="sum")
    out = helper.make_tensor_value_info("s", FLOATS, None)
    yes = helper.make_graph([inside, summed], "yes", [], [out])
    no = helper.make_graph([helper.make_node("Identity", ["z"], ["s"], name="kept")], "no", [], [out])
    choice = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=yes, else_branch=no)
    assert kinds(network(choice, z=[2, 3], c=(TensorProto.BOOL, []), x=AXES)) == found


def settled_with(monkeypatch, model, *refused, plugins=()):
    """The kinds and layers of the refusals where a parser answers with ``refused``; None: there is no parser."""
    answer = None if refused == (None,) else ("a parser 1", tuple(refused))
    monkeypatch.setattr(refusals, "ask_parser", lambda _: answer)
    return [(each.kind, each.layers) for each in refusals.refusals(FileGraph.of(model, "asked"), plugins)]


SUMS, NORM, PLUG = REFUSED["axes as an input"], TAKEN["a second norm"], node("Blob", domain="mine")


def test_the_parser_has_the_last_word(monkeypatch):
    by_rule = ("operator restricted", ("the_ReduceSum",))
    asked = Refusal("the_ReduceSum", "ReduceSum", "no")
    assert settled_with(monkeypatch, SUMS, None) == [by_rule]
    assert settled_with(monkeypatch, SUMS) == []
    assert settled_with(monkeypatch, SUMS, asked) == [by_rule], "the same node is not named twice"
    assert settled_with(monkeypatch, NORM, Refusal("the_LpPool", "LpPool", "no")) == [
        ("refused by the parser", ("the_LpPool",))
    ]
    assert settled_with(monkeypatch, NORM, Refusal("", "LpPool", "no")) == [("refused by the parser", ("the_LpPool",))]


def test_a_plugin_that_the_user_names_is_no_refusal(monkeypatch):
    model, lacking = network(PLUG), Refusal("the_Blob", "Blob", "Plugin not found")
    model.opset_import.append(helper.make_opsetid("mine", 1))
    assert settled_with(monkeypatch, model, lacking) == [("plugin needed", ("the_Blob",))]
    assert settled_with(monkeypatch, model, lacking, plugins=["libblob.so"]) == []


def test_operators_of_onnx_runtime_are_refused_whatever_the_parser_says(monkeypatch):
    """It ignores domains, and takes a convolution whose weights are in another order for one of ONNX."""
    model = network(node("Conv", "x", domain="com.microsoft.nchwc"))
    model.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    for answer in ((), (None,)):
        assert settled_with(monkeypatch, model, *answer, plugins=["libblob.so"]) == [
            ("operator of ONNX Runtime", ("the_Conv",))
        ]


@pytest.mark.slow
def test_the_installed_parser_is_asked_in_a_worker(own_parser, tmp_path):
    """A form that no rule knows: a Reshape to another number of values, which ONNX's checker lets pass."""
    model = network(node("Reshape", "x shape"), constants={"shape": np.int64([5, 5])})
    assert kinds(model) == []
    onnx.save(model, tmp_path / "reshape.onnx")
    (finding,) = trt_bisect.check(tmp_path / "reshape.onnx").findings
    assert (finding.kind, finding.layers) == ("refused by the parser", ("the_Reshape",))
    assert "tensorrt-rtx 1." in finding.what
    assert trt_bisect.check(networks.save(networks.residual(blocks=1), tmp_path)).findings == ()


def run(path, data, **options):
    how = {"engine": "onnxruntime", "calibrator": "minmax", "curve": "culprits", "explain": "none"}
    return trt_bisect.run(path, data, **how, **options)


def bytes_first(cast_first):
    """Pictures in bytes, channels last: a Transpose and a Cast, or a Cast and a Transpose, then a convolution."""
    sketch = networks.Sketch(1)
    steps = [("Cast", {"to": FLOATS}), ("Transpose", {"perm": [0, 3, 1, 2]})]
    tensor = "x"
    for op, attributes in steps if cast_first else reversed(steps):
        tensor = sketch.node(op, [tensor], op.lower(), **attributes)
    weight = sketch.constant("weight", 0.01 * sketch.weight("conv", 4, 3, 3, 3))
    sketch.node("Conv", [tensor, weight], "conv", out="y")
    model = sketch.model([1, 8, 8, 3], [1, 4, 6, 6])
    model.graph.input[0].type.tensor_type.elem_type = BYTES
    return model


@pytest.fixture(scope="module")
def pictures():
    return {"x": np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3)).astype(np.uint8)}


def test_run_doubts_a_pass_that_tensorrt_cannot_build(tmp_path, pictures):
    path = networks.save(bytes_first(cast_first=False), tmp_path)
    report = run(path, pictures)
    assert (report.verdict, report.exit_code) == ("passes with doubts", 1)
    assert report.lines[0].text.startswith("DOUBT: TensorRT cannot build this network: Transpose")
    assert report.lines[0].layers == ("transpose",)
    assert "Cast" in report.lines[0].text
    assert "trtexec" not in report.next.command
    accepted = run(path, pictures, accept=True)
    assert (accepted.exit_code, accepted.lines[0]) == (0, report.lines[0])
    assert run(networks.save(bytes_first(cast_first=True), tmp_path, "cast.onnx"), pictures).exit_code == 0


def test_run_doubts_what_onnx_runtimes_optimiser_saved(tmp_path):
    model = networks.chain(depth=2)
    plain, optimised = networks.save(model, tmp_path), tmp_path / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(optimised), 4
    onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    domains = {each.domain for each in onnx.load(optimised).graph.node}
    assert any(domain.startswith("com.microsoft") for domain in domains)
    report = run(optimised, networks.samples(model, 2))
    assert report.exit_code == 1
    assert "graph_optimization_level" in report.lines[0].text
    assert run(plain, networks.samples(model, 2)).exit_code == 0


def test_run_doubts_a_pass_with_pairs_that_tensorrt_refuses(tmp_path):
    """A scale for each channel of an activation: 'check' of the file and of the recipe has an error."""
    model = pairs()
    for name in ("x.scale", "x.zero"):
        networks.scale_constant(model, name, lambda value: value.repeat(3).reshape(3))
    data = {"x": np.random.default_rng(0).normal(size=(6, 3, 8, 8)).astype(np.float32)}
    report = run(networks.save(model, tmp_path), data)
    assert (report.verdict, report.exit_code) == ("passes with doubts", 1)
    assert report.lines[0].text.startswith("DOUBT: TensorRT cannot run this plan as measured: 3 scales on 'x'")
    assert "trtexec" not in report.next.command
    report.save(tmp_path / "run")
    assert trt_bisect.check(tmp_path / "run/recipe/network.qdq.onnx").exit_code == 1
    assert run(networks.save(pairs(), tmp_path, "single.onnx"), data).exit_code == 0


@pytest.mark.parametrize(("removed", "half"), [("x", True), ("w", True), ("", False)])
def test_run_doubts_a_pass_of_layers_with_a_pair_on_one_operand_alone(tmp_path, removed, half):
    """TensorRT runs them in float, whatever the figures."""
    model = pairs()
    (layer,) = [node for node in model.graph.node if node.op_type == "Conv"]
    for slot, operand in enumerate(("x", "w")):
        if operand == removed:
            layer.input[slot] = operand
    onnx.checker.check_model(model)
    data = {"x": np.random.default_rng(0).normal(size=(6, 3, 8, 8)).astype(np.float32)}
    report = run(networks.save(model, tmp_path), data)
    assert report.exit_code == half
    assert any(f"Not in INT8: '{layer.name}'." in line.text for line in report.answer.doubts) is half


def test_scales_that_are_denormal_in_fp16_are_not_called_wrong_in_our_own_recipe(tmp_path):
    """Values of about 1e-3 have scales of about 3e-5: below FP16's smallest normal, 6.1e-5, normal in float32."""
    model = networks.chain(depth=2)
    data = {name: np.float32(1e-3) * values for name, values in networks.samples(model, 8).items()}
    report = run(networks.save(model, tmp_path), data, base="fp16")
    report.save(tmp_path / "run")
    written = tmp_path / "run/recipe/network.qdq.onnx"
    scales = [numpy_helper.to_array(each) for each in onnx.load(written).graph.initializer if "_scale" in each.name]
    assert any(scale.dtype == np.float16 and 0 < scale.min() < 2.0**-14 for scale in scales)
    assert trt_bisect.check(written).exit_code == 0
