"""The answer: the recipe that holds on all inputs given, its files, and its facts for a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.doubts import (
    BY_AGREEMENT,
    BY_CLASS,
    HELD_OUT,
    NOT_LOW,
    Bound,
    bound_of,
    constant_outputs,
    doubts,
)
from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import figure_text
from trt_bisect.answer.plans import AnswerInputs
from trt_bisect.answer.search import CalibratorTried
from trt_bisect.answer.validation import Recipe, losses_by_place
from trt_bisect.builder.base import EMULATED, Builder
from trt_bisect.builder.pipeline import PipelineBuilder
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT
from trt_bisect.builder.tensorrt_weak import weak_plan
from trt_bisect.calibration.cache import DLA_VERSION, NEWEST_VERSION, TensorRTVersion, parse_version, version_of_engine
from trt_bisect.data.datasets import Profile
from trt_bisect.data.named import name_of
from trt_bisect.driver.search_space import Kept
from trt_bisect.evaluator.each_input import GivenInputs
from trt_bisect.evaluator.speed import Latencies
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.layers import Layer
from trt_bisect.model.merged import split
from trt_bisect.model.network import Network
from trt_bisect.model.quantizer import Scales
from trt_bisect.options.concerns import RunOptions
from trt_bisect.options.declare import repeated
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.recipe.commands import Setting
from trt_bisect.recipe.files import RecipeFiles, pipeline_files, recipe_files
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.answer import (
    ENGINE_PASSES,
    NUDGED,
    PLAIN,
    UNQUANTIZED,
    AnswerFacts,
    CalibratorRow,
    EngineFacts,
    ExpensiveLayer,
    Held,
    PlanFigures,
)
from trt_bisect.report.choices import LEAST_GAIN
from trt_bisect.report.model import Report
from trt_bisect.report.precision_check import obedience_doubts, ran_low
from trt_bisect.support.text import REFUSED, Line, Note, counted, percent

INPUTS, FEW_INPUTS, KEEPS_MARGIN, CHEAPER = "inputs", "few inputs", "margin", "cheaper set"
ARITHMETIC, CLEAR, CLOSE, ONE_SETTING = "arithmetic", "beyond the noise", "within the noise", "one setting"
WEAK_CULPRIT, UNQUANTIZED_ROUND, UNQUANTIZED_STAY = "weak culprit", "unquantized layers round", "unquantized layers"
"""The kinds of lines."""
ENOUGH = 20
"""With fewer inputs a recipe often misses on others: of held-out inputs 36 of 114 with 5 given, 8 of 69 with 20
(``python -m benchmarks.answer``).
"""
_FLIPS = 0.1
"""Roundings that fall to the other side of a level move 1 - cosine by 5 to 10 %."""
_NOTHING = 0.01
"""Losses below this share of the budget are float noise: their spread says nothing of losses near the budget."""
_MOST_NAMED = 3


@dataclass(frozen=True)
class EngineResult:
    """The trials of engines for the answer that the emulation proposed.

    Attributes:
        proposal: the answer of the emulation.
        engine: the name of the engine.
        base: the trial with no layer low.
        builds: the number of engines built.
        kernels: the units that the engine computes otherwise than its file says.
        lines: the contradictions of the emulation.
    """

    proposal: Answer
    engine: str
    base: Trial
    builds: int
    kernels: Kept
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Answer:
    """The answer: a recipe, and its measurements.

    Attributes:
        recipe: it ``meets`` if its plan holds on all inputs given.
        full: the trial of full INT8 on all inputs, on a whole engine.
        restored: the trial of the recipe, likewise.
        put_back: by unit of ``recipe.put_back`` that has a loss, the similarity or accuracy with that unit in INT8 as
            well; None if not finite.
        judged: the number of inputs that the search judged on.
        has_held_out: inputs were held out.
        held_out: the recipe on held-out inputs; None without any. Where an accuracy decides, it is a similarity.
        unquantized: the recipe on all inputs with unquantized layers rounding too; None if that changes nothing.
        plain: the recipe's file on all inputs in ONNX Runtime with default options; None if it is the same.
        in_fp16: the recipe with its layers in FP16; None if not measured.
        in_fp32: the recipe with its layers in FP32, where some are in FP16; None if not measured.
        around_fp16: the recipe with FP16 in place of FP32 everywhere; None if not measured.
        fp16: the trial of the network in FP16 on all inputs; None if FP16 is the low precision or does not run.
        fp16_held_out: the same on held-out inputs; None unless the recipe misses there.
        expensive: the layers that make most of the recipe's cost.
        not_done: what a stopped search left out, a clause each; empty if it came to its end.
        most: the largest cost allowed; None without a budget.
        by_accuracy: an accuracy decides: losses are parts of FP32's accuracy, and no input is judged by itself.
        own: the answer on the user's network, where this is that on a changed, cheaper one; else None.
        changes: by tried change, the mean loss with it and those kept before it, see ``answer.candidates``; the first,
            without a name, is the user's network.
        engines: the engines' trials; None where the emulation decides. Then ``tried`` is of the emulation alone, and so
            are the parts of ``own`` but its full INT8.
    """

    recipe: Recipe
    full: Trial
    restored: Trial
    put_back: Mapping[int, float | None]
    tried: tuple[CalibratorTried, ...]
    inputs: AnswerInputs
    judged: int
    has_held_out: bool = False
    held_out: Trial | None = None
    held_out_inputs: GivenInputs | None = None
    unquantized: Trial | None = None
    plain: Trial | None = None
    in_fp16: PlanFigures | None = None
    in_fp32: PlanFigures | None = None
    around_fp16: PlanFigures | None = None
    fp16: Trial | None = None
    fp16_held_out: Trial | None = None
    expensive: tuple[ExpensiveLayer, ...] = ()
    not_done: tuple[str, ...] = ()
    most: float | None = None
    by_accuracy: bool = False
    own: Answer | None = None
    changes: Mapping[str, float] = field(default_factory=dict)
    engines: EngineResult | None = None

    @property
    def emulated(self) -> Answer:
        """The answer of the emulation: the proposal where engines decided."""
        return self if self.engines is None else self.engines.proposal

    @property
    def of_user(self) -> Answer:
        """The answer on the user's network, which has its culprits and full INT8."""
        return self if self.own is None else self.own

    @property
    def experiment(self) -> Experiment:
        """The experiment with the network and the ranges of the recipe."""
        return self.recipe.experiment

    @property
    def plan(self) -> str:
        """The plan of the answer in words: the recipe, or full INT8 where no layer stays high."""
        network = self.experiment.network
        return "the recipe" if self.recipe.kept or network.changes else f"full {network.low.title}"

    @property
    def meets(self) -> bool:
        """True if the recipe holds on all inputs given."""
        return self.recipe.meets

    @property
    def misses_held_out(self) -> bool:
        """True if the recipe holds on all inputs given and misses on held-out ones."""
        return self.meets and self.held_out is not None and not self.experiment.rule.meets(self.held_out)

    @property
    def members(self) -> tuple[int, ...]:
        """The layers that were measured to break the target when put back, ascending.

        Within a budget other layers stay high too, which make the plan more accurate.
        """
        recipe, space, budget = self.recipe, self.recipe.space, self.recipe.space.budget
        losses = {unit: back.loss for unit, back in recipe.put_back.items() if unit not in recipe.faster}
        needed = [unit for unit, loss in losses.items() if loss is not None and (self.most is None or loss > budget)]
        kernels = () if self.engines is None else self.engines.kernels
        return tuple(sorted(space.units[unit][0] for unit in needed if unit not in kernels))

    @property
    def untested(self) -> tuple[int, ...]:
        """The high layers of which no step back was measured that shows that they are needed, ascending.

        None unless there are many units, whose steps back are limited, or the search was stopped. A recipe that misses
        has none.
        """
        units = self.recipe.kept - self.recipe.put_back.keys()
        return tuple(sorted(self.recipe.space.layers(units))) if self.meets else ()


