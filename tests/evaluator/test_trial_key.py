"""Keys of trials: the texts that journals hold, and the trial that a curve takes."""

from types import SimpleNamespace

import pytest

from trt_bisect.commands.run.state import RunTrials
from trt_bisect.evaluator.trial import MEASURED, SWITCH, WHOLE, OutputFigures, Trial, TrialKey
from trt_bisect.precision import prefix

PLAN = prefix(5, 2).key()
TEXTS = [
    (TrialKey(PLAN, WHOLE), "8*3.f*2"),
    (TrialKey(PLAN, SWITCH), "switch 8*3.f*2"),
    (TrialKey(PLAN, "inputs 12ab"), "inputs 12ab 8*3.f*2"),
    (TrialKey("reference", "accuracy 0123456789abcdef"), "accuracy 0123456789abcdef reference"),
]


@pytest.mark.parametrize(("key", "text"), TEXTS)
def test_a_key_has_the_text_that_journals_hold(key, text):
    assert key.text == text
    assert TrialKey.from_text(text) == key


def judged(text):
    return Trial(text, MEASURED, inferences=1).judged({"y": OutputFigures({"cosine": 0.5})})


def test_the_curve_takes_the_trial_of_the_session_before_that_of_an_engine():
    experiment = SimpleNamespace(whole=SimpleNamespace(canonical=lambda plan: plan))

    def found(*trials):
        return RunTrials({trial.plan: trial for trial in trials}, experiment).of_plan(prefix(5, 2))

    switch, whole, of_inputs = judged(f"switch {PLAN}"), judged(PLAN), judged(f"inputs 12ab {PLAN}")
    assert found(of_inputs) is None
    assert found(of_inputs, whole) == whole
    assert found(of_inputs, whole, switch) == switch
