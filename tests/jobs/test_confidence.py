"""The facts that a verdict rests on: sentences from invented facts, and those of real runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trt_bisect
from tests.model.test_followers import swish
from tests.support import networks
from tests.support.records import record_of
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.errors import BadInput
from trt_bisect.jobs.answer.confidence import Grounds, confidence
from trt_bisect.report.model import AnswerFacts

SURE = {
    "given": 26, "judged": 8, "unseen": 6, "engine": "onnxruntime 1.2.3", "arithmetic": "emulated", "meets": True,
    "culprits": {"conv3": 0.02, "conv5": 0.0105}, "losses": {"one": 0.0040, "two": 0.0041},
}  # fmt: skip


def said(metric="cosine", threshold=0.99, **changed):
    return " ".join(
        confidence(Grounds(**{**SURE, **changed}), make_rule(find_metric(metric, "higher"), threshold, 0.5))
    )


def test_inputs_arithmetic_and_what_no_engine_has_confirmed():
    text = said()
    assert "26 inputs given and 6 unseen" in text
    assert "on 8 of those given" in text
    assert "fewer than 20 inputs" not in text
    assert "No engine has confirmed this" in text
    assert "onnxruntime 1.2.3" in text
    assert "fewer than 20 inputs" in said(given=19)
    measured = said(arithmetic="measured", engine="tensorrt 10.3.0")
    assert "measured on tensorrt 10.3.0" in measured
    assert "No engine" not in measured


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
    text = said(losses=losses, meets=meets)
    assert ("Noise could reverse it" in text) is could
    assert (f"{'holds' if meets else 'misses'} by more than the noise" in text) is not could


def test_a_culprit_that_only_moved_scales_make_is_within_the_noise_with_both_figures():
    assert "'conv3' is a culprit by less than the noise" not in said()
    text = said(unmoved={"conv3": 0.0091})
    assert "'conv3' is a culprit by less than the noise" in text
    assert "0.0091" in text
    assert "0.02 of 0.01" in text


def test_the_words_before_the_colon_say_it_in_short():
    short, long = "No colon here.", "It holds: the largest loss is 0.004."
    assert AnswerFacts(8, None, None, 0.0, confidence=(long, short)).rests_on == f"It holds. {short}"
    sentences = confidence(Grounds(**SURE), make_rule(find_metric("cosine", "higher"), 0.99, 0.5))
    said_in_short = AnswerFacts(8, None, None, 0.0, confidence=sentences).rests_on
    assert said_in_short.count(". ") == len(sentences) - 1


def test_culprits_whose_loss_taken_back_is_within_the_noise_are_named():
    text = said()
    assert "'conv5' is a culprit by less than the noise" in text
    assert "0.0105" in text
    assert "'conv3' is" not in text
    many = said(culprits={f"c{k}": 0.0101 for k in range(5)} | {"far": 1.0, "failed": None})
    assert "So are 2 more of the 7 culprits" in many


def test_flips_are_counted_for_the_cosine_alone():
    """-10 log10 of a loss of 0.00955 is 20.2 dB: nothing is known of its noise from one setting."""
    assert "Noise was not measured" in said("sqnr", 20.0, losses={"one": 10**-2.02})
    assert "Noise could reverse it" in said("sqnr", 20.0, losses={"one": 10**-2.02, "two": 10**-2.2})


def test_followers_that_miss_do_not_decide_and_are_told():
    assert "weak typing" not in said()
    misses = said(followers=0.05)
    assert "95.0000%, which misses" in misses
    assert "--followers int8" in misses
    assert "meets the threshold" in said(followers=0.001)
    assert "--followers" not in said(followers=0.001)
    assert "Layers that only follow rounded" in said(followers_round=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A network with swish, judged with followers high and with followers in INT8, in one folder after the other."""
    folder = tmp_path_factory.mktemp("followers")
    model, feeds = networks.save(swish(), folder), networks.samples(swish(), 6)
    asked = {"engine": "onnxruntime", "calibrator": "minmax", "threshold": 0.9995, "explain": "none"}
    return folder, {
        followers: trt_bisect.run(model, feeds, feeds, followers=followers, output=folder / "run", **asked)
        for followers in ("high", "int8")
    }


def test_a_real_run_says_what_it_rests_on(runs):
    _, reports = runs
    answer = reports["high"].answer
    assert "followers in INT8" in answer.settings
    text = " ".join(answer.confidence)
    assert "6 inputs given and no unseen" in text
    assert "fewer than 20 inputs" in text
    assert "No engine has confirmed this" in text
    assert "weak typing may also round" in text
    assert type(answer).from_json(record_of(reports["high"])["answer"]) == answer


def test_followers_are_a_part_of_the_fingerprint_and_decide_on_request(runs):
    folder, reports = runs
    high, int8 = reports["high"], reports["int8"]
    assert high.fingerprint != int8.fingerprint
    assert int8.made_of["followers"] == "int8"
    assert "followers in INT8" not in int8.answer.settings
    assert int8.similarity.int8 < high.similarity.int8
    journaled = {json.loads(line)["run"] for line in (folder / "run/journal.jsonl").read_text().splitlines()}
    assert len(journaled) >= 2
    assert int8.answer.given.holds == 6
    assert set(high.recipe.high) <= set(int8.recipe.high)
    asked = {"engine": "onnxruntime", "calibrator": "minmax", "threshold": 0.9995, "explain": "none"}
    feeds = networks.samples(swish(), 6)
    found = trt_bisect.run(folder / "network.onnx", feeds, feeds, followers="high", **asked)
    assert found.answer.settings["followers in INT8"] == pytest.approx(high.answer.settings["followers in INT8"])


def test_followers_need_the_emulation_and_whole_sessions(tmp_path):
    model, feeds = networks.save(swish(), tmp_path), networks.samples(swish(), 2)
    with pytest.raises(BadInput, match="--followers int8"):
        trt_bisect.run(model, feeds, followers="int8", engine="onnxruntime", strategy="branch")
    assert np.isfinite(trt_bisect.run(model, feeds, followers="int8", engine="onnxruntime").similarity.int8)
