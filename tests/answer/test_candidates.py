"""Networks that lose less in INT8: the recipe's file passes outside, and its plan is not for the user's file."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from rich.console import Console

import trt_bisect
from benchmarks.networks import Sketch
from tests.support import by_hand, networks
from tests.support.quantized import plain_session
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.errors import BadInput
from trt_bisect.report.given import NAMED
from trt_bisect.report.screen.run import print_report
from trt_bisect.report.summary import CULPRITS, RECIPE
from trt_bisect.report.tensorboard_logs import _culprits as tensorboard_culprits
from trt_bisect.report.words import headline

THRESHOLD = 0.999
OPTIONS = {"threshold": THRESHOLD, "explain": "none", "engine": "onnxruntime", "validation": 0, "calibrator": "minmax"}


def loud(factor, *, behind=False):
    """Six blocks of a normalization and two MatMuls; a normalization makes one channel ``factor`` times as large.

    Args:
        behind: the normalization is behind the sum, as BERT has it: the next sum reads the large channel too.
    """
    sketch, factors = Sketch(5), np.ones(24)
    factors[3] = factor
    x = sketch.dense("x", "first", 24, 24)
    for name in (f"block{block}" for block in range(6)):
        weights = sketch.constant(f"{name}.scale", factors), sketch.constant(f"{name}.shift", 0.1 * factors)
        normed = sketch.node("LayerNormalization", [x, *weights], f"{name}.norm", axis=-1)
        up = sketch.constant(f"{name}.up", sketch.random.normal(0, 0.2, (24, 24)) / factors[:, None])
        y = sketch.node("Relu", [sketch.node("MatMul", [normed, up], f"{name}.up_mul")], f"{name}.relu")
        kept = normed if behind else x
        x = sketch.node("Add", [sketch.dense(y, f"{name}.down", 24, 24), kept], f"{name}.add")
    if behind:
        last = sketch.constant("last", sketch.random.normal(0, 0.2, (24, 24)) / factors[:, None])
        sketch.node("MatMul", [x, last], "last_mul")
    sketch.nodes[-1].output[0] = "y"
    return sketch.model(["n", 6, 24], ["n", 6, 24])


@pytest.fixture(scope="module")
def data():
    return networks.normal(2, 24, 6, 24)


@pytest.fixture(scope="module")
def few(data):
    return data[:8]


@pytest.fixture(scope="module")
def expensive(tmp_path_factory, few):
    """The run on a network of which six layers lose; the network's file and the run folder."""
    folder = tmp_path_factory.mktemp("expensive")
    path, asked = networks.save(loud(300.0), folder), {"save_tensors": "outputs", **OPTIONS}
    return trt_bisect.run(path, {"x": few}, output=folder / "run", **asked), path, folder / "run"


def worst_cosine(one, two, data):
    return by_hand.worst_cosine(one, two, networks.feeds(data))


def test_the_recipe_has_every_layer_in_int8_and_passes(expensive, few):
    report, path, run = expensive
    assert report.answer.cost == 0.0
    assert not report.recipe.high
    assert worst_cosine(path, run / "recipe" / "network.qdq.onnx", few) >= THRESHOLD
    assert "channels of 12 tensors smoothed" in report.answer.changes, "what each normalization makes, and each Relu"


def test_the_verdict_and_the_culprits_are_those_of_the_users_network(expensive, few):
    report, path, _ = expensive
    alone = trt_bisect.run(path, {"x": few}, effort="quick", **OPTIONS)
    assert report.exit_code == alone.exit_code == 1
    assert report.similarity.int8 == alone.similarity.int8 < THRESHOLD
    assert report.by_input.int8 == alone.by_input.int8
    assert report.culprits
    assert set(report.answer.unchanged.high) >= set(report.culprits)
    assert report.answer.unchanged.similarity >= THRESHOLD
    assert report.answer.unchanged.cost > report.answer.cost
    assert all(row.suspect or row.culprit for row in report.layers if row.loss and row.loss > 0.01)


def test_every_surface_says_of_which_network_the_culprits_are(expensive, behind):
    for report, *_ in (expensive, behind):
        (culprits,) = [line.text for line in report.lines if line.kind == CULPRITS]
        (recipe,) = [line.text for line in report.lines if line.kind == RECIPE]
        screen = Console(file=io.StringIO(), width=160)
        print_report(report, screen)
        title = next(line for line in screen.file.getvalue().splitlines() if line.startswith("Culprit "))
        assert all("unchanged" in text for text in (culprits.partition(":")[0], headline(report), title))
        assert "unchanged" in report.to_markdown().partition("## Culprits")[2].splitlines()[0]
        assert "culprit of the unchanged network" in tensorboard_culprits(report)
        assert all(name in recipe for name in report.recipe.high[:NAMED])


def test_the_recipes_float_file_computes_what_the_users_does(expensive, few):
    _, path, run = expensive
    assert worst_cosine(path, run / "recipe" / "network.onnx", few) > 0.9999


