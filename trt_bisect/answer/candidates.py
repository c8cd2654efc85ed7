"""Networks that are as good in FP32 and better in INT8: the best of them is searched where a recipe would be dear.

A recipe raises precision. Two candidates raise accuracy first, and every layer stays as fast: channels are smoothed
(``model.smooth``), and weights are rounded for what they do to the outputs (``calibration.weight_rounding``). They are
made from the calibration data, alone and together. Full INT8 of each is measured with each promising calibrator on all
inputs given, and the network with the smallest mean loss is searched instead of the user's. FP32 of the user's network
stays the reference.

The search of the user's network goes on where its first recipe is cheap, or has few layers: they name what is to blame,
which can be mended at its cause. The inferences taken so far count for the search of the other network too.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import fmean

from trt_bisect.answer.answer import AnswerSearch
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.search import AUTO, CHEAP_RECIPE, PROMISING, SAFETY
from trt_bisect.answer.validation import SimilarityTarget
from trt_bisect.builder.base import EMULATED
from trt_bisect.calibration.weight_rounding import round_weights
from trt_bisect.driver.recipes.cheapest import least_cost
from trt_bisect.driver.suspects.search import drive
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.low import INT8
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe
from trt_bisect.model.reading import FLOAT_NOISE, relative_difference
from trt_bisect.model.smooth import smooth
from trt_bisect.options.concerns import QUICK
from trt_bisect.support.figures import counted
from trt_bisect.support.notes import RECIPE, Note

_FEW = 4
"""A recipe of so few layers stands: it names what is to blame, which can be mended at its cause."""
_HELPS = 0.5
"""Candidates are searched if both changes together leave at most this share of the mean loss of full INT8."""


@dataclass(frozen=True)
class _Candidate:
    """A network that computes the same in FP32, and the mean loss of full INT8 over all inputs with the best ranges."""

    plans: AnswerPlans
    loss: float

    @property
    def words(self) -> str:
        """The changes of the network, in words."""
        return self.plans.experiment.network.improved or "as it is"


def improved(search: AnswerSearch) -> tuple[AnswerSearch, Note] | None:
    """Returns the search of a network that is better in INT8, and a note on it; None to go on with the user's.

    Args:
        search: of the user's network, whose ranges are chosen; the other one's are too.
    """
    if _is_left(search) or _stands(search):
        return None
    plans = search.plans
    plans.setup.progress.stage("Smoothing channels, rounding weights", None)
    found = [_measured(plans)]
    try:
        for network in _networks(plans):
            found.append(_measured(_of_network(search, network)))
            if found[1].loss > _HELPS * found[0].loss:
                return None
    except (BadInput, TrialFailed) as error:
        plans.setup.progress.say(f"Channels and weights stay as they are: {first_line(error)}")
        return None
    best = min(found, key=lambda one: one.loss)
    if best is found[0]:
        return None
    again = AnswerSearch(best.plans, best.plans.experiment, search.effort, None, search.mixed)
    taken = sum(one.plans.taken for one in found)
    again.choose_ranges()
    best.plans.allowed -= taken
    losses = ", ".join(f"{one.loss:.3g} {one.words}" for one in found)
    text = (
        f"{best.words}: the recipe's network computes the same in FP32 and loses less in "
        f"{plans.experiment.network.low.title}. Mean loss of full {plans.experiment.network.low.title}: {losses}"
    )
    plans.setup.progress.say(f"{text[0].upper()}{text[1:]}")
    return again, Note(RECIPE, text)


def _stands(search: AnswerSearch) -> bool:
    """Returns true if a first recipe of the user's network is cheap, or has few layers."""
    known = [one for one in search.tried if one.kept is not None]
    if known:
        first = min(known, key=lambda one: one.cost or 0.0)
        return (first.cost or 0.0) <= CHEAP_RECIPE or (first.high or 0) <= _FEW
    space = replace(search.space, budget=search.space.budget * SAFETY)
    kept = drive(least_cost(space, inf), partial(search.plans.losses, ranges=search.experiment.ranges))
    return kept is not None and (space.cost(kept) <= CHEAP_RECIPE or len(space.layers(kept)) <= _FEW)


def _is_left(search: AnswerSearch) -> bool:
    """Returns true if full INT8 passes, the network is to stay as it is, or others cannot be measured."""
    plans, experiment = search.plans, search.experiment
    network, options = experiment.network, plans.setup.options
    is_usual = network.low is INT8 and not network.has_pairs and not network.scales and experiment.data is not None
    is_free = network.movable == network.quantizable and not options.one_scale and options.typing != "weak"
    measures = plans.switches and experiment.builder.arithmetic == EMULATED and not search.space.has_many
    asked = search.most is not None or not isinstance(search.target, SimilarityTarget) or search.effort == QUICK
    passes = any(one.meets for one in search.tried)
    return passes or asked or not (is_usual and is_free and measures)


def _networks(plans: AnswerPlans) -> Iterator[Network]:
    """Yields the candidates: with both changes, then with each alone."""
    experiment = plans.experiment
    network, data = experiment.network, experiment.data
    assert data is not None
    smoothed = smooth(network, data)
    names, feeds = list(experiment.rule.outputs), experiment.feeds[:1]
    (ours,), (theirs,) = (list(observe(each, names, feeds)) for each in (smoothed.network, network))
    apart = max((relative_difference(theirs[name], ours[name]) for name in theirs), default=0.0)
    is_smoothed = bool(smoothed.tensors) and apart <= FLOAT_NOISE
    of_channels = f"channels of {counted(len(smoothed.tensors), 'tensor')} smoothed"
    if is_smoothed:
        both = round_weights(smoothed.network, data)
        words = f"{of_channels} and {counted(len(both.left), 'weight')} rounded for the outputs"
        yield replace(both.network, improved=words)
        yield replace(smoothed.network, improved=of_channels)
    alone = round_weights(network, data)
    yield replace(alone.network, improved=f"{counted(len(alone.left), 'weight')} rounded for the outputs")


def _of_network(search: AnswerSearch, network: Network) -> AnswerPlans:
    """Returns what measures another network, with ranges of its own."""
    plans = search.plans
    setup = copy(plans.setup)
    setup.data = plans.setup.data.of_network(network)
    moved = setup.with_network(plans.experiment, network, setup.data.first_ranges)
    return AnswerPlans(setup, moved, plans.inputs, plans.costs, price_of=plans.price_of)


def _measured(plans: AnswerPlans) -> _Candidate:
    """Measures full INT8 with each promising calibrator."""
    data, options = plans.setup.data, plans.setup.options
    others = [one for one in data.candidates if one.calibrator in PROMISING and options.calibrator == AUTO]
    losses = [plans.on_all(plans.full, ranges).values() for ranges in (plans.experiment.ranges, *others)]
    return _Candidate(plans, min(fmean(each) if each else inf for each in losses))
