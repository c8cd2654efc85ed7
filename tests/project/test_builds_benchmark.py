"""The stand-in for TensorRT: what each difference computes, and what is counted."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import numpy_helper

import trt_bisect
from benchmarks.builds.standin import Difference, StandIn, compiled
from tests.support import networks
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import make_builder, open_builder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.errors import TrialFailed
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, all_but, only


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A network of four convolutions and a Gemm, its scales, and one input."""
    model = networks.chain(4)
    network = load_network(networks.save(model, tmp_path_factory.mktemp("network")))
    feeds = [{"x": sample[None]} for sample in networks.samples(model)["x"]]
    return network, calibrate(network, feeds, "minmax").scales, feeds[0]


def outputs_of(subject, plan, difference=None):
    """The output ``y`` of a plan on a stand-in, or in the emulation."""
    network, scales, feeds = subject
    if difference is None:
        with make_builder("onnxruntime", "strong", network, scales, BuildOptions(threads=1)).build(plan) as engine:
            return engine.infer(feeds)["y"]
    with StandIn(difference).installed():
        builder = open_builder("tensorrt", "strong", network, scales, BuildOptions(threads=1))
        with builder.build(plan) as engine:
            return engine.infer(feeds)["y"]


def index_of(subject, name):
    return subject[0].layer_named(name).index


def test_without_a_difference_it_computes_what_the_emulation_computes(subject):
    full = subject[0].full(Precision.FP32)
    for plan in (full, full.keeping([index_of(subject, "conv1")]), subject[0].free_plan()):
        np.testing.assert_allclose(outputs_of(subject, plan, Difference()), outputs_of(subject, plan), rtol=1e-5)


def test_a_layer_that_disobeys_computes_as_a_plan_with_it_in_fp32(subject):
    full, conv2 = subject[0].full(Precision.FP32), index_of(subject, "conv2")
    disobeyed = outputs_of(subject, full, Difference(disobeys=("conv2",)))
    np.testing.assert_allclose(disobeyed, outputs_of(subject, full.keeping([conv2])), rtol=1e-5)
    assert not np.allclose(disobeyed, outputs_of(subject, full), rtol=1e-5)


def test_a_wrong_kernel_adds_a_share_of_the_magnitude_and_only_in_int8(subject):
    count, fc = len(subject[0].layers), index_of(subject, "fc")
    right = outputs_of(subject, only(count, fc))
    wrong = outputs_of(subject, only(count, fc), Difference(wrong={"fc": 0.5}))
    np.testing.assert_allclose(wrong, right + 0.5 * np.abs(right), rtol=1e-5)
    high = all_but(count, [fc])
    np.testing.assert_allclose(outputs_of(subject, high, Difference(wrong={"fc": 0.5})), outputs_of(subject, high))


def scales_in(written):
    tensors = [tensor for tensor in written.model.graph.initializer if tensor.name.endswith("_scale")]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors if "weight" not in tensor.name}


@pytest.mark.parametrize(
    ("difference", "least", "most"),
    [(Difference(scales=(0.7, 1.2), seed=1), 0.7, 1.2), (Difference(jitter=1e-4), 0.999, 1.001)],
)
def test_other_scales_are_of_activations_alone_and_drawn_by_the_seed(subject, difference, least, most):
    network, scales, _ = subject
    written = PlanWriter(network, scales, GraphTarget.TENSORRT).write(network.full(Precision.FP32))
    before, after = scales_in(written), scales_in(compiled(written, difference))
    factors = np.array([after[name] / before[name] for name in before])
    assert len(factors) == 6
    assert len(set(factors.tolist())) == 6
    assert ((factors >= least) & (factors <= most)).all()
    assert scales_in(compiled(written, difference)) == after
    if difference.seed:
        assert scales_in(compiled(written, replace(difference, seed=2))) != after
    full = network.full(Precision.FP32)
    assert not np.array_equal(outputs_of(subject, full, difference), outputs_of(subject, full))


def test_a_base_in_fp16_rounds_what_int8_does_not(subject):
    plan, exact = subject[0].free_plan(), outputs_of(subject, subject[0].free_plan())
    error = np.abs(outputs_of(subject, plan, Difference(base16=True)) - exact).max() / np.abs(exact).max()
    assert 2e-5 < error < 5e-3, "FP16 has 11 significant bits"


def test_a_layer_that_is_refused_fails_the_builds_that_have_it_in_int8(subject):
    full, refusing = subject[0].full(Precision.FP32), Difference(refuses=("conv3",))
    with pytest.raises(TrialFailed, match="conv3"):
        outputs_of(subject, full, refusing)
    kept = full.keeping([index_of(subject, "conv3")])
    np.testing.assert_allclose(outputs_of(subject, kept, refusing), outputs_of(subject, kept), rtol=1e-5)


@pytest.mark.parametrize("tells", [True, False])
def test_what_it_says_of_a_layer_that_disobeys(subject, tells):
    network, scales, feeds = subject
    with StandIn(Difference(disobeys=("conv2",), tells=tells)).installed():
        engine = open_builder("tensorrt", "strong", network, scales, BuildOptions()).build(network.full(Precision.FP32))
    assert engine.ran[index_of(subject, "conv2")] == ("fp32" if tells else "int8")
    assert engine.latency(feeds).computed.get("conv2") == ("fp32" if tells else None)
    assert engine.latency(feeds).computed["conv1"] == "int8"


def test_a_run_builds_on_it_and_the_builds_are_counted(lenet):
    standin = StandIn()
    with standin.installed():
        report = trt_bisect.run(
            lenet / "lenet_planted.onnx", lenet / "calibration.npz", lenet / "digits.npz", engine="tensorrt",
            explain="none", history="none",
        )  # fmt: skip
    assert (report.engine, report.arithmetic, report.versions["tensorrt"]) == ("tensorrt", "measured", "11.4.1")
    assert (report.verdict, report.culprits) == ("fails", ("ip2",))
    keys = [build.key for build in standin.builds]
    assert standin.distinct == len(set(keys)) <= len(keys)
    texts = " ".join(build.text for build in standin.builds)
    assert "full INT8" in texts
    assert "all in INT8 but ip2" in texts
    with pytest.raises(trt_bisect.errors.EngineUnavailable):
        trt_bisect.builder.engines.choose_engine("tensorrt")
