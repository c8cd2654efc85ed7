"""Metrics of the difference between an output and FP32's, and their values and losses as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from trt_bisect.data.named import code_digest, load_function
from trt_bisect.errors import BadInput
from trt_bisect.precision import Precision
from trt_bisect.support.table import FIGURE, LOSS
from trt_bisect.support.text import percent

EXACT_SQNR = 400.0
"""The SQNR of equal outputs in dB."""

RELATIVE = ("cosine", "sqnr", "centered_sqnr", "max_rel")
"""The metrics without a meaning for an output that is almost zero."""


@dataclass(frozen=True)
class Metric:
    """A figure of an output compared with the FP32 output.

    Attributes:
        perfect: the figure of equal outputs; None for a user's function that was not measured yet.
        loss_of: returns the loss, from a figure and ``perfect``: 0 is perfect, and losses can be added.
        of_sums: returns the figure from ``Sums``; None if sums are not enough.
        function: the user's function, of reference and output for one input, float64 ``[rows, last axis]`` each.
        code: a digest of the user's function, so that figures of another are never reused; else empty.
        says_order: false for a user's function that does not set ``higher_is_better``.
    """

    name: str
    perfect: float | None
    loss_of: Callable[[float, float], float]
    of_sums: Callable[[Sums], float] | None = None
    function: Callable[[np.ndarray, np.ndarray], float] | None = None
    code: str = ""
    says_order: bool = True

    @property
    def higher(self) -> bool:
        """True if higher figures are better."""
        return self.loss_of(0.0, 1.0) > self.loss_of(1.0, 0.0)

    @property
    def jumps(self) -> bool:
        """True if figures may change in steps, not gradually, as top-1's and a user's function's do."""
        return self.name in ("top1", "agreement") or bool(self.code)

    @property
    def unlike(self) -> float:
        """The figure of an output that has nothing in common with FP32's; it misses every threshold."""
        if self.name in FRACTIONS:
            return 0.0
        if self.loss_of is _noise_ratio:
            return -EXACT_SQNR
        return -math.inf if self.higher else math.inf

    def worst(self, figures: Iterable[float]) -> float:
        """Returns the worst figure; NaN if any figure is NaN."""
        values = list(figures)
        if any(map(math.isnan, values)):
            return math.nan
        return min(values) if self.higher else max(values)

    def loss(self, value: float) -> float:
        """Returns the loss of a figure; infinity for NaN. Raises ValueError if ``perfect`` is not known."""
        return math.inf if math.isnan(value) else self.loss_of(value, self._known_perfect)

    def value(self, loss: float) -> float:
        """Returns the figure of a finite loss; raises ValueError if ``perfect`` is not known."""
        perfect = self._known_perfect
        if self.loss_of is _noise_ratio and loss > 0.0:
            return min(perfect, -10.0 * math.log10(loss))
        return perfect - loss if self.higher else perfect + loss

    @property
    def _known_perfect(self) -> float:
        if self.perfect is None:
            raise ValueError(f"the perfect value of metric '{self.name}' is not known")
        return self.perfect

    def knowing_perfect(self, *references: np.ndarray) -> Metric:
        """Returns this metric with ``perfect`` set: for a user's function, the worst figure of one of FP32's outputs
        (``references``) against itself.

        Raises:
            BadInput: a figure is NaN; or a function without ``higher_is_better`` looks like a distance.
        """
        if self.perfect is not None:
            return self
        figure = self.function
        assert figure is not None
        perfect = self.worst(figure(reference, reference) for reference in references)
        is_distance = perfect == 0.0 and any(
            figure(each, each + 1.0) > 0.0 and figure(each, each - 1.0) > 0.0 for each in references
        )
        if is_distance and not self.says_order:
            raise BadInput(
                f"The metric '{self.name}' is 0 for equal outputs and more for others, but higher counts as better.",
                "Set 'higher_is_better = False' on the function; True, if higher figures are better all the same.",
            )
        if math.isnan(perfect):
            raise BadInput(
                f"The metric '{self.name}' gives NaN for an output of FP32 against itself.",
                "Make it return a number for every input, or leave out that input or output.",
            )
        return replace(self, perfect=perfect)

    def facts(self) -> dict[str, Any]:
        """Returns JSON types from which ``metric_of_facts`` makes the metric again."""
        perfect = None if self.perfect is None else repr(self.perfect)
        return {"name": self.name, "perfect": perfect, "higher": self.loss_of is _below, "own": bool(self.code)}


