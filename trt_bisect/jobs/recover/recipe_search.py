"""The search for a recipe: the chosen plan, and each step back from it, are measured again on whole engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trt_bisect.driver.culprits.search import Loss, drive
from trt_bisect.driver.recipes.blocks import minimal_by_blocks
from trt_bisect.driver.recipes.minimal import PLANS, Chosen, minimal
from trt_bisect.driver.recipes.search_space import Batches, Kept, MeasuredSets, Sensitivities, Space, sensitivities
from trt_bisect.driver.recipes.within_budget import within
from trt_bisect.jobs.recover.targets import SimilarityTarget, Target
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.support.progress import Progress

ALWAYS, NEVER, AUTO = "always", "never", "auto"
BLOCKS = (AUTO, ALWAYS, NEVER)
_MANY = 200
_MANY_DEAR = 64
_PLANS_DEAR = 60
_ROUNDS = 8
"""The most times that a choice is repeated, more carefully, after whole engines contradicted it."""
_LEAST_MARGIN = 1.05
_UNSURE = 0.25
"""A plan within this share of the loss budget is measured again on a whole engine before it is accepted."""

Costs = Mapping[int, Mapping[Precision, float]]
"""By layer and high precision, the share of INT8's gain in speed that is given up."""


@dataclass(frozen=True)
class RecipeGoal:
    """The goal of the search for a recipe.

    Attributes:
        high: the precisions that layers may be left in, the dearest first.
        most: the largest cost, where the most accurate plan within it is wanted; None where the cheapest good one is.
        blocks: whether blocks of layers are searched before layers: ``auto``, ``always`` or ``never``.
        plans: how many are tried to find better ones than the first; None for as many as are cheap.
    """

    high: tuple[Precision, ...] = (Precision.FP32,)
    most: float | None = None
    blocks: str = AUTO
    plans: int | None = None


@dataclass(frozen=True)
class RecipeResult:
    """The result of the search.

    Attributes:
        plan: measured on a whole engine, with ``loss``.
        kept: the units that are not in INT8.
        back: by such a unit the plan with it in INT8, measured likewise.
        meets: the loss is within the budget.
    """

    space: Space
    chosen: Chosen
    plan: PrecisionPlan
    loss: Loss
    kept: tuple[int, ...]
    meets: bool
    back: Mapping[int, tuple[PrecisionPlan, Loss]] = field(default_factory=dict)

    @property
    def minimal(self) -> bool:
        """Every step back was measured, and misses."""
        return self.meets and not any(_meets(loss, self.space.budget) for _, loss in self.back.values())


def make_space(
    network: Network, units: tuple[tuple[int, ...], ...], costs: Costs, aim: RecipeGoal, budget: float
) -> Space:
    """The plans of a network with its units in INT8 or in the dearest high precision."""
    high = aim.high[0]
    shares = tuple(sum(costs[k][high] for k in unit) for unit in units)
    return Space(int8_set(len(network.layers), (), high), units, shares, budget, Precision.INT8, high)


def seek(
    network: Network,
    space: Space,
    costs: Costs,
    aim: RecipeGoal,
    target: Target,
    similarity: SimilarityTarget,
    progress: Progress,
) -> RecipeResult:
    """The recipe.

    Args:
        network: whose layers are named.
        space: what can be chosen.
        costs: of leaving layers high.
        aim: what is wanted.
        target: judges the plans.
        similarity: ranks the layers where the target is dear.
        progress: is told of each plan that is measured.
    """
    progress.stage("Searching for the cheapest recipe" if aim.most is None else "Searching within the cost", None)

    def tell(plan: PrecisionPlan) -> None:
        high = len(network.quantizable) - len(plan.int8)
        progress.step(f"{high} {'layer' if high == 1 else 'layers'} high")

    def choose(plans: Sequence[PrecisionPlan]) -> list[Loss]:
        losses = dict(zip(plans, target.choose(plans, tell), strict=True))
        if target.cheap and aim.most is None:
            unsure = [plan for plan, loss in losses.items() if _barely(loss, space.budget)]
            losses.update(zip(unsure, target.exact(unsure, lambda _: None), strict=True))
        return [losses[plan] for plan in plans]

    alone = None
    if not target.cheap and aim.most is None and not _by_blocks(aim, space, target):
        rough = sensitivities(MeasuredSets(space))
        alone = drive(rough, lambda plans: similarity.choose(plans, tell))
    margin = 1.0
    for _ in range(_ROUNDS):
        tightened = replace(space, budget=space.budget / margin)
        chosen = drive(_search(network, tightened, aim, target, alone), choose)
        plan = space.plan(chosen.kept)
        (loss,) = target.exact([plan], tell)
        if aim.most is not None or not chosen.meets or loss is None or loss <= space.budget:
            break
        margin *= max(_LEAST_MARGIN, loss / chosen.loss)
    if Precision.FP16 in aim.high[1:] and _meets(loss, space.budget):
        plan, loss = _lowered(space, chosen.kept, costs, plan, target, tell)
    return _settled(space, chosen, plan, loss, aim, target, tell)


