"""Recipes by predicted time: ``--gpu``, and layers that stay high because the engine is faster so."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support.goal_cases import planted
from trt_bisect.answer.costs import foreseen_times
from trt_bisect.answer.steps_back import with_faster
from trt_bisect.answer.validation import Recipe
from trt_bisect.builder.inspector import kernels_of
from trt_bisect.driver.search_space import Space
from trt_bisect.errors import BadInput
from trt_bisect.model.cost import TimeCosts
from trt_bisect.model.gpu_time import GPUS, gpu_of
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for, facts_of_shapes
from trt_bisect.options.concerns import RunOptions
from trt_bisect.precision import Precision, prefix

RUNS = 4
SAMPLES = Path(__file__).parents[2] / "samples"
LENET = SAMPLES / "lenet"


def space_with(changes):
    """Four units in a row; a plan costs one for each high unit, and ``changes`` for each change of type."""

    def cost(plan):
        high = [precision is Precision.FP32 for precision in plan.precisions]
        return sum(high) + changes * sum(a != b for a, b in zip([False, *high], [*high, False], strict=True))

    base = prefix(RUNS, RUNS - 1)
    return Space(base, tuple((k,) for k in range(RUNS)), (1.0 + 2 * changes,) * RUNS, 0.1, cost_of=cost)


def closed(space, kept, holds=lambda plan: True):
    target = SimpleNamespace(check=lambda _, plan: SimpleNamespace(meets=lambda budget: holds(plan)))
    return with_faster(target, Recipe(space, frozenset(kept), None, space.budget, "first"))


@pytest.mark.parametrize(("changes", "kept"), [(0.4, {0, 2}), (0.6, {0, 1, 2})])
def test_a_layer_between_two_joins_them_where_two_changes_cost_more(changes, kept):
    found = closed(space_with(changes), {0, 2})
    assert found.kept == kept


def test_a_larger_set_that_misses_is_left_alone():
    found = closed(space_with(0.6), {0, 2}, lambda plan: False)
    assert (found.kept, found.checked) == ({0, 2}, "first")


def test_the_costs_of_units_beside_a_set_are_differences_of_costs():
    """0 and 2 high: 1 between them saves two changes of 0.6 and costs 1; 3 moves one change; 0 alone has two."""
    space = space_with(0.6)
    assert space.costs_near(frozenset({0, 2})) == pytest.approx((1 + 2 * 0.6, 1e-6, 1 + 2 * 0.6, 1.0))
    assert space.costs_near(frozenset()) == pytest.approx(space.costs)
    assert replace(space, cost_of=None).costs_near(frozenset({0, 2})) == space.costs


def test_the_cost_of_a_plan_comes_before_the_sum_of_its_units():
    assert space_with(0.6).cost({0, 1}) == pytest.approx(2 + 2 * 0.6)
    assert space_with(0.6).cost({0, 2}) == pytest.approx(2 + 4 * 0.6)


def _asked(path, folder):
    how = {"--calibration": folder / "data.npz", "--engine": "onnxruntime", "--metric": "sqnr", "--threshold": 20}
    how |= {
        "--explain": "none",
        "--effort": "quick",
        "--calibrator": "minmax",
        "--precision": "fp32",
        "-o": folder / "run",
    }
    return ["run", path, *(part for pair in how.items() for part in pair)]


def predicted_plan(report, network, timed):
    """Asserts that cost and time are those of the recipe's plan, layers high in FP32; returns the plan."""
    plan = timed.full.keeping([network.layer_named(name).index for name in report.recipe.high], Precision.FP32)
    assert report.answer.cost == pytest.approx(timed.cost(plan))
    assert report.predicted.plans["recipe"] == timed.predicted(plan)
    return plan