@dataclass(frozen=True)
class Sums:
    """Sums over the values r of the FP32 output and o of the output.

    Attributes:
        signal: of r^2.
        power: of o^2.
        product: of r o.
        noise: of (r - o)^2.
        distance: of |r - o|.
        largest: the largest |r - o|.
        relative: the largest |r - o| / |r|, where |r| counts as a millionth of the largest |r| or more.
        centered: of (r - mean of r)^2; NaN if not computed.
    """

    size: int
    signal: float
    power: float
    product: float
    noise: float
    distance: float
    largest: float
    relative: float
    centered: float = math.nan


class RunningSums:
    """Adds up ``Sums`` block by block, for one group (a tensor) or several (a weight's channels).

    Args:
        magnitudes: false leaves ``distance``, ``largest`` and ``relative`` at 0.
    """

    def __init__(self, groups: int = 1, *, magnitudes: bool = True) -> None:
        self._sums = np.zeros((6, groups))
        self._largest = np.zeros((2, groups))
        self._magnitudes = magnitudes

    def add(
        self, reference: np.ndarray, output: np.ndarray, least: float | np.ndarray, size: int | np.ndarray | None = None
    ) -> None:
        """Adds values of FP32 and of the other run, float64 ``[groups, values]``, all finite.

        Args:
            least: the least divisor of relative errors, or one for each group ``[groups, 1]``.
            size: the number of values that count, by group, if both runs are padded with zeros; default: all.
        """
        error = reference - output
        pairs = ((reference, reference), (output, output), (reference, output), (error, error))
        # BLAS is not used: its threads cost more than they save here.
        products = [np.einsum("gv,gv->g", a, b) for a, b in pairs]
        count = error.shape[1] if size is None else size
        *several, distance = self._sums
        for sums, more in zip(several, (count, *products), strict=True):
            sums += more
        if not self._magnitudes:
            return
        error = np.abs(error, out=error)
        distance += np.add.reduce(error, axis=1)
        largest, relative = self._largest
        np.maximum(largest, np.maximum.reduce(error, axis=1), out=largest)
        np.divide(error, np.maximum(np.abs(reference), least), out=error)
        np.maximum(relative, np.maximum.reduce(error, axis=1), out=relative)

    def merge(self, other: RunningSums) -> None:
        """Adds the sums of other values of the same groups."""
        self._sums += other._sums
        self._largest = np.maximum(self._largest, other._largest)

    def of(self, group: int = 0, centered: float = math.nan) -> Sums:
        """Returns the sums of the group with this index; ``centered`` becomes ``Sums.centered``."""
        figures: list[float] = [*self._sums[:, group], *self._largest[:, group], centered]
        return Sums(int(figures[0]), *map(float, figures[1:]))


def least_divisor(largest: float | np.ndarray) -> np.ndarray:
    """Returns the least divisor of a relative error: a millionth of the largest magnitude."""
    return np.maximum(1e-6 * largest, float(np.finfo(np.float32).tiny))


def cosine(sums: Sums) -> float:
    """Returns the cosine similarity: exactly 1 for equal arrays, 0 if one array is zero; of a single value 1 - |r - o|
    / max(|r|, |o|).
    """
    if sums.noise == 0.0:
        return 1.0
    if sums.size == 1:
        return 1.0 - math.sqrt(sums.noise / max(sums.signal, sums.power))
    norms = math.sqrt(sums.signal) * math.sqrt(sums.power)
    return min(1.0, max(-1.0, sums.product / norms)) if norms else 0.0


