"""``benchmarks.builds``: what each stand-in for TensorRT computes, what is counted, and which answers are right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import numpy_helper

from benchmarks.builds.__main__ import run, too_many
from benchmarks.builds.judge import Bench, faults
from benchmarks.builds.networks import SUBJECTS
from benchmarks.builds.standin import Build, Difference, StandIn, compiled
from tests.support import networks
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import choose_engine, make_builder, open_builder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.errors import EngineUnavailable, TrialFailed
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, only
from trt_bisect.report.model import RecipeLayers

LENET = SUBJECTS[0]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    """A network of four convolutions and a Gemm, its scales, and one input."""
    model = networks.chain(4)
    network = load_network(networks.save(model, tmp_path_factory.mktemp("network")))
    feeds = networks.feeds(networks.samples(model)["x"])
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


def full_but(subject, *high):
    return subject[0].full(Precision.FP32).keeping([index_of(subject, name) for name in high])


@pytest.mark.parametrize(
    ("difference", "high", "as_with_high"),
    [
        (Difference(), [], []),
        (Difference(), ["conv1"], ["conv1"]),
        (Difference(disobeys=("conv2",)), [], ["conv2"]),
        (Difference(wrong={"fc": 0.5}), ["fc"], ["fc"]),
        (Difference(refuses=("conv3",)), ["conv3"], ["conv3"]),
    ],
)
def test_it_computes_what_the_emulation_computes_of_a_plan(subject, difference, high, as_with_high):
    found = outputs_of(subject, full_but(subject, *high), difference)
    np.testing.assert_allclose(found, outputs_of(subject, full_but(subject, *as_with_high)), rtol=1e-5)


def test_a_wrong_kernel_adds_a_share_of_the_magnitude(subject):
    plan = only(len(subject[0].layers), index_of(subject, "fc"))
    right, wrong = outputs_of(subject, plan), outputs_of(subject, plan, Difference(wrong={"fc": 0.5}))
    np.testing.assert_allclose(wrong, right + 0.5 * np.abs(right), rtol=1e-5)


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


@pytest.mark.parametrize("tells", [True, False])
def test_a_layer_that_is_refused_fails_the_builds_that_have_it_in_int8(subject, tells):
    with pytest.raises(TrialFailed) as failed:
        outputs_of(subject, full_but(subject), Difference(refuses=("conv3",), tells=tells))
    assert ("conv3" in str(failed.value)) == tells


@pytest.mark.parametrize("tells", [True, False])
def test_what_it_says_of_a_layer_that_disobeys(subject, tells):
    network, scales, feeds = subject
    with StandIn(Difference(disobeys=("conv2",), tells=tells)).installed():
        engine = open_builder("tensorrt", "strong", network, scales, BuildOptions()).build(network.full(Precision.FP32))
    assert engine.ran[index_of(subject, "conv2")] == ("fp32" if tells else "int8")
    assert engine.latency(feeds).computed.get("conv2") == ("fp32" if tells else None)
    assert engine.latency(feeds).computed["conv1"] == "int8"


@pytest.fixture(scope="module")
def files(lenet):
    """The planted LeNet and its data."""
    return lenet / "lenet_planted.onnx", lenet / "calibration.npz", lenet / "digits.npz"


@pytest.fixture(scope="module")
def planted(files, tmp_path_factory):
    """A run on it on a stand-in without a difference: the stand-in, the report, the run's folder."""
    folder, standin = tmp_path_factory.mktemp("run"), StandIn()
    with standin.installed():
        return standin, run(LENET, files, folder), folder


def test_a_run_builds_on_it_and_the_builds_are_counted(planted):
    standin, report, _ = planted
    assert (report.engine, report.arithmetic, report.versions["tensorrt"]) == ("tensorrt", "measured", "11.4.1")
    assert (report.verdict, report.culprits) == ("fails", ("ip2",))
    texts = [build.text for build in standin.builds]
    assert any(text.startswith("full INT8") for text in texts)
    assert any(text.startswith("all in INT8 but ip2 in fp32") for text in texts)
    assert standin.distinct == len({build.key for build in standin.builds}) >= 3
    with pytest.raises(EngineUnavailable):
        choose_engine("tensorrt")


@pytest.mark.parametrize(
    ("difference", "changes", "words"),
    [
        (Difference(), {}, []),
        (Difference(), {"verdict": "passes"}, ["verdict"]),
        (Difference(), {"culprits": ("conv1",)}, ["'conv1'"]),
        (Difference(), {"recipe": RecipeLayers(high=("ip1", "ip2"), meets=True)}, ["['ip1', 'ip2']"]),
        (Difference(wrong={"conv2": 1.0}), {}, ["recipe misses", "'conv2'"]),
        (Difference(refuses=("conv2",)), {}, ["recipe misses", "'conv2'"]),
        (Difference(disobeys=("ip2",)), {}, ["verdict", "'ip2' is no culprit", "holds for"]),
        (Difference(disobeys=("ip2",)), {"verdict": "passes", "culprits": ()}, ["without a doubt"]),
    ],
)
def test_an_answer_is_judged_by_the_stand_in_alone(planted, files, difference, changes, words):
    _, report, folder = planted
    bench = Bench(LENET, files, difference)
    found = list(faults(bench, replace(report, **changes), folder))
    assert all(any(word in fault for fault in found) for word in words), found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("standin", "count", "dropped", "problems"),
    [
        ("same", 6, False, 0),
        ("same", 7, False, 1),
        ("same", 7, True, 0),
        ("wrong-kernel", 16, False, 0),
        ("wrong-kernel", 17, True, 1),
        ("scales-1", 40, False, 0),
    ],
)
def test_builds_are_bounded_where_nothing_contradicts_and_with_a_wrong_kernel(standin, count, dropped, problems):
    row = {"standin": standin, "culprits": ["a", "b"], "builds": count, "distinct": count}
    builds = [Build(str(number), "full INT8") for number in range(count - 1)] + [Build("last", "all in fp16")]
    assert len(too_many(row, builds, dropped=dropped)) == problems
    assert len(too_many({**row, "distinct": count - 1}, builds, dropped=dropped)) == problems + 1


def test_every_layer_that_a_stand_in_treats_apart_is_in_its_network(tmp_path):
    drawn = [subject for subject in SUBJECTS if subject.name not in ("akiki-vad", "page-classifier")]
    assert len(drawn) >= 8
    for subject in drawn:
        network = load_network(subject.make(tmp_path)[0])
        quantizable = {network.layers[k].name for k in network.quantizable}
        assert {subject.healthy, subject.culprit or subject.healthy} <= quantizable
