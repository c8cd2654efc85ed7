"""The planted networks that mislead a search, by all their plans."""

from dataclasses import replace

import pytest

from tests.support.planted_answers import MISLEADING, THRESHOLD, every_plan

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