def recipe_of(setup: Setup, options: RunOptions, answer: Answer) -> RecipeFiles:
    """Returns the files of the recipe, with the shapes of all samples given, held out or not.

    Libraries have absolute paths, for commands that run in another folder; a bare name is searched for.
    """
    experiment, plan, feeds = answer.experiment, answer.recipe.plan, answer.inputs.given.feeds
    network, builder, scales = experiment.network, experiment.builder, experiment.ranges.scales
    profile = setup.profile(network, feeds)
    plugins = tuple(str(Path(name).absolute()) if Path(name).is_file() else name for name in options.plugins)
    built = replace(options.build_options(), plugins=plugins)

    def files_of(network: Network, builder: Builder, scales: Scales, plan: PrecisionPlan, fed: Profile) -> RecipeFiles:
        build = Build(
            target=target_version(options, builder),
            shapes=fed.shapes,
            dynamic=tuple(spec.name for spec in network.inputs if None in spec.shape),
            options=replace(built, sizes=fed.sizes),
        )
        return recipe_files(network, scales, plan, experiment.whole.high, weak_plan(builder, network, plan), build)

    whole = files_of(network, builder, scales, plan, profile)
    if not isinstance(builder, PipelineBuilder):
        return whole
    parts = {}
    for part, own in zip(split(network), builder.builders, strict=True):
        fed = Profile(part.of(profile.shapes), part.of(profile.sizes))
        parts[part.name] = files_of(part.network, own, part.of(scales), part.plan(plan), fed)
    return pipeline_files(whole, parts)


