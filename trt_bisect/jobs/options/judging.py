"""The options of the judgement. The names of tasks and metrics stand here again: their modules load slowly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import FILE, FUNCTION, METRIC, NUMBER, SWITCH, TEXTS, WHOLE

if TYPE_CHECKING:
    from trt_bisect.analyzer.tasks.task import AskedTask
    from trt_bisect.model.network import Network

DIRECTIONS = ("higher", "lower")
TASKS = ("classify", "detect", "segment", "embed", "text")
COSINE = "cosine"


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(Options):
    """The judgement of outputs."""

    panel: ClassVar[str] = "Judgement"

    task: str | None = option(
        None,
        choices=TASKS,
        noun="task",
        help="Judge what the outputs are used for, instead of a metric: classify, detect, segment, embed or text.",
        otherwise="the metric",
    )
    score_threshold: float = option(
        0.3, kind=NUMBER, least=0, most=1, help="Of the task detect: detections that score less do not count."
    )
    iou: float = option(
        0.5,
        kind=NUMBER,
        above=0,
        most=1,
        help="Of the task detect: the overlap, intersection over union, from which on two boxes are the same.",
    )
    reference: str | Path | Network | None = option(
        None,
        kind=FILE,
        help="Another network, such as the float one that a QAT network was trained from: its outputs are the "
        "reference. It runs as its file says; inputs, outputs and layers are matched by name, else by structure.",
        otherwise="the network itself in FP32",
    )
    load_outputs: str | Path | None = option(
        None,
        kind=FILE,
        help="Or saved outputs are the reference: Polygraphy's --save-outputs JSON, .npz, or a folder of them, for the "
        "samples of --input in their order.",
        otherwise="the network itself in FP32",
    )
    metric: str | Callable[..., Any] = option(
        COSINE,
        kind=METRIC,
        help="cosine, sqnr, centered_sqnr, mse, l1, kl, max_abs, max_rel, top1, or module:function; in Python also a "
        "function of reference and output.",
    )
    direction: str = option(
        "higher",
        choices=DIRECTIONS,
        noun="direction",
        help="For a metric of yours: higher or lower values are better.",
    )
    threshold: float | None = option(
        None,
        kind=NUMBER,
        help="The worst value that is still good.",
        otherwise="the metric's own, 0.99 for cosine and for a task",
    )
    share: float = option(
        0.5, kind=NUMBER, above=0, help="A suspect costs at least this share of what the threshold allows."
    )
    outputs: Sequence[str] = option(
        (),
        kind=TEXTS,
        help="The final outputs that count; may be repeated. The worst decides.",
        otherwise="all",
    )
    samples: int | None = option(
        None,
        kind=WHOLE,
        least=1,
        help="Of the worst inputs so many are judged, each by itself; the worst decides.",
        otherwise="all of --input, else 1",
    )
    class_axis: int | None = option(
        None,
        kind=WHOLE,
        least=-32,
        most=31,
        help="Of kl, top1 and a task: the axis of the outputs that holds the classes, counted from either end.",
    )
    slice_factor: float = option(
        30.0,
        kind=NUMBER,
        help="An output is judged in groups where the largest FP32 magnitudes along an axis differ by more than this "
        "factor, such as boxes in pixels and scores; 0 or inf: as a whole.",
    )
    accept: bool = option(False, kind=SWITCH, help="A pass that is doubted counts as a pass: the exit code is 0.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.slice_factor == 0 or self.slice_factor > 1):
            raise BadInput(
                f"--slice-factor cannot be {self.slice_factor:g}.",
                "Give a factor above 1, or 0 to judge outputs whole.",
            )
        if self.reference is not None and self.load_outputs is not None:
            raise BadInput(
                "Another network and saved outputs cannot both be the reference.",
                "Give one of --reference and --load-outputs.",
            )
        if self.task is not None and self.metric != COSINE:
            raise BadInput(
                f"--task {self.task} and --metric {self.metric} cannot decide both.", "Leave out one of the two."
            )

    def asked_task(self) -> AskedTask | None:
        """The task that is asked for."""
        if self.task is None:
            return None
        from trt_bisect.analyzer.tasks.task import AskedTask

        return AskedTask(self.task, self.score_threshold, self.iou, self.class_axis)

    def task_facts(self) -> dict[str, Any]:
        """The part of a fingerprint that the task is; empty without a task."""
        asked = self.asked_task()
        return {} if asked is None else {"task": asked.facts()}


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions(Options):
    """The accuracy on labelled data."""

    panel: ClassVar[str] = "Accuracy"

    accuracy: str | Callable[..., Any] | None = option(
        None,
        kind=FUNCTION,
        help="module:function of yours, called with infer(feeds) -> outputs, both by name; returns a number, higher "
        "for better. In Python also the function.",
    )
    labels: Any = option(
        None,
        kind=FILE,
        help="Or the right classes of the samples of --dataset, .npy, text or integers; the accuracy is the share that "
        "is right.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accuracy is not None and self.labels is not None:
            raise BadInput("Both an accuracy function and labels were given.", "Give one of --accuracy and --labels.")
        if self.labels is not None and getattr(self, "dataset", None) is None:
            raise BadInput("There are labels and no data set that they belong to.", "Give --dataset with its samples.")
