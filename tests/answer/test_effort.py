"""The efforts of a run: how many inferences a search takes, and the first recipe, which is there before the end."""

import json
import math

import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.by_hand import worst_cosine
from trt_bisect.answer import answer as answer_module, recipe_search
from trt_bisect.report.model import Report
from trt_bisect.support.progress import Silent
from trt_bisect.support.text import DATA

THRESHOLD = 1.0 - 4e-4
ASKED = {"threshold": THRESHOLD, "validation": 0.0, "engine": "onnxruntime", "explain": "none", "as_is": True}
ASKED |= {"precision": "fp32", "calibrator": "minmax"}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A network with many layers that lose a little each, and six inputs."""
    return networks.given(networks.transformer(blocks=2, tokens=4), tmp_path_factory.mktemp("effort"), 6)


@pytest.fixture(scope="module")
def whole(given, tmp_path_factory):
    """A run with the usual effort, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return trt_bisect.run(*given, output=folder, **ASKED), folder


def of_the_search(report, folder):
    """The single inferences of a search on the session that switches precisions, as the journal has them."""
    trials = [json.loads(line).get("trial") for line in (folder / "journal.jsonl").read_text().splitlines()]
    latest = {trial["plan"]: trial for trial in trials if trial and " by " in trial["plan"]}
    put_back = len(report.recipe.high) * report.answer.given.inputs
    return sum(trial["inferences"] for trial in latest.values()) - put_back


def test_a_search_keeps_to_the_inferences_of_its_effort(given, whole, tmp_path, monkeypatch):
    most = 110
    monkeypatch.setattr(answer_module, "allowed", lambda *_: most)
    bounded = trt_bisect.run(*given, output=tmp_path, **ASKED), tmp_path
    for report, _ in (whole, bounded):
        assert report.recipe.meets
        assert report.recipe.untested == ()
    assert of_the_search(*bounded) <= 1.05 * most < 0.9 * of_the_search(*whole)


def test_an_effort_allows_inferences_by_units_and_inputs():
    """Each of 30 units on each of 22 inputs is a sweep, of which one input was measured before."""
    assert [recipe_search.allowed(effort, 30, 22) for effort in ("quick", "default", "thorough")] == [
        30 * 21,
        30 * 43,
        math.inf,
    ]


def test_more_effort_gives_no_more_expensive_recipe(given, whole):
    quick, (usual, _) = trt_bisect.run(*given, effort="quick", **ASKED), whole
    assert quick.recipe.meets
    assert usual.recipe.meets
    assert usual.answer.cost <= quick.answer.cost


class StopsAfter(Silent):
    """Interrupts the run at the first stage after a file is there."""

    def __init__(self, path):
        self.path = path

    def stage(self, title, total):
        if self.path.exists():
            raise KeyboardInterrupt


def test_the_first_recipe_is_written_before_a_cheaper_one_is_searched(given, whole, tmp_path):
    path, data = given
    recipe = tmp_path / "recipe" / "network.qdq.onnx"
    with pytest.raises(KeyboardInterrupt):
        trt_bisect.run(path, data, output=tmp_path, progress=StopsAfter(recipe), **ASKED)
    stopped, (ended, _) = Report.load(tmp_path), whole
    assert worst_cosine(path, recipe, networks.feeds(data["x"])) >= THRESHOLD
    assert (stopped.state, stopped.recipe.meets) == ("interrupted", True)
    assert stopped.answer.not_done
    assert stopped.recipe.untested, "no step back was measured yet"
    assert stopped.inferences < ended.inferences
    again = trt_bisect.run(path, data, output=tmp_path, **ASKED)
    assert (again.state, again.answer, again.culprits) == ("finished", ended.answer, ended.culprits)


def test_the_data_are_suspected_where_int8_leaves_nothing_and_no_small_recipe_holds(tmp_path):
    """A planted range has a recipe of one layer, which is not within a budget of nothing."""
    model = networks.chain(depth=3)
    paths = [networks.save(model, tmp_path, "right.onnx")]
    networks.plant_between(model, "conv0", "conv1")
    paths += [networks.save(model, tmp_path, "planted.onnx")] * 2
    data = networks.samples(onnx.load(paths[0]), 6)

    how = {"calibrator": "minmax", "engine": "onnxruntime", "explain": "none", "validation": 0.0}
    budgets = ({}, {}, {"budget": 1e-6})
    runs = [trt_bisect.run(path, data, **how, **budget) for path, budget in zip(paths, budgets, strict=True)]
    assert [(run.similarity.int8 > 0.5, run.recipe.meets) for run in runs] == [(1, 1), (0, 1), (0, 0)]
    told = [any(note.kind == DATA and "all 6 inputs" in note.text for note in run.notes) for run in runs]
    assert told == [False, False, True]
