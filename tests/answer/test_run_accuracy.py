"""The accuracy on labelled data in ``run``: FP32, full INT8, recipe, beside ONNX Runtime on the user's own files."""

import re

import numpy as np
import pytest

import trt_bisect
from tests.support.quantized import plain_session
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import chance_of
from trt_bisect.report.answer import Accuracies
from trt_bisect.report.given import DATA
from trt_bisect.report.parts import WITH_DOUBTS
from trt_bisect.report.summary import ACCURACY, accuracy_line

COUNT = 20


@pytest.fixture(scope="module")
def digits(lenet):
    """So many of the sample's digits and their classes, every fourth class wrong."""
    with np.load(lenet / "digits.npz") as found:
        feeds = {name: found[name][:COUNT] for name in found.files}
    labels = np.load(lenet / "labels.npy")[:COUNT]
    labels[::4] = (labels[::4] + 1) % 10
    return feeds, labels


def right(file, feeds, labels):
    """The share of digits that ONNX Runtime classifies as labelled."""
    session = plain_session(file)
    (name,) = feeds
    found = [session.run(None, {name: feeds[name][k : k + 1]})[0].argmax() for k in range(COUNT)]
    return float(np.mean(np.array(found) == labels))


def test_a_function_of_the_users_is_called_before_the_search(lenet, digits):
    """So that a mistake in it costs no search."""

    def broken(infer):
        raise ZeroDivisionError("mine")

    with pytest.raises(BadInput, match="ZeroDivisionError: mine"):
        trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", digits[0], accuracy=broken)


@pytest.mark.parametrize("change", [lambda y: y + 2, lambda y: y - 1, lambda y: np.full_like(y, 255)])
def test_labels_outside_the_classes_of_the_network_are_refused(lenet, digits, change):
    feeds, labels = digits
    labels = change(labels)
    wrong = ((labels < 0) | (labels > 9)).sum()
    with pytest.raises(BadInput, match=f"{wrong} of {COUNT} labels are none of the network's 10 classes"):
        trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", dataset=feeds, labels=labels, drop="1%")


def test_labels_that_fp32_knows_no_better_than_chance_are_told_first(lenet, digits):
    """Every label is three or four classes off."""
    feeds, labels = digits
    labels = (labels + 3) % 10
    report = trt_bisect.run(
        lenet / "lenet.onnx", lenet / "calibration.npz", dataset=feeds, labels=labels, drop="50%", samples=1,
        explain="none", engine="onnxruntime", strategy="exhaustive", calibrator="minmax", effort="quick",
    )  # fmt: skip
    assert report.accuracy.fp32 == right(lenet / "lenet.onnx", feeds, labels) <= np.bincount(labels).max() / COUNT
    assert report.lines[0].kind == DATA
    assert "not above chance" in report.lines[0].text
    assert report.verdict == WITH_DOUBTS
    assert report.next.kind == DATA


@pytest.mark.parametrize(
    ("labels", "classes", "expected"), [([0, 0, 1, 2], 4, 0.5), ([3, 3, 3], 4, 0.25), ([0, 1, 2, 3], 10, 0.25)]
)
def test_chance_is_the_share_of_the_commonest_label(labels, classes, expected):
    assert chance_of(np.array(labels), classes) == expected


def test_labels_without_their_data_are_refused(lenet):
    with pytest.raises(BadInput, match="dataset"):
        trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", labels=[1, 2])


def test_ratios_are_left_out_where_there_is_none():
    alone = accuracy_line(Accuracies(fp32=0.8, int8=0.4, recipe=0.4), "fp16", has_recipe=False).text
    assert ("full FP16 40%" in alone, "recipe" in alone) == (True, False)
    with_ratios = accuracy_line(Accuracies(fp32=0.8, int8=0.4, recipe=None)).text
    assert "40%" in with_ratios
    assert "50% of FP32" in with_ratios
    without = accuracy_line(Accuracies(fp32=0.0, int8=None, recipe=71.25))
    assert without.kind == ACCURACY
    assert re.findall(r"\d+\.?\d*%", without.text) == ["0%"]
    assert "71.25" in without.text
    negative = accuracy_line(Accuracies(fp32=-0.2, int8=-17.5, recipe=-0.25)).text
    assert "%" not in negative
    assert {"-0.2", "-17.5", "-0.25"} <= set(re.findall(r"-[\d.]*\d", negative))
