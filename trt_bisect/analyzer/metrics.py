"""Metrics: how far a network's output is from the FP32 reference's."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trt_bisect.data import load_function
from trt_bisect.errors import BadInput

EXACT_SQNR = 400.0
"""The SQNR, in dB, of outputs that are equal: beyond what float32 can tell apart."""


@dataclass(frozen=True)
class Metric:
    """A figure for two arrays.

    Attributes:
        function: from reference and output, float64 of one shape ``[rows, last axis]``, to the figure.
        text: the figure for a person.
        perfect: the figure of equal outputs; None where only the reference itself can tell (a user's function).
        loss_of: from figure and perfect figure to how bad it is: 0 is perfect, and steps of it can be compared.
        code: a digest of the user's function, so that figures of another one are never taken for its own.
    """

    name: str
    function: Callable[[np.ndarray, np.ndarray], float]
    text: Callable[[float], str]
    perfect: float | None
    loss_of: Callable[[float, float], float]
    code: str = ""

    def loss(self, value: float) -> float:
        """How bad a figure is; infinite for NaN.

        Raises:
            ValueError: the perfect figure is not known yet (see ``knowing_perfect``).
        """
        if self.perfect is None:
            raise ValueError(f"the perfect value of metric '{self.name}' is not known")
        return math.inf if math.isnan(value) else self.loss_of(value, self.perfect)

    def knowing_perfect(self, reference: np.ndarray) -> Metric:
        """This metric with the figure of ``reference`` against itself as the perfect one, where it had none."""
        return self if self.perfect is not None else replace(self, perfect=self.function(reference, reference))

    def facts(self) -> dict[str, Any]:
        """What figures can be judged by without the function, in JSON's types; ``metric_of_facts`` reads it."""
        perfect = None if self.perfect is None else repr(self.perfect)
        return {"name": self.name, "perfect": perfect, "higher": self.loss_of is _below, "own": bool(self.code)}


def cosine(reference: np.ndarray, output: np.ndarray) -> float:
    """Cosine similarity of the flattened arrays; exactly 1 for equal ones, 0 if only one is zero.

    A single value has a sign but no direction: 1 less its error, relative to the larger of the two, stands for it.
    """
    if np.array_equal(reference, output):
        return 1.0
    if reference.size == 1:
        return 1.0 - max_abs(reference, output) / max(float(np.abs(reference).max()), float(np.abs(output).max()))
    norms = math.sqrt(_dot(reference, reference)) * math.sqrt(_dot(output, output))
    if norms == 0.0:
        return 0.0
    return min(1.0, max(-1.0, _dot(reference, output) / norms))


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    """The scalar product, without BLAS: its threads cost more than they save, and keep the processor busy."""
    return float(np.sum(one * other))


def mse(reference: np.ndarray, output: np.ndarray) -> float:
    """Mean squared error."""
    return float(np.mean((reference - output) ** 2))


def l1(reference: np.ndarray, output: np.ndarray) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(reference - output)))


def kl(reference: np.ndarray, output: np.ndarray) -> float:
    """Mean over rows of KL(reference || output) in nats; rows that are no probabilities go through a softmax first."""
    return max(0.0, float(np.mean(kl_of_rows(reference, output))))


def kl_of_rows(reference: np.ndarray, output: np.ndarray) -> np.ndarray:
    """KL(reference || output) of each row, in nats; rows that are no probabilities go through a softmax first."""
    p, q = _probabilities(reference), _probabilities(output)
    tiny = np.finfo(np.float64).tiny
    return np.asarray(np.sum(p * (np.log(np.maximum(p, tiny)) - np.log(np.maximum(q, 1e-12))), axis=-1))


def _probabilities(rows: np.ndarray) -> np.ndarray:
    if rows.min() >= 0 and np.allclose(rows.sum(axis=-1), 1.0, atol=1e-2):
        return rows
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sqnr(reference: np.ndarray, output: np.ndarray) -> float:
    """Signal to quantization noise ratio in dB: 10 log10(sum r^2 / sum (r - o)^2), at most ``EXACT_SQNR``."""
    return decibels(float(np.sum(reference**2)), float(np.sum((reference - output) ** 2)))


