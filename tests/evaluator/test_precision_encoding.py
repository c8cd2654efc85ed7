import json

import pytest
from hypothesis import given, strategies as st

from trt_bisect.evaluator.trial import AS_ASKED, Trial, restored, shortened
from trt_bisect.precision import Precision, PrecisionPlan, prefix

PRECISIONS = st.sampled_from(["int8", "fp16", "fp32", "int32", "bool"])
PLANS = st.lists(st.sampled_from(list(Precision)), min_size=1, max_size=40).map(lambda p: PrecisionPlan(tuple(p)))


@given(st.dictionaries(st.integers(0, 60), PRECISIONS), PLANS, st.sampled_from(["", "pieces ", "rows "]))
def test_every_trial_is_read_as_it_was_written(ran, plan, mark):
    trial = Trial(f"{mark}{plan.key()}", "measured", ran=ran)
    assert Trial.from_json(json.loads(json.dumps(trial.to_json()))) == trial


@given(PLANS)
def test_a_plan_that_was_obeyed_takes_no_room(plan):
    ran = {index: str(precision) for index, precision in enumerate(plan.precisions)}
    assert shortened(ran, f"pieces {plan.key()}") == AS_ASKED
    assert restored(AS_ASKED, f"pieces {plan.key()}") == ran


def test_what_was_not_obeyed_is_told():
    key = prefix(4, 2).key()
    assert shortened({0: "int8", 1: "fp32", 2: "int8", 3: "fp32"}, key) == 2 * [["int8", 1], ["fp32", 1]]


def test_journals_of_before_are_still_read():
    old = {"plan": "8*2", "outcome": "measured", "outputs": {}, "ran": {"0": "int8", "1": "fp32"}}
    assert Trial.from_json(old).ran == {0: "int8", 1: "fp32"}


@pytest.mark.parametrize(
    "short", [3, "asked", [["int8"]], [["int8", "2"]], [[7, 1]], [["int8", 10**12]], None, {"a": "b"}]
)
def test_what_is_no_record_is_refused(short):
    with pytest.raises((AttributeError, TypeError, ValueError)):
        restored(short, "8*2")


def test_a_key_that_claims_all_memory_is_refused():
    with pytest.raises(ValueError, match="more than"):
        PrecisionPlan.from_key(f"8*{10**12}")


@pytest.mark.parametrize("key", ["8*-3", "8*0.f*2"])
def test_a_key_with_a_run_of_no_layers_is_refused(key):
    with pytest.raises(ValueError, match="no layers"):
        PrecisionPlan.from_key(key)
