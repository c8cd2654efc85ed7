"""The facts that a verdict rests on, in sentences: inputs, arithmetic, noise, layers that only follow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trt_bisect.analyzer.judge import Rule
from trt_bisect.builder.base import EMULATED
from trt_bisect.report.answer import NUDGED
from trt_bisect.report.figure_text import figure_text
from trt_bisect.support.figures import counted, percent

ENOUGH = 20
"""With fewer inputs a recipe often misses on others: of unseen inputs 36 of 114 with 5 given, 8 of 69 with 20."""
_FLIPS = 0.1
"""Roundings that fall to the other side of a level move 1 - cosine by 5 to 10 %, as the runs behind issue 16 showed."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class Grounds:
    """The facts that a verdict rests on.

    Attributes:
        given: the number of inputs given that count.
        judged: the number of those that the search judged each plan on.
        unseen: the number of inputs that neither calibration nor the search saw.
        engine: its name and version.
        arithmetic: ``emulated`` or ``measured``.
        meets: the recipe holds on all inputs given.
        culprits: by name, the loss with that culprit taken back to INT8; None if that plan cannot be run.
        unmoved: by name of those that only moved scales make culprits, the loss with the scales as they are.
        losses: by setting of the engine, the largest loss of the recipe on all inputs.
        followers: this loss with the layers that only follow rounding too; None if it was not measured.
        margin: the share of the loss allowed that the recipe had to leave unused.
        spared: the number of inputs that may use the margin.
        with_margin: the number of inputs on which the recipe leaves the margin unused.
        refused: the largest cost allowed for a recipe with the margin, if none was found; None otherwise.
        followers_round: true if the whole run was measured with these layers rounding.
        low: the name of the low precision in texts.
        ran: the number of layers that ran low as the engine tells, in words; empty if nothing has to be told.
    """

    given: int
    judged: int
    unseen: int
    engine: str
    arithmetic: str
    meets: bool
    culprits: Mapping[str, float | None]
    losses: Mapping[str, float]
    followers: float | None = None
    margin: float = 0.0
    spared: int = 0
    with_margin: int = 0
    refused: float | None = None
    followers_round: bool = False
    low: str = "INT8"
    ran: str = ""
    unmoved: Mapping[str, float] = field(default_factory=dict)

    def is_close(self, rule: Rule) -> bool:
        """Returns true if noise could reverse the verdict on the recipe."""
        worst, noise = self.worst, self.noise(rule)
        return math.isfinite(worst) and noise > 0.0 and abs(rule.budget - worst) <= noise * worst

    @property
    def worst(self) -> float:
        """The largest loss of all settings."""
        return max(self.losses.values(), default=math.inf)

    def noise(self, rule: Rule) -> float:
        """Returns the share by which noise moves a loss: the spread of the settings; for the cosine, at least 0.1."""
        known = [loss for loss in self.losses.values() if math.isfinite(loss)]
        spread = (max(known) - min(known)) / max(known) if known and max(known) > 0.0 else 0.0
        return max(spread, _FLIPS) if rule.metric.name == "cosine" else spread


def confidence(grounds: Grounds, rule: Rule) -> tuple[str, ...]:
    """Returns sentences on the inputs, the arithmetic and the margins that a verdict rests on.

    The words of a sentence before its first colon are its short form.
    """
    said = [*_inputs(grounds), _arithmetic(grounds), *_margin(grounds, rule), *_culprits(grounds, rule)]
    return (*said, *_followers(grounds, rule))


