"""The keywords of the Python functions, for type checkers. Made by tools/make_options.py: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from trt_bisect.data.named import StagedFile
from trt_bisect.model.network import Network
from trt_bisect.support.progress import Progress


class _RunRecoverSensitivity(TypedDict, total=False):
    """The keywords of run, recover, sensitivity."""

    dataset: Any
    load_outputs: str | Path | None
    samples: int | None
    precision: str
    output: str | Path | StagedFile | None


class _All(TypedDict, total=False):
    """The keywords of run, recover, sensitivity, worst, compare, profile."""

    shapes: Mapping[str, tuple[int, ...]] | None
    scale: float | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    resize: int | str | Sequence[int] | None
    letterbox: bool
    colors: str | None
    layout: str | None
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    high: Sequence[str]
    keep_low: Sequence[str]
    plan: Any
    scoped: str
    only: Sequence[str]
    one_scale: Sequence[str]
    ort_ops: Sequence[str]
    unknown_ops: str
    memory: int
    progress: Progress | None


class _RunRecover(TypedDict, total=False):
    """The keywords of run, recover."""

    holdout: float
    validation: Any
    accept: bool
    trt_version: str
    dla: int | None
    margin: float
    cluster: str
    history: str | Path
    accuracy: str | Callable[..., Any] | None
    labels: Any


class _RunRecoverSensitivityWorst(TypedDict, total=False):
    """The keywords of run, recover, sensitivity, worst."""

    task: str | None
    score_threshold: float
    iou: float
    reference: str | Path | Network | None
    metric: str | Callable[..., Any]
    direction: str
    outputs: Sequence[str]
    class_axis: int | None
    slice_factor: float
    typing: str
    followers: str
    weight_scales: str
    plugins: Sequence[str]
    build_timeout: float | None


class _RunRecoverSensitivityWorstCompare(TypedDict, total=False):
    """The keywords of run, recover, sensitivity, worst, compare."""

    engine: str
    low: str
    activations: str
    base: str


class RunKeywords(
    _RunRecoverSensitivity,
    _All,
    _RunRecover,
    _RunRecoverSensitivityWorst,
    _RunRecoverSensitivityWorstCompare,
    total=False,
):
    """The keywords of ``trt_bisect.run``."""

    threshold: float | None
    share: float
    workspace: int | None
    optimization_level: int | None
    force_int8: bool
    tactic_sources: Sequence[str]
    strategy: str
    curve: str
    tensorboard: str | Path | None
    tensorboard_channels: int
    explain: str
    try_remedies: bool
    save_tensors: str
    max_size: float
    polygraphy_json: bool
    effort: str
    time_limit: str | float | None


class RecoverKeywords(
    _RunRecoverSensitivity,
    _All,
    _RunRecover,
    _RunRecoverSensitivityWorst,
    _RunRecoverSensitivityWorstCompare,
    total=False,
):
    """The keywords of ``trt_bisect.recover``."""

    threshold: float | None
    tensorboard: str | Path | None
    tensorboard_channels: int
    target: float | None
    drop: str | float | None
    budget: str | float | None
    cost: str | Path
    together: str
    plans: int | None
    remedies: bool


class SensitivityKeywords(
    _RunRecoverSensitivity,
    _All,
    _RunRecoverSensitivityWorst,
    _RunRecoverSensitivityWorstCompare,
    total=False,
):
    """The keywords of ``trt_bisect.sensitivity``."""


class WorstKeywords(_All, _RunRecoverSensitivityWorst, _RunRecoverSensitivityWorstCompare, total=False):
    """The keywords of ``trt_bisect.worst``."""

    threshold: float | None
    calibration: Any
    output: str | Path | None
    steps: int | None
    keep: int


class CompareKeywords(_All, _RunRecoverSensitivityWorstCompare, total=False):
    """The keywords of ``trt_bisect.compare``."""

    threshold: float | None
    tensorboard: str | Path | None
    tensorboard_channels: int
    output: str | Path | None
    other: str | Path | Network | None
    recipe: str | Path | None
    fp32: str | Path | None
    int8: str | Path | None


class ProfileKeywords(_All, total=False):
    """The keywords of ``trt_bisect.profile``."""

    tensorboard: str | Path | None
    tensorboard_channels: int
    output: str | Path | None
    prefix: Sequence[str]
    op_types: Sequence[str]