@pytest.fixture(scope="module")
def behind(tmp_path_factory, data):
    """The run on a network whose residual sums read what the MatMuls read; the network's file and the run folder."""
    folder = tmp_path_factory.mktemp("behind")
    path = networks.save(loud(12.0, behind=True), folder)
    return trt_bisect.run(path, {"x": data}, output=folder / "run", **OPTIONS), path, folder / "run"


def test_a_mul_brings_the_channels_back_where_a_sum_reads_them(behind, data):
    report, path, run = behind
    recipe, user = onnx.load(run / "recipe" / "network.onnx"), onnx.load(path)
    added = Counter(node.op_type for node in recipe.graph.node) - Counter(node.op_type for node in user.graph.node)
    assert added == {"Mul": 6}, "one behind each normalization"
    assert report.answer.cost < report.answer.unchanged.cost
    assert worst_cosine(path, run / "recipe" / "network.onnx", data) > 0.9995, "its weights are rounded"
    assert worst_cosine(path, run / "recipe" / "network.qdq.onnx", data) >= THRESHOLD
    user, smoothed, rounded = report.answer.changes_tried.values()
    assert user > smoothed > rounded > 0.0
    assert [words in report.answer.changes for words in report.answer.changes_tried] == [True] * 3
    assert any("mean loss" in note.text for note in report.notes)


def test_weights_that_lose_an_input_in_float_are_not_taken(tmp_path, data, monkeypatch):
    """The recipe's float file has the rounded weights: a change before them that holds is taken."""
    whole = AnswerPlans.whole

    def lost(self, plan, experiment, inputs=None, name="all inputs", kind="whole", build=None):
        trial = whole(self, plan, experiment, inputs, name, kind, build)
        if kind != "float":
            return trial
        figures = {name: replace(of, values={"cosine": 0.9}) for name, of in trial.outputs.items()}
        return replace(trial, outputs=figures)

    monkeypatch.setattr(AnswerPlans, "whole", lost)
    path, data = networks.save(loud(300.0), tmp_path), data[:12]
    report = trt_bisect.run(path, {"x": data}, output=tmp_path / "run", **OPTIONS)
    assert "smoothed" in report.answer.changes
    assert "rounded" not in report.answer.changes
    assert any("rounded" in change for change in report.answer.changes_tried), "it was tried"
    assert worst_cosine(path, tmp_path / "run" / "recipe" / "network.onnx", data) > 0.9999


def test_no_change_is_taken_without_an_input_that_it_was_not_made_from(expensive, few):
    _, path, _ = expensive
    one, two = (trt_bisect.run(path, {"x": few[:n]}, **OPTIONS) for n in (1, 2))
    assert one.recipe.high
    assert one.answer.changes == ""
    assert two.answer.changes


def test_layers_have_their_names_where_a_layer_is_added_before_them(behind):
    report, path, run = behind
    rows = {row.name: row for row in report.layers}
    names = [layer.name for layer in trt_bisect.load_network(path).layers]
    assert list(rows) == names
    plan = json.loads((run / "recipe" / "plan.json").read_text())["layers"]
    assert {name for name in names if rows[name].quantizable and plan[name] != "int8"} == set(report.recipe.high)
    assert {name for name, row in rows.items() if row.recipe not in ("int8", "")} >= set(report.recipe.high)
    assert set(report.culprits) == {name for name, row in rows.items() if row.culprit}
    assert set(report.culprits) <= set(report.answer.unchanged.high)
    assert {name for name, row in rows.items() if row.put_back is not None} >= {*report.culprits, *report.recipe.high}


def test_a_plan_is_refused_on_the_users_file(expensive, few):
    _, path, run = expensive
    assert json.loads((run / "recipe" / "plan.json").read_text())["model"] == "network.onnx"
    with pytest.raises(BadInput, match="smoothed"):
        trt_bisect.run(path, {"x": few}, plan=run, explain="none")
    again = trt_bisect.run(run / "recipe" / "network.onnx", {"x": few}, plan=run, threshold=THRESHOLD, explain="none")
    assert again.verdict.startswith("passes")


def test_the_saved_tensors_of_the_recipe_are_those_of_its_file(expensive, few):
    _, _, run = expensive
    session = plain_session(run / "recipe" / "network.qdq.onnx", optimised=False)
    labels = json.loads((run / "tensors" / "index.json").read_text())["samples"]
    assert labels
    for number, label in enumerate(labels):
        with np.load(run / "tensors" / "recipe" / f"{number:06}.npz") as saved:
            expected = session.run(None, {"x": few[int(label.split()[-1])][None]})[0]
            np.testing.assert_allclose(saved["y"], expected, rtol=1e-3, atol=1e-3)


def test_a_recipe_of_one_layer_stands(tmp_path):
    model = networks.planted(networks.chain(3), ("conv1", "conv2"))
    report = trt_bisect.run(*networks.given(model, tmp_path, 4), **OPTIONS)
    assert (report.recipe.high, report.recipe.meets) == (("conv2",), True)
    assert report.answer.cost > 0.05
    assert (report.answer.changes, report.answer.changes_tried) == ("", {})
