"""Runs on an engine that does not do what it is asked, or does not say what it did, end to end."""

import json
from pathlib import Path

import numpy as np
import pytest

import trt_bisect
from tests.support.records import record_of, texts
from trt_bisect.analyzer.doubts import NOT_LOW
from trt_bisect.builder.inspector import engine_layers, ran_in
from trt_bisect.model.network import load_network
from trt_bisect.report.given import DOUBTED
from trt_bisect.report.parts import WITH_DOUBTS
from trt_bisect.support.text import FLOAT_KERNELS

FILES = Path(__file__).parents[1] / "files" / "inspector"
LOW = {"conv1", "pool1", "conv2", "pool2", "ip1", "ip2"}
"""LeNet's layers that TensorRT can run in INT8."""


@pytest.fixture
def run(lenet, tmp_path):
    def made(network="lenet.onnx", **options):
        data = lenet / "calibration.npz", {"data": np.load(lenet / "digits.npz")["data"][:6]}
        fixed = {"explain": "none", "output": tmp_path / "run", "calibrator": "minmax"}
        return trt_bisect.run(lenet / network, *data, **{**fixed, **options})

    return made


def test_a_pass_of_an_engine_that_runs_all_layers_in_fp32_is_doubted(foreign, run, tmp_path):
    """FP32 equals FP32, so that similarity alone would pass."""
    foreign(in_float=LOW)
    report = run()
    assert report.similarity.int8 == pytest.approx(1.0)
    assert (report.exit_code, report.culprits) == (1, ())
    (doubt,) = report.answer.doubts
    assert (doubt.kind, doubt.text.startswith("0 of 6 layers ")) == (NOT_LOW, True)
    assert report.lines[0].kind == DOUBTED
    assert doubt.text in report.lines[0].text
    assert {row.name for row in report.layers if row.obeyed is False} == LOW
    saved = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (saved["verdict"], saved["answer"]["doubts"]) == (WITH_DOUBTS, [record_of(doubt)])
    assert doubt.text in (tmp_path / "run" / "report.html").read_text()
    accepted = run(accept=True)
    assert (accepted.exit_code, texts(accepted.answer.doubts)) == (0, [doubt.text])


def test_an_engine_that_obeys_is_not_doubted_and_the_verdict_says_how_many_layers_ran_in_int8(foreign, run):
    foreign()
    report = run()
    assert (report.exit_code, texts(report.answer.doubts)) == (0, [])
    assert "6 of 6 layers" in report.answer.rests_on


def test_a_recipe_is_doubted_too(foreign, run):
    """The layer that the recipe keeps high is high; one of the others does not run in INT8."""
    foreign(in_float=("conv2",))
    report = run("lenet_planted.onnx")
    assert report.culprits == ("ip2",)
    assert report.exit_code == 1
    (doubt,) = report.answer.doubts
    assert (doubt.kind, doubt.text.startswith("4 of 5 layers ")) == (NOT_LOW, True)


def test_pairs_fused_into_a_float_kernel_round_and_gain_no_speed(foreign, run, lenet):
    """The layers of a real engine (TensorRT-RTX, Q/DQ on all of LeNet): pool2 reads and computes in float."""
    layers = load_network(lenet / "lenet.onnx").layers
    told = ran_in(engine_layers((FILES / "lenet_rtx.json").read_text()), layers)
    foreign(typing="strong", computed={layers[k].name: kind for k, kind in told.items()})
    report = run()
    assert (report.exit_code, texts(report.answer.doubts)) == (0, [])
    rows = {row.name: row for row in report.layers}
    assert all(rows[name].ran == "int8" and rows[name].obeyed for name in LOW)
    assert report.latency["int8"].computed["pool2"] == "fp32"
    (note,) = [note for note in report.notes if note.kind == FLOAT_KERNELS]
    assert note.layers == ("pool2",)