def mse(sums: Sums) -> float:
    """Returns the mean squared error."""
    return sums.noise / sums.size


def l1(sums: Sums) -> float:
    """Returns the mean absolute error."""
    return sums.distance / sums.size


def sqnr(sums: Sums) -> float:
    """Returns the SQNR in dB: 10 log10(signal / noise), at most 400."""
    return decibels(sums.signal, sums.noise)


def centered_sqnr(sums: Sums) -> float:
    """Returns the SQNR in dB without the reference's mean in the signal; of a single value, the SQNR."""
    return decibels(sums.signal if sums.size == 1 else sums.centered, sums.noise)


def decibels(signal: float, noise: float) -> float:
    """Returns 10 log10(signal / noise), clipped to -400..400."""
    if noise == 0.0:
        return EXACT_SQNR
    if signal == 0.0:
        return -EXACT_SQNR
    with np.errstate(divide="ignore"):
        return float(np.clip(10.0 * np.log10(signal / noise), -EXACT_SQNR, EXACT_SQNR))


def _below(value: float, perfect: float) -> float:
    return max(0.0, perfect - value)


def _above(value: float, perfect: float) -> float:
    return max(0.0, value - perfect)


def _noise_ratio(decibels: float, perfect: float) -> float:
    # Unlike decibels, noise ratios can be added.
    return 0.0 if decibels >= perfect else float(10.0 ** (-decibels / 10.0))


BUILT_IN: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("cosine", 1.0, _below, cosine),
        Metric("sqnr", EXACT_SQNR, _noise_ratio, sqnr),
        Metric("centered_sqnr", EXACT_SQNR, _noise_ratio, centered_sqnr),
        Metric("mse", 0.0, _above, mse),
        Metric("l1", 0.0, _above, l1),
        Metric("kl", 0.0, _above),
        Metric("max_abs", 0.0, _above, attrgetter("largest")),
        Metric("max_rel", 0.0, _above, attrgetter("relative")),
        Metric("top1", 1.0, _below),
    )
}
OF_MAGNITUDES = ("l1", "max_abs", "max_rel")
AGREEMENT = Metric("agreement", 1.0, _below)
"""The share of a task's findings that agree with FP32's."""
EQUAL = Metric("equal", 1.0, _below)
"""The share of elements of an integer output that equal FP32's."""
ALL_EQUAL, KAPPA = "equal_in_all", "kappa"
"""An integer output's figures over all inputs: share of equal elements, and Cohen's kappa."""
JUDGING = {**BUILT_IN, AGREEMENT.name: AGREEMENT, EQUAL.name: EQUAL}
"""The package's metrics that can decide if a plan passes."""
FRACTIONS = ("cosine", "top1", "agreement", "equal")
"""The metrics whose figures are fractions of 1."""
DEFAULT_THRESHOLDS = {**dict.fromkeys(FRACTIONS, 0.99), "sqnr": 20.0, "centered_sqnr": 20.0, "kl": 0.01, "max_rel": 0.1}

# By low precision, the thresholds that differ from INT8's; docs/precisions.md says why.
_FINER_THRESHOLDS: Mapping[Precision, Mapping[str, float]] = {
    Precision.FP16: {"cosine": 0.9999, "sqnr": 40.0, "centered_sqnr": 40.0, "kl": 0.0001, "max_rel": 0.01},
    Precision.BF16: {"cosine": 0.999, "sqnr": 30.0, "centered_sqnr": 30.0, "kl": 0.001, "max_rel": 0.05},
}


def default_threshold(metric: str, low: Precision = Precision.INT8) -> float | None:
    """Returns a metric's default threshold for a low precision; None if the metric has none."""
    return _FINER_THRESHOLDS.get(low, {}).get(metric, DEFAULT_THRESHOLDS.get(metric))


