"""The kernels of real engines, which TensorRT-RTX builds without a GPU: what pairs became in them, and what they cost.

The facts that tests expect are read off the builder's log with plain text functions, or written down by hand from it.
"""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.flawed_pairs import pairs
from tests.support.networks import save
from trt_bisect.analyzer.structure.graph import FileGraph
from trt_bisect.analyzer.structure.kernels import engine_facts
from trt_bisect.builder.inspector import EngineLayer
from trt_bisect.builder.tensorrt_build import RTX, import_tensorrt, logger_of
from trt_bisect.builder.tensorrt_rtx import layers_of_file
from trt_bisect.commands import check
from trt_bisect.errors import BadInput
from trt_bisect.model.file import save_model
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision

pytest.importorskip("tensorrt_rtx_bindings")

SAMPLES = Path(__file__).parents[2] / "samples"
ONLY_ROUNDED, REFUSED = "rounded in float", "engine not built"
"""Kinds of findings."""

FILES = {
    "lenet": SAMPLES / "lenet" / "lenet.onnx",
    "detector": SAMPLES / "detector" / "detector.onnx",
    "encoder": SAMPLES / "transformer" / "encoder.onnx",
}

BUILT = edition(("lenet", "residual", "encoder"), ("lenet", "residual", "encoder", "detector"))


def written(path, folder, high=()):
    """The network with pairs on all layers that can have them but ``high``, as a file."""
    network = load_network(path)
    scales = {name: np.float32(0.02 + 1e-4 * i) for i, name in enumerate(network.activations)}
    low = [k for k in network.quantizable if network.layers[k].name not in high]
    made = PlanWriter(network, scales, GraphTarget.TENSORRT).write(network.plan(low, Precision.FP32))
    save_model(made.model, made.weights, folder / "network.qdq.onnx")
    return folder / "network.qdq.onnx"


