"""The verdict of a run in lines, each with a word in capitals first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from trt_bisect.analyzer.judge import Rule
from trt_bisect.driver.suspects.search import Findings
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.network import Network
from trt_bisect.report.answer import DECIDING, AnswerFacts
from trt_bisect.report.figure_text import threshold_text
from trt_bisect.report.search_result import Measured, Recipe
from trt_bisect.report.verdict import FAILS, PASSES
from trt_bisect.support.figures import counted, listed, percent

LARGEST_STEPS = 5
DOUBTED = "DOUBTED"
DATA, PART = "DATA", "PART"
INTERRUPTED, TIME_LIMIT = "interrupted", "time limit"
"""The ways in which a run is stopped before its end."""
UNEXPLAINED = "the causes were not looked for"
_NAMED = 4
"""The number of layers that a line of the summary names; the report has all of them."""
TOO_DEAR = 0.5
"""A recipe that gives up more of INT8's gain in speed than this share does not pay."""
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
    verdict: str,
    network: Network,
    rule: Rule,
    measured: Measured,
    similarity: Mapping[str, float | None],
    by_input: Mapping[str, Mapping[str, Any]],
    answer: AnswerFacts,
) -> str:
    """Returns the verdict in lines: doubts, full INT8, the culprits, the recipe and the data that it holds on.

    Args:
        verdict: on full INT8.
        network: the network that has the layers.
        rule: the rule that judged the plans.
        measured: the curve and the recipe.
        similarity: as ``Report`` has it.
        by_input: likewise.
        answer: likewise.
    """
    recipe, text, low = measured.recipe, rule.metric.text, network.low.title
    int8, restored = (_plan_text(rule, similarity[plan], by_input.get(plan)) for plan in ("int8", "recipe"))
    doubted = [f"{DOUBTED}: {doubt}" for doubt in answer.doubts]
    figure = f"{int8}; {FIGURES.get(rule.metric.name, rule.metric.name)}{with_ranges(answer)}."
    threshold = threshold_text(rule.metric.name, rule.threshold)
    if recipe.meets and not recipe.kept:
        accepted = "The doubts are accepted." if doubted else "So no layer is to blame."
        blame = accepted if verdict == PASSES else "The doubts speak against it."
        passes = f"{verdict.upper()}: full {low} is within the threshold of {threshold}: {figure} {blame}"
        return "\n".join([*doubted, passes, *_other_ranges(answer, text), *holds_on(answer, text, f"Full {low}")])
    misses = f"misses the threshold of {threshold}: {figure}"
    lines = [f"{FAILS.upper()}: full {low} {'could not be built or run.' if measured.full.failed else misses}"]
    lines += _base_alone(network, rule, measured.curve.nothing)
    if not recipe.meets and answer.not_done:
        return "\n".join(lines)
    if not recipe.meets:
        lines.append(
            f"NO RECIPE: No plan that was tried meets the threshold. The best one, with {_left_high(network, recipe)}, "
            f"measures {restored}{_in_settings(rule, answer)}."
        )
        return "\n".join(lines)
    lines += _blamed(network, rule, recipe, measured.findings, _missed(answer, rule, recipe))
    holds = " ".join(
        [*holds_on(answer, text, f"RECIPE: with {_layers_high(recipe)} the network"), *_price(answer, low)]
    )
    return "\n".join([*doubted, *lines, holds, *_too_dear(answer, low, text)])


def fixed_text(network: Network) -> str:
    """Returns the layers whose precision the user fixed, and the number of scales; empty without any."""
    by_precision: dict[str, list[str]] = {}
    for layer in network.layers:
        if layer.fixed is not None:
            by_precision.setdefault(str(layer.fixed).upper(), []).append(layer.name)
    parts = [f"{listed(names, _NAMED)} in {precision}" for precision, names in sorted(by_precision.items())]
    count = len(network.scales)
    parts += [f"{'one scale' if count == 1 else f'{count} scales'}"] if count else []
    return "; ".join(parts)


def fixed_lines(network: Network) -> list[str]:
    """Returns the lines above the verdict: an experiment that no engine runs, and the layers that the user fixed."""
    fixed, low = fixed_text(network), network.low.title
    lines = [f"EXPERIMENT: {low}, emulated only: TensorRT has no 16-bit activations."] if network.low.wide else []
    return [*lines, f"FIXED: by you: {fixed}. Full {low} means the other layers in {low}."] if fixed else lines