def test_a_run_for_a_gpu(tmp_path, command):
    path, data, _ = planted("chain-1", tmp_path)
    np.savez(tmp_path / "data.npz", **data)
    arguments = _asked(path, tmp_path)
    code, out, _ = command(*arguments, "--gpu", "Tesla T4")
    assert code == 1
    assert "ms (predicted on T4)" in out
    report = trt_bisect.Report.load(tmp_path / "run")
    assert report.goal.costs == "time on T4"
    assert report.recipe.meets
    assert {*report.recipe.high} == {*report.culprits, *report.recipe.faster}
    network = load_network(path)
    facts = facts_for(network, {name: values[:1] for name, values in data.items()})
    timed = TimeCosts(network, facts, GPUS["T4"])
    plan = predicted_plan(report, network, timed)
    assert report.predicted.reformats == timed.added_reformats(plan)
    fp32 = timed.predicted(network.all_in(Precision.FP32)).ms
    for name, shown in (("recipe", plan), ("FP16", network.all_in(Precision.FP16))):
        ms = timed.predicted(shown).ms
        rows = (line.split() for line in out.partition("\nplan ")[2].splitlines())
        row = next(row for row in rows if row[:1] == [name])
        assert row[-2:] == [f"{ms:.3g}", f"{fp32 / ms:.2f}"]
    assert report.predicted.plans["int8"].ms < report.predicted.plans["recipe"].ms


def test_a_run_by_a_profile_on_a_gpu_of_the_users(tmp_path, command):
    """conv2 and conv3 are planted; in the profile conv3 takes 1 ms, and the others next to nothing."""
    path, data, _ = planted("chain-1", tmp_path)
    np.savez(tmp_path / "data.npz", **data)
    network = load_network(path)
    convolutions = [layer for layer in network.layers if layer.op_type == "Conv"]
    ends = [{"Name": "t", "Dimensions": [1, 8, 8, 8], "Format/Datatype": "Row major linear FP32"}]
    layers = [{"Name": one.name, "LayerType": "Cask", "Inputs": ends, "Outputs": ends} for one in convolutions]
    times = [{"name": one.name, "averageMs": 1.0 if one.name == "conv3" else 0.001} for one in convolutions]
    (tmp_path / "own.graph.json").write_text(json.dumps({"Layers": layers}))
    (tmp_path / "own.profile.json").write_text(json.dumps([{"count": 9}, *times]))
    (tmp_path / "own.toml").write_text("processors = 8\nfp32 = 1.0\nint8 = 16\nfp16 = 8\nbandwidth = 60\n")
    arguments = _asked(path, tmp_path)
    profile = tmp_path / "own.profile.json"
    code, out, _ = command(*arguments, "--cost", profile, "--gpu", tmp_path / "own.toml")
    assert code == 1
    assert "ms (predicted on own)" in out
    report = trt_bisect.Report.load(tmp_path / "run")
    assert report.goal.costs == f"{profile} on own"
    gpu = gpu_of({"processors": 8, "fp32": 1.0, "int8": 16, "fp16": 8, "bandwidth": 60}, "own")
    facts = facts_for(network, {name: values[:1] for name, values in data.items()})
    timed = TimeCosts(network, facts, gpu, kernels_of(network, profile))
    predicted_plan(report, network, timed)
    alone = {k: by[Precision.FP32] for k, by in timed.layers([Precision.FP32]).items()}
    assert max(alone, key=alone.__getitem__) == network.layer_named("conv3").index
    (tmp_path / "own.graph.json").unlink()
    code, _, err = command(*arguments, "--cost", profile, "--gpu", tmp_path / "own.toml")
    assert (code, "own.profile.json" in err, "Traceback" in err) == (2, True, False)


def test_a_profile_needs_a_gpu_and_a_gpu_file_what_it_says(monkeypatch, tmp_path):
    monkeypatch.setattr("trt_bisect.support.machine._LIBRARY", "libnone.so")
    with pytest.raises(BadInput, match="A profile says nothing of the GPU"):
        RunOptions(cost="a.profile.json")
    assert RunOptions(cost="a.profile.json", gpu="T4").by_time
    assert not RunOptions(cost="times.csv", gpu="T4").by_time
    with pytest.raises(BadInput, match="does not exist"):
        RunOptions(gpu=str(tmp_path / "none.toml"))
    (tmp_path / "own.toml").write_text("processors = 8\nfp32 = 1\nbandwith = 60\n")
    with pytest.raises(BadInput, match="bandwith") as raised:
        RunOptions(gpu=str(tmp_path / "own.toml"))
    assert "bandwidth" in raised.value.remedy


