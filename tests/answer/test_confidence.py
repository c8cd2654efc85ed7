"""The facts that a verdict rests on: sentences from invented facts, and those of real runs."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.model.test_unquantized import swish
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.answer import confidence
from trt_bisect.answer.confidence import ARITHMETIC, CLEAR, CLOSE, INPUTS, UNQUANTIZED_STAY, WEAK_CULPRIT, ranked
from trt_bisect.answer.validation import PutBack
from trt_bisect.builder.base import BuildOptions
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision
from trt_bisect.report.answer import DECIDING, HALF, NUDGED, OWN
from trt_bisect.support.text import Line

SURE = {
    "given": 26, "judged": 8, "held_out": 6, "arithmetic": "emulated", "meets": True, "moved": (),
    "culprits": {"conv3": 0.02, "conv5": 0.0105}, "losses": {"one": 0.0040, "two": 0.0041}, "unquantized": None,
    "parts": {}, "reserve": 0.0,
    "by_accuracy": False, "members": (), "empty": 0, "half": None,
}  # fmt: skip


def invented(metric="cosine", threshold=0.99, **changed) -> SimpleNamespace:
    """An invented answer; units are layers of one's own."""
    facts = SimpleNamespace(**{**SURE, **changed})
    names = list(facts.culprits)
    layers, low = [SimpleNamespace(name=name) for name in names], SimpleNamespace(title="INT8")
    network = SimpleNamespace(layers=layers, low=low, has_pairs=False, changes="")
    engine = {"engine": "onnxruntime", "versions": {"onnxruntime": "1.2.3"}, "typing": "strong"}
    builder = SimpleNamespace(arithmetic=facts.arithmetic, **engine)
    rule = make_rule(find_metric(metric), threshold, 0.5)
    return SimpleNamespace(
        experiment=SimpleNamespace(network=network, builder=builder, rule=rule, parts=facts.parts),
        recipe=SimpleNamespace(
            space=SimpleNamespace(units=[(k,) for k in range(len(names))], budget=rule.budget),
            put_back={
                names.index(name): PutBack(loss, NUDGED if name in facts.moved else OWN, facts.given)
                for name, loss in facts.culprits.items()
            },
            checked=SimpleNamespace(losses=facts.losses),
            reserve=facts.reserve,
            cheapest=None,
        ),
        inputs=SimpleNamespace(told=range(facts.given), given=SimpleNamespace(empty=range(facts.empty))),
        judged=facts.judged,
        has_held_out=bool(facts.held_out),
        held_out=None,
        held_out_inputs=SimpleNamespace(told=range(facts.held_out), empty=()),
        meets=facts.meets,
        plan="the recipe",
        half=facts.half,
        by_accuracy=facts.by_accuracy,
        members=tuple(names.index(name) for name in facts.members or names),
    )


def lines(**changed) -> list[Line]:
    """The lines on an invented answer."""
    return list(confidence.confidence(invented(**changed), changed.get("unquantized")))


def by_kind(**changed) -> dict[str, Line]:
    return {line.kind: line for line in lines(**changed)}


def test_inputs_arithmetic_and_what_no_engine_has_confirmed():
    said = by_kind()
    assert all(part in said[INPUTS].text for part in ("26 inputs", "6 held-out", " 8 of "))
    assert confidence.FEW_INPUTS not in said
    assert "finds nothing" not in said[INPUTS].text
    assert "FP32 finds nothing on 4 more" in by_kind(empty=4)[INPUTS].text
    assert confidence.FEW_INPUTS in by_kind(given=19)
    assert "onnxruntime 1.2.3" in said[ARITHMETIC].text
    assert "confirmed" in said[ARITHMETIC].short
    assert by_kind(arithmetic="measured")[ARITHMETIC].short == "The outputs were measured on onnxruntime 1.2.3."


@pytest.mark.parametrize(
    ("losses", "meets", "could"),
    [
        ({"one": 0.0040, "two": 0.0041}, True, False),
        ({"one": 0.0095}, True, True),  # 5 % below the budget; flips move 10 %
        ({"one": 0.0105}, False, True),
        ({"one": 0.0200}, False, False),
        ({"one": 0.0040, "two": 0.0080}, True, True),  # the settings are 50 % apart: 0.008 could be 0.012
    ],
)
def test_the_margin_against_the_noise(losses, meets, could):
    said = by_kind(losses=losses, meets=meets)
    assert ((CLOSE in said), (CLEAR in said)) == (could, not could)
    assert could or f"recipe's {'margin' if meets else 'miss'} is larger" in said[CLEAR].short


