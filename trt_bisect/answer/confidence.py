from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from trt_bisect.analyzer.metrics import figure_text
from trt_bisect.answer.result import Answer, low_layers, similarity_of
from trt_bisect.builder.base import EMULATED
from trt_bisect.report.answer import OWN
from trt_bisect.report.precision_check import ran_low
from trt_bisect.support.text import Line, counted, percent

# The kinds of lines.
INPUTS, FEW_INPUTS, KEEPS_MARGIN, CHEAPER = "inputs", "few inputs", "margin", "cheaper set"
ARITHMETIC, CLEAR, CLOSE, ONE_SETTING = "arithmetic", "beyond the noise", "within the noise", "one setting"
WEAK_CULPRIT, UNQUANTIZED_ROUND, UNQUANTIZED_STAY = "weak culprit", "unquantized layers round", "unquantized layers"
# With fewer given inputs, a recipe often misses on others: on 36 of 114 held-out inputs with 5 given, on 8 of 69 with
# 20 (``python -m benchmarks.answer``).
ENOUGH = 20
_NOISE_OF_COSINE = 0.1  # roundings that fall to the other level move 1 - cosine by 5 to 10 %
# Losses below this share of the budget are float noise; their spread says nothing about losses near the budget.
_NEGLIGIBLE = 0.01
_MOST_NAMED = 3


def _losses_of(answer: Answer) -> list[float]:
    half = [] if answer.half is None else [answer.half]
    return [*answer.recipe.checked.losses.values(), *half]


def _noise_of(answer: Answer, losses: Sequence[float]) -> tuple[float, float]:
    rule = answer.experiment.rule
    finite = [loss for loss in losses if math.isfinite(loss)]
    largest = max(finite, default=0.0)
    share = (largest - min(finite)) / largest if largest > _NEGLIGIBLE * rule.budget else 0.0
    is_cosine = rule.metric.name == "cosine" and not answer.by_accuracy
    return max(losses, default=math.inf), max(share, _NOISE_OF_COSINE) if is_cosine else share


def is_close(answer: Answer) -> bool:
    """Returns true if noise could reverse the verdict."""
    (worst, share), budget = _noise_of(answer, _losses_of(answer)), answer.experiment.rule.budget
    return math.isfinite(worst) and share > 0.0 and abs(budget - worst) <= share * worst


def confidence(answer: Answer, unquantized: float | None) -> tuple[Line, ...]:
    """Returns the lines on the inputs, the arithmetic and the margins on which the verdict rests.

    Args:
        unquantized: loss if unquantized layers round their inputs too; None if not measured.
    """
    if answer.by_accuracy:
        return (_arithmetic(answer),)
    noise, culprits = _noise(answer), _culprits(answer)
    return (*_inputs(answer), _arithmetic(answer), *noise, *culprits, *_unquantized(answer, unquantized))


def _line(kind: str, short: str, more: str) -> Line:
    return Line(kind, f"{short}: {more}.", short=f"{short}.")


def _inputs(answer: Answer) -> Iterator[Line]:
    counting, recipe = answer.inputs.told, answer.recipe
    given, of_held_out = answer.inputs.given, answer.held_out_inputs
    measured = answer.experiment.rule.by_input(answer.held_out)
    inputs, count = counted(len(counting), "input"), len(of_held_out.told) if of_held_out else 0
    count = count if measured is None else measured.inputs
    none = "no held-out input" if answer.has_held_out else "none held out"
    held_out = counted(count, "held-out input") if count else none
    short = f"The verdict rests on {inputs} of yours and {held_out}"
    empty = len(given.empty) + (len(of_held_out.empty) if of_held_out else 0)
    others = f"; FP32 finds nothing on {empty} more, which do not count" if empty else ""
    yield _line(INPUTS, short, f"the search used {answer.judged} of your inputs{others}")
    if len(counting) < ENOUGH:
        text = f"{answer.plan} may miss on others (docs/benchmarks.md has how often recipes miss on held-out inputs)"
        yield _line(FEW_INPUTS, f"The search saw fewer than {ENOUGH} inputs", text)
    if recipe.reserve:
        short = f"The recipe keeps a margin of {percent(recipe.reserve)} on each of {inputs}"
        text = "this share of the allowed loss stays in reserve, because new inputs lose more (--margin)"
        yield _line(KEEPS_MARGIN, short, text)
    if recipe.cheapest is not None:
        cheapest, rule = recipe.cheapest, answer.experiment.rule
        short = "A cheaper set of layers holds too, and new inputs are likelier to miss with it"
        worst = figure_text(rule.metric.name, similarity_of(rule, cheapest.checked.worst), rule.threshold)
        text = f"its worst input measures {worst}; --margin 0 takes it"
        yield _line(CHEAPER, short, text)


