"""The outputs that are judged, and the rule that judges them, from the options and the FP32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from trt_bisect.analyzer.compare_output import finite_rows
from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule, make_rule, numeric_outputs, outputs_to_judge
from trt_bisect.analyzer.metrics import AGREEMENT, RELATIVE, Metric, find_metric
from trt_bisect.analyzer.slices import Slices, find_slices
from trt_bisect.analyzer.tasks.find import find_task, suggestion
from trt_bisect.analyzer.tasks.task import Task
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput, NothingMeasured
from trt_bisect.options.concerns import COSINE, JudgeOptions
from trt_bisect.precision import Precision


class Judgement:
    """The judgement of one network's outputs.

    Args:
        options: ask for it.
        source: the network's name, for messages.
        low: the low precision, which the metric's own threshold depends on.
    """

    def __init__(self, options: JudgeOptions, source: str, low: Precision = Precision.INT8) -> None:
        self.options = options
        self._source = source
        self._low = low

    @cached_property
    def asked_metric(self) -> Metric:
        """The metric that the options name; with a task, its agreement."""
        return AGREEMENT if self.options.task is not None else find_metric(self.options.metric)

    @property
    def threshold(self) -> float | None:
        """The worst value that is still good; None for the metric's own."""
        threshold = self.options.threshold
        return None if threshold is None else float(threshold)

    def outputs(self, outputs: Outputs) -> tuple[str, ...]:
        """The names of the outputs that are judged: those that the user names, else those that floats come out of.

        Raises:
            BadInput: one of them, or all, cannot be judged.
        """
        judged = list(self.options.outputs) or outputs_to_judge(outputs)
        useless = [name for name in judged if name not in numeric_outputs(outputs)]
        if useless or not judged:
            raise BadInput(
                f"'{self._source}' has no output that can be judged: all outputs are texts, sequences or maps.",
                "Cut the network before the nodes that make these outputs.",
            )
        return tuple(judged)

    def finite_outputs(self, reference: Sequence[Outputs]) -> tuple[str, ...]:
        """The names of the judged outputs that have a finite value in FP32, for at least one input.

        Raises:
            BadInput: an output cannot be judged.
            NothingMeasured: there are none.
        """
        judged = [
            name
            for name in self.outputs(reference[0])
            if any(not found[name].size or np.isfinite(found[name]).any() for found in reference)
        ]
        if not judged:
            raise NothingMeasured(
                f"The FP32 reference of '{self._source}' has only NaN or infinite values.",
                "Give --input with data on which FP32 itself works.",
            )
        return tuple(judged)

    def slices(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Slices:
        """The slices of these outputs, judged apart by a metric that is relative: no slice hides from another one.

        A function of the user's gets whole outputs only.
        """
        metric = self.asked_metric
        if metric.code:
            return Slices()
        return find_slices(reference, outputs, apart=metric.name in RELATIVE)

    def rule(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Rule:
        """The rule for these outputs.

        Raises:
            BadInput: the threshold does not fit the metric.
        """
        metric, entries = self.metric(outputs, reference), self.entries(outputs)
        return make_rule(metric, self.threshold, DEFAULT_SHARE, entries, self._low)

    def entries(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """The names, among the figures of a trial, of what decides: the judged outputs, or the task alone."""
        asked = self.options.asked_task()
        return outputs if asked is None else (asked.entry,)

    def task(self, reference: Sequence[Outputs]) -> Task | None:
        """The task that the options name, on these FP32 outputs; None without a task.

        Raises:
            BadInput: the outputs are not those of the task.
        """
        asked = self.options.asked_task()
        return None if asked is None else find_task(asked, self._numbers(reference))

    def checked_task(self, reference: Sequence[Outputs]) -> tuple[Task | None, list[str]]:
        """The task, and a note on how it reads the outputs; without one, a note on the task that they look like.

        Raises:
            BadInput: the outputs are not those of the task, or FP32 gives nothing to judge.
        """
        task = self.task(reference)
        if task is not None:
            task.check(reference)
            return task, [task.note]
        hint = suggestion(self._numbers(reference)) if self.options.metric == COSINE else ""
        return None, [hint] if hint else []

    def _numbers(self, reference: Sequence[Outputs]) -> list[Outputs]:
        """The outputs that hold numbers, among those that the user names, if any."""
        names = [n for n in numeric_outputs(reference[0]) if n in (self.options.outputs or reference[0])]
        return [{name: outputs[name] for name in names} for outputs in reference]

    def metric(self, outputs: tuple[str, ...], reference: Sequence[Outputs]) -> Metric:
        """The metric, knowing the worst figure of equal outputs."""
        metric = self.asked_metric
        if metric.perfect is not None:
            return metric
        judged = [found[name] for name in outputs for found in reference]
        return metric.knowing_perfect(*filter(np.size, map(finite_rows, judged)))