def find_metric(name: str | Callable[..., Any]) -> Metric:
    """Returns a built-in metric, or a metric of the user's function.

    Args:
        name: a built-in metric, ``module:function``, or a function that returns a number from reference and output,
            float64 ``[rows, last axis]`` of one output for one input. Higher is better unless its attribute
            ``higher_is_better`` is False.

    Raises:
        BadInput: there is no such metric or function.
    """
    if not isinstance(name, str):
        # A function named like a built-in figure is called module:function.
        label = getattr(name, "__name__", "metric")
        if label in (*JUDGING, ACCURACY):
            label = f"{name.__module__}:{label}"
        return _user_metric(label, name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" in name:
        return _user_metric(name, load_function(name, "metric"))
    raise BadInput(f"There is no metric '{name}'.", f"Use one of {', '.join(BUILT_IN)}, or your own module:function.")


def metric_of_facts(facts: Mapping[str, Any]) -> Metric:
    """Returns the metric whose ``facts()`` are ``facts``, to judge an earlier run's figures; raises KeyError, TypeError
    or ValueError for other facts.
    """
    if not facts["own"]:
        return JUDGING[facts["name"]]

    def unknown(*_: np.ndarray) -> float:
        raise BadInput(
            f"The metric '{facts['name']}' can judge earlier figures but cannot measure new ones.", "Give its function."
        )

    perfect = None if facts["perfect"] is None else float(facts["perfect"])
    return Metric(facts["name"], perfect, _below if facts["higher"] else _above, function=unknown)


def _user_metric(label: str, function: Callable[..., Any]) -> Metric:
    def figure(reference: np.ndarray, output: np.ndarray) -> float:
        try:
            return float(function(reference, output))
        except Exception as error:
            raise BadInput(
                f"The metric '{label}' failed: {type(error).__name__}: {error}",
                "The function gets two float64 arrays, reference and output, and must return a number.",
            ) from error

    order = getattr(function, "higher_is_better", None)
    higher = order is not False
    code = code_digest(function, label, higher)
    loss_of = _below if higher else _above
    return Metric(label, None, loss_of, function=figure, code=code, says_order=order is not None)


ACCURACY = "accuracy"
_IN_DECIBELS = ("sqnr", "centered_sqnr")


def _is_share(metric: str, value: float) -> bool:
    # The accuracy by the user's own function need not be a share.
    return metric in FRACTIONS or (metric == ACCURACY and 0.0 <= value <= 1.0)


def figure_text(metric: str, value: float | None, threshold: float | None = None) -> str:
    """Returns a metric's value as text, ``-`` for None; rounding never moves a percentage across ``threshold``."""
    if value is None:
        return "-"
    if _is_share(metric, value):
        return percent(value, threshold)
    if metric == KAPPA:
        return f"{value:.2f}"
    return f"{value:.2f} dB" if metric in _IN_DECIBELS else f"{value:.6g}"


def threshold_text(metric: str, value: float) -> str:
    """Returns a threshold with all its digits: ``99.5%``, ``99.99985%``."""
    if not _is_share(metric, value):
        return figure_text(metric, value)
    left = abs(1.0 - value)
    decimals = max(4, -math.floor(math.log10(left))) if left else 4
    return f"{round(100 * value, decimals):.12g}%"


def loss_text(metric: str, loss: float | None) -> str:
    """Returns a loss as text; ``-`` for None."""
    if loss is None:
        return "-"
    return percent(loss) if _is_share(metric, loss) else f"{loss:.3g}"


def metric_texts(metric: str, threshold: float | None = None) -> Mapping[str, Callable[[Any], str]]:
    """Returns, by kind of table column, the functions that format a metric's figures (``FIGURE``; never rounded across
    ``threshold``) and losses (``LOSS``).
    """
    return {FIGURE: partial(figure_text, metric, threshold=threshold), LOSS: partial(loss_text, metric)}
