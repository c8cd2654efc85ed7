"""Words that all surfaces of a report share: headline, recipe in short, layers as named in the user's program."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from trt_bisect.analyzer.judge import ByInput
from trt_bisect.analyzer.metrics import ACCURACY, JUDGING, figure_text, threshold_text
from trt_bisect.recipe.commands import Command
from trt_bisect.report.answer import OWN
from trt_bisect.report.choices import ships_fp16
from trt_bisect.report.parts import PASSES, UNMEASURED, WITH_DOUBTS, LayerRow
from trt_bisect.support.text import counted, together

if TYPE_CHECKING:
    from trt_bisect.report.model import Report

NO_RECIPE = "no recipe"
"""The kind of the line that says that no plan tried meets the threshold."""
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
    "equal": "share of elements that equal FP32's",
    ACCURACY: "accuracy on the labelled data",
}


def asked_for(report: Report) -> str:
    """Returns the name of the goal of a plan: ``accuracy target`` or ``threshold``."""
    return "accuracy target" if report.goal.drop else "threshold"


def least_text(report: Report) -> str:
    """Returns the worst acceptable figure as text."""
    return "-" if report.least is None else threshold_text(report.figure, report.least)


def kept_in(report: Report) -> str:
    """Returns the precisions of the layers that the recipe keeps in high precision: ``FP16 and FP32``; without such
    layers, the usual one.
    """
    high = set(report.recipe.high)
    kinds = {(row.recipe or report.precision).upper() for row in report.layers if row.name in high}
    return " and ".join(sorted(kinds)) or report.precision.upper()


def layers_high(report: Report) -> str:
    """Returns the number and the precision of the layers that the recipe keeps in high precision: ``2 layers in
    FP32``; ``2 other layers in FP32`` if the user fixed layers there.
    """
    count = len(report.recipe.high)
    fixed = any(row.fixed not in ("", report.low) for row in report.layers)
    layer = "other layer" if fixed else "layer"
    return f"{counted(count, layer)} in {kept_in(report)}" if count else f"no {layer} in high precision"


def put_back_remark(report: Report, row: LayerRow) -> str:
    """Returns the words that follow the recipe's figure with a layer in INT8: ``or worse`` if not all inputs were run,
    and the setting if it is not the usual one.
    """
    given = None if report.answer is None else report.answer.given
    part = given is not None and row.put_back_on is not None and row.put_back_on < given.inputs
    setting = "" if row.put_back_in in ("", OWN) else f" with {row.put_back_in}"
    return f"{' or worse' if part else ''}{setting}"


def means(report: Report) -> str:
    """Returns the recipe in short: changes of the network, and layers in high precision."""
    changes = report.answer.changes if report.answer is not None else ""
    return together([*filter(None, [changes]), layers_high(report)])


def over_inputs(figures: ByInput | None, figure: float | None, text: Callable[[float], str]) -> str:
    """Returns the words after ``figure`` (None: not finite or not measured): how many inputs miss, and whether it is
    the worst input's or pooled over all.

    ``figures``: the figures by input; None for one input, which gives no words. ``text`` formats a figure.
    """
    if figures is None:
        return ""
    misses = "1 fails" if figures.misses == 1 else f"{figures.misses} fail"
    if not figures.misses:
        misses = "all pass"
    value = None if figures.worst is None else figures.values[figures.worst]
    # A figure that the worst input lacks, such as the share of common rows, is of all inputs.
    counted_over_all = None not in (figure, value) and not math.isclose(figure or 0.0, value or 0.0, rel_tol=1e-6)
    if figures.together or counted_over_all:
        worst = "" if value is None else f"worst input {text(value)}; "
        more = f"; invents something on {figures.invented} more" if figures.invented else ""
        return f" pooled over {counted(figures.inputs, 'input')} ({worst}{misses}{more})"
    mean = "" if figures.mean is None else f"mean {text(figures.mean)}, "
    return f" on the worst of {figures.inputs} inputs ({mean}{misses})"


def headline(report: Report, status: str = "finished") -> str:
    """Returns the verdict in a sentence; for ``running`` or ``interrupted`` (``status``), the progress."""
    verdict, threshold = report.verdict, least_text(report)
    begin, so_far = "Interrupted", "Interrupted"
    if status == "running":
        begin, so_far = "Measuring", "Still running"
    if status != "finished" and report.answer is not None:
        return f"{so_far}. So far: {headline(report)}"
    if status != "finished":
        tried = [row for row in report.layers if row.quantizable]
        judged = f"{sum(row.outcome != 'not tried' for row in tried)} of {len(tried)} layers judged"
        suspects = counted(sum(bool(row.suspect) for row in report.layers), "suspect")
        return f"{begin}: {judged}, {suspects} so far."
    if verdict == UNMEASURED and report.stopped:
        return f"Stopped before full {report.low.upper()} was measured on all inputs."
    if verdict == UNMEASURED:
        return "Nothing could be measured: no engine could be built and run."
    full = f"Full {report.low.upper()}"
    if report.inputs.part:
        full += " of the part that was judged"
    if ships_fp16(report):
        full = f"Ship FP16. {full}"
    if verdict == PASSES:
        return f"{full} passes: it meets {threshold}."
    if verdict == WITH_DOUBTS:
        return f"{full} passes, but doubtful: it meets {threshold}, and the doubts speak against it."
    misses = "gives no figure" if report.figures.int8 is None else f"misses {threshold}"
    if report.recipe.meets:
        restore = "restores" if means(report).startswith(("1 layer", "1 other layer")) else "restore"
        cure = f"{means(report)} {restore} it"
    else:
        cure = "no recipe is known yet" if _is_unfinished(report) else "no plan tried meets it"
    return f"{full} {verdict}: it {misses}; {_blame(report)}, and {cure}."


def _blame(report: Report) -> str:
    if len(report.culprits) == 1:
        return f"'{report.culprits[0]}'{report.of_unchanged} is to blame"
    main, weak = report.ranked_culprits
    if main and weak:
        who = f"'{main[0].name}'" if len(main) == 1 else f"{len(main)} layers"
        return f"{who} and {counted(len(weak), 'weak culprit')}{report.of_unchanged} are to blame"
    if report.culprits:
        return f"{len(report.culprits)} layers{report.of_unchanged} are to blame"
    return "the culprits are not known yet" if _is_unfinished(report) else "no single layer is to blame"


def _is_unfinished(report: Report) -> bool:
    stopped = bool(report.stopped) or (report.answer is not None and bool(report.answer.not_done))
    return stopped and not any(line.kind == NO_RECIPE for line in report.lines)


def fragile(report: Report) -> tuple[str, ...]:
    """Returns clauses on facts that could reverse the verdict on a recipe that passes; else empty."""
    answer, metric = report.answer, JUDGING.get(report.metric)
    if answer is None or not report.recipe.meets:
        return ()
    clauses = ["noise could reverse the verdict"] if answer.close else []
    if metric is None:
        return tuple(clauses)
    for name, value in answer.settings.items():
        if value is None or metric.loss(value) > metric.loss(report.threshold):
            figure = figure_text(report.metric, value, report.threshold)
            clauses.append(f"with {name} the network misses the threshold ({figure})")
    return tuple(clauses)


_Tree = TypeVar("_Tree")
_WORD = re.compile(r"[^\s'\",;()]*[^\s'\",;().:]")
# Fields without names of layers, or with names from the file.
_AS_THEY_ARE = ("code", "command", "commands", "made_of", "model", "module", "reference")


def titles_in(rows: tuple[LayerRow, ...]) -> dict[str, str]:
    """Returns by layer its name in the user's program, if it differs."""
    return {row.name: row.title for row in rows if row.title not in ("", row.name)}


def titled(tree: _Tree, titles: Mapping[str, str]) -> _Tree:
    """Replaces the names of layers by titles in dataclasses, mappings and sequences: as whole texts and as words of
    texts.

    A row keeps the old name as ``node``.
    """
    if not titles:
        return tree
    named: _Tree = _titled(tree, titles)
    return named


def _titled(tree: Any, titles: Mapping[str, str]) -> Any:
    if isinstance(tree, str):
        return titles[tree] if tree in titles else _WORD.sub(lambda word: titles.get(word[0], word[0]), tree)
    if isinstance(tree, Mapping):
        return {_titled(key, titles): _titled(value, titles) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_titled(each, titles) for each in tree)
    if not is_dataclass(tree) or isinstance(tree, (type, Command)):
        return tree
    changed = {}
    for field in fields(tree):
        value = getattr(tree, field.name)
        new = value if field.name in _AS_THEY_ARE else _titled(value, titles)
        if new is not value:
            changed[field.name] = new
    if isinstance(tree, LayerRow) and tree.name in titles:
        changed |= {"title": "", "node": tree.name}
    return replace(tree, **changed) if changed else tree
