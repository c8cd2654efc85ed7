"""Rounded weights take as much memory as the weights: graphs of one network share them, and drop them after use."""

import gc
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest

from tests.support import networks
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.file import read_model
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import symmetric
from trt_bisect.precision import Precision


@pytest.fixture(scope="module")
def prepared():
    model = networks.residual()
    network = load_network(model)
    feeds = {"x": networks.samples(model, 1)["x"]}
    return network, feeds, calibrate(network, [feeds], "minmax").scales


def written(network, scales):
    return PlanWriter(network, scales, GraphTarget.ONNXRUNTIME).write(network.full(Precision.FP32))


def rounded_of(network, found):
    return {name: array for name, array in found.weights.items() if name not in network.weights}


def test_the_graphs_of_one_network_share_their_rounded_weights(prepared):
    network, feeds, scales = prepared
    shaped = network.with_shapes(facts_for(network, feeds).shapes)
    own, free = written(network, scales), written(shaped, scales)
    rounded = rounded_of(network, own)
    assert rounded
    assert all(free.weights[name] is array for name, array in rounded.items())


def test_rounded_weights_go_with_the_last_graph_that_uses_them(prepared):
    network, _, scales = prepared
    found = written(network, scales)
    assert len(network.rounded) >= len(rounded_of(network, found))
    del found
    gc.collect()
    assert not network.rounded


def test_rounded_weights_are_kept_beyond_their_graphs_while_a_builder_may_need_them(prepared):
    network, _, scales = prepared
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    found = writer.write(network.full(Precision.FP32))
    assert sum(array.nbytes for array in rounded_of(network, found).values()) > 16_000
    again = writer.write(network.full(Precision.FP32))
    assert all(again.weights[name] is array for name, array in found.weights.items())
    del found, again
    gc.collect()
    assert network.rounded


def test_other_scales_round_otherwise(prepared):
    network, _, scales = prepared
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    name = next(iter(network.weights))
    values, context = network.constant(name), writer
    fine, coarse = (context.rounded(name, (symmetric(np.float32(scale)),)) for scale in (0.01, 0.1))
    assert np.allclose(fine, np.clip(np.rint(values / 0.01), -128, 127) * 0.01, atol=1e-6)
    assert np.allclose(coarse, np.clip(np.rint(values / 0.1), -128, 127) * 0.1, atol=1e-6)


def test_a_copy_for_another_process_rounds_its_own(prepared):
    network, _, scales = prepared
    found = written(network, scales)
    copy = pickle.loads(pickle.dumps(network))
    again = written(copy, scales)
    assert all(np.array_equal(again.weights[name], array) for name, array in found.weights.items())


READ = """
import sys
from pathlib import Path
from trt_bisect.model.file import read_model
from trt_bisect.support.machine import peak_bytes
before = peak_bytes()
_, weights = read_model(Path(sys.argv[1]))
print((peak_bytes() - before) / sum(array.nbytes for array in weights.values()))
"""


@pytest.mark.slow
def test_reading_external_weights_takes_little_more_memory_than_the_weights(tmp_path):
    names, shape = [f"w{i}" for i in range(16)], (1024, 1024)
    weights = [onnx.numpy_helper.from_array(np.full(shape, i, np.float32), name) for i, name in enumerate(names)]
    model = networks.model_of([onnx.helper.make_node("Sum", ["x", *names], ["y"])], {"x": shape}, {"y": shape}, weights)
    path = tmp_path / "net.onnx"
    onnx.save(model, path, save_as_external_data=True, location="net.data")
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.5
    assert all(np.all(array == int(name[1:])) for name, array in read_model(path)[1].items())