def accuracy_line(accuracy: Mapping[str, float | None]) -> str:
    """Returns the line on the accuracies of FP32, full INT8 and the recipe, with their ratios to FP32's."""
    fp32 = accuracy["fp32"]
    parts = [f"FP32 {_share(fp32)}"]
    for plan, name in (("int8", "full INT8"), ("recipe", "the recipe")):
        value = accuracy[plan]
        ratio = f" ({value / fp32:.4f} of FP32's)" if value is not None and fp32 else ""
        parts.append(f"{name} {_share(value)}{ratio}")
    return f"ACCURACY: {', '.join(parts)}."


def _share(value: float | None) -> str:
    """An accuracy as text: a share in per cent, another number as it is."""
    if value is None:
        return "not measured"
    return f"{value:.2%}" if 0.0 <= value <= 1.0 else f"{value:.6g}"


def above_verdict(inputs: Mapping[str, Any]) -> list[str]:
    """Returns the lines above the verdict, with which a pass is doubted: a part judged alone, warnings on the data.

    Args:
        inputs: as ``Report`` has them.
    """
    part = [f"{PART}: {inputs['part']}"] if inputs.get("part") else []
    return [*part, *(f"{DATA}: {warning}" for warning in inputs.get("warnings", ()))]


def _plan_text(rule: Rule, value: float | None, by_input: Mapping[str, Any] | None) -> str:
    figure = "no figure (not finite or not measured)" if value is None else rule.metric.text(value)
    return figure + over_inputs(by_input, rule.metric.text)


def _in_settings(rule: Rule, answer: AnswerFacts) -> str:
    """Returns the words on the settings in which a plan misses; empty if it misses in all that were measured."""
    deciding = {name: answer.settings[name] for name in DECIDING if name in answer.settings}
    missing = {
        name: "no figure" if value is None else rule.metric.text(value)
        for name, value in deciding.items()
        if value is None or rule.metric.loss(value) > rule.budget
    }
    if len(missing) == len(deciding):
        return ""
    return f", but {' and '.join(f'{figure} with {name}' for name, figure in missing.items())}"


def with_ranges(answer: AnswerFacts) -> str:
    """Returns the words on the chosen calibrator; empty if no other was tried."""
    chosen = [row.calibrator for row in answer.calibrators if row.chosen]
    return f", ranges of {chosen[0]}" if chosen and len(answer.calibrators) > 1 else ""


def _other_ranges(answer: AnswerFacts, text: Callable[[float], str]) -> Iterator[str]:
    """Yields a sentence if it is the ranges that restore the accuracy."""
    first = answer.calibrators[0] if answer.calibrators else None
    if first is not None and not first.chosen and not first.meets:
        figure = "no figure" if first.similarity is None else text(first.similarity)
        yield f"RANGES: those of {first.calibrator} miss ({figure}): take the recipe's calibration cache."


def _missed(answer: AnswerFacts, rule: Rule, recipe: Recipe) -> str:
    """Names what the recipe misses with a culprit taken back: the threshold, or for some culprits only its margin."""
    losses = (rule.metric.loss(value) for value in recipe.taken_back.values() if value is not None)
    if not answer.margin or all(loss > rule.budget for loss in losses):
        return "the threshold"
    least = threshold_text(rule.metric.name, rule.metric.value(rule.budget * (1.0 - answer.margin)))
    spared = f" but {answer.spared}" if answer.spared else ""
    return f"the threshold, or its margin ({least} on all inputs given{spared})"


def _base_alone(network: Network, rule: Rule, nothing: Trial) -> Iterator[str]:
    """Yields a line if the network misses the threshold with no layer low, because of its base in FP16 or BF16."""
    if not base_misses(network, rule, nothing):
        return
    value = rule.similarity(nothing)
    figure = "no figure (not finite)" if value is None else rule.metric.text(value)
    yield base_line(network, f"{figure} on the judged inputs")


def base_line(network: Network, figure: str) -> str:
    """Returns the line on a network that misses what is asked of it in its base, FP16 or BF16, with no layer low."""
    return (
        f"BASE: {str(network.base).upper()} alone misses it: with no layer in {network.low.title} the network measures "
        f"{figure}. 'trt-bisect run --low {network.base}' names the layers; --base fp32 goes around them."
    )