def test_a_culprit_that_only_moved_scales_make_is_weak_and_its_figure_says_so():
    assert [line.layers for line in lines() if line.kind == WEAK_CULPRIT] == [("conv5",)]
    (weak,) = (line for line in lines(moved=["conv3"]) if line.kind == WEAK_CULPRIT)
    assert weak.layers == ("conv3", "conv5")
    assert f"2% with 'conv3' put back and {NUDGED}" in weak.text


def test_each_line_is_said_in_short_with_its_first_words():
    for line in lines(unquantized=0.05, given=5, parts={"unquantized": "int8"}):
        assert line.text.startswith(line.short.removesuffix("."))
        assert len(line.short) < len(line.text)


def test_weak_culprits_are_counted_and_the_first_ones_are_named_with_their_figures():
    (weak,) = (line for line in lines() if line.kind == WEAK_CULPRIT)
    assert (weak.layers, "1.05%" in weak.text) == (("conv5",), True)
    many = lines(culprits={f"c{k}": 0.0101 for k in range(5)} | {"far": 1.0, "failed": None})
    (weak,) = (line for line in many if line.kind == WEAK_CULPRIT)
    assert weak.layers == ("c0", "c1", "c2", "c3", "c4")
    assert "5 of 6" in weak.short
    assert "2 more" in weak.text


@pytest.mark.parametrize(
    ("changed", "main", "weak"),
    [
        # Of 0.01 allowed, 10 % of a loss is noise: 0.0112 misses by 0.0012 and moves by 0.00112, 0.0111 by 0.00111.
        ({"culprits": {"a": 0.0112, "b": 0.5, "c": 0.0111}}, ["b", "a"], ["c"]),
        ({"culprits": {"nan": float("inf"), "a": 0.9, "not run": None}}, ["nan", "a"], []),
        ({"culprits": {"a": 0.0085, "b": 0.009, "c": 0.02}, "reserve": 0.2}, ["c"], ["b", "a"]),
        ({"culprits": {"a": 0.3, "b": 0.2}, "moved": ["a"]}, ["b"], ["a"]),
        # Settings that are 40 % apart: 0.016 could be 0.0096, and 0.017 is 0.0102 at least.
        ({"culprits": {"a": 0.016, "b": 0.017}, "losses": {"one": 0.003, "two": 0.005}}, ["b"], ["a"]),
        # The last digits of a float say nothing of a loss of 0.5.
        ({"culprits": {"a": 0.5}, "losses": {"one": 0.0, "two": 1e-16}}, ["a"], []),
    ],
)
def test_culprits_are_ranked_and_those_that_noise_or_the_margin_make_come_last(changed, main, weak):
    names = list(changed["culprits"])
    assert [[names[unit] for unit in units] for units in ranked(invented(**changed))] == [main, weak]


def test_layers_that_a_budget_adds_are_not_ranked_among_the_culprits():
    assert ranked(invented(members=("conv3",)))[0] == [0]


def test_an_accuracy_says_its_arithmetic_alone():
    """Inputs, noise and margins are of the similarity."""
    (line,) = lines(by_accuracy=True)
    assert line == by_kind()[ARITHMETIC]


def test_flips_are_counted_for_the_cosine_alone():
    """-10 log10 of a loss of 0.00955 is 20.2 dB: nothing is known of its noise from one setting."""
    assert confidence.ONE_SETTING in by_kind(metric="sqnr", threshold=20.0, losses={"one": 10**-2.02})
    assert CLOSE in by_kind(metric="sqnr", threshold=20.0, losses={"one": 10**-2.02, "two": 10**-2.2})


def test_unquantized_layers_that_miss_do_not_decide_and_are_told():
    assert UNQUANTIZED_STAY not in by_kind()
    misses = by_kind(unquantized=0.05)[UNQUANTIZED_STAY].text
    assert "95%" in misses
    assert "--unquantized int8" in misses
    assert "--unquantized" not in by_kind(unquantized=0.001)[UNQUANTIZED_STAY].text
    assert confidence.UNQUANTIZED_ROUND in by_kind(parts={"unquantized": "int8"})


