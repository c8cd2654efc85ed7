"""Several inputs are judged each by itself, and the worst decides."""

import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.by_hand import cosine
from tests.support.quantized import plain_session
from trt_bisect.analyzer.judge import Comparer, compare_arrays, make_rule
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.evaluator.trial import MEASURED, NOT_FINITE, Trial
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.precision import Precision


def figures(reference, output):
    return compare_arrays(list(reference), list(output), BUILT_IN)


def with_one_inverted(random, count, size, place, factor):
    """Reference and output of inputs of which one is fainter by a factor, and inverted in the output."""
    reference = random.normal(size=(count, 1, size)).astype(np.float32)
    reference[place] *= factor
    output = reference.copy()
    output[place] *= -1
    return reference, output


def test_one_inverted_faint_input_among_eight_decides(random):
    """All together they have a cosine of 0.997: the seven others are ten times as loud."""
    reference, output = with_one_inverted(random, 8, 50, 5, 0.1)
    assert cosine(reference, output) > 0.997
    found = figures(reference, output)
    assert found.inputs["cosine"] == pytest.approx([1, 1, 1, 1, 1, -1, 1, 1])
    assert found.values["cosine"] == pytest.approx(-1)
    by_input = make_rule(BUILT_IN["cosine"], None).by_input(Trial("", MEASURED, {"y": found}))
    assert (by_input.inputs, by_input.misses, by_input.worst) == (8, 1, 5)
    assert by_input.mean == pytest.approx(6 / 8)


def test_the_worst_is_the_largest_where_lower_is_better(random):
    reference = random.normal(size=(4, 1, 20))
    output = reference + np.array([0.1, 0.4, 0.2, 0.3])[:, None, None]
    found = figures(reference, output)
    assert found.inputs["mse"] == pytest.approx([0.01, 0.16, 0.04, 0.09])
    assert found.values["mse"] == pytest.approx(0.16)
    assert found.values["sqnr"] == pytest.approx(
        min(10 * np.log10(np.sum(r**2) / np.sum((r - o) ** 2)) for r, o in zip(reference, output, strict=True))
    )


def test_an_input_without_finite_output_decides_and_the_others_keep_their_figures(random):
    reference = random.normal(size=(3, 1, 20))
    output = reference.copy()
    output[1, 0, 3] = np.nan
    found = figures(reference, output)
    rule, trial = make_rule(BUILT_IN["cosine"], None), Trial("", NOT_FINITE, {"y": found})
    assert not found.finite
    assert rule.loss(trial) == np.inf
    assert rule.similarity(trial) is None
    facts = rule.by_input(trial)
    assert (facts.misses, facts.worst, facts.mean) == (1, 1, 1.0)


def test_an_input_on_which_fp32_gives_almost_nothing_is_judged_by_absolute_metrics_alone(random):
    """Its cosine is that of float noise; its squared error is what it is."""
    reference, output = with_one_inverted(random, 5, 40, 2, 1e-6)
    found = figures(reference, output)
    assert found.inputs["cosine"][2] is None
    assert found.values["cosine"] == 1.0
    assert found.inputs["mse"][2] == pytest.approx(np.mean((2 * reference[2]) ** 2))
    facts = make_rule(BUILT_IN["cosine"], None).by_input(Trial("", MEASURED, {"y": found}))
    assert (facts.inputs, facts.faint, facts.misses) == (4, (2,), 0)


def test_outputs_of_other_sizes_are_compared_each_in_its_own(random):
    reference = [random.normal(size=(1, size)) for size in (3, 7, 5)]
    output = [array + 0.1 for array in reference]
    expected = [cosine(r, o) for r, o in zip(reference, output, strict=True)]
    assert figures(reference, output).inputs["cosine"] == pytest.approx(expected)


def test_the_worst_output_of_each_input_counts(random):
    reference = [{"a": random.normal(size=(1, 9)), "b": random.normal(size=(1, 9))} for _ in range(3)]
    output = [
        {"a": -r["a"] if place == 0 else r["a"], "b": -r["b"] if place == 2 else r["b"]}
        for place, r in enumerate(reference)
    ]
    trial = Trial("", MEASURED, Comparer(reference)(output))
    assert make_rule(BUILT_IN["cosine"], None).by_input(trial).values == pytest.approx((-1, 1, -1))
    assert make_rule(BUILT_IN["cosine"], None, outputs=["b"]).by_input(trial).misses == 1


def test_figures_by_input_come_back_from_a_journal(random):
    reference = random.normal(size=(4, 1, 20))
    reference[1] *= 1e-6
    output = reference + 0.01
    output[2] = np.inf
    trial = Trial("p", NOT_FINITE, {"y": figures(reference, output)})
    again, rule = Trial.from_json(json.loads(json.dumps(trial.to_json()))), make_rule(BUILT_IN["cosine"], None)
    assert repr(again) == repr(trial)
    assert repr(rule.by_input(again)) == repr(rule.by_input(trial))