def target_version(options: RunOptions, builder: Builder) -> TensorRTVersion:
    """Returns the TensorRT that a recipe is for: the one asked for, else the one in use, else the newest."""
    if options.trt_version:
        return parse_version(options.trt_version)
    for engine in (TENSORRT, RTX):
        version = version_of_engine(builder.versions.get(engine, ""), rtx=engine == RTX)
        if builder.engine == engine and version is not None:
            return version
    return NEWEST_VERSION if getattr(options, "dla", None) is None else DLA_VERSION


def setting_of(experiment: Experiment, options: RunOptions, report: Report) -> Setting:
    """Returns the facts of a run that suggested commands repeat."""
    flags, files = repeated(options), report.attached.files
    return Setting(
        model=experiment.network.source,
        calibration=flags.get("--calibration", ("",))[0],
        has_data=experiment.data is not None,
        calibrator=experiment.ranges.calibrator,
        has_pairs=experiment.network.has_pairs,
        high=experiment.whole.high,
        low=experiment.network.low.precision,
        folder=name_of(options.output),
        build=files.build if files else Build(target_version(options, experiment.builder)),
        options=flags,
        fixed=dict(options.shapes or {}),
        kept=report.recipe.high,
    )


def cost_of(answer: Answer) -> float:
    """Returns the price of a recipe: by engines' times if INT8 was faster than FP16, else as the search had it."""
    times = {plan: timed.median_ms for plan, timed in (latencies_of(answer) or {}).items() if timed is not None}
    if not {"fp16", "int8", "recipe"} <= times.keys() or times["int8"] > (1.0 - LEAST_GAIN) * times["fp16"]:
        return answer.recipe.cost
    return max((times["recipe"] - times["int8"]) / (times["fp16"] - times["int8"]), 0.0)


def _noise_of(answer: Answer) -> tuple[float, float]:
    """Returns the largest loss of all settings, and the share by which noise moves it: their spread.

    For the cosine the share is 0.1 at least. Without settings the loss is infinite.
    """
    losses, rule = list(answer.recipe.checked.losses.values()), answer.experiment.rule
    finite = [loss for loss in losses if math.isfinite(loss)]
    largest = max(finite, default=0.0)
    share = (largest - min(finite)) / largest if largest > _NOTHING * rule.budget else 0.0
    is_cosine = rule.metric.name == "cosine" and not answer.by_accuracy
    return max(losses, default=math.inf), max(share, _FLIPS) if is_cosine else share


def _is_close(answer: Answer) -> bool:
    (worst, share), budget = _noise_of(answer), answer.experiment.rule.budget
    return math.isfinite(worst) and share > 0.0 and abs(budget - worst) <= share * worst


def confidence(answer: Answer, unquantized: float | None) -> tuple[Line, ...]:
    """Returns lines on the inputs, the arithmetic and the margins on which the verdict rests.

    Args:
        unquantized: the largest loss with unquantized layers rounding too; None if not measured.
    """
    if answer.by_accuracy:
        return (_arithmetic(answer),)
    noise, culprits = _noise(answer), _culprits(answer)
    return (*_inputs(answer), _arithmetic(answer), *noise, *culprits, *_unquantized(answer, unquantized))


def low_layers(answer: Answer) -> dict[int, Layer]:
    """Returns the layers that can be low, by index."""
    network = answer.experiment.network
    return {k: network.layers[k] for k in network.quantizable}