def _inputs(grounds: Grounds) -> Iterator[str]:
    unseen = f"{grounds.unseen} unseen" if grounds.unseen else "no unseen input"
    yield (
        f"It rests on {counted(grounds.given, 'input')} given and {unseen}: "
        f"the search judged its plans on {grounds.judged} of those given."
    )
    if grounds.given < ENOUGH:
        yield (
            f"The search saw fewer than {ENOUGH} inputs: the recipe may not hold on others. "
            "docs/benchmarks.md has how often recipes miss on unseen inputs."
        )
    if grounds.refused is not None:
        yield (
            f"It keeps no margin: one would cost more than {100 * grounds.refused:.0f} % of {grounds.low}'s gain in "
            "speed, so the recipe may use all of the loss that the threshold allows, and inputs that were not given "
            "may miss (--margin)."
        )
    if grounds.margin:
        which = f"{grounds.with_margin} of {counted(grounds.given, 'input')}"
        spared = f" The other {grounds.spared} may use it." if grounds.spared else ""
        yield (
            f"It keeps a margin of {100 * grounds.margin:.0f} % on {which}: so much of the loss that the threshold "
            f"allows stays unused there, because inputs that were not given lose more (--margin).{spared}"
        )


def _arithmetic(grounds: Grounds) -> str:
    if grounds.arithmetic != EMULATED:
        told = f", and {grounds.ran}" if grounds.ran else ""
        return f"The outputs were measured on {grounds.engine}{told}: another version or GPU may round otherwise."
    return (
        f"No engine has confirmed this: TensorRT's {grounds.low} was emulated with {grounds.engine}, "
        "and costs in speed are counted, not timed."
    )


def _margin(grounds: Grounds, rule: Rule) -> Iterator[str]:
    worst, noise = grounds.worst, grounds.noise(rule)
    if not math.isfinite(worst) or not grounds.losses:
        return
    settings = f" in {len(grounds.losses)} settings" if len(grounds.losses) > 1 else ""
    if noise == 0.0 and len(grounds.losses) > 1:
        yield f"No setting moved it: the largest loss is {worst:.3g} in all {len(grounds.losses)} settings."
        return
    if noise == 0.0:
        yield f"Noise was not measured: the figures come from one setting, the largest loss is {worst:.3g}."
        return
    figures = (
        f"the largest loss{settings} is {worst:.3g} of {rule.budget:.3g} allowed, and noise moves it by about "
        f"{percent(noise)} %"
    )
    near = grounds.is_close(rule)
    holds = "holds" if grounds.meets else "misses"
    yield f"Noise could reverse it: {figures}." if near else f"It {holds} by more than the noise: {figures}."


def _culprits(grounds: Grounds, rule: Rule) -> Iterator[str]:
    noise, allowed = grounds.noise(rule), rule.budget * (1.0 - grounds.margin)
    weak = [
        (name, loss)
        for name, loss in grounds.culprits.items()
        if loss is not None and math.isfinite(loss) and (name in grounds.unmoved or loss - allowed <= noise * loss)
    ]
    for name, loss in weak[:_MOST_NAMED]:
        still = f"{grounds.unmoved[name]:.3g}, and with {NUDGED} " if name in grounds.unmoved else ""
        yield (
            f"'{name}' is a culprit by less than the noise: taken back to {grounds.low}, the largest loss is {still}"
            f"{loss:.3g} of {allowed:.3g} allowed."
        )
    if len(weak) > _MOST_NAMED:
        yield f"So are {len(weak) - _MOST_NAMED} more of the {len(grounds.culprits)} culprits."


def _followers(grounds: Grounds, rule: Rule) -> Iterator[str]:
    if grounds.followers_round:
        yield (
            "Layers that only follow rounded too: what they make between INT8 layers, as TensorRT's weak typing may do."
        )
    if grounds.followers is None:
        return
    similarity = None if not math.isfinite(grounds.followers) else rule.metric.value(grounds.followers)
    holds = grounds.followers <= rule.budget
    too = " too" if holds is grounds.meets else ""
    text = (
        f"With followers in INT8 it {'holds' if holds else 'misses'}{too}: TensorRT's weak typing may also round what "
        "layers that only follow make between INT8 layers: then the worst input has "
        f"{figure_text(rule.metric.name, similarity)}, which {'meets' if holds else 'misses'} the threshold."
    )
    yield text if holds or not grounds.meets else f"{text} --followers int8 searches a recipe that meets it there too."
