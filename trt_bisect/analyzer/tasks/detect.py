"""Detection: the detections of FP32 that are kept, lost and invented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from statistics import fmean

from trt_bisect.analyzer.metrics import AGREEMENT
from trt_bisect.analyzer.tasks.detections import NO_DETECTIONS, Detections, number_kept, suppressed
from trt_bisect.analyzer.tasks.heads import SUPPORTED, find_head, undecoded
from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Judge, Task, each_input, not_told
from trt_bisect.builder.base import Outputs
from trt_bisect.errors import BadInput

_NEARBY = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4, 1.5)
"""The other score thresholds of ``NEARBY``, as factors of the one asked for."""


def detect(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for outputs of a detector; see ``find_head``.

    The agreement is ``kept / (kept + lost + invented)``.

    Raises:
        BadInput: the kind of head cannot be found from the outputs.
    """
    head = find_head(reference)
    if head is None:
        raw = undecoded(reference)
        if raw:
            raise BadInput(
                f"--task detect cannot read '{raw}': its scores are probabilities, and its boxes are not decoded.",
                "Export the network with its decoding (YOLOX: --decode_in_inference), or leave out --task.",
            )
        raise not_told(asked.name, reference[0], SUPPORTED)

    def count(before: Sequence[Detections], after: Sequence[Detections]) -> Counts:
        pairs = list(zip_longest(before, after, fillvalue=NO_DETECTIONS))
        kept = sum(number_kept(*pair, asked.iou) for pair in pairs)
        lost = sum(len(wanted) for wanted, _ in pairs) - kept
        invented = sum(len(found) for _, found in pairs) - kept
        return {AGREED: kept, ITEMS: kept + lost + invented, "kept": kept, "lost": lost, "invented": invented}

    def further(total: Counts) -> dict[str, float]:
        return {name: total[name] for name in ("kept", "lost", "invented")}

    def judge_at(threshold: float, reference: Sequence[Outputs]) -> Judge:
        def read(outputs: Outputs) -> list[Detections]:
            above = [image.above(threshold) for image in head.read(outputs)]
            return [suppressed(image, asked.iou) for image in above] if head.needs_nms else above

        return each_input(head.names, read, count, further)(reference)

    def nearby(reference: Sequence[Outputs]) -> Callable[[Sequence[Outputs]], float]:
        judges = [judge_at(factor * asked.score_threshold, reference) for factor in _NEARBY]
        return lambda outputs: fmean(
            judge(dict(enumerate(outputs))).values.get(AGREEMENT.name, 0.0) for judge in judges
        )

    nms = "after NonMaxSuppression" if head.needs_nms else "without NonMaxSuppression"
    note = (
        f"--task {asked.name} reads {head.note}, {nms}; score at least {asked.score_threshold:g}, IoU {asked.iou:g} "
        "or more"
    )
    return Task(asked.entry, note, head.names, partial(judge_at, asked.score_threshold), nearby)