def test_multiply_adds_stay_where_they_are_asked_for_or_no_gpu_is_known(monkeypatch):
    monkeypatch.setattr("trt_bisect.support.machine._LIBRARY", "libnone.so")
    assert RunOptions().costs_by == "macs"
    assert RunOptions(gpu="A100").costs_by == "time"
    assert RunOptions(gpu="A100", cost="macs").costs_by == "macs"
    assert RunOptions(gpu="A100", cost="times.csv").costs_by == "times.csv"
    with pytest.raises(BadInput, match="No peaks are known"):
        RunOptions(gpu="Voodoo 2")


def test_the_gpu_of_the_machine_counts_where_it_is_in_the_table(monkeypatch):
    monkeypatch.setattr("trt_bisect.support.machine.find_gpu", lambda: SimpleNamespace(name="NVIDIA GeForce RTX 3090"))
    assert (RunOptions().costs_by, RunOptions().cost_gpu) == ("time", GPUS["RTX3090"])
    monkeypatch.setattr("trt_bisect.support.machine.find_gpu", lambda: SimpleNamespace(name="Quadro K600"))
    assert (RunOptions().costs_by, RunOptions().cost_gpu) == ("macs", None)


def test_scales_of_another_calibrator_take_no_layer_away_whose_neighbour_then_costs_more(lenet):
    """``ip2`` alone costs more than with ``ip1``, which shares its changes of type: 1.5 times the gain on an A100."""
    network, data = load_network(lenet / "lenet_planted.onnx"), lenet / "calibration.npz"
    report = trt_bisect.run(network, data, gpu="A100", engine="onnxruntime", explain="none")
    pictures = np.load(data)
    facts = facts_for(network, {name: pictures[name][:1] for name in pictures.files})
    timed = TimeCosts(network, facts, GPUS["A100"])
    alone, both = (
        timed.cost(timed.full.keeping([network.layer_named(name).index for name in names], Precision.FP16))
        for names in (["ip2"], ["ip1", "ip2"])
    )
    assert both < alone
    assert {*report.recipe.high} == {"ip1", "ip2"}
    assert report.answer.cost == pytest.approx(both)
    high = [network.layer_named(name).index for name in ("ip1", "ip2")]
    in_fp32 = 1e3 * timed.seconds(timed.full.keeping(high, Precision.FP32))
    assert f"it takes {in_fp32:.3g} ms" in next(line.text for line in report.lines if line.kind == "recipe")


def test_why_int8_is_no_faster_is_told_by_kernel_before_the_search_and_in_the_verdict():
    """By hand on an A100, where a launch takes 7.3 us: Q/DQ pairs make three kernels of each of two attentions. The
    network is so small that launches are nearly all of its time.
    """
    folder = SAMPLES / "transformer"
    network = load_network(folder / "encoder.onnx")
    said = foreseen_times(TimeCosts(network, facts_of_shapes(network, {}), GPUS["A100"]))
    reason = said.partition("INT8 is not predicted to be faster than FP16: ")[2]
    added = float(re.search(r"divide attention into kernels, which adds ([0-9.]+) ms", reason)[1])
    assert added == pytest.approx(2 * 2 * 7.3e-3, rel=0.01)
    how = {"gpu": "A100", "engine": "onnxruntime", "explain": "none", "threshold": 0.5, "calibrator": "minmax"}
    report = trt_bisect.run(network, folder / "calibration.npz", validation=0, **how)
    assert report.predicted.no_gain.endswith(reason)
    assert f"COST: {report.predicted.no_gain}." in [line.text for line in report.lines]


def test_a_network_that_int8_makes_faster_has_no_reason_against_it():
    network = load_network(LENET / "lenet.onnx")
    shape = {"data": np.zeros((4096, 1, 28, 28), np.float32)}
    timed = TimeCosts(network, facts_for(network, shape), GPUS["T4"])
    assert timed.seconds(timed.full) < 0.9 * timed.seconds(timed.in_all(Precision.FP16))
    assert "not predicted" not in foreseen_times(timed)
