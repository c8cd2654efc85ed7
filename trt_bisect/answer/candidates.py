"""The recipe on a network that computes the same and loses less in INT8, where that on the user's network is dear.

A recipe raises precision, which costs speed. Changes of the network raise accuracy, and every layer stays as fast:

    the user's network -> channels equalised -> channels smoothed -> weights rounded for the outputs

Each change is made from every other sample of the calibration data, so that the inputs between tell if it helps others
too: made from all 20, the changes of a voice detector held on the 20 given inputs and missed on 4 of 20 unseen ones.
Then it is measured in two plans, each with its best promising calibrator on all inputs given: full INT8, and INT8 with
the cheapest layers of the user's recipe high, which together make a tenth of its price. The sums of a transformer cost
next to nothing, and their loss in full INT8 hides what smoothing saves the dear MatMuls; but the cheapest layers of one
network may be the wrong ones of the other. So the loss of a network is the geometric mean of both mean losses. A change
that lowers it enough is kept, and the next is made on top of it. If all that are kept lower it enough together, the set
of layers is searched on that network as on the user's: same search, inputs and bounds, judged by FP32 of the user's
network. The cheaper of both recipes is the answer's. Full INT8 of the changed network is a recipe like any other: it
has to leave the margin.

Full INT8, the verdict and the culprits are those of the user's network: a change is part of the recipe, as the layers
that stay high are. The inputs held out play no part in any choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from math import inf
from statistics import fmean

from trt_bisect.answer.answer import AnswerSearch
from trt_bisect.answer.each_alone import priced
from trt_bisect.answer.plans import AnswerPlans
from trt_bisect.answer.result import Answer
from trt_bisect.answer.search import CHEAP_RECIPE, FEW_LAYERS, PROMISING, answer_plans
from trt_bisect.answer.validation import SimilarityTarget
from trt_bisect.builder.base import EMULATED
from trt_bisect.calibration.weight_rounding import round_weights
from trt_bisect.data.datasets import Dataset
from trt_bisect.errors import BadInput, TrialFailed, first_line
from trt_bisect.model.equalise import equalise
from trt_bisect.model.network import Network
from trt_bisect.model.observe import observe
from trt_bisect.model.quantizer import INT8
from trt_bisect.model.reading import FLOAT_NOISE, relative_difference
from trt_bisect.model.smooth import smooth
from trt_bisect.options.concerns import AUTO, QUICK
from trt_bisect.report.answer import AS_CHEAP
from trt_bisect.support.text import counted, together

_EVERY = 2
"""Changes are made from one in so many samples."""
_CHEAPEST = 0.1
"""The share of the recipe's price that its cheapest layers make, which stay high where changes are measured."""
_KEPT = 0.95
"""A change is kept if it leaves at most this share of the mean loss."""
_SEARCHED = 0.8
"""A recipe is searched if the changes kept leave at most this share together."""


def with_changes(search: AnswerSearch, answer: Answer) -> tuple[AnswerSearch, Answer] | None:
    """Returns the search of a changed network and its answer, if its recipe is cheaper than that of the user's network,
    whose search is at its end."""
    if _is_left(search, answer):
        return None
    progress = search.plans.setup.progress
    try:
        best, losses = _best(search, _cheapest(answer))
        if best is None:
            return None
        changed = AnswerSearch(best)
        changed.choose_ranges()
        changed_answer = changed.finish()
        best.give_back()
    except (BadInput, TrialFailed) as error:
        progress.say(f"The network stays as it is: {first_line(error)}")
        return None
    cost, least = changed_answer.recipe.cost, answer.recipe.cost if answer.meets else inf
    if not changed_answer.meets or cost > least - AS_CHEAP:
        progress.say(f"No cheaper recipe with {best.experiment.network.changes}")
        return None
    return changed, replace(priced(best, changed_answer), own=answer, changes=losses)


def _is_left(search: AnswerSearch, answer: Answer) -> bool:
    """Returns true if the recipe is cheap or small, the network is to stay as it is, or others cannot be measured."""
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
    budget = _CHEAPEST * math.fsum(space.costs[unit] for unit in kept) if answer.meets else 0.0
    for unit in sorted(kept, key=lambda unit: (space.costs[unit], unit)):
        budget -= space.costs[unit]
        if budget < 0:
            break
        names += [answer.experiment.network.layers[k].name for k in space.units[unit]]
    return names


