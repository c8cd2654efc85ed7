"""The verdict of a run in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.culprits.repair import Recipe
from trt_bisect.driver.culprits.search import Findings
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import Network

LARGEST_STEPS = 5
FIGURES = {
    "cosine": "cosine similarity with FP32",
    "sqnr": "SQNR",
    "centered_sqnr": "SQNR with the mean taken out",
    "mse": "mean squared error",
    "l1": "mean absolute error",
    "kl": "KL divergence",
    "max_abs": "largest absolute error",
    "max_rel": "largest relative error",
    "top1": "top-1 agreement with FP32",
    "agreement": "agreement with FP32",
}


def summary(
    network: Network,
    rule: Rule,
    findings: Findings,
    recipe: Recipe,
    similarity: Mapping[str, float | None],
    by_input: Mapping[str, Mapping[str, Any]],
) -> str:
    """Returns a paragraph: full INT8, the culprits or that there are none, the recipe and its figure.

    Args:
        network: whose layers are named.
        rule: that plans were judged by.
        findings: of the search.
        recipe: that was found.
        similarity: as ``Report`` has it.
        by_input: likewise.
    """
    int8, restored = (_plan_text(rule, similarity[plan], by_input.get(plan)) for plan in ("int8", "recipe"))
    threshold = rule.metric.text(rule.threshold)
    figure = f"In full INT8 the {FIGURES.get(rule.metric.name, rule.metric.name)} is {int8}"
    if findings.full is not None and findings.full <= rule.budget:
        return f"{figure}, within the threshold of {threshold}: no layer is to blame."
    misses = f"{figure}, which misses the threshold of {threshold}."
    parts = [misses if findings.full is not None else "Full INT8 could not be built or run."]
    return " ".join([*parts, *_blamed(network, rule, findings), *_restored(network, recipe, restored)])


def _plan_text(rule: Rule, value: float | None, by_input: Mapping[str, Any] | None) -> str:
    figure = "no figure (not finite or not measured)" if value is None else rule.metric.text(value)
    return figure + over_inputs(by_input, rule.metric.text)


def _blamed(network: Network, rule: Rule, findings: Findings) -> Iterator[str]:
    """Yields the sentences on the culprits and on the layers that could not be judged."""
    names = [network.layers[k].name for k in findings.culprits]
    if len(names) == 1:
        yield f"{listed(names)} is the culprit."
    elif names:
        yield f"{listed(names)} are the culprits. Each was judged with the earlier ones in high precision."
    elif findings.full is not None and not findings.set_aside:
        yield _accumulates(network, rule, findings)
    if findings.set_aside:
        aside = listed([network.layers[k].name for k in findings.set_aside])
        yield f"{aside} could not be judged: no engine with it in INT8 could be measured."


def _restored(network: Network, recipe: Recipe, figure: str) -> Iterator[str]:
    """Yields the sentences on the recipe, which measures ``figure``."""
    left = _left_high(network, recipe)
    if recipe.meets:
        yield f"With {left} the network measures {figure}."
    else:
        yield f"No plan that was tried meets the threshold. The best one, with {left}, measures {figure}."
    if recipe.added:
        added = listed([network.layers[k].name for k in recipe.added])
        verb = "is" if len(recipe.added) == 1 else "are"
        yield f"The culprits alone do not suffice, so {added} {verb} left high too."


def memory_notes(trials: Iterable[Trial]) -> list[str]:
    """Returns a note on the trials that ran out of memory; empty without such trials."""
    short = [trial for trial in trials if trial.outcome == OUT_OF_MEMORY]
    if not short:
        return []
    plans = "1 plan" if len(short) == 1 else f"{len(short)} plans"
    message = short[0].message.splitlines()[0] if short[0].message else "no message"
    return [f"{plans} ran out of memory, without a verdict; the same command tries again: {message}"]


def over_inputs(facts: Mapping[str, Any] | None, text: Callable[[float], str]) -> str:
    """Returns the text that follows the figure of several inputs, of the worst or of all together; empty for one input.

    Args:
        facts: the value of ``ByInput.facts``.
        text: returns a figure as text.
    """
    if not facts:
        return ""
    mean = "" if facts["mean"] is None else f"mean {text(facts['mean'])}, "
    verb = "misses" if facts["misses"] == 1 else "miss"
    if facts.get("together"):
        worst = "" if facts["worst"] is None else f"worst {text(facts['values'][facts['worst']])}, "
        return f" over {facts['inputs']} inputs together ({worst}{facts['misses'] or 'none'} {verb} the threshold)"
    return f" on the worst of {facts['inputs']} inputs ({mean}{facts['misses'] or 'none'} {verb} the threshold)"


def _accumulates(network: Network, rule: Rule, findings: Findings) -> str:
    steps = sorted(
        (step for step in findings.steps if not math.isnan(step.rise) and step.rise > 0), key=lambda step: -step.rise
    )
    largest = [
        f"{_span([network.layers[k].name for k in step.layers])} ({step.rise:.3g})" for step in steps[:LARGEST_STEPS]
    ]
    steps_text = f" The largest steps are {', '.join(largest)}." if largest else ""
    return (
        f"No single layer costs {rule.step:.3g} or more of the {rule.budget:.3g} that may be lost: the loss "
        f"accumulates over many layers.{steps_text}"
    )


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} together"


def _left_high(network: Network, recipe: Recipe) -> str:
    names = [network.layers[k].name for k in recipe.kept]
    return f"{listed(names)} left in high precision" if names else "nothing left in high precision"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Returns names in quotes for a sentence; of more than ``most``, the first ones and the number of the others."""
    shown = [f"'{name}'" for name in names[:most]]
    if len(names) > most:
        return ", ".join(shown) + f" and {len(names) - most} more"
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + f" and {shown[-1]}"
