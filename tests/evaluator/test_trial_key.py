"""Keys of trials: the texts that journals of earlier versions hold."""

from types import SimpleNamespace

import pytest

from trt_bisect.commands.run.build_report import RunTrials
from trt_bisect.evaluator.trial import MEASURED, PIECES, WHOLE, OutputFigures, Trial, TrialKey
from trt_bisect.precision import prefix

PLAN = prefix(5, 2).key()
TEXTS = [
    (TrialKey(PLAN), "8*3.f*2"),
    (TrialKey(PLAN, WHOLE).in_rows, "rows 8*3.f*2"),
    (TrialKey(PLAN, PIECES), "pieces 8*3.f*2"),
    (TrialKey(PLAN, PIECES).in_rows, "pieces rows 8*3.f*2"),
    (TrialKey(PLAN, "inputs 12ab"), "inputs 12ab 8*3.f*2"),
    (TrialKey("reference", "accuracy 0123456789abcdef"), "accuracy 0123456789abcdef reference"),
]


@pytest.mark.parametrize(("key", "text"), TEXTS)
def test_a_key_has_the_text_of_earlier_journals(key, text):
    assert key.text == text
    assert TrialKey.from_text(text) == key
    assert key.in_pieces == text.startswith("pieces ")


def judged(text):
    return Trial(text, MEASURED, inferences=1).judged({"y": OutputFigures({"cosine": 0.5})})


@pytest.mark.parametrize("measured_in", [WHOLE, PIECES])
def test_a_trial_of_a_pass_is_found_beside_other_rows_too(measured_in):
    experiment = SimpleNamespace(measured_in=measured_in, whole=SimpleNamespace(canonical=lambda plan: plan))

    def found(*trials):
        return RunTrials({trial.plan: trial for trial in trials}, experiment).in_a_pass(prefix(5, 2))

    beside = judged(f"{measured_in} rows {PLAN}".strip())
    alone = judged(f"{measured_in} {PLAN}".strip())
    switch = judged(f"switch {PLAN}")
    assert found(switch, beside) == beside
    assert found(switch, beside, alone) == alone
    assert found(switch) is None
