"""Thorough runs: the least set that is planted, or found by trying every plan; the front and exports."""

import json
import shutil
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import trt_bisect
from tests.support import goal_cases, networks
from tests.support.editions import edition
from tests.support.goal_cases import QUICK, WISHES, costs_of, engines_of, figures_on, kept_high, named_points, planted
from tests.support.networks import plant_between
from tests.support.records import record_of
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.tensorrt_rtx import layers_of_file
from trt_bisect.model.network import load_network
from trt_bisect.model.session import UNOPTIMISED, make_session

FACTORS = edition([("residual", 40.0), ("chain", 1.0)], list(product(goal_cases.SMALL, (40.0, 1.0))))


@pytest.mark.parametrize(("case", "factor"), FACTORS)
def test_no_plan_of_all_that_there_are_is_cheaper(case, factor, tmp_path):
    """Every plan of a network of 7 to 9 layers as an engine of its own; the threshold lies where some layers have to
    stay high. A layer that multiplies nothing may be high as well: the recipe holds in other settings of the engine
    too, and such a layer costs 1e-5."""
    make, pairs = goal_cases.SMALL[case]
    model = networks.planted(make(), *pairs, factor=factor)
    network = load_network(networks.save(model, tmp_path))
    ranges, feeds, sqnr = engines_of(network, networks.samples(model))
    threshold = sqnr(()) + 8.0
    report = trt_bisect.run(network, ranges, feeds, **{**WISHES, "threshold": threshold, "calibrator": "auto"})
    costs = costs_of(network, feeds)
    sets = [high for n in range(len(costs) + 1) for high in combinations(costs, n)]
    cheaper = [high for high in sets if sum(costs[k] for k in high) < report.answer.cost - 1e-4]
    assert report.recipe.meets
    assert sqnr([network.layer_named(name).index for name in report.recipe.high]) >= threshold
    assert len(cheaper) > 2
    assert not any(sqnr(high) >= threshold for high in cheaper)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run with three planted layers and its front, its network and data; its folder is not to be changed."""
    folder = tmp_path_factory.mktemp("measured")
    path, data, bad = planted("chain-3", folder)
    report = trt_bisect.run(path, data, front=True, output=folder / "run", **WISHES)
    assert set(report.recipe.high) == bad
    return SimpleNamespace(path=path, data=data, report=report, folder=folder / "run")


def test_the_front_goes_from_int8_to_high_and_gets_better(measured):
    report = measured.report
    unbeaten = [
        point
        for point in report.front
        if not any(other.cost <= point.cost and other.loss < point.loss for other in report.front)
    ]
    assert [point.cost for point in unbeaten] == sorted({point.cost for point in unbeaten})
    named = named_points(report)
    assert named["all INT8"].cost == 0.0
    assert named["all high"].cost == pytest.approx(3.0, abs=1e-9), "in FP32"
    assert named["recipe"].cost == pytest.approx(report.answer.cost, abs=1e-4)
    assert named["recipe"].high == kept_high(report)
    assert "knee" in named
    told = {"int8": "all INT8", "recipe": "recipe"}
    assert {plan: named[name].figure for plan, name in told.items()} == pytest.approx(dict(report.figures.items()))
    assert named["all high"].figure > named["recipe"].figure
    assert report.text(named["all INT8"].figure) in report.summary, "the summary tells another figure than the front"
    lines = (measured.folder / "front.csv").read_text().splitlines()
    assert lines[0] == "cost,sqnr,loss,names,high,layers"
    assert len(lines) == 1 + len(report.front)
    again = json.loads((measured.folder / "report.json").read_text())
    assert again == record_of(report)


def test_points_of_the_front_on_engines_of_their_own(measured):
    """On the worst of the samples, with the recipe's scales; by ONNX Runtime without optimisations."""
    network = load_network(measured.path)
    ranges = trt_bisect.calibrate(network, networks.feeds(measured.data["x"]), "minmax")
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    for point in measured.report.front:
        high = {network.layer_named(name).index for name in point.high}
        plan = trt_bisect.all_but(len(network.layers), high)
        engine = make_session(builder.writer.write(plan), threads=1, level=UNOPTIMISED)
        with builder.reference() as exact:
            pairs = [(exact.infer({"x": x[None]})["y"], *engine.run(["y"], {"x": x[None]})) for x in measured.data["x"]]
        worst = min(trt_bisect.similarity(one, other, "sqnr") for one, other in pairs)
        assert point.figure == pytest.approx(worst, abs=1e-3), point.names


