"""The search for a recipe on real networks that mislead, against all their plans."""

from dataclasses import replace

import pytest

from tests.driver.test_estimated import kept_by, searched
from tests.support.planted_answers import MISLEADING, THRESHOLD, every_plan
from trt_bisect.driver.search_space import Space
from trt_bisect.precision import int8_set

RIGHT = {"cancelling_pair": {"conv2"}, "masked_culprit": {"conv1", "conv4"}, "decoys": {"conv2"}}
RIGHT |= {"absorbed_drop": {"conv4"}, "unlike_slices": {"score1"}}


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    return {name: every_plan(make(), tmp_path_factory.mktemp(name)) for name, make in MISLEADING.items()}


@pytest.mark.parametrize("name", MISLEADING)
def test_the_smallest_set_holds_no_decoy(name, tried):
    plans, planted = tried[name], MISLEADING[name]()
    assert min(plans.minimal, key=len) == RIGHT[name]
    assert not RIGHT[name] & set(planted.decoys)


@pytest.mark.parametrize("name", MISLEADING)
def test_the_search_finds_it(name, tried):
    plans = tried[name]
    units = len(plans.names)
    space = Space(int8_set(units, ()), tuple((k,) for k in range(units)), (1.0 / units,) * units, 1.0 - THRESHOLD)
    search, _ = searched(space, lambda low: [plans.losses[frozenset(plans.names) - {plans.names[k] for k in low}]])
    assert {plans.names[unit] for unit in kept_by(search)} == RIGHT[name]


def test_what_misleads(tried, tmp_path):
    """The prefix curve blames innocents, one culprit hides another, and a whole output hides a part."""
    allowed = 1.0 - THRESHOLD
    assert tried["cancelling_pair"].drop("left") > allowed
    assert tried["absorbed_drop"].drop("conv1") > allowed
    masked = tried["masked_culprit"].losses
    assert masked[frozenset()] - masked[frozenset({"conv1"})] < allowed, "with conv4 in INT8 nothing is gained"
    assert masked[frozenset({"conv4"})] > 10 * allowed
    whole = every_plan(replace(MISLEADING["unlike_slices"](), cut=0), tmp_path)
    assert whole.meets(()), "the cosine of the whole output passes in full INT8"