def _best(search: AnswerSearch, high: Sequence[str]) -> tuple[AnswerPlans | None, dict[str, float]]:
    """Tries the changes, each with some layers high.

    Returns:
        What measures the network with the changes that were kept, None if they lower the loss too little; and the mean
        losses, see ``Answer.changes``.
    """
    plans, progress = search.plans, search.plans.setup.progress
    network, data = plans.experiment.network, plans.experiment.data
    assert data is not None
    progress.stage("Changing channels and weights", len(_CHANGES))
    first = loss = _mean_loss(plans, high)
    plans.give_back()
    losses = {"": first}
    best, words = plans, list[str]()
    for change in _CHANGES:
        progress.step("INT8")
        changed = change(network, data)
        if changed is None or _apart(plans, changed[0]) > FLOAT_NOISE:
            continue
        what, changed_network = changed[1], replace(changed[0], changes=together([*words, changed[1]]))
        setup = copy(plans.setup)
        setup.data = plans.setup.data.of_network(changed_network)
        moved = setup.with_network(plans.experiment, changed_network, setup.data.first_ranges)
        candidate = answer_plans(setup, plans.options, moved, plans.inputs, plans)
        mean_loss = losses[what] = _mean_loss(candidate, high)
        if mean_loss <= _KEPT * loss:
            network, best, loss = candidate.experiment.network, candidate, mean_loss
            words.append(what)
        candidate.give_back()
    progress.say(f"Mean loss of {network.low.title}: {losses_in_words(losses)}")
    return (None if best is plans or loss > _SEARCHED * first else best), losses


def losses_in_words(losses: Mapping[str, float]) -> str:
    """Returns the mean losses of ``Answer.changes`` in words."""
    return ", ".join(f"{loss:.3g} {f'with {change}' if change else 'as it is'}" for change, loss in losses.items())


def _equalised(network: Network, _: Dataset) -> tuple[Network, str] | None:
    changed, factors = equalise(network)
    return (changed, f"channels of {counted(len(factors), 'pair')} of layers equalised") if factors else None


def _smoothed(network: Network, data: Dataset) -> tuple[Network, str] | None:
    changed, shares = smooth(network, islice(data, 0, None, _EVERY))
    return (changed, f"channels of {counted(len(shares), 'tensor')} smoothed") if shares else None


def _rounded(network: Network, data: Dataset) -> tuple[Network, str] | None:
    changed, shares = round_weights(network, islice(data, 0, None, _EVERY))
    return (changed, f"{counted(len(shares), 'weight')} rounded for the outputs") if shares else None


_CHANGES: tuple[Callable[[Network, Dataset], tuple[Network, str] | None], ...] = (_equalised, _smoothed, _rounded)
"""Return a network that computes the same in FP32, and the change in words; None if nothing can be changed."""


def _apart(plans: AnswerPlans, changed: Network) -> float:
    """The largest relative difference of a judged output in FP32 between a network and the user's, on one input."""
    experiment = plans.experiment
    names, feeds = list(experiment.rule.outputs), experiment.feeds[:1]
    (ours,), (theirs,) = (list(observe(network, names, feeds)) for network in (changed, experiment.network))
    return max((relative_difference(theirs[name], ours[name]) for name in theirs), default=0.0)


def _mean_loss(plans: AnswerPlans, high: Sequence[str]) -> float:
    """The geometric mean of the mean losses of full INT8 and of INT8 with some layers high, on all inputs given."""
    data, options, network = plans.setup.data, plans.setup.options, plans.experiment.network
    others = [ranges for ranges in data.candidates if ranges.calibrator in PROMISING and options.calibrator == AUTO]
    kept = [network.layer_named(name).index for name in high]
    measured = dict.fromkeys([plans.full, plans.full.keeping(kept, plans.experiment.whole.high)])
    means = [
        min(
            fmean(losses) if (losses := plans.on_all(plan, ranges).values()) else inf
            for ranges in (plans.experiment.ranges, *others)
        )
        for plan in measured
    ]
    return math.prod(means) ** (1 / len(means))
