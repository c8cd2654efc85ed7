"""One session with an If at each layer against a session a plan."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from tests.support import networks
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.evaluator.inferences import SwitchRunner
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, int8_set

MAKERS = {"residual": networks.residual, "depthwise": networks.depthwise, "transformer": networks.transformer}


def prepared(make, folder):
    model = make()
    network = load_network(networks.save(model, folder))
    feeds = {"x": networks.samples(model, 1)["x"]}
    builder = OnnxRuntimeBuilder(network, calibrate(network, [feeds], "minmax").scales, BuildOptions())
    return network, feeds, builder


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    found = {}
    for name, make in MAKERS.items():
        network, feeds, builder = prepared(make, tmp_path_factory.mktemp(name))
        found[name] = network, feeds, builder, builder.switch()
    return found


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_outputs_are_those_of_the_plans_own_graph_with_optimisations_off(name, sessions, tmp_path):
    """Bit for bit, on pieces whose tensors are kept and on one session."""
    network, feeds, builder, switch = sessions[name]
    in_pieces = builder.switch(1, facts_for(network, feeds), memory=1 << 20)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    writer = PlanWriter(network, builder.scales, GraphTarget.ONNXRUNTIME)
    random = np.random.default_rng(0)
    for share in (0.0, 0.3, 0.5, 0.7, 1.0):
        plan = int8_set(len(network.layers), {k for k in network.quantizable if random.random() < share})
        written = writer.write(plan)
        onnx.save(networks.attached(written.model, written.weights), tmp_path / "own.onnx")
        (own,) = ort.InferenceSession(tmp_path / "own.onnx", options).run(["y"], feeds)
        assert np.array_equal(own, switch.infer(plan, feeds)["y"])
        assert np.array_equal(own, in_pieces.infer(plan, feeds)["y"])


def test_a_network_with_pairs_at_its_output(tmp_path):
    """A tensor that is rounded as a result is read inside the network unrounded, as before."""
    sketch = networks.Sketch(5)
    scale, zero = sketch.constant("scale", 0.25), sketch.constant("zero", 0, np.int8)
    conv = sketch.conv("x", "conv", 3, 4)
    quantized = sketch.node("QuantizeLinear", [conv, scale, zero], "quantize")
    sketch.nodes.append(helper.make_node("DequantizeLinear", [quantized, scale, zero], ["y"], name="dequantize"))
    sketch.nodes.append(helper.make_node("Relu", [conv], ["z"], name="relu"))
    shape = ["n", 4, 8, 8]
    network = load_network(networks.save(sketch.model({"x": ["n", 3, 8, 8]}, {"y": shape, "z": shape}), tmp_path))
    assert [rounding.at_output for rounding in network.layers[0].roundings] == [True]
    builder = OnnxRuntimeBuilder(network, {}, BuildOptions())
    feeds = {spec.name: np.ones([d or 1 for d in spec.shape], np.float32) for spec in network.inputs}
    switch = builder.switch()
    for chosen in ([], network.quantizable):
        plan = int8_set(len(network.layers), chosen)
        own, switched = builder.build(plan).infer(feeds), switch.infer(plan, feeds)
        assert all(np.allclose(own[name], switched[name], atol=1e-6) for name in own)
        assert np.array_equal(own["z"] % 0.25 == 0, own["z"] == 0), "what is read inside is not rounded"


def test_a_session_with_fp16_as_third_precision_rounds_as_an_engine_does(tmp_path):
    network, feeds, builder = prepared(networks.residual, tmp_path)
    wider = builder.switch(more=[Precision.FP16])
    low = int8_set(len(network.layers), network.quantizable)
    mixed = low.keeping(network.quantizable[:5], Precision.FP16)
    for plan in (low, mixed):
        assert wider.runs(plan)
        engine = builder.build(plan).infer(feeds)["y"]
        np.testing.assert_allclose(wider.infer(plan, feeds)["y"], engine, atol=1e-6)
    assert not np.array_equal(wider.infer(low, feeds)["y"], wider.infer(mixed, feeds)["y"])


def test_plans_of_other_precisions_are_built(tmp_path):
    """The session has FP32 as its high precision: a plan with a layer in FP16 takes an engine of its own."""
    network, feeds, builder = prepared(networks.residual, tmp_path)
    switch = builder.switch()
    low = int8_set(len(network.layers), network.quantizable)
    mixed = low.keeping(network.quantizable[:2], Precision.FP16)
    runner = SwitchRunner(lambda plan: switch if switch.runs(plan) else None, {}, lambda: builder, at_once=1)
    with runner.opened(mixed) as infer:
        assert np.array_equal(infer(feeds)["y"], builder.build(mixed).infer(feeds)["y"])
    assert (switch.runs(low), switch.runs(mixed)) == (True, False)


def test_precisions_and_scales_are_two_inputs_however_many_layers_there_are(sessions):
    """ONNX Runtime's check of the inputs grows with the square of their number."""
    *_, switch = sessions["residual"]
    assert len(switch._pieces[0]._reads) == 3