def test_it_goes_on_from_what_was_measured(measured, tmp_path):
    shutil.copytree(measured.folder, tmp_path / "run")
    lines = (tmp_path / "run/journal.jsonl").read_text().count("\n")
    second = trt_bisect.run(measured.path, measured.data, front=True, output=tmp_path / "run", **WISHES)
    assert (tmp_path / "run/journal.jsonl").read_text().count("\n") == lines
    assert second.recipe == measured.report.recipe
    assert second.answer == measured.report.answer
    assert second.layers == measured.report.layers
    assert second.front == measured.report.front


@pytest.mark.parametrize("precision", ["mixed", None])
def test_recipes_of_three_precisions(precision, tmp_path):
    """A range that FP16 cannot hold has to be FP32; the other culprit can be FP16."""
    model = networks.chain(6)
    plant_between(model, "conv0", "conv1")
    plant_between(model, "conv4", "conv5", factor=3e6)
    path, data = networks.given(model, tmp_path, 4)
    wishes = {**QUICK, "precision": precision, "trt_version": "10.3.0"}
    found = trt_bisect.run(path, data, output=tmp_path / "run", **wishes)
    assert kept_high(found) == {"conv1": "fp16", "conv5": "fp32"}
    assert found.recipe.meets
    flags = (tmp_path / "run/recipe/trtexec.flags").read_text()
    (precisions,) = [line.partition("=")[2] for line in flags.splitlines() if line.startswith("--layerPrecisions=")]
    assert {"conv1:fp16", "conv5:fp32"} <= set(precisions.split(","))
    assert not [entry for entry in precisions.split(",") if entry.startswith(("conv0:", "conv4:"))]
    assert "--fp16" in flags
    network = load_network(path)
    costs = costs_of(network, {"x": data["x"][:1]})
    in_fp16, in_fp32 = (costs[network.layer_named(name).index] for name in ("conv1", "conv5"))
    assert found.answer.cost == pytest.approx(in_fp16 / 3 + in_fp32), "of 1, 2 and 4 units of time by precision"


def test_the_exported_network_in_fp16_meets_the_threshold_and_builds_in_tensorrt_rtx(tmp_path):
    """ONNX Runtime leaves out a part of FP16's rounding, so the figure only has to pass."""
    path, data, high = planted("chain-1", tmp_path)
    report = trt_bisect.run(path, data, output=tmp_path / "run", **{**QUICK, "precision": None})
    assert kept_high(report) == dict.fromkeys(high, "fp16")
    exported = tmp_path / "run/recipe/network.qdq.onnx"
    onnx.checker.check_model(str(exported), full_check=True)
    figures = figures_on(tmp_path / "run/recipe", path, data["x"])
    assert (report.answer.given.inputs, report.answer.given.holds) == (len(figures), sum(f >= 20.0 for f in figures))
    pytest.importorskip("tensorrt_rtx_bindings")
    assert layers_of_file(exported, {"x": (1, 3, 16, 16)})


@pytest.mark.parametrize("dead", [0.0, 1e-39])
def test_a_recipe_with_dead_channels_passes_the_check(tmp_path, dead):
    model = networks.chain(4)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "conv1.weight")
    values = onnx.numpy_helper.to_array(weight).copy()
    values[[1, 4]] = dead
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    path, data = networks.given(model, tmp_path, 3)
    trt_bisect.run(path, data, engine="onnxruntime", calibrator="minmax", explain="none", output=tmp_path / "run")
    file = tmp_path / "run/recipe/network.qdq.onnx"
    assert trt_bisect.check(file).findings == ()
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    written = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(file).graph.initializer}
    scale = next(array for name, array in written.items() if "conv1.weight" in name and array.shape == (8,))
    assert scale[1] == scale[4] == np.delete(scale, [1, 4]).max()
    others = np.abs(np.delete(values, [1, 4], axis=0)).max(axis=(1, 2, 3)) / 127
    np.testing.assert_allclose(np.delete(scale, [1, 4]), others, rtol=1e-6)
    assert np.isfinite(session.run(None, {"x": data["x"][:1]})[0]).all()