def _arithmetic(answer: Answer) -> Line:
    network, builder = answer.experiment.network, answer.experiment.builder
    engine = f"{builder.engine} {builder.versions.get(builder.engine, '')}".strip()
    if builder.arithmetic == EMULATED:
        text = f"{engine} emulated TensorRT's {network.low.title}, and nothing was timed"
        return _line(ARITHMETIC, "No TensorRT engine has confirmed this", text)
    # With strong typing the graph settles what is rounded, and with weak typing the engine alone tells.
    engine_tells = builder.typing == "weak" and not network.has_pairs and answer.restored.ran
    ran = f", and {ran_low(low_layers(answer), answer.restored)}" if engine_tells else ""
    short = f"The outputs were measured on {engine}{ran}"
    return _line(ARITHMETIC, short, "another version or GPU may round differently")


def _noise(answer: Answer) -> Iterator[Line]:
    losses, rule = _losses_of(answer), answer.experiment.rule
    (worst, share), settings = _noise_of(answer, losses), len(losses)
    if not math.isfinite(worst) or not settings:
        return
    if share == 0.0 and settings > 1:
        text = f"the largest loss is {rule.loss_text(worst)} in all {settings} of them"
        yield _line(CLEAR, "The verdict is the same in every setting that decides", text)
    elif share == 0.0:
        text = f"the figures come from one setting, and the largest loss is {rule.loss_text(worst)}"
        yield _line(ONE_SETTING, "Noise was not measured", text)
    else:
        figures = (
            f"the largest loss{f' in {settings} settings' if settings > 1 else ''} is {rule.loss_text(worst)} of "
            f"{rule.loss_text(rule.budget)} allowed, and noise changes it by about {percent(share)}"
        )
        plan = f"{answer.plan[0].upper()}{answer.plan[1:]}"
        clear = f"{plan}'s {'margin' if answer.meets else 'miss'} is larger than the numerical noise"
        kind, short = (CLOSE, "Noise could reverse the verdict") if is_close(answer) else (CLEAR, clear)
        yield _line(kind, short, figures)


def ranked(answer: Answer) -> tuple[list[int], list[int]]:
    """Returns two lists of units of the recipe, both by falling loss with the unit back in INT8: the certain culprits;
    and the weak culprits. With a weak culprit in INT8 the plan misses by less than the noise, misses only the
    margin, or misses only in another setting than its own scales.
    """
    recipe, members = answer.recipe, set(answer.members)
    _, share = _noise_of(answer, list(recipe.checked.losses.values()))
    space, budget = recipe.space, recipe.space.budget
    losses = {
        unit: back.loss
        for unit, back in recipe.put_back.items()
        if back.loss is not None and space.units[unit][0] in members
    }
    by_loss = sorted(losses, key=lambda unit: (-losses[unit], unit))
    beyond = {unit for unit, loss in losses.items() if math.isinf(loss) or loss - budget > share * loss}
    beyond -= {unit for unit in losses if recipe.put_back[unit].setting != OWN}
    return [unit for unit in by_loss if unit in beyond], [unit for unit in by_loss if unit not in beyond]


def _culprits(answer: Answer) -> Iterator[Line]:
    recipe, layers, rule = answer.recipe, answer.experiment.network.layers, answer.experiment.rule
    space = recipe.space
    main, weak = ranked(answer)
    if not weak:
        return
    names = tuple(layers[space.units[unit][0]].name for unit in weak)
    figures = []
    for unit, name in list(zip(weak, names, strict=True))[:_MOST_NAMED]:
        back = recipe.put_back[unit]
        figure = "no figure" if back.loss is None else rule.loss_text(back.loss)
        setting = "" if back.setting == OWN else f" and {back.setting}"
        figures.append(f"{figure} with '{name}' put back{setting}")
    more = f", and {len(weak) - _MOST_NAMED} more" if len(weak) > _MOST_NAMED else ""
    why = "for new inputs or within the noise" if recipe.cheapest is not None else "within the noise"
    count, are = len(main) + len(weak), "is" if len(weak) == 1 else "are"
    # On a changed network the culprits are those of the user's network: these layers are not all among them.
    who = "layers of the recipe" if answer.experiment.network.changes else "culprits"
    short = f"{len(weak)} of {count} {who} {are} weak" if count > 1 else "The culprit is weak"
    text = (
        f"needed only {why}: the largest loss is {'; '.join(figures)}{more}, of {rule.loss_text(space.budget)} allowed"
    )
    yield Line(WEAK_CULPRIT, f"{short}, {text}.", names, f"{short}.")


def _unquantized(answer: Answer, loss: float | None) -> Iterator[Line]:
    rule = answer.experiment.rule
    if "unquantized" in answer.experiment.parts:
        text = "their outputs between INT8 layers were INT8, as TensorRT's weak typing may have them"
        yield _line(UNQUANTIZED_ROUND, "Unquantized layers rounded too", text)
    if loss is None:
        return
    holds = loss <= rule.budget
    figure = figure_text(rule.metric.name, similarity_of(rule, loss), rule.threshold)
    also = " too" if holds is answer.meets else ""
    short = f"With unquantized layers in INT8 {answer.plan} {'passes' if holds else 'misses'}{also}"
    text = (
        "TensorRT's weak typing may run unquantized layers between INT8 layers in INT8 too. The worst input then "
        f"measures {figure}"
    )
    remedy = ". --unquantized int8 searches for a recipe that passes there too" if answer.meets and not holds else ""
    yield _line(UNQUANTIZED_STAY, short, f"{text}{remedy}")