def _line(kind: str, short: str, more: str) -> Line:
    return Line(kind, f"{short}: {more}.", short=f"{short}.")


def _inputs(answer: Answer) -> Iterator[Line]:
    counting, recipe = answer.inputs.told, answer.recipe
    given, of_held_out = answer.inputs.given, answer.held_out_inputs
    inputs, count = counted(len(counting), "input"), len(of_held_out.told) if of_held_out else 0
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
    (worst, share), settings, rule = _noise_of(answer), len(answer.recipe.checked.losses), answer.experiment.rule
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
        kind, short = (CLOSE, "Noise could reverse the verdict") if _is_close(answer) else (CLEAR, clear)
        yield _line(kind, short, figures)


def ranked(answer: Answer) -> tuple[list[int], list[int]]:
    """Returns the units of the culprits by decreasing loss when put back.

    Returns:
        The units whose miss exceeds the noise; and the others, which miss by less, miss only the margin, or miss only
        with moved scales.
    """
    (_, share), recipe, members = _noise_of(answer), answer.recipe, set(answer.members)
    space, budget = recipe.space, recipe.space.budget
    losses = {
        unit: back.loss
        for unit, back in recipe.put_back.items()
        if back.loss is not None and space.units[unit][0] in members
    }
    by_loss = sorted(losses, key=lambda unit: (-losses[unit], unit))
    beyond = {unit for unit, loss in losses.items() if math.isinf(loss) or loss - budget > share * loss}
    beyond -= {unit for unit in losses if recipe.put_back[unit].setting == NUDGED}
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
        moved = f" and {NUDGED}" if back.setting == NUDGED else ""
        figures.append(f"{figure} with '{name}' put back{moved}")
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


ANOTHER_READER = "its rounded tensor has another {low} reader, so that keeping it high saves little"
COVERED = "the layers that stay high make up for it: with them high, it can stay in {low}"
PASSING = "full {low} meets the threshold with it"
UNRESTORED = "no plan tried meets the threshold, so that no layer was shown to be needed"
NOT_FOR_ACCURACY = "it stays high for speed or for FP16, not for the threshold"
UNTESTED = "it stays high, but was not shown to be needed: it was not put back"
CANCELLED = "later layers cancel its error: kept high alone, it does not make full {low} better"


def similarity_of(rule: Rule, loss: float) -> float | None:
    """Returns the metric's value that has a loss; None if there is none."""
    return None if not math.isfinite(loss) else rule.metric.value(loss)


def put_back_fields(answer: Answer) -> dict[str, dict[str, Any]]:
    """Returns by layer of the recipe the fields of its row on the recipe with it low as well."""
    layers, units, back = answer.experiment.network.layers, answer.recipe.space.units, answer.recipe.put_back
    return {
        layers[units[unit][0]].name: {
            "put_back": figure,
            "put_back_on": back[unit].inputs,
            "put_back_in": back[unit].setting,
        }
        for unit, figure in answer.put_back.items()
    }


def reason_for(answer: Answer, layer: int, gain: float | None) -> str:
    """Returns the reason why a layer with a large loss on the curve is no culprit.

    Args:
        layer: the index of the layer.
        gain: the loss that full INT8 sheds when the layer alone stays high; None if not measured.
    """
    network, low = answer.experiment.network, answer.experiment.network.low.title
    if layer in answer.untested:
        return UNTESTED
    if not answer.meets:
        return UNRESTORED
    if layer in answer.recipe.high:
        return NOT_FOR_ACCURACY
    tensors = {rounding.tensor for rounding in network.layers[layer].roundings if not rounding.is_weight}
    readers = (network.layers[k] for k in answer.recipe.plan.lowered - {layer})
    if any(rounding.tensor in tensors for reader in readers for rounding in reader.roundings):
        return ANOTHER_READER.format(low=low)
    covered = COVERED if answer.recipe.high else PASSING
    return (CANCELLED if gain is not None and gain <= 0.0 else covered).format(low=low)