def checked(file):
    """The lines of the builder's log about a file with pairs, and the report; the engines are built in this process."""
    logs = []

    def ask(request, _):
        layers = request[1]()
        logs.append(logger_of(import_tensorrt(RTX)).layers.split("\n"))
        return layers

    here = SimpleNamespace(worker=lambda: SimpleNamespace(ask=ask), stop=lambda: None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(check, "WorkerProcess", lambda: here)
        report = trt_bisect.check(file, engine=RTX)
    return [line for line in logs[0] if line.startswith("Name: ")], report


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """For a network by name: its file with pairs, the lines of the builder's log about it, and the report."""
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            file = written(FILES.get(name) or save(networks.residual(2), folder), folder)
            known[name] = file, *checked(file)
        return known[name]

    return get


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
def test_every_layer_with_a_weight_becomes_a_kernel_that_reads_int8(built, name):
    file, lines, report = built(name)
    weighted = [node.name for node in onnx.load(file).graph.node if node.op_type in ("Conv", "Gemm", "MatMul")]
    assert weighted
    for layer in weighted:
        kernels = [line for line in lines if f"[ONNX Layer: {layer}]" in line and "LayerType: kgen" not in line]
        (read,) = [line.partition(", Constants: ")[0] for line in kernels]
        assert "Datatype: Int8" in read
        assert "Datatype: Float" not in read
        assert layer in report.engine.low


CONCATS = [f"/model.13/{op}" for op in ("Add_1", *(f"Concat{i}" for i in ("", *"_2 _4 _6 _7 _8".split())))]
ROUNDED = {
    "lenet": (6, ["pool2"], 8, 1),
    "residual": (9, ["pool"], 8, 1),
    "encoder": (22, ["block0.add1", "block0.add2", "block1.add1", "block1.add2"], 29, 2),
    "detector": (40, CONCATS, 31, 1),
}
"""The layers of each network with pairs, and those of them that are only rounded; the kernels of its engine without
pairs, and those that only move data.
"""


@pytest.mark.parametrize("name", BUILT)
def test_the_layers_that_are_only_rounded_and_the_engine_without_pairs(built, name):
    layers, rounded, *without = ROUNDED[name]
    facts = built(name)[2].engine
    assert facts.broken == (), "a full INT8 plan breaks no fusion"
    assert sorted(facts.rounded) == sorted(rounded)
    assert len(facts.low) == layers - len(rounded)
    assert facts.untold == ()
    assert [facts.fp32.total, facts.fp32.moves] == without
    assert (facts.fp32.pairs, facts.fp32.low, facts.fp32.rounding) == (0, 0, 0)


@pytest.mark.parametrize("name", BUILT)
def test_the_kernels_are_counted_as_the_log_has_them(built, name):
    _, lines, report = built(name)
    counted = report.engine.kernels
    kernels = [line for line in lines if not any(f"LayerType: {kind}" in line for kind in ("signal", "wait"))]
    moves = [line for line in kernels if any(f"__myl_{op}_myl" in line for op in ("Tran", "Move", "Resh", "ReshTran"))]
    read = [line.partition(", Constants: ")[0] for line in kernels if line not in moves]
    assert counted.total == len(kernels)
    assert counted.moves == len(moves)
    assert counted.low == sum("Datatype: Int8" in line and "Datatype: Float" not in line for line in read)
    assert counted.mixed == sum("Datatype: Int8" in line and "Datatype: Float" in line for line in read)


def test_convolution_sum_and_activation_are_fused_because_the_branch_is_bare(built):
    lines = built("residual")[1]
    for block in ("block0", "block1"):
        (kernel,) = [line for line in lines if f"[ONNX Layer: {block}.add]" in line]
        assert f"[ONNX Layer: {block}.conv2]" in kernel
        assert f"[ONNX Layer: {block}.relu2]" in kernel
        assert kernel.count("Roun") >= 1
        assert f"{block}.conv2_out__int8" not in kernel


def test_the_pairs_with_a_kernel_of_their_own(built):
    assert built("lenet")[2].engine.pair_kernels == (
        ("data__int8_q_QuantizeLinear", "data__int8_DequantizeLinear"),
        ("flatten__int8_q_QuantizeLinear",),
    )


@pytest.mark.slow
def test_a_layer_left_high_breaks_the_fusion_that_it_was_in(tmp_path):
    facts = checked(written(FILES["encoder"], tmp_path, ["block0.k"]))[1].engine
    (parts,) = facts.broken
    assert {frozenset(part) for part in parts} == {frozenset({"block0.k"}), frozenset({"block0.q", "block0.v"})}


def test_a_sum_behind_a_high_convolution_is_only_rounded(tmp_path):
    file = written(save(networks.residual(2), tmp_path), tmp_path, ["block0.conv2"])
    facts = checked(file)[1].engine
    assert set(facts.rounded) == {"block0.add", "pool"}


@pytest.mark.slow
def test_a_network_without_pairs_is_built_with_all_layers_in_int8(built):
    """In a worker process."""
    planned, of_file = trt_bisect.check(FILES["lenet"], engine=RTX), built("lenet")[2]
    assert planned.engine == of_file.engine
    assert planned.pairs == 0


def test_the_facts_are_in_the_saved_report(built, tmp_path):
    report = built("encoder")[2]
    loaded = trt_bisect.CheckReport.load(report.save(tmp_path))
    assert loaded.engine == report.engine
    assert [each.layers[0] for each in loaded.findings if each.kind == ONLY_ROUNDED] == list(report.engine.rounded)
    assert report.engine.summary in (tmp_path / "check.html").read_text()


@pytest.mark.slow
def test_a_file_that_the_engine_refuses_is_an_error_with_its_message(tmp_path):
    report = trt_bisect.check(save(pairs(zero=3), tmp_path), engine=RTX)
    assert report.engine is None
    assert report.exit_code == 1
    (refused,) = [each for each in report.findings if each.kind == REFUSED]
    assert "zero" in refused.what.lower()


def test_dynamic_axes_have_the_sizes_that_are_given(tmp_path):
    file = written(save(networks.chain(2), tmp_path), tmp_path)
    logged = {}
    for batch in (1, 4):
        layers_of_file(file, {"x": (batch, 3, 16, 16)} if batch > 1 else {})
        logged[batch] = logger_of(import_tensorrt(RTX)).layers
    assert "MinShape: [4,3,16,16]" in logged[4]
    assert "MinShape: [1,3,16,16]" in logged[1]


@pytest.mark.parametrize("shapes", [{"z": (1, 3, 16, 16)}, {"x": (1, 3)}, {"x": (1, 4, 16, 16)}])
def test_a_shape_that_does_not_fit_is_no_fault_of_the_file(tmp_path, shapes):
    with pytest.raises(BadInput, match=next(iter(shapes))):
        trt_bisect.check(save(networks.chain(2), tmp_path), engine=RTX, shapes=shapes)


def test_another_engine_is_refused(tmp_path):
    with pytest.raises(BadInput, match=RTX):
        trt_bisect.check(FILES["lenet"], engine="tensorrt")


def kernel(name, nodes, reads, kind="kgen"):
    return EngineLayer(name, kind, tuple(nodes), tuple(reads), ("fp32",), "")


def sum_of_two():
    """A product and a sum with pairs, each on its input alone."""
    sketch = networks.Sketch()
    scale, nodes = sketch.constant("s", 0.1), {}
    for name, x in (("1", "x"), ("2", "mul_out")):
        quantized = sketch.node("QuantizeLinear", [x, scale], f"q{name}")
        nodes[name] = sketch.node("DequantizeLinear", [quantized, scale], f"dq{name}")
        if name == "1":
            sketch.node("MatMul", [nodes["1"]] * 2, "mul")
    sketch.node("Add", [nodes["2"], "x"], "add", out="y")
    return FileGraph.of(sketch.model([4, 4], [4, 4]), "sum")


def test_a_pair_inside_one_kernel_is_rounding_and_one_across_two_is_int8():
    quantizer = kernel("__myl_MulMinMaxRounCast_myl0_0", ["q1"], ["fp32"])
    product = kernel("mul_myl0_1", ["mul", "dq1"], ["int8", "int8"], "gemm")
    inside = kernel("__myl_MulMinMaxRounCastCastMulAdd_myl0_2", ["q2", "dq2", "add"], ["fp32", "fp32"])
    facts = engine_facts(RTX, sum_of_two(), [quantizer, product, inside], None)
    assert (facts.low, facts.rounded, facts.untold) == (("mul",), ("add",), ())
    apart = [product, kernel("__myl_MulMinMaxRounCast_myl0_2", ["q2"], ["fp32"])]
    sums = kernel("__myl_CastMulAdd_myl0_3", ["dq2", "add"], ["int8", "fp32"])
    facts = engine_facts(RTX, sum_of_two(), [quantizer, *apart, sums], None)
    assert facts.low == ("mul", "add")
    assert asdict(facts.kernels) == {"total": 4, "moves": 0, "pairs": 2, "low": 1, "mixed": 1, "rounding": 0}


def test_a_layer_that_no_kernel_names_is_not_called_rounded():
    facts = engine_facts(RTX, sum_of_two(), [kernel("mul_myl0_1", ["mul", "dq1"], ["int8"], "gemm")], None)
    assert (facts.low, facts.untold) == (("mul",), ("add",))
