"""The names of runs hold an accuracy only where there is one, else the metric; all plans are scalars."""

import json
from collections import Counter

import numpy as np
import pytest

import trt_bisect
from tests.support.event_files import read, text
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.precision import int8_set

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def labelled(recorded):
    """LeNet with its culprit and labels: the report, the runs of its logs and the run folder, not to be changed."""
    folder = recorded("labelled")
    return trt_bisect.Report.load(folder / "runs/labelled"), read(folder / "logs"), folder / "runs/labelled"


def plan_told(run):
    """The text that a run has about its plan; nothing if it has none."""
    return text(run, "plan") if "plan" in run.Tags()["tensors"] else ""


def test_where_labels_were_given_the_names_hold_the_accuracy(labelled):
    report, runs, _ = labelled
    names = [f"baseline_acc_{report.accuracy.fp32:#.6g}", f"tune_1_acc_{report.accuracy.int8:#.6g}"]
    assert set(names) <= set(runs)
    recipe = next(name for name, run in runs.items() if name.startswith("tune") and "the recipe" in plan_told(run))
    assert recipe.endswith(f"_acc_{report.accuracy.recipe:#.6g}")
    assert report.accuracy.int8 < 0.5 < report.accuracy.recipe, "the names differ"
    tune = runs[names[1]]
    assert tune.Scalars("accuracy")[0].value == np.float32(report.accuracy.int8)
    assert tune.Scalars("similarity")[0].value == np.float32(report.similarity.int8)
    accuracies = [event.value for event in runs["plans"].Scalars("accuracy")]
    assert {np.float32(value) for value in (report.accuracy.int8, report.accuracy.recipe)} <= set(accuracies)
    of_runs = [run.Scalars("accuracy")[0].value for name, run in runs.items() if name.startswith("tune")]
    assert len(of_runs) == 20, "at most twenty plans have a run of their own"
    assert Counter([*of_runs, np.float32(report.accuracy.fp32)]) <= Counter(accuracies), "and the baseline"
    [fp16] = [run for run in runs.values() if plan_told(run).startswith("FP16: 0 layers in INT8")]
    assert fp16.Scalars("accuracy")[0].value == np.float32(report.accuracy.fp16)


def test_plans_of_the_search_are_runs_with_their_accuracy_up_to_twenty(labelled, lenet):
    """The accuracy is that of ONNX Runtime on a network that is written anew from the names in the run's text."""
    _, runs, folder = labelled
    runs = {name: run for name, run in runs.items() if name.startswith("tune")}
    assert 10 <= len(runs) <= 20
    others = [run for run in runs.values() if plan_told(run).startswith("measured in the search")]
    assert len(others) >= 8
    assert len({run.Scalars("layers in low precision")[0].value for run in others}) >= 4, "spread over the costs"
    network = trt_bisect.load_network(lenet / "lenet_planted.onnx")
    scales = json.loads((folder / "recipe/plan.json").read_text())["scales"]
    writer = PlanWriter(network, {name: np.float32(scale) for name, scale in scales.items()}, GraphTarget.ONNXRUNTIME)
    with np.load(lenet / "digits.npz") as found:
        digits = found["data"][:20]
    labels = np.load(lenet / "labels.npy")[:20]
    for run in others[::5]:
        high = {line[2:] for line in plan_told(run).splitlines() if line.startswith("- ")}
        low = [k for k in network.quantizable if network.layers[k].name not in high]
        session = make_session(writer.write(int8_set(len(network.layers), low)))
        classes = [session.run(None, {"data": digit.reshape(1, 1, 28, 28)})[0].argmax() for digit in digits]
        assert run.Scalars("accuracy")[0].value == np.float32(np.mean(np.array(classes) == labels))


def test_all_plans_of_the_recipes_ranges_are_scalars(labelled):
    """Each plan in the journal that was measured with the ranges of the report, once."""
    report, runs, folder = labelled
    plans = runs["plans"]
    records = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    ranges, found = report.made_of["ranges"][:12], set()
    for record in records:
        *measured_in, plan = record.get("trial", {}).get("plan", "").split(" ")
        counts = record["run"] == report.fingerprint
        if measured_in[:1] == ["inputs"]:
            counts = measured_in[2:] in ([ranges, "by", "cosine"], [ranges, "whole"])
        if counts and "*" in plan:
            found.add(plan)
    assert len(found) > 8
    assert len(plans.Scalars("layers in low precision")) == len(found)