def centered_sqnr(reference: np.ndarray, output: np.ndarray) -> float:
    """SQNR with the reference's mean taken out of the signal: a large common offset does not flatter it.

    Of a single value it is the plain SQNR.
    """
    if reference.size == 1:
        return sqnr(reference, output)
    centered = reference - reference.mean()
    return decibels(float(np.sum(centered**2)), float(np.sum((reference - output) ** 2)))


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise), at most ``EXACT_SQNR`` either way."""
    if noise == 0.0:
        return EXACT_SQNR
    if signal == 0.0:
        return -EXACT_SQNR
    with np.errstate(divide="ignore"):
        return float(np.clip(10.0 * np.log10(signal / noise), -EXACT_SQNR, EXACT_SQNR))


def max_abs(reference: np.ndarray, output: np.ndarray) -> float:
    """The largest absolute error."""
    return float(np.max(np.abs(reference - output)))


def max_rel(reference: np.ndarray, output: np.ndarray) -> float:
    """The largest |r - o| / |r|, where |r| counts as at least a millionth of the largest |r|."""
    magnitudes = np.abs(reference)
    floor = max(1e-6 * float(magnitudes.max()), float(np.finfo(np.float32).tiny))
    return float(np.max(np.abs(reference - output) / np.maximum(magnitudes, floor)))


def top1(reference: np.ndarray, output: np.ndarray) -> float:
    """The share of rows whose largest value stands in the same place."""
    return float(np.mean(np.argmax(reference, axis=-1) == np.argmax(output, axis=-1)))


def _percent(value: float) -> str:
    return f"{100.0 * value:.4f}%"


def _plain(value: float) -> str:
    return f"{value:.6g}"


def _decibel_text(value: float) -> str:
    return f"{value:.2f} dB"


def _below(value: float, perfect: float) -> float:
    return max(0.0, perfect - value)


def _above(value: float, perfect: float) -> float:
    return max(0.0, value - perfect)


def _noise_ratio(decibels: float, perfect: float) -> float:
    """Noise power over signal power: unlike decibels, the steps of two layers can be compared and add up."""
    return 0.0 if decibels >= perfect else float(10.0 ** (-decibels / 10.0))


BUILT_IN: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("cosine", cosine, _percent, 1.0, _below),
        Metric("sqnr", sqnr, _decibel_text, EXACT_SQNR, _noise_ratio),
        Metric("centered_sqnr", centered_sqnr, _decibel_text, EXACT_SQNR, _noise_ratio),
        Metric("mse", mse, _plain, 0.0, _above),
        Metric("l1", l1, _plain, 0.0, _above),
        Metric("kl", kl, _plain, 0.0, _above),
        Metric("max_abs", max_abs, _plain, 0.0, _above),
        Metric("max_rel", max_rel, _plain, 0.0, _above),
        Metric("top1", top1, _percent, 1.0, _below),
    )
}
DEFAULT_THRESHOLDS = {"cosine": 0.99, "sqnr": 20.0, "centered_sqnr": 20.0, "kl": 0.01, "max_rel": 0.1, "top1": 0.99}


def find_metric(name: str | Callable[..., Any], direction: str = "higher") -> Metric:
    """A built-in metric by name, or the user's function.

    Args:
        name: a built-in's name, ``module:function``, or a function of reference and output, float64 arrays
            ``[rows, last axis]`` of one output, that returns a number.
        direction: ``higher`` or ``lower``, which values of the user's function are better.

    Raises:
        BadInput: there is no such metric or function, or the direction is neither.
    """
    if isinstance(name, str) and name in BUILT_IN:
        return BUILT_IN[name]
    if isinstance(name, str) and ":" not in name:
        raise BadInput(
            f"There is no metric '{name}'.", f"Use one of {', '.join(BUILT_IN)}, or module:function of your own."
        )
    if direction not in ("higher", "lower"):
        raise BadInput(f"The metric's direction '{direction}' is unknown.", "Say 'higher' or 'lower': which is better.")
    function = load_function(name, "metric") if isinstance(name, str) else name
    label = name if isinstance(name, str) else getattr(name, "__name__", "metric")
    return _user_metric(label, function, direction == "higher")


def metric_of_facts(facts: Mapping[str, Any]) -> Metric:
    """A metric that judges figures which were measured before; only a built-in one can measure others.

    Raises:
        KeyError, TypeError, ValueError: the facts are not what ``Metric.facts`` gives.
    """
    if not facts["own"]:
        return BUILT_IN[facts["name"]]

    def unknown(*_: np.ndarray) -> float:
        raise BadInput(f"The metric '{facts['name']}' is known by its figures alone.", "Give its function.")

    perfect = None if facts["perfect"] is None else float(facts["perfect"])
    return Metric(facts["name"], unknown, _plain, perfect, _below if facts["higher"] else _above)


def _user_metric(label: str, function: Callable[..., Any], higher: bool) -> Metric:
    def figure(reference: np.ndarray, output: np.ndarray) -> float:
        try:
            return float(function(reference, output))
        except Exception as error:
            raise BadInput(
                f"The metric '{label}' failed: {type(error).__name__}: {error}",
                "It is called with two float64 arrays, reference and output, and must return a number.",
            ) from error

    return Metric(label, figure, _plain, None, _below if higher else _above, code_digest(function, higher))


def code_digest(function: Callable[..., Any], higher: bool) -> str:
    """What tells a user's function from others, as far as its own code does."""
    code = getattr(function, "__code__", None)
    seen = (code.co_code, repr(code.co_consts), code.co_names) if code else repr(function)
    return hashlib.sha256(repr((seen, higher)).encode()).hexdigest()
