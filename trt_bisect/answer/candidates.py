"""A recipe on a changed network that computes the same and loses less in INT8, if the user's network has an expensive
recipe (docs/concepts/ranges.md, "Changes of the network").

    the user's network -> channels equalised -> channels smoothed -> weights rounded for the outputs

A network's loss is the geometric mean of the mean losses of two plans, each with the calibrator that loses least: full
INT8, and INT8 with the cheapest layers of the user's recipe high, up to a tenth of its cost. With rounded weights the
recipe must hold without Q/DQ pairs too, else the last change is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from statistics import fmean
from typing import Any

from trt_bisect.answer.answer import AnswerSearch
from trt_bisect.answer.each_alone import with_costs
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.result import Answer
from trt_bisect.answer.search import CHEAP_RECIPE, FEW_LAYERS, PROMISING, answer_plans
from trt_bisect.answer.validation import Recipe, SimilarityTarget
from trt_bisect.builder.base import EMULATED
from trt_bisect.builder.engines import ONNXRUNTIME
from trt_bisect.calibration.ranges import keeping_unusable_high
from trt_bisect.calibration.weight_rounding import round_weights, with_weights_on_grid
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.equalise import equalise
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe
from trt_bisect.model.quantizer import INT8
from trt_bisect.model.reading import FLOAT_NOISE, relative_difference
from trt_bisect.model.smooth import smooth
from trt_bisect.options.concerns import AUTO, QUICK
from trt_bisect.precision import Precision
from trt_bisect.report.answer import AS_CHEAP
from trt_bisect.support.text import counted, together

EQUALISED, SMOOTHED, ROUNDED = "equalised", "smoothed", "rounded"
# The changes, in order: a word for the changed part, and words for the change.
CHANGES = {
    EQUALISED: ("pair", "channels of {} of layers equalised"),
    SMOOTHED: ("tensor", "channels of {} smoothed"),
    ROUNDED: ("weight", "{} rounded for the outputs"),
}
_ONE_SAMPLE_IN = 2  # changes are made from one in this many samples
_HIGH_SHARE = 0.1  # the layers kept high while changes are measured cost together this share of the recipe
_LARGEST_KEPT_LOSS = 0.95  # a change is kept if it leaves at most this share of the mean loss
# A recipe is searched if the kept changes together leave at most this share of the mean loss.
_LARGEST_SEARCHED_LOSS = 0.8


def with_changes(search: AnswerSearch, answer: Answer) -> tuple[AnswerSearch, Answer] | None:
    """Returns the search and the answer on a changed network with a cheaper recipe than ``answer``, the answer of
    ``search``; None without one.
    """
    if _is_left(search, answer):
        return None
    progress, least = search.plans.setup.progress, answer.recipe.cost if answer.meets else inf
    try:
        kept, losses = _kept(search.plans, _cheapest(answer))
        for best in reversed(kept):
            changed = AnswerSearch(best)
            changed.choose_ranges()
            found = changed.finish()
            holds = found.meets and _holds_in_float(best, found.recipe)
            best.close()
            if holds and found.recipe.cost <= least - AS_CHEAP:
                return changed, replace(with_costs(best, found), own=answer, changes=losses)
            progress.say(f"No cheaper recipe with {together(best.changes)}")
            if holds:
                break
    except (BadInput, TrialFailed) as error:
        progress.say(f"The network stays as it is: {first_line(error)}")
    return None


def _is_left(search: AnswerSearch, answer: Answer) -> bool:
    plans, experiment, recipe = search.plans, search.experiment, answer.recipe
    network, options = experiment.network, plans.setup.options
    is_usual = network.low is INT8 and not network.has_pairs and not network.scales and experiment.data is not None
    is_free = network.movable == network.quantizable and not options.one_scale and options.typing != "weak"
    measures = plans.switches and experiment.builder.arithmetic == EMULATED and not recipe.space.has_many
    other_goal = search.most is not None or not isinstance(search.target, SimilarityTarget) or search.effort == QUICK
    is_cheap = answer.meets and (recipe.cost <= CHEAP_RECIPE or len(recipe.high) <= FEW_LAYERS)
    return is_cheap or other_goal or not (is_usual and is_free and measures)


def _cheapest(answer: Answer) -> list[str]:
    space, kept, names = answer.recipe.space, answer.recipe.kept, list[str]()
    budget = _HIGH_SHARE * math.fsum(space.costs[unit] for unit in kept) if answer.meets else 0.0
    for unit in sorted(kept, key=lambda unit: (space.costs[unit], unit)):
        budget -= space.costs[unit]
        if budget < 0:
            break
        names += [answer.experiment.network.layers[k].name for k in space.units[unit]]
    return names


def _kept(plans: AnswerPlans, high: Sequence[str]) -> tuple[list[AnswerPlans], dict[str, float]]:
    progress, held = plans.setup.progress, _held(plans)
    progress.stage("Changing channels and weights", len(CHANGES))
    if not held:
        return [], {}
    first = loss = _mean_loss(plans, high, held)
    losses, kept = {"": first}, list[AnswerPlans]()
    plans.give_back()
    for how in CHANGES:
        progress.step("INT8")
        candidate = changed(kept[-1] if kept else plans, how)
        if isinstance(candidate, str):
            continue
        mean_loss = losses[candidate.changes[-1]] = _mean_loss(candidate, high, held)
        candidate.close()
        if mean_loss <= _LARGEST_KEPT_LOSS * loss:
            kept.append(candidate)
            loss = mean_loss
    progress.say(f"Mean loss of {plans.experiment.network.low.title}: {losses_in_words(losses)}")
    return (kept if loss <= _LARGEST_SEARCHED_LOSS * first else []), losses


def losses_in_words(losses: Mapping[str, float]) -> str:
    """Returns a text with the mean losses of changed networks.

    Args:
        losses: mean loss, by change in words; that of the user's network under ``""``.
    """
    return ", ".join(f"{loss:.3g} {f'with {change}' if change else 'as it is'}" for change, loss in losses.items())


def changed(plans: AnswerPlans, how: str) -> AnswerPlans | str:
    """Returns an ``AnswerPlans`` for the network of ``plans`` with one more change, or the reason why it cannot have
    this change; cached in ``plans``.

    ``plans`` must have calibration data, not scales alone. ``how``: ``equalised``, ``smoothed`` or ``rounded``.
    """
    if how not in plans.changed:
        plans.changed[how] = _changed(plans, how)
    return plans.changed[how]


def _changed(plans: AnswerPlans, how: str) -> AnswerPlans | str:
    network, data = plans.experiment.network, plans.experiment.data
    assert data is not None
    samples = islice(data, 0, None, _ONE_SAMPLE_IN)
    made: tuple[Network, Mapping[Any, Any]]
    if how == EQUALISED:
        made = equalise(network)
    elif how == SMOOTHED:
        made = smooth(network, samples)
    else:
        made = round_weights(network, samples)
    changed_network, parts = made
    if not parts:
        return "no layer allows it"
    kind, words = CHANGES[how]
    what = words.format(counted(len(parts), kind))
    apart = 0.0 if how == ROUNDED else _apart(plans, changed_network)
    if apart > FLOAT_NOISE:
        return f"float noise is too large in FP32, {apart:.2g} of the output's norm"
    changes = (*plans.changes, what)
    moved = of_network(plans, replace(changed_network, changes=together(changes)))
    moved.changes = changes
    return moved


def of_network(plans: AnswerPlans, network: Network) -> AnswerPlans:
    """Returns an ``AnswerPlans`` for another network, with the same inputs, and ranges from the same calibration
    data.
    """
    setup = copy(plans.setup)
    setup.data = plans.setup.data.of_network(network)
    ranges = setup.data.first_ranges
    network, _ = keeping_unusable_high(network, ranges)
    moved = setup.with_ranges(plans.experiment, ranges, network)
    return answer_plans(setup, plans.options, moved, plans.inputs, plans)


def _apart(plans: AnswerPlans, network: Network) -> float:
    experiment, feeds = plans.experiment, plans.inputs.given.feeds
    names = list(experiment.rule.outputs)
    both = zip(observe(network, names, feeds), observe(experiment.network, names, feeds), strict=True)
    apart = (relative_difference(theirs[name], ours[name]) for ours, theirs in both for name in theirs)
    return max(apart, default=0.0)


def _holds_in_float(plans: AnswerPlans, recipe: Recipe) -> bool:
    experiment = recipe.experiment
    network = with_weights_on_grid(experiment.network, recipe.plan.lowered)
    if network is experiment.network:
        return True
    builder = plans.setup.builder_for(network, ONNXRUNTIME, experiment.ranges, plans.inputs.given.feeds)
    build = partial(builder.build, network.plan((), Precision.FP32))
    trial = plans.whole(recipe.plan, experiment, name="all inputs, the float file", kind="float", build=build)
    loss = experiment.rule.loss(trial)
    return loss is not None and loss <= experiment.rule.budget


def _held(plans: AnswerPlans) -> list[int]:
    assert plans.experiment.data is not None
    used = set(map(digest_of_feeds, islice(plans.experiment.data, 0, None, _ONE_SAMPLE_IN)))
    feeds = plans.inputs.given.feeds
    return [place for place in plans.inputs.counting if digest_of_feeds(feeds[place]) not in used]


def _mean_loss(plans: AnswerPlans, high: Sequence[str], places: Sequence[int]) -> float:
    data, options, network = plans.setup.data, plans.setup.options, plans.experiment.network
    others = [ranges for ranges in data.candidates if ranges.calibrator in PROMISING and options.calibrator == AUTO]
    indices = [network.layer_named(name).index for name in high]
    means = list[float]()
    for plan in dict.fromkeys([plans.full, plans.full.keeping(indices, plans.experiment.whole.high)]):
        least = inf
        for ranges in (plans.experiment.ranges, *others):
            plans.to_the_end([plan], ranges, places)
            losses = plans.each(ranges).by_place(plan)
            least = min(least, fmean(losses.get(place, inf) for place in places))
        means.append(least)
    return math.prod(means) ** (1 / len(means))
