"""The goals of ``recover``: an accuracy, a budget, ranges, all inputs given."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import trt_bisect
from tests.support import networks
from tests.support.networks import plant_between
from tests.support.quantized import plain_session
from tests.support.recover_cases import WISHES, engines_of, figures_on
from trt_bisect.builder.base import BuildOptions
from trt_bisect.errors import BadInput
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.network import load_network
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision
from trt_bisect.report.recovery import read_recovery

SAMPLES = Path(__file__).parents[2] / "samples"


def test_the_most_accurate_plan_within_a_budget(tmp_path):
    """Of two culprits only one can be paid for: the one that gains more, each measured on an engine of its own."""
    model = networks.chain(6)
    plant_between(model, "conv1", "conv2")
    plant_between(model, "conv3", "conv4", factor=200.0)
    network = load_network(networks.save(model, tmp_path))
    ranges, feeds, sqnr = engines_of(network, networks.samples(model))
    figures = {name: sqnr({network.layer_named(name).index}) for name in ("conv2", "conv4")}
    whole = trt_bisect.recover(network, ranges, feeds, **WISHES)
    assert {row.layer for row in whole.high} == set(figures)
    most = max(row.cost for row in whole.high)
    found = trt_bisect.recover(network, ranges, feeds, budget=most, **WISHES)
    assert found.cost == pytest.approx(most)
    assert not found.meets
    assert [row.layer for row in found.high] == [max(figures, key=figures.get)]
    assert found.measured.recipe == pytest.approx(max(figures.values()))


def counted(lenet, name):
    """The share of digits that ONNX Runtime alone gets right."""
    session = plain_session(lenet / name)
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")
    right = [
        session.run(None, {"data": digit[None]})[0].argmax() == label
        for digit, label in zip(digits, labels, strict=True)
    ]
    return float(np.mean(right))


def test_an_accuracy_is_reached_with_the_planted_layer_high(lenet):
    found = trt_bisect.recover(
        lenet / "lenet_planted.onnx",
        lenet / "calibration.npz",
        dataset=lenet / "digits.npz",
        labels=lenet / "labels.npy",
        drop="1%",
        engine="onnxruntime",
        calibrator="entropy",
    )
    assert found.target.reference == pytest.approx(counted(lenet, "lenet_planted.onnx"))
    assert found.target.least == pytest.approx(0.99 * found.target.reference)
    assert [row.layer for row in found.high] == ["ip2"]
    assert found.measured.int8 < 0.5
    assert found.measured.recipe >= found.target.least


def test_ranges_that_reach_the_accuracy_are_the_recipe(lenet, tmp_path):
    """Another calibrator gives full INT8 the accuracy that entropy loses; counted again on the exported network."""
    trt_bisect.recover(
        lenet / "lenet_planted.onnx",
        SAMPLES / "lenet/calibration.npz",
        dataset=lenet / "digits.npz",
        labels=lenet / "labels.npy",
        drop="1%",
        engine="onnxruntime",
        output=tmp_path,
    )
    found = json.loads((tmp_path / "recovery.json").read_text())
    assert found["high"] == []
    assert found["measured"]["recipe"] >= found["target"]["least"]
    (chosen,) = [row["calibrator"] for row in found["answer"]["calibrators"] if row["chosen"]]
    assert chosen != "entropy"
    said = re.search(r'its session option `(\S+)` to `"(\d)"`', (tmp_path / "recipe/README.md").read_text())
    options = ort.SessionOptions()
    options.add_session_config_entry(*said.groups())
    session = ort.InferenceSession(tmp_path / "recipe/network.qdq.onnx", options, providers=["CPUExecutionProvider"])
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")
    right = [session.run(None, {"data": d[None]})[0].argmax() == t for d, t in zip(digits, labels, strict=True)]
    assert np.mean(right) == pytest.approx(found["measured"]["recipe"], abs=2.5 / len(labels))


def test_an_accuracy_function_of_the_user(lenet):
    digits, labels = np.load(lenet / "digits.npz")["data"], np.load(lenet / "labels.npy")

    def accuracy(infer):
        return np.mean([infer({"data": d[None]})["prob"].argmax() == t for d, t in zip(digits, labels, strict=True)])

    wishes = {"engine": "onnxruntime", "calibrator": "entropy", "target": 0.9}
    found = trt_bisect.recover(lenet / "lenet_planted.onnx", lenet / "calibration.npz", accuracy=accuracy, **wishes)
    assert [row.layer for row in found.high] == ["ip2"]
    with pytest.raises(BadInput, match="FP32 itself"):
        trt_bisect.recover(
            lenet / "lenet_planted.onnx", lenet / "calibration.npz", accuracy=accuracy, **{**wishes, "target": 1.1}
        )
    with pytest.raises(BadInput, match="fails: KeyError"):
        trt_bisect.recover(
            lenet / "lenet_planted.onnx",
            lenet / "calibration.npz",
            accuracy=lambda infer: infer({"data": digits[:1]})["x"],
            **wishes,
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "half"], "is not a share"),
        (["--budget", "150%"], "is not a share"),
        (["--precision", "int4"], "--precision cannot be 'int4'"),
        (["--labels", "none.npy"], "--dataset"),
        (["--target", "0.9"], "--accuracy"),
        (["--cost", "none.csv"], "none.csv"),
        (["--plans", "0"], "--plans cannot be 0"),
        (["--accuracy", "nowhere:nothing"], "nowhere"),
    ],
)
def test_bad_use_is_said_in_a_line(arguments, says, lenet, tmp_path, command):
    code, _, err = command(
        "recover", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path, *arguments
    )
    assert code == 2
    assert says in err
    assert "Traceback" not in err


def test_a_target_that_nothing_meets_is_exit_code_1(tmp_path, command):
    """In FP16 the planted range overflows in every plan."""
    model = networks.chain(4)
    plant_between(model, "conv1", "conv2", factor=3e6)
    path = networks.save(model, tmp_path)
    np.savez(tmp_path / "data.npz", **networks.samples(model))
    code, _, _ = command(
        "recover", path, "--calibration", tmp_path / "data.npz", "--precision", "fp16", "-o", tmp_path / "run",
        "--engine", "onnxruntime", "--calibrator", "minmax",
    )  # fmt: skip
    assert code == 1
    assert not json.loads((tmp_path / "run/recovery.json").read_text())["meets"]


def test_the_recipe_holds_on_all_inputs_given_and_says_so_of_unseen_ones(tmp_path):
    model = networks.chain(6)
    plant_between(model, "conv1", "conv2")
    plant_between(model, "conv3", "conv4")
    path, data, unseen = networks.save(model, tmp_path), networks.samples(model, 12), networks.samples(model, 5, 7)
    wishes = {"engine": "onnxruntime", "metric": "sqnr", "threshold": 25.0, "output": tmp_path / "run"}
    found = trt_bisect.recover(path, data, validation=unseen, plans=10, **wishes)
    given, elsewhere = (figures_on(tmp_path / "run/recipe", path, one["x"]) for one in (data, unseen))
    assert found.meets
    assert min(given) >= 25.0
    assert found.answer.given.inputs == found.answer.given.holds == 12
    assert found.answer.given.worst == pytest.approx(min(given), abs=0.05)
    assert (found.answer.unseen.inputs, found.answer.unseen.holds) == (5, sum(figure >= 25.0 for figure in elsewhere))
    assert found.answer.unseen.worst == pytest.approx(min(elsewhere), abs=0.05)
    assert "12 of 12 of your inputs" in found.summary
    assert len(found.answer.calibrators) > 1
    assert read_recovery(tmp_path / "run/recovery.json").answer == found.answer


def test_a_calibrator_that_suffices_is_the_recipe_and_one_that_is_named_is_kept(tmp_path):
    """Calibration by a percentile of 60 clips most values away; with another calibrator nothing has to be high."""
    model = networks.chain(6)
    path, data = networks.save(model, tmp_path), networks.samples(model, 12)
    wishes = {"engine": "onnxruntime", "threshold": 0.98, "plans": 20}
    named = trt_bisect.recover(path, data, calibrator="percentile", percentile=60.0, **wishes)
    free = trt_bisect.recover(path, data, **wishes)
    assert named.high
    assert free.high == ()
    assert named.measured.int8 < 0.98 <= free.measured.int8


def test_the_most_accurate_plan_within_a_budget_is_judged_on_all_inputs(tmp_path):
    """One convolution can be paid for: no other one alone is better on the worst of the inputs."""
    model = networks.chain(5)
    for pair, factor in ((("conv0", "conv1"), 60.0), (("conv2", "conv3"), 90.0)):
        plant_between(model, *pair, factor=factor)
    network = load_network(networks.save(model, tmp_path))
    samples = networks.samples(model, 9)["x"]
    ranges = trt_bisect.calibrate(network, [{"x": sample[None]} for sample in samples], "minmax")
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    costs = {
        k: by[Precision.FP32]
        for k, by in shares(times_by_macs(network, facts_for(network, {"x": samples[:1]}))).items()
    }
    most = max(costs.values())

    def worst(high):
        with builder.reference() as exact, builder.build(trt_bisect.all_but(len(network.layers), high)) as engine:
            pairs = [(exact.infer({"x": x[None]})["y"], engine.infer({"x": x[None]})["y"]) for x in samples]
        return min(trt_bisect.similarity(one, other, "sqnr") for one, other in pairs)

    found = trt_bisect.recover(network, ranges, {"x": samples}, budget=most, plans=40, **WISHES)
    payable = [high for n in range(3) for high in combinations(costs, n) if sum(costs[k] for k in high) <= most]
    assert found.cost <= most + 1e-9
    assert found.measured.recipe >= max(map(worst, payable)) - 0.2
