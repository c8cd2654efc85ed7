"""The grounds of an answer's verdict: inputs, arithmetic, noise, layers that only follow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import EMULATED
from trt_bisect.jobs.answer.result import Answer
from trt_bisect.jobs.answer.validation import losses_by_place
from trt_bisect.model.layers import Layer
from trt_bisect.report.figure_text import figure_text
from trt_bisect.report.model import NUDGED
from trt_bisect.report.precision_check import ran_low
from trt_bisect.support.figures import counted, percent
from trt_bisect.support.notes import Line

INPUTS, FEW_INPUTS, MARGIN, NO_MARGIN = "inputs", "few inputs", "margin", "no margin"
ARITHMETIC, CLEAR, CLOSE, ONE_SETTING = "arithmetic", "beyond the noise", "within the noise", "one setting"
WEAK_CULPRIT, FOLLOWERS_ROUND, FOLLOWERS = "weak culprit", "followers round", "followers"
"""The kinds of lines."""
ENOUGH = 20
"""With fewer inputs a recipe often misses on others: of unseen inputs 36 of 114 with 5 given, 8 of 69 with 20
(``python -m benchmarks.answer``)."""
_FLIPS = 0.1
"""Roundings that fall to the other side of a level move 1 - cosine by 5 to 10 %."""
_NOTHING = 0.01
"""Losses below this share of the budget are float noise: their spread says nothing of a loss near the budget."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class Noise:
    """The loss of a recipe, and how far noise moves it.

    Attributes:
        settings: the number of settings of the engine in which the loss was measured.
        worst: the largest loss of all settings; infinite if there is none.
        share: the share by which noise moves a loss: the spread of the settings; for the cosine, at least 0.1.
    """

    settings: int
    worst: float
    share: float

    @classmethod
    def of(cls, answer: Answer) -> Noise:
        """Returns the noise of an answer, from its check in several settings."""
        losses = list(answer.checked.losses.values())
        known = [loss for loss in losses if math.isfinite(loss)]
        rule, largest = answer.experiment.rule, max(known, default=0.0)
        spread = (largest - min(known)) / largest if largest > _NOTHING * rule.budget else 0.0
        is_cosine = rule.metric.name == "cosine"
        return cls(len(losses), max(losses, default=math.inf), max(spread, _FLIPS) if is_cosine else spread)

    def is_close(self, budget: float) -> bool:
        """Returns true if noise could reverse the verdict on the recipe."""
        return math.isfinite(self.worst) and self.share > 0.0 and abs(budget - self.worst) <= self.share * self.worst


def confidence(answer: Answer, followers: float | None) -> tuple[Line, ...]:
    """Returns lines on the inputs, the arithmetic and the margins that the verdict of an answer rests on.

    Args:
        answer: the answer.
        followers: the largest loss with the layers that only follow rounding too; None if it was not measured.
    """
    rule = answer.experiment.rule
    said = [*_inputs(answer), _arithmetic(answer), *_noise(answer), *_culprits(answer)]
    return (*said, *_followers(answer, rule, followers))


def low_layers(answer: Answer) -> dict[int, Layer]:
    """Returns the layers that can be low, by index."""
    network = answer.experiment.network
    return {k: network.layers[k] for k in network.quantizable}


def _inputs(answer: Answer) -> Iterator[Line]:
    given, margin = counted(len(answer.counting), "input"), answer.margin
    unseen = f"{len(answer.unseen_inputs)} unseen" if answer.unseen_inputs else "no unseen input"
    short = f"It rests on {given} given and {unseen}"
    yield Line(INPUTS, f"{short}: the search judged its plans on {answer.judged} of those given.", short=f"{short}.")
    if len(answer.counting) < ENOUGH:
        short = f"The search saw fewer than {ENOUGH} inputs"
        text = "the recipe may not hold on others. docs/benchmarks.md has how often recipes miss on unseen inputs"
        yield Line(FEW_INPUTS, f"{short}: {text}.", short=f"{short}.")
    if answer.refused is not None:
        yield Line(
            NO_MARGIN,
            f"It keeps no margin: one would cost more than {100 * answer.refused:.0f} % of "
            f"{answer.experiment.network.low.title}'s gain in speed, so the recipe may use all of the loss that the "
            "threshold allows, and inputs that were not given may miss (--margin).",
            short="It keeps no margin.",
        )
    if margin.share:
        rule = answer.experiment.rule
        losses = losses_by_place(rule, answer.restored, answer.counting).values()
        within = sum(loss <= rule.budget * (1.0 - margin.share) for loss in losses)
        spared = f" The other {margin.spared} may use it." if margin.spared else ""
        short = f"It keeps a margin of {100 * margin.share:.0f} % on {within} of {given}"
        yield Line(
            MARGIN,
            f"{short}: so much of the loss that the threshold allows stays unused there, because inputs that were not "
            f"given lose more (--margin).{spared}",
            short=f"{short}.",
        )