def base_misses(network: Network, rule: Rule, nothing: Trial) -> bool:
    """Returns true if the network was measured to miss the threshold with all layers in its base, FP16 or BF16."""
    if network.base_type is None or nothing.failed:
        return False
    loss = rule.loss(nothing)
    return loss is None or loss > rule.budget


def _blamed(network: Network, rule: Rule, recipe: Recipe, findings: Findings, least: str) -> Iterator[str]:
    """Yields the sentences on the culprits, the suspects, and the layers that could not be judged."""
    names, low = [network.layers[k].name for k in recipe.culprits], network.low.title
    if len(names) == 1:
        yield f"CULPRIT: {listed(names)} is the culprit: taken back to {low} it was measured to miss {least}."
    elif names:
        taken_back = f"with any one of them taken back to {low} the network was measured to miss {least}"
        yield f"CULPRITS: {listed(names, _NAMED)} are the culprits: {taken_back}."
    if recipe.untested:
        also = listed([network.layers[k].name for k in recipe.untested], _NAMED)
        limits = "in a network this large, and in a run that was stopped, steps back are limited"
        yield f"NOT TESTED: {also} stay high too and were not shown to be needed: {limits}."
    others = {*recipe.culprits, *recipe.untested}
    unbuilt = [network.layers[k].name for k in recipe.kept if k not in others]
    if unbuilt:
        yield (
            f"NOT JUDGED: {listed(unbuilt, _NAMED)} could not be judged: no engine with it in {low} could be measured."
        )
    if names and findings.steps and not findings.suspects:
        yield f"SPREAD: {_accumulates(network, rule, findings)}"


def holds_on(answer: AnswerFacts, text: Callable[[float], str], plan: str) -> Iterator[str]:
    """Yields a sentence on the inputs that a plan holds on."""
    parts = [
        f"{held.holds} of {held.inputs} {what} (worst {'no figure' if held.worst is None else text(held.worst)})"
        for held, what in ((answer.given, "inputs given"), (answer.unseen, "unseen inputs"))
        if held is not None
    ]
    if parts:
        yield f"{plan} holds on {' and on '.join(parts)}."


def _price(answer: AnswerFacts, low: str) -> Iterator[str]:
    yield f"It gives up {percent(answer.cost)} % of {low}'s gain in speed."


def _too_dear(answer: AnswerFacts, low: str, text: Callable[[float], str]) -> Iterator[str]:
    """Yields a line on free ranges, or on what to do if the recipe gives up more than half of the gain."""
    for row in answer.free_ranges[:1]:
        figure = "no figure" if row.similarity is None else text(row.similarity)
        yield f"RANGES: with those of {row.calibrator} full {low} meets the threshold ({figure})."
        return
    if answer.cost <= TOO_DEAR:
        return
    half, known = answer.half_gain, ""
    if half is not None and half.similarity is not None:
        layers = "1 layer" if len(half.high) == 1 else f"{len(half.high)} layers"
        known = f"With {layers} high and {percent(half.cost)} % given up it has {text(half.similarity)}. "
    yield (
        f"TOO EXPENSIVE: That is more than half: {low} does not suit this network as it is. {known}"
        f"'trt-bisect recover --budget {percent(TOO_DEAR)}%' searches the most accurate plan for that price."
    )


def _layers_high(recipe: Recipe) -> str:
    """The number of layers left high and their precision, such as ``2 layers in FP32``."""
    kinds = sorted({str(recipe.plan.precisions[k]).upper() for k in recipe.kept})
    return f"{counted(len(recipe.kept), 'layer')} in {' and '.join(kinds)}"


def stopped_line(stopped: str, not_done: Sequence[str]) -> str:
    """Returns the line on a run that was stopped.

    Args:
        stopped: see ``Report.stopped``.
        not_done: what was not done, a clause each.
    """
    by = "--time-limit ended the run" if stopped == TIME_LIMIT else "the run was interrupted"
    return f"STOPPED: {by}: {'; '.join(not_done)}. The same command goes on from here."


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
    steps_text = f" The largest steps of the curve are {', '.join(largest)}." if largest else ""
    return (
        f"No single layer of the curve costs {rule.step:.3g} or more of the {rule.budget:.3g} that may be lost: the "
        f"loss accumulates over many layers.{steps_text}"
    )


def _span(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} together"


def _left_high(network: Network, recipe: Recipe) -> str:
    names = [network.layers[k].name for k in recipe.kept]
    return f"{listed(names)} left in high precision" if names else "nothing left in high precision"
