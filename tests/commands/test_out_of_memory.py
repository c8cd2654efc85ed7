"""A trial that ran out of memory: an outcome of its own, no failed accuracy, and tried again when the run goes on."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

import trt_bisect
from tests.support import networks
from tests.support.fake_builders import faulty
from tests.support.records import kinds, record_of, report_from
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.evaluators import RebuildEvaluator
from trt_bisect.evaluator.trial import TrialStore
from trt_bisect.model.network import load_network
from trt_bisect.precision import int8_set
from trt_bisect.preparation import experiment as job
from trt_bisect.support.text import MEMORY

TOOK_TOO_LONG = "The build took over 5 s."
TENSORRT = "[virtualMemoryBuffer.cpp::resizePhysical::127] Error Code 2: OutOfMemory (Requested size was 4096 bytes.)"


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        (TENSORRT, "out of memory"),
        ("[defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)", "out of memory"),
        ("Requested amount of GPU memory (4096 bytes) could not be allocated.", "out of memory"),
        ("cuMemAlloc failed: out of memory", "out of memory"),
        ("std::bad_alloc", "out of memory"),
        ("bad allocation", "out of memory"),
        ("Error Code 10: Could not find any implementation for node conv1.", "build failed"),
        ("Error Code 4: the memory pool limit of node memory_bank is odd", "build failed"),
    ],
)
def test_the_engines_words_for_it_are_known(message, outcome):
    assert TrialFailed("build failed", message).outcome == outcome


def test_a_time_limit_stays_one_whatever_was_logged():
    assert TrialFailed("timed out", f"{TOOK_TOO_LONG}\n{TENSORRT}").outcome == "timed out"


def test_onnxruntime_asked_for_more_than_there_is(tmp_path):
    """A product of 2 ** 44 floats, 64 TiB: what ONNX Runtime itself raises for it."""
    sketch = networks.Sketch(0)
    x = sketch.dense("x", "embed", 4, 4)
    large = sketch.node("Expand", [x, sketch.constant("large", [1 << 42, 4], np.int64)], "expand")
    sketch.nodes.append(helper.make_node("ReduceSum", [large], ["y"], name="sum", keepdims=1))
    model = sketch.model([1, 4], [1, 1], opset=13)
    path = networks.save(model, tmp_path)
    feeds = {"x": np.ones((1, 4), np.float32)}
    with pytest.raises(Exception, match=r"(?i)alloc|memory"):
        ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
    network = load_network(path)
    builder = OnnxRuntimeBuilder(network, {}, BuildOptions())
    evaluator = RebuildEvaluator(network, builder, [feeds], lambda _: {}, TrialStore())
    trial = evaluator.measure(int8_set(len(network.layers), ()))
    assert trial.outcome == "out of memory"
    assert trial.failed


def no_memory():
    raise TrialFailed("build failed", TENSORRT)


@pytest.fixture
def given(tmp_path):
    """A chain with a culprit, and four samples."""
    return networks.given(networks.planted(networks.chain(4), ("conv2", "conv3")), tmp_path, 4)


@pytest.fixture
def measured(monkeypatch, given, tmp_path):
    """A run in one folder, on a machine that has no memory for the plans ``too_large``."""

    def call(*too_large, output=tmp_path / "run"):
        def scarce(engine, typing, network, scales, options, shapes, workshop=None):
            return faulty(OnnxRuntimeBuilder(network, scales, options), dict.fromkeys(too_large, no_memory))

        monkeypatch.setattr(job, "open_builder", scarce)
        how = {"engine": "onnxruntime", "calibrator": "minmax", "strategy": "exhaustive", "explain": "none"}
        return trt_bisect.run(*given, given[1], output=output, **how)

    return call


def facts(report):
    return report.layers, report.culprits, report.similarity, report.recipe, report.exit_code, report.summary


def test_it_is_reported_blames_nobody_and_is_tried_again(measured, tmp_path):
    """The plan up to the second convolution is too large for the machine once."""
    whole = measured(output=tmp_path / "whole")
    (large,) = [row.index for row in whole.layers if row.name == "conv2"]
    before = [row.index for row in whole.layers if row.quantizable and row.index <= large]
    short = measured(int8_set(len(whole.layers), before).key())
    row = short.layers[large]
    assert (row.outcome, row.culprit, row.similarity) == ("out of memory", False, None)
    assert "OutOfMemory" in row.message
    assert short.culprits == whole.culprits
    (note,) = [note for note in short.notes if note.kind == MEMORY]
    assert note.text.startswith("1 plan ")
    assert report_from(record_of(short)).layers == short.layers
    again = measured()
    assert facts(again) == facts(whole)
    assert MEMORY not in kinds(again.notes)


def test_no_verdict_on_full_int8_that_had_no_memory(measured, given):
    """Exit code 1 would say that it was measured and misses the threshold."""
    network = load_network(given[0])
    assert measured(int8_set(len(network.layers), network.quantizable).key()).exit_code == 3
    assert measured().exit_code == 1