def _arithmetic(answer: Answer) -> Line:
    builder = answer.experiment.builder
    engine = f"{builder.engine} {builder.versions.get(builder.engine, '')}".strip()
    if builder.arithmetic == EMULATED:
        short = "No engine has confirmed this"
        low = answer.experiment.network.low.title
        text = f"TensorRT's {low} was emulated with {engine}, and costs in speed are counted, not timed"
        return Line(ARITHMETIC, f"{short}: {text}.", short=f"{short}.")
    ran = _ran(answer)
    short = f"The outputs were measured on {engine}{f', and {ran}' if ran else ''}"
    return Line(ARITHMETIC, f"{short}: another version or GPU may round otherwise.", short=f"{short}.")


def _ran(answer: Answer) -> str:
    """The number of layers that ran low, if the engine alone tells; empty if the graph settles what is rounded."""
    experiment = answer.experiment
    told = experiment.builder.typing == "weak" and not experiment.network.has_pairs and answer.restored.ran
    return ran_low(low_layers(answer), answer.restored) if told else ""


def _noise(answer: Answer) -> Iterator[Line]:
    noise, budget = Noise.of(answer), answer.experiment.rule.budget
    if not math.isfinite(noise.worst) or not noise.settings:
        return
    if noise.share == 0.0 and noise.settings > 1:
        text = f"the largest loss is {noise.worst:.3g} in all {noise.settings} settings"
        yield Line(CLEAR, f"No setting moved it: {text}.", short="No setting moved it.")
        return
    if noise.share == 0.0:
        text = f"the figures come from one setting, the largest loss is {noise.worst:.3g}"
        yield Line(ONE_SETTING, f"Noise was not measured: {text}.", short="Noise was not measured.")
        return
    settings = f" in {noise.settings} settings" if noise.settings > 1 else ""
    figures = (
        f"the largest loss{settings} is {noise.worst:.3g} of {budget:.3g} allowed, and noise moves it by about "
        f"{percent(noise.share)} %"
    )
    if noise.is_close(budget):
        yield Line(CLOSE, f"Noise could reverse it: {figures}.", short="Noise could reverse it.")
    else:
        short = f"It {'holds' if answer.meets else 'misses'} by more than the noise"
        yield Line(CLEAR, f"{short}: {figures}.", short=f"{short}.")


def ranked(answer: Answer) -> tuple[list[int], list[int]]:
    """Returns the units of the culprits, those first whose step back loses most.

    Returns:
        Those that miss the threshold by more than the noise when they are taken back; and the others, which miss it by
        less, miss only the margin, or miss only with moved scales.
    """
    noise, budget = Noise.of(answer), answer.space.budget
    losses = {unit: loss for unit, loss in answer.taken_back.items() if loss is not None}
    by_loss = sorted(losses, key=lambda unit: (-losses[unit], unit))
    beyond = {
        unit for unit, loss in losses.items() if math.isinf(loss) or loss - budget > noise.share * loss
    } - answer.unmoved.keys()
    return [unit for unit in by_loss if unit in beyond], [unit for unit in by_loss if unit not in beyond]


def _culprits(answer: Answer) -> Iterator[Line]:
    """Yields a line on the weak culprits, with the figures of the first ones."""
    layers, space = answer.experiment.network.layers, answer.space
    main, weak = ranked(answer)
    if not weak:
        return
    figures = []
    for unit in weak[:_MOST_NAMED]:
        still = f"{answer.unmoved[unit]:.3g}, and with {NUDGED} " if unit in answer.unmoved else ""
        figures.append(f"{still}{answer.taken_back[unit]:.3g} without '{layers[space.units[unit][0]].name}'")
    left = len(weak) - _MOST_NAMED
    more = f", and {left} more" if left > 0 else ""
    why = "for the margin or within the noise" if answer.margin.share else "within the noise"
    count = len(main) + len(weak)
    are = "is" if len(weak) == 1 else "are"
    short = f"{len(weak)} of {count} culprits {are} weak" if count > 1 else "The culprit is weak"
    text = f"needed only {why}: the largest loss is {'; '.join(figures)}{more}, of {space.budget:.3g} allowed"
    names = tuple(layers[space.units[unit][0]].name for unit in weak)
    yield Line(WEAK_CULPRIT, f"{short}, {text}.", names, f"{short}.")


def _followers(answer: Answer, rule: Rule, loss: float | None) -> Iterator[Line]:
    if "followers" in answer.experiment.parts:
        short = "Layers that only follow rounded too"
        text = "what they make between INT8 layers, as TensorRT's weak typing may do"
        yield Line(FOLLOWERS_ROUND, f"{short}: {text}.", short=f"{short}.")
    if loss is None:
        return
    similarity = None if not math.isfinite(loss) else rule.metric.value(loss)
    holds = loss <= rule.budget
    short = f"With followers in INT8 it {'holds' if holds else 'misses'}{' too' if holds is answer.meets else ''}"
    text = (
        f"{short}: TensorRT's weak typing may also round what layers that only follow make between INT8 layers: then "
        f"the worst input has {figure_text(rule.metric.name, similarity)}, which {'meets' if holds else 'misses'} the "
        "threshold."
    )
    remedy = " --followers int8 searches a recipe that meets it there too." if answer.meets and not holds else ""
    yield Line(FOLLOWERS, f"{text}{remedy}", short=f"{short}.")
