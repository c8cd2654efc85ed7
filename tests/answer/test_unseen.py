"""Inputs that are held out: no choice sees them, and the bound counts what misses on them."""

from dataclasses import replace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.records import record_of, texts
from trt_bisect.report.summary import HELD_OUT, bound_line

PLACES = [4, 9, 14, 19, 24, 29]
HOW = {"engine": "onnxruntime", "explain": "none", "threshold": 0.999, "effort": "quick"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A chain with a culprit, its file, and 30 samples."""
    model = networks.planted(networks.chain(depth=4), ("conv1", "conv2"))
    return networks.save(model, tmp_path_factory.mktemp("planted")), networks.samples(model, 30)


def chosen(report, folder):
    """All of a report but its words on held-out inputs and its times, and the recipe's network."""
    answer = replace(report.answer, held_out=None, doubts=(), confidence=())
    kept = replace(
        report, answer=answer, bound=None, seconds=None, started=0.0, lines=(), notes=(), verdict="", next=None
    )
    choices = tuple(replace(choice, held_out=None) for choice in report.choices)
    inputs = replace(kept.inputs, fed={})
    record = record_of(replace(kept, peak_bytes=0, inferences=0, plans=0, builds=0, inputs=inputs, choices=choices))
    return record, (folder / "recipe/network.qdq.onnx").read_bytes()


def test_the_held_out_samples_change_nothing_that_is_chosen(planted, tmp_path):
    """Others in their places, some louder than any given one: the same ranges, recipe and figures, to the last bit."""
    path, data = planted
    others = {name: values.copy() for name, values in data.items()}
    others["x"][PLACES] = 50 * data["x"][::-1][PLACES]
    runs = [
        trt_bisect.run(path, samples, output=tmp_path / str(number), **HOW)
        for number, samples in enumerate((data, others))
    ]
    first, second = (chosen(report, tmp_path / str(number)) for number, report in enumerate(runs))
    assert runs[0].recipe.high
    assert first == second
    assert [report.bound.inputs for report in runs] == [6, 6]
    assert runs[0].answer.held_out != runs[1].answer.held_out


def test_the_bound_counts_the_held_out_inputs_that_miss(planted, tmp_path):
    path, data = planted
    loud = {"x": np.concatenate([data["x"][:5] * 1.001, data["x"][5:7] * 2])}
    report = trt_bisect.run(path, {"x": data["x"][:12]}, validation=loud, calibrator="minmax", **HOW)
    missed = sum(value < 0.999 for value in report.answer.held_out.figures.values())
    assert 0 < missed < 7
    assert (report.bound.inputs, report.bound.missed) == (7, missed)
    (line,) = (line for line in report.lines if line.kind == HELD_OUT)
    assert line == bound_line(report.bound)
    held_out = {choice.plan: choice.held_out for choice in report.choices}
    assert held_out == {"fp32": None, "fp16": True, "int8": None, "recipe": False}
    assert report.next.kind == "ship fp16", "what holds on held-out inputs is shipped until a recipe does"
    assert all(
        part in line.text for part in (f"{missed} of 7", "95% confidence", f"{7 + report.bound.more} held-out inputs")
    )
    assert record_of(report)["bound"]["most"] == report.bound.most


def test_validation_samples_that_the_calibration_saw_do_not_count(planted):
    """With other data to judge, the samples of the calibration are no given inputs, and its ranges saw them."""
    path, data = planted
    report = trt_bisect.run(
        path,
        {"x": data["x"][:20]},
        dataset={"x": data["x"][20:25]},
        validation={"x": data["x"][18:]},
        calibrator="minmax",
        **HOW,
    )
    assert report.bound.inputs == 30 - 25
    assert any("7 held-out samples" in note for note in texts(report.notes))


def test_held_out_inputs_that_overflow_miss(planted):
    """In FP16 a sample a million times as large overflows, and its output is no number: it misses, and counts."""
    path, data = planted
    validation = {"x": np.concatenate([data["x"][:5] * 1.001, data["x"][5:7] * 1e6])}
    report = trt_bisect.run(path, {"x": data["x"][:12]}, validation=validation, low="fp16", **HOW)
    held_out = report.answer.held_out
    assert (held_out.inputs, held_out.holds, held_out.worst) == (7, 5, None)
    assert (report.bound.inputs, report.bound.missed) == (7, 2)
    assert report.verdict == "passes with doubts"