def _search(
    network: Network, space: Space, aim: RecipeGoal, target: Target, alone: Sensitivities | None
) -> Batches[Chosen]:
    limit = aim.plans or (PLANS if target.cheap else _PLANS_DEAR)
    if aim.most is not None:
        return within(space, aim.most, limit)
    if _by_blocks(aim, space, target):
        return minimal_by_blocks(space, {layer.index: layer.name for layer in network.layers})
    return minimal(space, limit, alone)


def _by_blocks(aim: RecipeGoal, space: Space, target: Target) -> bool:
    many = _MANY if target.cheap else _MANY_DEAR
    return aim.blocks == ALWAYS or (aim.blocks == AUTO and len(space.units) > many)


def _lowered(
    space: Space, kept: Kept, costs: Costs, plan: PrecisionPlan, target: Target, tell: Callable[[PrecisionPlan], None]
) -> tuple[PrecisionPlan, Loss]:
    """The plan with as much of what is in FP32 as will do in FP16 instead."""
    units = tuple(space.units[unit] for unit in sorted(kept))
    if not units:
        return plan, target.exact([plan], tell)[0]
    shares = tuple(max(sum(costs[k][Precision.FP32] - costs[k][Precision.FP16] for k in unit), 1e-9) for unit in units)
    middle = Space(plan, units, shares, space.budget, Precision.FP16, Precision.FP32)
    chosen = drive(minimal(middle, _PLANS_DEAR), lambda plans: target.exact(plans, tell))
    return middle.plan(chosen.kept), chosen.loss


def _settled(
    space: Space,
    chosen: Chosen,
    plan: PrecisionPlan,
    loss: Loss,
    aim: RecipeGoal,
    target: Target,
    tell: Callable[[PrecisionPlan], None],
) -> RecipeResult:
    """Measures each step back on whole engines; where one is good after all, it is taken."""
    kept = set(chosen.kept)
    while True:
        order = sorted(kept)
        plans = [plan.keeping(space.units[unit], Precision.INT8) for unit in order]
        losses = target.exact(plans, tell)
        back = dict(zip(order, zip(plans, losses, strict=True), strict=True))
        good = [unit for unit in order if _meets(back[unit][1], space.budget)]
        if not good or aim.most is not None or not _meets(loss, space.budget):
            return RecipeResult(space, chosen, plan, loss, tuple(order), _meets(loss, space.budget), back)
        dearest = max(good, key=lambda unit: space.costs[unit])
        plan, loss = back[dearest]
        kept.discard(dearest)


def plan_cost(plan: PrecisionPlan, costs: Costs) -> float:
    """The share of INT8's gain in speed that a plan gives up."""
    return sum(by.get(plan.precisions[k], 0.0) for k, by in costs.items())


def _barely(loss: Loss, budget: float) -> bool:
    """Returns true if a plan meets the budget so narrowly that only a whole engine can decide."""
    return loss is not None and (1.0 - _UNSURE) * budget <= loss <= budget


def _meets(loss: Loss, budget: float) -> bool:
    return loss is not None and loss <= budget
