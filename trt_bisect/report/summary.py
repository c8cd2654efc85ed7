"""The verdict of a run as lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from onnx import TensorProto

from trt_bisect.analyzer.compare_output import low_score_text
from trt_bisect.analyzer.doubts import BY_AGREEMENT, BY_CLASS, VARIES_LESS, Bound
from trt_bisect.analyzer.integers import CLASSES, integers_text
from trt_bisect.analyzer.judge import Rule
from trt_bisect.analyzer.metrics import FRACTIONS, figure_text, threshold_text
from trt_bisect.analyzer.rows import FEW_ROWS, ROWS, rows_text
from trt_bisect.analyzer.tasks.task import LIKENESS_KEYS
from trt_bisect.analyzer.variation import VARIATION, variation_text
from trt_bisect.driver.search import Findings
from trt_bisect.errors import OUT_OF_MEMORY
from trt_bisect.evaluator.trial import Trial
from trt_bisect.model.file import bodies_of, tensors_read
from trt_bisect.model.layers import NO_RANGE, Layer, multiplies
from trt_bisect.model.network import Network
from trt_bisect.precision import Precision
from trt_bisect.report.answer import DECIDING, DIFFUSE, Accuracies, AnswerFacts, PlanFigures
from trt_bisect.report.choices import (
    FP16,
    FP16_INSTEAD,
    INT8,
    MOST_GIVEN_UP,
    RECIPE as RECIPE_PLAN,
    choice_of,
    costs_from,
    kept_speed,
    no_gain,
    other_of,
    speed_of,
    times_from,
    why_fp16,
)
from trt_bisect.report.given import (
    DOUBTED,
    DOUBTING,
    NAMED,
    above_verdict,
    base_misses,
    fixed_lines,
    line_of,
    scale_lines,
)
from trt_bisect.report.parts import FAILS, PASSES, WITH_DOUBTS, LayerRow, spoken
from trt_bisect.report.words import FIGURES, NO_RECIPE, asked_for, fragile, layers_high, least_text, means, over_inputs
from trt_bisect.support.text import FITTING_TASK, MEMORY, Line, Note, counted, listed, percent, together

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

BASE, CULPRITS, UNTESTED, UNJUDGED, SPREAD = "base", "culprits", "not tested", "not judged", "spread"
TASK, UNSURE = "task", "unsure"
FASTER = "faster"
BUDGET = "budget"
INTEGERS, LENGTHS, SCORES, VARYING = "integers", "rows", "scores", "variation"
HOLDS, RECIPE, RANGES, TOO_EXPENSIVE = "holds", "recipe", "ranges", "too expensive"
COST = "cost"
HELD_OUT = "held out"
ACCURACY, STOPPED, FEW_INPUTS = "accuracy", "stopped", "few inputs"
INTERRUPTED, TIME_LIMIT, NO_ROOM = "interrupted", "time limit", "no room"
UNCHANGED = "changes of the network were not tried"
UNEXPLAINED, CURVE_MISSING = "the causes were not looked for", "the curve was not measured"
CURVE_IN_PART, FRONT_MISSING = "the curve was measured in part", "the front was not measured"
LAST_MISSING = "its last figures were not measured"
_BY = {
    INTERRUPTED: "the run was interrupted",
    TIME_LIMIT: "--time-limit ended the run",
    NO_ROOM: "a file of the run could not be written",
}
LARGEST_STEPS = 5


def _figure(value: float | None, text: Callable[[float], str]) -> str:
    return "no figure" if value is None else text(value)


def verdict_lines(
    report: Report, network: Network, rule: Rule, findings: Findings, nothing: Trial, full: Trial
) -> tuple[Line, ...]:
    """Returns the lines on doubts, full INT8, culprits, recipe and data.

    Args:
        nothing, full: the trials with no layer, and with all layers, in low precision.
    """
    lines, answer, by_input = above_verdict(report), report.answer, report.by_input.int8
    assert answer is not None
    if answer.given is not None and answer.given.inputs == 1:
        text = "copies do not count, and all rows that the network takes at a time are one input"
        text = f"the verdict rests on a single input ({text}): give more, such as you have in production."
        lines.append(line_of(FEW_INPUTS, text))
    elif by_input is not None and 2 * by_input.inputs < len(by_input.values):
        count = f"only {by_input.inputs} of {len(by_input.values)} inputs count"
        text = f"{count}: FP32 gives nothing, or almost zero, on the others. Give more on which it finds something."
        lines.append(line_of(FEW_INPUTS, text))
    lines += [*fixed_lines(network), *_on_plans(report, answer, network, rule, findings, nothing, full)]
    if clauses := fragile(report):
        lines.append(line_of(UNSURE, f"{'; '.join(clauses)}."))
    lines += [line_of(TASK, f"{note.text}.") for note in report.notes if note.kind == FITTING_TASK]
    if report.bound is not None and report.recipe.meets:
        lines.append(bound_line(report.bound))
    if report.accuracy is not None:
        lines.append(accuracy_line(report.accuracy, report.low, has_recipe=report.has_recipe))
    if report.stopped:
        lines.append(stopped_line(report.stopped, answer.not_done))
    if why := why_fp16(report):
        # What speaks against every figure comes before it.
        others = [line.kind not in DOUBTING for line in lines]
        lines.insert(others.index(True), _fp16_line(report, why))
        if reason := no_gain(report):
            lines.append(line_of(COST, f"{reason}."))
    return tuple(lines)


def _fp16_line(report: Report, why: str) -> Line:
    fp16 = choice_of(FP16, report.choices)
    assert fp16 is not None
    value = fp16.accuracy if report.goal.drop else fp16.similarity
    by_input, where = report.by_input.int8, ""
    if not report.goal.drop and by_input is not None:
        where = " over all inputs pooled" if by_input.together else " on the worst input"
    figure = "" if value is None else f" ({report.text(value)}{where})"
    return line_of(FP16_INSTEAD, f"FP16 meets the {asked_for(report)}{figure}, and {why}{times_from(report, why)}.")


def _layers_left_high(network: Network) -> str:
    without_range = [layer.name for layer in network.layers if NO_RANGE in layer.why_not]
    by_reason: dict[str, list[Layer]] = {}
    for layer in network.layers:
        is_told = layer.name in without_range or layer.fixed is not None
        if layer.why_not and not is_told and multiplies(network.skeleton.graph.node[layer.index]):
            by_reason.setdefault(layer.why_not, []).append(layer)
    clauses = []
    if without_range:
        stay = "stays" if len(without_range) == 1 else "stay"
        clauses.append(f"{listed(without_range, NAMED)} {stay} in high precision without a usable range")
    for reason, layers in by_reason.items():
        stay = "stays" if len(layers) == 1 else "stay"
        names, share = listed([layer.name for layer in layers], NAMED), percent(_share_of_weights(network, layers))
        clauses.append(f"{names} {stay} in high precision, with {share} of the weights: {reason}")
    if clauses:
        return f"{'; '.join(clauses)}; no other layer has to."
    word = "other " if any(layer.fixed is not None for layer in network.layers) else ""
    return f"No {word}layer has to stay in high precision."


def _share_of_weights(network: Network, layers: Sequence[Layer]) -> float:
    nodes, constants, sizes = network.skeleton.graph.node, network.constants, {}
    for layer in network.layers:
        node = nodes[layer.index]
        read = [constants[name] for name in {*tensors_read(node)} if name in constants]
        inside = [tensor for body in bodies_of(node) for tensor in body.initializer]
        sizes[layer.index] = sum(array.size for array in read if array.dtype.kind == "f")
        sizes[layer.index] += sum(math.prod(tensor.dims) for tensor in inside if tensor.data_type == TensorProto.FLOAT)
    return sum(sizes[layer.index] for layer in layers) / max(sum(sizes.values()), 1)


def _on_plans(
    report: Report, answer: AnswerFacts, network: Network, rule: Rule, findings: Findings, nothing: Trial, full: Trial
) -> Iterator[Line]:
    recipe, text, low = report.recipe, report.text, network.low.title
    chosen = [row.calibrator for row in answer.calibrators if row.chosen and len(answer.calibrators) > 1]
    int8, restored = _plan_texts(report)
    calibrator = f", calibrator {chosen[0]}" if chosen else ""
    figure = f"{int8}; {_measure(report, rule, full)}{calibrator}."
    threshold = f"the {asked_for(report)} of {least_text(report)}"
    if recipe.meets:
        yield from doubt_lines(answer)
    if (recipe.meets and not report.has_recipe) or report.verdict in (PASSES, WITH_DOUBTS):
        blame = _layers_left_high(network)
        if report.verdict != PASSES:
            blame = "The doubts speak against it."
        elif report.doubts:
            blame = "You accepted the doubts."
        yield Line(report.verdict, f"{spoken(report.verdict).upper()}: full {low} meets {threshold}: {figure} {blame}")
        yield from counted_lines(report, rule, "full " + low)
        yield from _other_ranges(report, answer, low)
        if recipe.high:
            yield _best_within(report, restored, low)
        plan = "The recipe" if recipe.high else f"Full {low}"
        yield from (Line(HOLDS, sentence) for sentence in holds_on(answer, text, plan))
        if answer.around_fp16 is not None and not recipe.high:
            yield Line(HOLDS, _with_fp16_around(report, answer.around_fp16, rule))
        return
    yield line_of(FAILS, f"full {low} {_miss(report, rule, full, threshold, figure)}")
    yield from counted_lines(report, rule, "full " + low)
    yield from scale_lines(network)
    yield from _base_alone(report, network, rule, nothing)
    if answer.on_engines is not None:
        for line in answer.on_engines.lines:
            yield Line(line.kind, f"ENGINE: {line.text}", line.layers)
    if not recipe.meets:
        if not answer.not_done:
            kept = f"{listed(recipe.high)} in high precision" if recipe.high else layers_high(report)
            best = f"The best plan, with {kept}, measures {restored}{_in_settings(rule, answer)}."
            within = "" if report.goal.most is None else f" within the budget of {percent(report.goal.most)}"
            yield line_of(NO_RECIPE, f"no plan tried{within} meets the {asked_for(report)}. {best}", recipe.high)
        return
    yield from _blamed(report, network, rule, findings, full)
    with_layers = f"with {means(report)} the network"
    if report.of_unchanged and recipe.high:
        with_layers = f"with {means(report)} ({listed(recipe.high, NAMED)}) the network"
    holds = [*holds_on(answer, text, with_layers)] if answer.given else [f"{with_layers} measures {restored}."]
    if answer.given and answer.held_out is None:
        holds += ["No held-out input tested it." if answer.has_held_out else "No input was held out to test it."]
    yield line_of(RECIPE, " ".join([*holds, _cost(report, answer, rule)]), recipe.high)
    if report.goal.most is not None:
        yield _best_within(report, restored, low)
        return
    yield from _expensive(report, answer, rule, low)
    yield from _too_expensive(report, answer, rule, low)


def _miss(report: Report, rule: Rule, full: Trial, threshold: str, figure: str) -> str:
    if full.failed:
        return "could not be built or run."
    if rule.meets(full) and not report.goal.drop:
        return f"meets {threshold}, but misses it in another setting of the engine: {figure}"
    # The threshold of the metric is not the limit of the share, which the figure names.
    if any(_share_that_decides(report, rule, full)) and rule.metric.name in FRACTIONS:
        threshold = "the threshold"
    return f"misses {threshold}: {figure}"


def _measure(report: Report, rule: Rule, full: Trial) -> str:
    name, _ = rule.deciding(full)
    measure = FIGURES.get(report.figure, report.figure)
    found = {} if report.goal.drop else report.outputs.int8.get(name, {})
    for likeness, key in LIKENESS_KEYS.items():
        value = found.get(key)
        measure += "" if value is None else f", mean {likeness} {percent(value)}"
    share, least = _share_that_decides(report, rule, full)
    if not share:
        return measure
    if rule.metric.name in FRACTIONS:
        return f"{share} ({least})"
    return f"{measure}, decided by {share} ({least})"


def _share_that_decides(report: Report, rule: Rule, full: Trial) -> tuple[str, str]:
    """Returns the share over all inputs by which full INT8 misses, and its limit; both empty if the metric decides."""
    name, kind = ("", "") if report.goal.drop else rule.deciding(full)
    share = {
        ROWS: f"FP32's rows of '{name}'",
        CLASSES: f"the agreement of '{name}' with FP32 beyond chance",
        VARIATION: f"FP32's variation of '{name}' over the inputs",
    }.get(kind)
    if share is None:
        return "", ""
    _, of_all = full.outputs[name].pooled[kind]
    enough = f"at least {percent(1.0 - rule.missed(kind))}"
    if kind == ROWS and of_all < FEW_ROWS:
        enough = "more than half"
    return share, f"{enough} must be left"


def counted_lines(report: Report, rule: Rule, low: str) -> Iterator[Line]:
    """Yields lines on outputs of full INT8 (named ``low``) and the recipe: changed integers, lost or added rows, scores
    that are small even in FP32, and outputs that vary less than in FP32.
    """
    plans = {low: report.outputs.int8, **({"the recipe": report.outputs.recipe} if report.recipe.high else {})}
    is_doubted = report.answer is not None and any(doubt.kind == VARIES_LESS for doubt in report.answer.doubts)
    texts_of = {INTEGERS: integers_text, LENGTHS: rows_text, SCORES: low_score_text}
    texts_of |= {} if is_doubted else {VARYING: variation_text}
    for kind, text_of in texts_of.items():
        sentences = []
        for plan, outputs in plans.items():
            figures = {name: outputs.get(name, {}) for name in rule.outputs}
            if kind == VARYING:
                metric = rule.metric.name
                figures = {name: values for name, values in figures.items() if not _misses(rule, values.get(metric))}
            texts = [text_of(name, values) for name, values in figures.items()]
            sentences += [f"In {plan} {together(list(filter(None, texts)))}."] if any(texts) else []
        if sentences:
            yield line_of(kind, " ".join(sentences))


def _misses(rule: Rule, value: float | None) -> bool:
    return value is None or rule.metric.loss(value) > rule.budget


def _best_within(report: Report, restored: str, low: str) -> Line:
    cost = report.answer.cost if report.answer is not None else 0.0
    best = "a plan" if report.stopped else "the most accurate plan found"
    extra = [row.name for row in report.layers if row.name in report.recipe.added and row.put_back is not None]
    more = f" Without {listed(extra, NAMED)} in high precision it meets the {asked_for(report)} too." if extra else ""
    return line_of(
        BUDGET,
        f"{best} that gives up at most {percent(report.goal.most or 0.0)} of {low}'s speedup over {other_of(report)} "
        f"has {layers_high(report)}, measures {restored} and gives up {percent(cost)}.{more}",
        report.recipe.high,
    )


def doubt_lines(answer: AnswerFacts) -> list[Line]:
    """Returns the doubts on a plan as lines."""
    return [Line(DOUBTED, f"DOUBT: {doubt.text}", doubt.layers) for doubt in answer.doubts]


def accuracy_line(accuracy: Accuracies, low: str = "int8", *, has_recipe: bool = True) -> Line:
    """Returns the line on the accuracies of FP32, full INT8 and the recipe."""
    fp32 = accuracy.fp32
    parts = [f"FP32 {_share(fp32)}"]
    plans = {f"full {low.upper()}": accuracy.int8, **({"the recipe": accuracy.recipe} if has_recipe else {})}
    for name, value in plans.items():
        ratio = ""
        # A negative accuracy has no such ratio.
        if value is not None and fp32 and value >= 0.0 < fp32:
            ratio = f" ({percent(value / fp32)} of FP32's)"
        parts.append(f"{name} {_share(value)}{ratio}")
    names = dict.fromkeys(name for figures in accuracy.also.values() for name in figures)
    also = [f" {name}: {', '.join(f'{k} {_share(v.get(name))}' for k, v in accuracy.also.items())}." for name in names]
    return line_of(ACCURACY, f"{', '.join(parts)}.{''.join(also)}")


def _share(value: float | None) -> str:
    return "not measured" if value is None else figure_text(ACCURACY, value)


def _plan_texts(report: Report) -> Iterator[str]:
    for (_, value), (_, by_input) in zip(report.figures.items(), report.by_input.items(), strict=True):
        figure = "no figure (not finite or not measured)" if value is None else report.text(value)
        yield figure if report.goal.drop else figure + over_inputs(by_input, value, report.text)


def _in_settings(rule: Rule, answer: AnswerFacts) -> str:
    deciding = {name: answer.settings[name] for name in DECIDING if name in answer.settings}
    missing = {name: _figure(value, rule.text) for name, value in deciding.items() if _misses(rule, value)}
    if len(missing) == len(deciding):
        return ""
    return f", but {' and '.join(f'{figure} with {name}' for name, figure in missing.items())}"


def _other_ranges(report: Report, answer: AnswerFacts, low: str) -> Iterator[Line]:
    if answer.on_engines is not None or report.goal.drop:
        return  # the calibrators were tried in the emulation, or not by the accuracy that decides
    first = answer.calibrators[0] if answer.calibrators else None
    if first is not None and not first.chosen and not first.meets:
        figure = _figure(first.similarity, report.text)
        if answer.is_bound(first):
            figure += " or worse"
        misses = f"misses the threshold ({figure}): use the recipe's scales."
        yield Line(RANGES, f"SCALES: with calibrator {first.calibrator} full {low} {misses}")


def _base_alone(report: Report, network: Network, rule: Rule, nothing: Trial) -> Iterator[Line]:
    accuracy, measured = report.accuracy, ""
    if report.goal.drop:
        if accuracy is not None and accuracy.base is not None and accuracy.base < (accuracy.least or 0.0):
            measured = report.text(accuracy.base)
    elif base_misses(network, rule, nothing):
        value = rule.similarity(nothing)
        figure = "no figure (not finite)" if value is None else rule.text(value)
        measured = f"{figure} on the worst input"
    if measured:
        names = "" if network.has_pairs else f"'trt-bisect run --low {network.base}' names the layers; "
        if report.base_high:
            names = f"With {listed(report.base_high, NAMED)} in FP32 full {network.low.title} meets it; "
        yield line_of(
            BASE,
            f"{str(network.base).upper()} alone misses the {asked_for(report)}: with no layer in "
            f"{network.low.title} the network measures {measured}. {names}--base fp32 avoids it.",
            report.base_high,
        )


def _blamed(report: Report, network: Network, rule: Rule, findings: Findings, full: Trial) -> Iterator[Line]:
    recipe, low = report.recipe, network.low.title
    if report.culprits:
        yield Line(CULPRITS, _culprits(report, rule, full), report.culprits)
    if recipe.untested:
        also = f"the run did not test if {listed(recipe.untested, NAMED)} must stay in high precision too"
        yield line_of(UNTESTED, f"{also}: {_why_untested(report)}.", recipe.untested)
    if recipe.faster:
        them = "them" if len(recipe.faster) > 1 else "it"
        why = f"the engine is predicted to be slower with {them} in {low}, as the types of tensors change more often"
        yield line_of(FASTER, f"{listed(recipe.faster, NAMED)} also in high precision: {why}.", recipe.faster)
    judged = {row.name for row in report.layers if row.put_back is not None}
    unbuilt = [name for name in recipe.added if name not in recipe.untested and name not in judged]
    if unbuilt:
        yield line_of(UNJUDGED, f"no engine with {listed(unbuilt, NAMED)} in {low} could be measured.", unbuilt)
    if report.culprits and not report.ranges.curve and _accumulates(rule, findings) and not rule.only_varies_less(full):
        yield line_of(SPREAD, _largest_steps(network, rule, findings))


def _why_untested(report: Report) -> str:
    if report.stopped:
        return "the run was stopped before"
    if report.answer is not None and report.answer.not_done:
        return "the run goes on"
    on_engines = None if report.answer is None else report.answer.on_engines
    if on_engines is not None:
        grown = any(line.kind == DIFFUSE for line in on_engines.lines)
        place = "the engine's loss has no single place" if grown else "they are high for new inputs, which lose more"
        return f"each of them takes an engine, and {place}"
    return "the inferences that --effort allows were taken"


def _culprits(report: Report, rule: Rule, full: Trial) -> str:
    (main, weak), parts = report.ranked_culprits, []
    if main:
        goal = "accuracy" if report.goal.drop else "threshold"
        put_back = _put_back(main, report)
        _, least = _share_that_decides(report, rule, full)
        if not least or rule.metric.name not in FRACTIONS:
            least = f"{goal} {least_text(report)}"
        kind = "CULPRITS" if len(main) > 1 else "CULPRIT"
        parts.append(f"{kind}{report.of_unchanged}: {put_back} ({least}).")
    if weak:
        kind = "Weak culprits" if len(weak) > 1 else "Weak culprit"
        if not main:
            kind = f"{kind.upper()}{report.of_unchanged}"
        parts.append(f"{kind}: {_put_back(weak, report)}, which {_missed_by_weak(report, rule)}.")
    return " ".join(parts)


def _put_back(rows: Sequence[LayerRow], report: Report) -> str:
    figures = [report.put_back_text(row) if row.put_back is not None else "no figure" for row in rows[:NAMED]]
    named = f"{listed([row.name for row in rows], NAMED)}. "
    if any(row.reference for row in rows):
        named += f"In the reference: {listed([row.reference or row.name for row in rows], NAMED)}. "
    return f"{named}{report.put_back_title}: {', '.join(figures)}"


def _missed_by_weak(report: Report, rule: Rule) -> str:
    answer, (_, weak) = report.answer, report.ranked_culprits
    only_margin = [not _misses(rule, row.put_back) for row in weak]
    noise = "misses the threshold by less than the noise"
    if answer is None or not any(only_margin):
        return noise
    least = threshold_text(rule.metric.name, rule.metric.value(rule.budget * (1.0 - answer.margin)))
    reserve = f"misses only the recipe's margin ({least} on all of your inputs)"
    if not answer.margin:
        reserve = "still meets the threshold: high for a smaller mean loss"
    return reserve if all(only_margin) else f"{noise}, or {reserve}"


def _cost(report: Report, answer: AnswerFacts, rule: Rule) -> str:
    speed, subject = f"It {_speed(report, answer.cost)}", _subject(report)
    if answer.unchanged is not None:
        speed += f"; without changes of the network a recipe {speed_of(report, answer.unchanged.cost)}"
    figures, name, option = answer.in_fp16, "FP16", "mixed"
    if answer.in_fp32 is not None:
        figures, name, option = answer.in_fp32, "FP32", "fp32"
    if figures is None:
        return f"{speed}."
    layers = "layer" if len(figures.high) == 1 else f"{len(figures.high)} layers"
    words = (
        f"{speed}. With the {layers} in {name} ('--precision {option}') it {speed_of(report, figures.cost)}, "
        f"and {subject} measures {_other_figure(report, figures, rule, low=name.lower())}."
    )
    return words if answer.around_fp16 is None else f"{words} {_with_fp16_around(report, answer.around_fp16, rule)}"


def _with_fp16_around(report: Report, around: PlanFigures, rule: Rule) -> str:
    measures = f"{_subject(report)} measures {_other_figure(report, around, rule)}"
    return f"If all layers not in {report.low.upper()} run in FP16 ('--base fp16'), as in most engines, {measures}."


def _speed(report: Report, cost: float) -> str:
    times = {choice.plan: choice.ms for choice in report.choices if choice.ms is not None}
    if not {FP16, RECIPE_PLAN, INT8} <= times.keys():
        return f"{kept_speed(cost, Precision(report.low))} {costs_from(report.goal.costs)}"
    figures = f"{times[RECIPE_PLAN]:.3g} ms, FP16 {times[FP16]:.3g} ms, {report.low.upper()} {times[INT8]:.3g} ms"
    return f"takes {figures}{times_from(report, figures)}"


def _subject(report: Report) -> str:
    by_input = report.by_input.recipe
    return "the network" if by_input is None or by_input.together else "the worst input"


def _other_figure(report: Report, figures: PlanFigures, rule: Rule, low: str = "fp16") -> str:
    figure = _figure(figures.similarity, rule.text)
    if figures.meets:
        return figure
    fp16 = choice_of(FP16, report.choices)
    # Where FP16 passes alone, INT8 and FP16 miss only together: '--low fp16' has no layer to name.
    names_layers = low == "fp16" and fp16 is not None and fp16.meets is False
    names = " ('--low fp16' names the layers)" if names_layers else ""
    return f"{figure}, which misses the threshold{names}"


def _expensive(report: Report, answer: AnswerFacts, rule: Rule, low: str) -> Iterator[Line]:
    expensive, sentences = answer.expensive, []
    if not no_gain(report) and 0 < len(expensive) < len(report.recipe.high):
        times, end = report.predicted_ms, "given up"
        costs = [min(sum(layer.cost for layer in expensive), answer.cost), answer.cost]
        share, whole = map(percent, costs)
        if times is not None:
            share, whole = (f"{cost * times[1]:.2g} ms" for cost in costs)
            end = f"that the recipe takes longer than full {low}"
        part = "nearly all" if share == whole else share
        cause = "causes" if len(expensive) == 1 else "cause"
        sentences.append(f"{listed([layer.name for layer in expensive])} {cause} {part} of the {whole} {end}.")
    needed = _needed(answer, rule)
    if needed:
        which, pronoun = ("either layer", "both layers") if len(needed) > 1 else (listed([*needed]), "it")
        sentences.append(
            f"With {which} in {low} the network misses the threshold even if every other layer is in high precision "
            f"({', '.join(map(rule.text, needed.values()))}): with these scales every recipe must keep {pronoun}."
        )
    if sentences:
        yield line_of(COST, " ".join(sentences), [layer.name for layer in expensive])


def _needed(answer: AnswerFacts, rule: Rule) -> dict[str, float]:
    figures = {layer.name: layer.alone for layer in answer.expensive if layer.alone is not None}
    return {name: value for name, value in figures.items() if _misses(rule, value)}


def holds_on(answer: AnswerFacts, text: Callable[[float], str], plan: str) -> Iterator[str]:
    """Yields a sentence, if inputs were judged, on how many of them ``plan`` passes; ``text`` writes a similarity."""
    parts = [
        f"{held.holds} of {held.inputs} {inputs} (worst {_figure(held.worst, text)})"
        for held, inputs in ((answer.given, "of your inputs"), (answer.held_out, "held-out inputs"))
        if held is not None
    ]
    if parts:
        yield f"{plan} passes on {' and on '.join(parts)}."


_MISSED = {
    "": ("missed", "miss", "without a miss"),
    BY_CLASS: ("got another class than in FP32", "do", "without a change"),
    BY_AGREEMENT: ("differed from FP32 more than the task allows", "do", "without a difference"),
}


def bound_line(bound: Bound) -> Line:
    """Returns the line on the upper bound of the share of similar inputs that miss the threshold, rounded up to two
    digits.
    """
    digits = 1 - math.floor(math.log10(bound.most))
    most = percent(math.ceil(round(bound.most * 10**digits, 9)) / 10**digits)
    did, do, without = _MISSED[bound.by]
    more = ""
    if bound.next is not None and bound.more is not None:
        count, lower = bound.inputs + bound.more, percent(bound.next)
        more = f" ({count} {without} would prove {lower})"
        if bound.missed:
            more = f" (with {count} held-out inputs and the same miss rate the bound would be {lower})"
    missed = f"{bound.missed} of {bound.inputs} held-out inputs {did}"
    text = f"{missed}, so with {percent(bound.sure)} confidence at most {most} of similar inputs {do}{more}"
    return line_of(HELD_OUT, f"{text}.")


def _too_expensive(report: Report, answer: AnswerFacts, rule: Rule, low: str) -> Iterator[Line]:
    text, fp16, precision = report.text, choice_of(FP16, report.choices), Precision(report.low)
    for row in answer.free_ranges[:1]:
        figure = _figure(row.similarity, text)
        yield Line(RANGES, f"SCALES: with calibrator {row.calibrator} full {low} meets the threshold ({figure}).")
        return
    # Where FP16 passes, the first line of all says so.
    if answer.cost <= MOST_GIVEN_UP or (fp16 is not None and fp16.meets):
        return
    fp16_misses = ""
    if fp16 is not None and fp16.meets is False:
        fp16_misses = "FP16 misses too ('--low fp16' names its layers), and "
    if reason := no_gain(report):
        yield line_of(TOO_EXPENSIVE, f"{fp16_misses}{reason}.")
        return
    less = ", less than half" if answer.cost < 1.0 else ""
    half = f" '--budget {percent(MOST_GIVEN_UP)}' searches for the most accurate plan that keeps half."
    # Layers that every recipe must keep may leave no plan at half.
    needed = _needed(answer, rule)
    if sum(layer.cost for layer in answer.expensive if layer.name in needed) > MOST_GIVEN_UP:
        half = ""
    yield line_of(TOO_EXPENSIVE, f"{fp16_misses}the recipe {kept_speed(answer.cost, precision)}{less}.{half}")


def stopped_line(stopped: str, not_done: Sequence[str]) -> Line:
    """Returns the line on a stopped run: the reason, such as ``time limit``, and clauses on the parts left out."""
    return line_of(STOPPED, f"{_BY[stopped]}: {'; '.join(not_done)}. The same command continues from here.")


def memory_notes(trials: Iterable[Trial]) -> list[Note]:
    """Returns a note on trials that ran out of memory, if any."""
    short = [trial for trial in trials if trial.outcome == OUT_OF_MEMORY]
    if not short:
        return []
    message = short[0].message.splitlines()[0] if short[0].message else "no message"
    plans = counted(len(short), "plan")
    return [Note(MEMORY, f"{plans} ran out of memory and could not be judged; the same command tries again: {message}")]


def _accumulates(rule: Rule, findings: Findings) -> bool:
    misses = findings.full is None or findings.full > rule.budget
    # NaN, of a step that could not be measured, is no small step.
    return bool(findings.steps) and misses and all(step.drop < rule.step for step in findings.steps)


def _largest_steps(network: Network, rule: Rule, findings: Findings) -> str:
    steps = sorted((step for step in findings.steps if step.drop > 0), key=lambda step: -step.drop)
    largest = []
    for step in steps[:LARGEST_STEPS]:
        first, last = (network.layers[step.layers[end]].name for end in (0, -1))
        span = first if len(step.layers) == 1 else f"{first} to {last} together"
        largest.append(f"{span} ({rule.loss_text(step.drop)})")
    return (
        f"no single layer loses {rule.loss_text(rule.step)} or more on the curve, and the threshold allows "
        f"{rule.loss_text(rule.budget)}: the loss accumulates over many layers. The largest steps of the curve are "
        f"{', '.join(largest)}."
    )