def bound_on_held_out(answer: Answer) -> Bound | None:
    """Returns the bound on similar inputs that miss; None without held-out inputs.

    Where an accuracy decides, it is the bound on inputs that get another class than in FP32, or whose answers differ
    more than the task allows; None for outputs without classes.
    """
    trial, rule = answer.held_out, answer.experiment.rule
    if trial is None or answer.held_out_inputs is None:
        return None
    if not answer.by_accuracy or answer.experiment.task is not None:
        losses = losses_by_place(rule, trial, answer.held_out_inputs.told).values()
        missed = sum(loss > rule.budget for loss in losses)
        return bound_of(len(losses), missed, BY_AGREEMENT if answer.by_accuracy else "") if losses else None
    figures = next(iter(rule.judged(trial).values()), None)
    agreements = [value for value in (figures.inputs.get("top1", ()) if figures else ()) if value is not None]
    if not agreements or any(map(math.isnan, agreements)):
        return None
    return bound_of(len(agreements), sum(value < 1.0 for value in agreements), BY_CLASS)


def answer_facts(answer: Answer) -> AnswerFacts:
    """Returns the facts of an answer for the report."""
    rule, recipe, network = answer.experiment.rule, answer.recipe, answer.experiment.network
    held_out, held_out_inputs = None, answer.held_out_inputs
    if answer.held_out is not None and held_out_inputs is not None:
        held_out = _held(rule, answer.held_out, held_out_inputs, held_out_inputs.told)
    of_user = answer.of_user
    layers = of_user.experiment.network.layers
    main, weak = ([layers[of_user.recipe.space.units[unit][0]].name for unit in units] for units in ranked(of_user))
    settings = {**recipe.checked.losses}
    if answer.plain is not None and (loss := rule.loss(answer.plain)) is not None:
        settings[PLAIN] = loss
    unquantized = None
    if answer.unquantized is not None:
        loss = rule.loss(answer.unquantized)
        unquantized = settings[UNQUANTIZED] = math.inf if loss is None else loss
    unchanged = figures_of(of_user.recipe, of_user.restored)
    facts = AnswerFacts(
        judged=answer.judged,
        given=_held(rule, answer.restored, answer.inputs.given, answer.inputs.told),
        held_out=held_out,
        cost=cost_of(answer),
        calibrators=tuple(_row(rule, answer.emulated.of_user, row) for row in of_user.tried),
        equals=tuple(_names(replace(recipe, kept=kept)) for kept in recipe.equals),
        settings={setting: similarity_of(rule, loss) for setting, loss in settings.items()},
        aim=recipe.aim,
        margin=recipe.reserve,
        cheapest=None if recipe.cheapest is None else _of_cheapest(recipe.cheapest),
        in_fp16=answer.in_fp16,
        in_fp32=answer.in_fp32,
        around_fp16=answer.around_fp16,
        changes=network.changes,
        changes_tried=answer.changes,
        unchanged=unchanged if network.changes and of_user.meets else None,
        expensive=answer.expensive,
        ranked=(*main, *weak),
        weak=tuple(weak),
        doubts=tuple(_doubts(answer, held_out)) if answer.meets else (),
        confidence=confidence(answer, unquantized),
        close=_is_close(answer),
        not_done=answer.not_done,
        has_held_out=answer.has_held_out,
        on_engines=_on_engines(answer),
    )
    if not answer.by_accuracy:
        return facts
    disobeyed = tuple(line for line in facts.doubts if line.kind == NOT_LOW)
    return replace(facts, given=None, held_out=None, settings={}, aim=None, doubts=disobeyed, close=False)


def _on_engines(answer: Answer) -> EngineFacts | None:
    engines, rule = answer.engines, answer.experiment.rule
    if engines is None:
        return None
    proposal = engines.proposal
    return EngineFacts(
        engine=engines.engine,
        builds=engines.builds,
        base=rule.similarity(engines.base),
        int8_emulated=rule.similarity(proposal.of_user.full),
        recipe_emulated=rule.similarity(proposal.restored),
        apart_int8=answer.full.apart,
        apart_recipe=answer.restored.apart,
        lines=engines.lines,
    )


def _names(recipe: Recipe) -> tuple[str, ...]:
    return tuple(recipe.experiment.network.layers[k].name for k in recipe.high)


def _of_cheapest(recipe: Recipe) -> PlanFigures:
    similarity = similarity_of(recipe.experiment.rule, recipe.checked.worst)
    return PlanFigures(recipe.cost, _names(recipe), similarity, meets=True)


def figures_of(recipe: Recipe, trial: Trial) -> PlanFigures:
    """Returns the figures of a recipe that is not the run's, from its trial."""
    rule = recipe.experiment.rule
    return PlanFigures(recipe.cost, _names(recipe), rule.similarity(trial), rule.meets(trial))


