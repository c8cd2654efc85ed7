"""The plans that a user may ship, side by side, and which of them the report says to take."""

from dataclasses import replace

import numpy as np
import pytest

import trt_bisect
from tests.support.by_hand import cosine
from tests.support.quantized import plain_session
from trt_bisect.precision import Precision
from trt_bisect.report.choices import Choice, fp16_instead, kept_speed, predicted_ms
from trt_bisect.support.text import percent

QUICK = {"engine": "onnxruntime", "explain": "none", "calibrator": "minmax", "effort": "quick"}
MACS = {"conv1": 288_000, "pool1": 2_880, "conv2": 1_600_000, "pool2": 800, "ip1": 400_000, "ip2": 5_000}
"""Multiply-adds of LeNet, by hand; a pooling counts its output values."""


def choices(fp16=True, ms=None, recipe=0.2, int8=False, held_out=(None, None)):
    times = dict(zip(("fp32", "fp16", "int8", "recipe"), ms or (None,) * 4, strict=True))
    rows = [
        Choice("fp32", True, None, None, times["fp32"], None),
        Choice("fp16", fp16, 0.9999, None, times["fp16"], 1.0, held_out[0]),
        Choice("int8", int8, 0.3, None, times["int8"], 0.0),
    ]
    if recipe is not None:
        rows.append(Choice("recipe", True, 0.999, None, times["recipe"], recipe, held_out[1]))
    return rows


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, ""),
        ({"recipe": 0.6}, "the recipe keeps 40% of INT8's speedup over FP16 (by multiply-adds)"),
        ({"recipe": 1.0}, "the recipe is as fast as FP16 (by multiply-adds)"),
        ({"recipe": 2.5}, "the recipe is slower than FP16 (by multiply-adds)"),
        ({"recipe": 0.6, "fp16": False}, ""),
        ({"recipe": None}, "no plan in INT8 that was tried does"),
        ({"recipe": None, "int8": True}, ""),
        ({"held_out": (True, False)}, "the recipe misses it on held-out inputs, on which FP16 does not"),
        ({"held_out": (False, False)}, ""),
        ({"held_out": (False, None), "recipe": None}, ""),
        ({"held_out": (None, False)}, ""),
        ({"held_out": (None, True)}, ""),
        ({"ms": (4.0, 2.0, 1.0, 1.97)}, "the recipe takes 1.97 ms, FP16 2 ms"),
        ({"ms": (4.0, 2.0, 1.0, 1.85)}, ""),
        ({"recipe": None, "int8": True, "ms": (4.0, 1.30, 1.31, None)}, "full INT8 takes 1.31 ms, FP16 1.3 ms"),
    ],
)
def test_fp16_is_the_plan_to_ship_where_int8_is_hardly_faster(asked, why):
    assert fp16_instead(choices(**asked)) == why


def test_the_low_precision_and_the_source_of_costs_are_named():
    assert fp16_instead(choices(recipe=None), Precision.FP8) == "no plan in FP8 that was tried does"
    text = "full FP8 takes 1.31 ms, FP16 1.3 ms"
    assert fp16_instead(choices(recipe=None, int8=True, ms=(4.0, 1.30, 1.31, None)), Precision.FP8) == text
    text = "the recipe keeps 40% of FP8's speedup over FP16 (predicted on A100)"
    assert fp16_instead(choices(recipe=0.6), Precision.FP8, "time on A100") == text


@pytest.mark.parametrize(
    ("ms", "low", "costs", "told"),
    [
        ((4.0, 2.0, 1.0, 1.2), Precision.INT8, "time on H200", (1.0, 1.0)),
        ((4.0, 2.0, 2.0, 2.2), Precision.INT8, "time on H200", (2.0, 0.1)),  # no speedup: a twentieth of full INT8
        ((4.0, None, 1.0, 1.2), Precision.FP16, "time on H200", (1.0, 3.0)),
        ((4.0, 2.0, 1.0, 1.2), Precision.INT8, "macs", None),
        ((4.0, 2.0, 1.0, 1.2), Precision.INT8, "measured", None),
        (None, Precision.INT8, "time on H200", None),
    ],
)
def test_a_cost_is_told_as_a_time_where_it_comes_from_predicted_ones(ms, low, costs, told):
    assert predicted_ms(choices(ms=ms), low, costs) == told