HOW = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "effort": "quick"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A chain with a culprit, and six inputs, one of them a tenth as loud."""
    model = networks.planted(networks.chain(depth=3), ("conv1", "conv2"))
    data = networks.samples(model, 6)
    data["x"][3] *= 0.1
    return networks.save(model, tmp_path_factory.mktemp("planted")), data


def outputs_of(session, samples):
    return [session.run(["y"], {"x": sample[None]})[0] for sample in samples]


def test_a_run_says_of_each_input_what_its_recipe_gives_there(planted, tmp_path):
    """ONNX Runtime runs the recipe's own Q/DQ file, sample by sample, and NumPy judges; the front has the worst."""
    path, data = planted
    how = {"threshold": 0.999, "history": "none", "front": True, **HOW}
    report = trt_bisect.run(path, data, data, output=tmp_path / "run", **how)
    restored = outputs_of(plain_session(tmp_path / "run" / "recipe" / "network.qdq.onnx"), data["x"])
    exact = outputs_of(plain_session(path), data["x"])
    expected = [cosine(r, o) for r, o in zip(exact, restored, strict=True)]
    recipe = report.by_input.recipe
    assert recipe.values == pytest.approx(tuple(expected), abs=2e-4)
    assert report.similarity.recipe == recipe.values[recipe.worst] == min(recipe.values)
    assert recipe.mean == pytest.approx(np.mean(recipe.values))
    int8, network = report.by_input.int8, load_network(path)
    scales = json.loads((tmp_path / "run" / "recipe" / "plan.json").read_text())["scales"]
    full = PlanWriter(network, scales, GraphTarget.TENSORRT).write(network.full(Precision.FP32))
    lowered = outputs_of(make_session(full), data["x"])
    assert int8.values == pytest.approx([cosine(r, o) for r, o in zip(exact, lowered, strict=True)], abs=2e-4)
    assert report.similarity.int8 == min(int8.values)
    assert int8.misses == sum(value < 0.999 for value in int8.values) > 0
    written = json.loads((tmp_path / "run" / "report.json").read_text())
    assert written["by_input"]["int8"]["values"] == list(int8.values)
    assert "worst of 6 inputs" in report.summary
    front = {name: point.figure for point in report.front for name in point.names}
    assert front["recipe"] == pytest.approx(report.similarity.recipe, rel=1e-9)
    assert front["all INT8"] == pytest.approx(report.similarity.int8, rel=1e-9)


def test_a_metric_of_the_user_is_called_with_each_input_by_itself(planted):
    path, data = planted
    shapes = set()

    def smallest(reference, output):
        shapes.add(reference.shape)
        return 1.0 - float(np.abs(reference - output).max())

    report = trt_bisect.run(path, data, data, metric=smallest, threshold=0.9, **HOW)
    assert shapes == {(1, 10)}
    assert report.similarity.int8 == min(report.by_input.int8.values)


def test_a_threshold_that_fp32_itself_misses_on_one_input_is_refused(planted):
    """A metric that counts has another best value for each input: the least of them is what can be asked for."""
    path, data = planted
    loud = [int(np.sum(np.abs(output) > 0.5)) for output in outputs_of(plain_session(path), data["x"])]
    assert min(loud) < max(loud)

    def common(reference, output):
        return float(np.sum((np.abs(reference) > 0.5) & (np.abs(output) > 0.5)))

    with pytest.raises(trt_bisect.BadInput, match=str(min(loud))):
        trt_bisect.run(path, data, data, metric=common, threshold=max(loud), **HOW)


def test_compare_calls_an_output_low_that_is_low_on_one_sample(tmp_path, random):
    """Two saved runs of eight samples, of which one faint one is inverted: together their cosine is 0.997."""
    reference, output = with_one_inverted(random, 8, 50, 5, 0.1)
    for name, run in (("fp32", reference), ("int8", output)):
        (tmp_path / name).mkdir()
        for place, sample in enumerate(run):
            np.savez(tmp_path / name / f"{place}.npz", y=sample)
    found = trt_bisect.compare(fp32=tmp_path / "fp32", int8=tmp_path / "int8", threshold=0.99)
    (row,) = found.tensors
    assert row.figures.cosine > 0.997
    assert (row.worst_cosine, row.worst_sample) == (pytest.approx(-1), 5)
    (advice,) = (advice for advice in found.advice if advice.reason == "low similarity")
    assert "sample 5" in advice.words


@pytest.mark.parametrize(("metric", "percent"), [("cosine", 5), ("mse", 95)])
def test_the_fifth_percentile_is_numpys_towards_the_worse(metric, percent, random):
    reference = random.normal(size=(30, 1, 20))
    found = figures(reference, reference + 0.2 * random.normal(size=(30, 1, 20)) * np.arange(30)[:, None, None] / 30)
    facts = make_rule(BUILT_IN[metric], 0.5).by_input(Trial("", MEASURED, {"y": found}))
    assert facts.fifth == pytest.approx(np.percentile(facts.values, percent))
    better = [value for value in facts.values if BUILT_IN[metric].loss(value) < BUILT_IN[metric].loss(facts.fifth)]
    assert len(better) == 28
