"""The efforts of a run: how many inferences a search takes, and the first recipe, which is there before the end."""

import json

import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.by_hand import worst_cosine
from tests.support.editions import edition
from trt_bisect.report.model import Report
from trt_bisect.support.progress import Silent
from trt_bisect.support.text import DATA

THRESHOLD = 1.0 - 4e-4
NOISE = 1.25
"""ONNX Runtime's own FP16 kernels round the sums of a recipe's file otherwise than the emulation."""
EFFORTS = edition(("quick", "default"), ("quick", "default", "thorough"))
ASKED = {"threshold": THRESHOLD, "validation": 0.0, "engine": "onnxruntime", "explain": "none"}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A network with many layers that lose a little each, and 22 inputs."""
    return networks.given(networks.transformer(blocks=2), tmp_path_factory.mktemp("effort"), 22)


@pytest.fixture(scope="module")
def by_effort(given, tmp_path_factory):
    path, data = given
    folders = {effort: tmp_path_factory.mktemp(effort) / "run" for effort in EFFORTS}
    return {
        effort: (trt_bisect.run(path, data, effort=effort, output=folder, as_is=True, **ASKED), folder)
        for effort, folder in folders.items()
    }


def feeds_of(data):
    ((name, samples),) = data.items()
    return [{name: sample[None]} for sample in samples]


def of_the_session(folder):
    """The single inferences on the session that switches precisions, as the journal has them."""
    trials = [json.loads(line).get("trial") for line in (folder / "journal.jsonl").read_text().splitlines()]
    latest = {trial["plan"]: trial for trial in trials if trial and " by " in trial["plan"]}
    return sum(trial["inferences"] for trial in latest.values())


@pytest.mark.parametrize(("effort", "sweeps"), [("quick", 1), ("default", 2)])
def test_a_search_keeps_to_the_sweeps_of_its_effort(given, by_effort, effort, sweeps):
    path, data = given
    report, folder = by_effort[effort]
    sweep = sum(row.quantizable for row in report.layers) * report.answer.given.inputs
    assert sweep >= 400, "no search is bounded by less"
    put_back = len(report.recipe.high) * report.answer.given.inputs
    print(effort, of_the_session(folder), sweep, put_back)
    assert of_the_session(folder) <= 1.05 * sweeps * sweep + put_back
    assert report.recipe.meets
    assert {*report.culprits} == {*report.recipe.high}
    assert {row.recipe for row in report.layers if row.name in report.recipe.high} == {"fp16"}
    assert report.answer.cost < report.answer.in_fp32.cost
    assert report.recipe.untested == ()
    worst = worst_cosine(path, folder / "recipe" / "network.qdq.onnx", feeds_of(data))
    assert 1.0 - worst <= NOISE * (1.0 - THRESHOLD)


def test_more_effort_gives_no_more_expensive_recipe(by_effort):
    costs = [by_effort[effort][0].answer.cost for effort in EFFORTS]
    assert costs == sorted(costs, reverse=True)


class StopsAfter(Silent):
    """Interrupts the run at the first stage after a file is there."""

    def __init__(self, path):
        self.path = path

    def stage(self, title, total):
        if self.path.exists():
            raise KeyboardInterrupt


def test_the_first_recipe_is_written_before_a_cheaper_one_is_searched(given, by_effort, tmp_path):
    path, data = given
    folder = tmp_path / "run"
    recipe = folder / "recipe" / "network.qdq.onnx"
    with pytest.raises(KeyboardInterrupt):
        trt_bisect.run(path, data, output=folder, progress=StopsAfter(recipe), effort="default", **ASKED)
    whole, _ = by_effort["default"]
    stopped = Report.load(folder)
    assert 1.0 - worst_cosine(path, recipe, feeds_of(data)) <= NOISE * (1.0 - THRESHOLD)
    assert (stopped.state, stopped.recipe.meets) == ("interrupted", True)
    assert stopped.answer.not_done
    assert stopped.recipe.untested, "no step back was measured yet"
    assert stopped.answer.cost >= whole.answer.cost
    assert stopped.inferences < whole.inferences
    again = trt_bisect.run(path, data, output=folder, effort="default", **ASKED)
    assert (again.state, again.answer, again.culprits) == ("finished", whole.answer, whole.culprits)


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