@pytest.mark.parametrize(("fixed", "ms", "told"), [(0.25, 1.25, (1.0, 1.0)), (0.5, 2.05, (2.0, 0.1)), (1.2, 2.2, None)])
def test_layers_that_the_user_fixed_are_no_part_of_a_cost_of_0(fixed, ms, told):
    rows = choices(ms=(4.0, 2.0, ms, 1.2))
    rows[2] = replace(rows[2], gives_up=fixed)
    found = predicted_ms(rows, Precision.INT8, "time on H200")
    assert found == (None if told is None else pytest.approx(told))


def test_full_int8_has_the_time_and_the_cost_of_the_layers_that_are_fixed(lenet):
    """Of 2,296,680 multiply-adds conv2 has 1,600,000; an engine of the same plan is the recipe of a run that passes."""
    how = {**QUICK, "high": ["conv2"]}
    report = trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", gpu="A100", **how)
    assert report.passed
    assert report.predicted.plans["int8"] == report.predicted.plans["recipe"]
    assert report.choices[2].ms == report.predicted.plans["int8"].ms
    report = trt_bisect.run(lenet / "lenet.onnx", lenet / "calibration.npz", **how)
    assert report.choices[2].gives_up == pytest.approx(3 * MACS["conv2"] / sum(MACS.values()))


def test_speed_in_words():
    assert kept_speed(0.16, Precision.BF16) == "keeps 84% of BF16's speedup over FP32"
    assert kept_speed(0.0) == "keeps all of INT8's speedup over FP16"
    assert kept_speed(0.16) == "keeps 84% of INT8's speedup over FP16"


def test_every_place_that_shows_a_cost_shows_the_same(lenet):
    """In FP32 ``ip2`` takes 4 units a multiply-add instead of 1; all layers take 2 in FP16 instead of 1."""
    how = {**QUICK, "precision": "fp32", "front": True}
    report = trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", **how)
    cost = 3 * MACS["ip2"] / sum(MACS.values())
    assert report.recipe.high == ("ip2",)
    assert report.answer.cost == pytest.approx(cost)
    by_plan = {choice.plan: choice for choice in report.choices}
    assert [*by_plan] == ["fp32", "fp16", "int8", "recipe"]
    assert by_plan["recipe"].gives_up == report.answer.cost
    assert (by_plan["fp16"].gives_up, by_plan["int8"].gives_up) == (1.0, 0.0)
    (point,) = [point for point in report.front if "recipe" in point.names]
    assert point.cost == pytest.approx(cost, abs=1e-6)
    highest = next(point for point in report.front if "all high" in point.names)
    assert highest.cost == pytest.approx(3.0, abs=1e-3), "all in FP32"
    assert f"keeps {percent(1 - report.answer.cost)} of INT8's speedup over FP16 (by multiply-adds)" in report.summary


@pytest.fixture(scope="module")
def free(lenet, tmp_path_factory):
    """The question of a run whose recipe is no faster than FP16, and its report."""
    given = lenet / "lenet_planted.onnx", lenet / "unsure.npz"
    folder = tmp_path_factory.mktemp("free")
    how = {**QUICK, "threshold": 0.99999, "as_is": True, "output": folder}
    return given, how, trt_bisect.run(*given, **how)


def test_the_file_of_fp16_measures_what_the_table_says(free):
    """At this threshold every layer has to stay in FP16: the recipe is no faster, and FP16 is the plan to ship."""
    (model, data), how, report = free
    fp16 = next(choice for choice in report.choices if choice.plan == "fp16")
    assert report.lines[0].kind == report.next.kind == "ship fp16"
    assert "network.fp16.onnx" in report.next.command
    ours, exact = (plain_session(file, optimised=False) for file in (how["output"] / "recipe/network.fp16.onnx", model))
    with np.load(data) as found:
        samples = found["data"]
    cosines = []
    for sample in samples:
        cosines.append(cosine(*(session.run(None, {"data": sample[None]})[0] for session in (ours, exact))))
    # ONNX Runtime adds in float32 and rounds once; the emulation rounds parts of the sums as TensorRT does.
    assert 0.1 < (1 - min(cosines)) / (1 - fp16.similarity) < 10


def test_a_budget_says_what_int8_is_worth(free):
    """Within 10 % of the speedup no recipe meets, and FP16 does: whoever set the budget is told what exceeds it.

    A file in FP16 of an earlier run is no part of this one's recipe.
    """
    given, how, _ = free
    assert (how["output"] / "recipe/network.fp16.onnx").exists()
    bound = trt_bisect.run(*given, budget="10%", **how)
    assert not bound.recipe.meets
    assert next(choice for choice in bound.choices if choice.plan == "fp16").meets
    assert "ship fp16" not in {bound.next.kind, *(line.kind for line in bound.lines)}
    assert not (how["output"] / "recipe/network.fp16.onnx").exists()