def refused_by_default(answer: Answer) -> list[Note]:
    """Returns a note if ONNX Runtime refuses the recipe's file with its default options."""
    if answer.plain is None or not answer.plain.failed:
        return []
    text = (
        f"ONNX Runtime with default options refuses the recipe's file: {answer.plain.message.rstrip('.')}. Load it "
        "with basic optimisations (docs/howto/qat.md)"
    )
    return [Note(REFUSED, text)]


def _doubts(answer: Answer, held_out: Held | None) -> Iterator[Line]:
    """Yields what contradicts a recipe that meets the threshold: on given and held-out inputs, in the engine."""
    rule = answer.experiment.rule
    constant, _ = constant_outputs(rule, answer.inputs.given.references)
    for doubt in (*constant, *doubts(rule, answer.restored)):
        yield Line(doubt.kind, doubt.text)
    if held_out is not None and answer.misses_held_out:
        worst = "no figure" if held_out.worst is None else rule.text(held_out.worst)
        stricter = "--margin" if answer.recipe.reserve else "--threshold"
        missing = held_out.inputs - held_out.holds
        text = (
            f"{missing} of {held_out.inputs} held-out inputs {'misses' if missing == 1 else 'miss'} the threshold "
            f"(worst {worst}), which your inputs meet: give more inputs, of other kinds, or a larger {stricter}."
        )
        yield Line(HELD_OUT, text)
    if answer.engines is not None and not answer.recipe.kept:
        yield from (line for line in answer.engines.lines if line.kind == ENGINE_PASSES)
    yield from (Line(NOT_LOW, text) for text in obedience(answer))


def obedience(answer: Answer) -> tuple[str, ...]:
    """Returns the doubt on a recipe whose engine did not run its low layers low; empty if the graph settles it."""
    weak = answer.experiment.builder.typing == "weak"
    if not weak and not answer.restored.ran:
        return ()
    return obedience_doubts(low_layers(answer), answer.restored, weak=weak)


def latencies_of(answer: Answer) -> Latencies | None:
    """Returns the latencies that engines had; None where the emulation decides."""
    engines, fp16 = answer.engines, answer.fp16
    if engines is None:
        return None
    in_fp32 = answer.experiment.network.base_type is None
    return {
        "fp32": engines.base.latency if in_fp32 else None,
        "fp16": None if fp16 is None else fp16.latency,
        "int8": answer.full.latency,
        "recipe": answer.restored.latency,
    }


def _row(rule: Rule, answer: Answer, tried: CalibratorTried) -> CalibratorRow:
    """The row of a calibrator; the chosen one has the figures on all inputs, and the name of the ranges in use, which
    may mix scales.
    """
    ranges = answer.experiment.ranges
    chosen = ranges.calibrator == tried.ranges.calibrator
    similarity = None if tried.loss is None else similarity_of(rule, tried.loss)
    has_moved = chosen and ranges.origin != tried.ranges.origin
    return CalibratorRow(
        ranges.origin if chosen else tried.ranges.origin,
        rule.similarity(answer.full) if chosen else similarity,
        len(answer.inputs.told) if chosen else tried.inputs,
        rule.meets(answer.full) if has_moved else tried.meets,
        tried.cost,
        None if tried.kept is None else len(answer.recipe.space.layers(tried.kept)),
        chosen,
        tried.mean,
        tried.ranges.calibrator,
        tried.confirmed,
    )


def _held(rule: Rule, trial: Trial, given: GivenInputs, counting: tuple[int, ...]) -> Held | None:
    losses = losses_by_place(rule, trial, counting)
    if not losses:
        return None
    worst = max(losses, key=lambda input_index: losses[input_index])
    figures = {given.labels[input_index]: similarity_of(rule, loss) for input_index, loss in losses.items()}
    finite = [value for value in figures.values() if value is not None]
    towards_worse = 5 if rule.metric.loss(1.0) < rule.metric.loss(0.0) else 95
    return Held(
        source=given.sources[worst],
        inputs=len(losses),
        holds=sum(loss <= rule.budget for loss in losses.values()),
        worst=similarity_of(rule, losses[worst]),
        worst_input=given.labels[worst],
        mean=float(np.mean(finite)) if finite else None,
        fifth=float(np.percentile(finite, towards_worse)) if finite else None,
        figures=figures,
    )
