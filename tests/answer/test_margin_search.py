"""The searches with and without a margin: their order, the costs that they may not exceed, and the recipe taken."""

import math
from types import SimpleNamespace

import pytest

from trt_bisect.answer.answer import AnswerSearch
from trt_bisect.answer.validation import Recipe
from trt_bisect.evaluator.each_input import Margin

MARGIN = Margin(0.2, 1)
WITH, WITHOUT = MARGIN.share, 0.0
UNKNOWN = math.inf


def searched(monkeypatch, first, costs):
    """Returns what is found where the first recipe of each calibrator costs ``first`` and searches find these costs:
    the margin and the cost of the recipe, the searches as (margin, dearest), and the cost refused."""
    plans, found, asked = SimpleNamespace(margin=MARGIN), iter(costs), []
    plans.leave = lambda margin: setattr(plans, "margin", margin)
    search = object.__new__(AnswerSearch)
    search.plans = plans
    search.tried = tuple(SimpleNamespace(cost=cost) for cost in first)

    def held(_search, dearest=math.inf):
        asked.append((plans.margin.share, round(dearest, 9)))
        return Recipe(None, frozenset(), None, aim=next(found), margin=plans.margin)

    monkeypatch.setattr(AnswerSearch, "_held", held)
    monkeypatch.setattr(AnswerSearch, "_costs", lambda _search, recipe: recipe.aim)
    taken = search._with_margin()
    assert plans.margin == taken.margin
    return (taken.margin.share, taken.aim), asked, taken.refused


@pytest.mark.parametrize(
    ("first", "costs", "taken", "asked", "refused"),
    [
        ([0.05, 0.3, None], [0.08], (WITH, 0.08), [(WITH, 0.1)], None),
        ([0.05], [UNKNOWN, 0.04], (WITHOUT, 0.04), [(WITH, 0.1), (WITHOUT, math.inf)], 0.1),
        ([0.05], [0.2, 0.09, 0.15], (WITH, 0.15), [(WITH, 0.1), (WITHOUT, math.inf), (WITH, 0.18)], None),
        ([0.05], [0.2, 0.09, 0.19], (WITHOUT, 0.09), [(WITH, 0.1), (WITHOUT, math.inf), (WITH, 0.18)], 0.18),
        ([None], [0.2, 0.4, 0.45], (WITH, 0.45), [(WITH, 0.1), (WITHOUT, math.inf), (WITH, 0.5)], None),
        ([], [0.2, UNKNOWN], (WITHOUT, UNKNOWN), [(WITH, 0.1), (WITHOUT, math.inf)], None),
        ([0.3, 0.2], [0.02, 0.03], (WITH, 0.03), [(WITHOUT, math.inf), (WITH, 0.1)], None),
        ([0.3, 0.2], [0.02, 0.2], (WITHOUT, 0.02), [(WITHOUT, math.inf), (WITH, 0.1)], 0.1),
        ([0.3], [0.2, 0.35], (WITH, 0.35), [(WITHOUT, math.inf), (WITH, 0.4)], None),
    ],
)
def test_a_cheap_recipe_with_the_margin_is_searched_first_unless_the_first_recipes_are_dear(
    monkeypatch, first, costs, taken, asked, refused
):
    """A recipe with the margin may cost twice as much as one without, or a tenth, but no more than half."""
    assert searched(monkeypatch, first, costs) == (taken, asked, refused)