ASKED = {"engine": "onnxruntime", "calibrator": "minmax", "threshold": 0.9995, "explain": "none"}
ASKED |= {"effort": "quick"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A network with swish, judged with unquantized layers high and in INT8, in one folder after the other."""
    folder = tmp_path_factory.mktemp("unquantized")
    model, feeds = networks.given(swish(), folder, 6)
    return folder, {
        unquantized: trt_bisect.run(model, feeds, feeds, unquantized=unquantized, output=folder / "run", **ASKED)
        for unquantized in ("high", "int8")
    }


def test_a_real_run_says_what_it_rests_on(runs):
    _, reports = runs
    answer = reports["high"].answer
    assert "unquantized layers in INT8" in answer.settings
    said = {line.kind: line for line in answer.confidence}
    assert {INPUTS, confidence.FEW_INPUTS, ARITHMETIC, UNQUANTIZED_STAY} <= said.keys()
    assert "6 inputs" in said[INPUTS].text


def test_unquantized_layers_are_a_part_of_the_fingerprint_and_decide_on_request(runs):
    folder, reports = runs
    high, int8 = reports["high"], reports["int8"]
    assert high.fingerprint != int8.fingerprint
    assert int8.made_of["unquantized"] == "int8"
    assert "unquantized layers in INT8" not in int8.answer.settings
    assert int8.similarity.int8 < high.similarity.int8
    journaled = {json.loads(line)["run"] for line in (folder / "run/journal.jsonl").read_text().splitlines()}
    assert len(journaled) >= 2
    assert int8.answer.given.holds == 6
    assert set(high.recipe.high) <= set(int8.recipe.high)
    feeds = networks.samples(swish(), 6)
    found = trt_bisect.run(folder / "network.onnx", feeds, feeds, unquantized="high", **ASKED)
    assert found.answer.settings["unquantized layers in INT8"] == pytest.approx(
        high.answer.settings["unquantized layers in INT8"]
    )


def test_the_curve_rounds_unquantized_layers_as_whole_engines_do(tmp_path):
    model, feeds = networks.given(swish(), tmp_path, 2)
    curves = []
    for strategy in ("auto", "exhaustive"):
        how = {**ASKED, "explain": "tensors", "strategy": strategy}
        report = trt_bisect.run(model, feeds, unquantized="int8", **how)
        curves.append([row.similarity for row in report.layers])
    np.testing.assert_allclose(*np.array(curves, float), atol=1e-5)


def test_another_arithmetic_of_fp16_counts_as_noise():
    assert CLEAR in by_kind()
    line = by_kind(half=0.02)[CLOSE]
    assert "in 3 settings is 2% of 1% allowed" in line.text
    assert "by about 80%" in line.text, "from 0.0040 to 0.02"


def test_the_recipe_is_measured_with_scales_moved_by_the_rounding_of_fp16(tmp_path):
    """Against engines with moved scales."""
    model = networks.chain(4)
    path, (name, values) = networks.save(model, tmp_path), *networks.samples(model, 6).items()
    feeds = [{name: value[None]} for value in values]
    network = load_network(path, base=Precision.FP16)
    ranges = trt_bisect.calibrate(network, feeds, "minmax")
    asked = {"threshold": 0.9, "explain": "none", "as_is": True, "base": "fp16"}
    report = trt_bisect.run(path, ranges, feeds, **asked)
    assert not report.recipe.high
    worst = 1.0
    for factor in (1 - 2**-11, 1 + 2**-11):
        scales = {tensor: np.float32(scale * factor) for tensor, scale in ranges.scales.items()}
        builder = trt_bisect.make_builder("onnxruntime", "strong", network, scales, BuildOptions())
        exact = plain_session(path)
        with builder.build(network.full(Precision.FP16)) as engine:
            for sample in feeds:
                (reference,) = exact.run(None, sample)
                worst = min(worst, trt_bisect.similarity(reference, *engine.infer(sample).values()))
    settings = report.answer.settings
    assert settings[HALF] == pytest.approx(
        min(worst, *(settings[name] for name in DECIDING if name in settings)), abs=2e-5
    )
    assert settings[HALF] != settings[OWN]
