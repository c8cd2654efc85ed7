"""The keywords of the Python functions, for type checkers. Made by tools/make_options.py: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from trt_bisect.data.staged import StagedFile
from trt_bisect.support.progress import Progress


class RunKeywords(TypedDict, total=False):
    """Of ``trt_bisect.run``."""

    dataset: Any
    shapes: Mapping[str, tuple[int, ...]] | None
    scale: float | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    resize: int | str | Sequence[int] | None
    letterbox: bool
    colors: str | None
    layout: str | None
    holdout: float
    validation: Any
    task: str | None
    score_threshold: float
    iou: float
    metric: str | Callable[..., Any]
    direction: str
    threshold: float | None
    share: float
    outputs: Sequence[str]
    samples: int | None
    class_axis: int | None
    slice_factor: float
    accept: bool
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    trt_version: str
    engine: str
    typing: str
    precision: str
    workspace: int | None
    optimization_level: int | None
    force_int8: bool
    followers: str
    tactic_sources: Sequence[str]
    weight_scales: str
    plugins: Sequence[str]
    dla: int | None
    build_timeout: float | None
    low: str
    high: Sequence[str]
    keep_low: Sequence[str]
    plan: Any
    scoped: str
    ort_ops: Sequence[str]
    unknown_ops: str
    strategy: str
    curve: str
    margin: float
    memory: int
    cluster: str
    cluster_cpus: int
    retries: int
    output: str | Path | StagedFile | None
    history: str | Path
    tensorboard: str | Path | None
    tensorboard_channels: int
    progress: Progress | None
    explain: str
    try_remedies: bool
    accuracy: str | Callable[..., Any] | None
    labels: Any
    save_tensors: str
    max_size: float


class RecoverKeywords(TypedDict, total=False):
    """Of ``trt_bisect.recover``."""

    dataset: Any
    shapes: Mapping[str, tuple[int, ...]] | None
    scale: float | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    resize: int | str | Sequence[int] | None
    letterbox: bool
    colors: str | None
    layout: str | None
    holdout: float
    validation: Any
    task: str | None
    score_threshold: float
    iou: float
    metric: str | Callable[..., Any]
    direction: str
    threshold: float | None
    outputs: Sequence[str]
    samples: int | None
    class_axis: int | None
    slice_factor: float
    accept: bool
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    trt_version: str
    engine: str
    typing: str
    precision: str
    followers: str
    weight_scales: str
    plugins: Sequence[str]
    dla: int | None
    build_timeout: float | None
    low: str
    high: Sequence[str]
    keep_low: Sequence[str]
    plan: Any
    scoped: str
    ort_ops: Sequence[str]
    unknown_ops: str
    margin: float
    memory: int
    cluster: str
    cluster_cpus: int
    retries: int
    output: str | Path | StagedFile | None
    history: str | Path
    tensorboard: str | Path | None
    tensorboard_channels: int
    progress: Progress | None
    accuracy: str | Callable[..., Any] | None
    labels: Any
    target: float | None
    drop: str | float | None
    budget: str | float | None
    cost: str | Path
    together: str
    plans: int | None
    remedies: bool


class SensitivityKeywords(TypedDict, total=False):
    """Of ``trt_bisect.sensitivity``."""

    dataset: Any
    shapes: Mapping[str, tuple[int, ...]] | None
    scale: float | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    resize: int | str | Sequence[int] | None
    letterbox: bool
    colors: str | None
    layout: str | None
    task: str | None
    score_threshold: float
    iou: float
    metric: str | Callable[..., Any]
    direction: str
    outputs: Sequence[str]
    samples: int | None
    class_axis: int | None
    slice_factor: float
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    engine: str
    typing: str
    precision: str
    followers: str
    weight_scales: str
    plugins: Sequence[str]
    build_timeout: float | None
    low: str
    high: Sequence[str]
    keep_low: Sequence[str]
    plan: Any
    scoped: str
    ort_ops: Sequence[str]
    unknown_ops: str
    memory: int
    output: str | Path | StagedFile | None
    progress: Progress | None


class WorstKeywords(TypedDict, total=False):
    """Of ``trt_bisect.worst``."""

    calibration: Any
    shapes: Mapping[str, tuple[int, ...]] | None
    scale: float | None
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    resize: int | str | Sequence[int] | None
    letterbox: bool
    colors: str | None
    layout: str | None
    task: str | None
    score_threshold: float
    iou: float
    metric: str | Callable[..., Any]
    direction: str
    threshold: float | None
    outputs: Sequence[str]
    class_axis: int | None
    slice_factor: float
    calibrator: str
    percentile: float
    keep_mask_ranges: bool
    engine: str
    typing: str
    followers: str
    weight_scales: str
    plugins: Sequence[str]
    build_timeout: float | None
    low: str
    high: Sequence[str]
    keep_low: Sequence[str]
    plan: Any
    scoped: str
    ort_ops: Sequence[str]
    unknown_ops: str
    memory: int
    output: str | Path | None
    progress: Progress | None
    steps: int | None
    keep: int


class CompareKeywords(TypedDict, total=False):
    """Of ``trt_bisect.compare``."""

    output: str | Path | None
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
    ort_ops: Sequence[str]
    unknown_ops: str
    memory: int
    tensorboard: str | Path | None
    tensorboard_channels: int
    progress: Progress | None
    low: str
    recipe: str | Path | None
    fp32: str | Path | None
    int8: str | Path | None
    engine: str
    threshold: float | None


class ProfileKeywords(TypedDict, total=False):
    """Of ``trt_bisect.profile``."""

    output: str | Path | None
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
    ort_ops: Sequence[str]
    unknown_ops: str
    memory: int
    tensorboard: str | Path | None
    tensorboard_channels: int
    progress: Progress | None
    prefix: str
    op_types: Sequence[str]
