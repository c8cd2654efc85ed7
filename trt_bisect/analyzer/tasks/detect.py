"""Detection: the detections of FP32 that are kept, lost and invented."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from trt_bisect.analyzer.tasks.detections import NO_DETECTIONS, Detections, number_kept, suppressed
from trt_bisect.analyzer.tasks.heads import SUPPORTED, find_head
from trt_bisect.analyzer.tasks.task import AGREED, ITEMS, AskedTask, Counts, Task, each_input, not_told
from trt_bisect.builder.base import Outputs


def detect(asked: AskedTask, reference: Sequence[Outputs]) -> Task:
    """Returns the task for outputs of a detector; see ``find_head``.

    The agreement is ``kept / (kept + lost + invented)``.

    Raises:
        BadInput: the kind of head cannot be found from the outputs.
    """
    head = find_head(reference)
    if head is None:
        raise not_told(asked.name, reference[0], SUPPORTED)

    def read(outputs: Outputs) -> list[Detections]:
        above = [image.above(asked.score_threshold) for image in head.read(outputs)]
        return [suppressed(image, asked.iou) for image in above] if head.needs_nms else above

    def count(before: Sequence[Detections], after: Sequence[Detections]) -> Counts:
        pairs = list(zip_longest(before, after, fillvalue=NO_DETECTIONS))
        kept = sum(number_kept(*pair, asked.iou) for pair in pairs)
        lost = sum(len(wanted) for wanted, _ in pairs) - kept
        invented = sum(len(found) for _, found in pairs) - kept
        return {AGREED: kept, ITEMS: kept + lost + invented, "kept": kept, "lost": lost, "invented": invented}

    def further(total: Counts) -> dict[str, float]:
        return {name: total[name] for name in ("kept", "lost", "invented")}

    nms = "after NonMaxSuppression" if head.needs_nms else "without NonMaxSuppression"
    note = (
        f"--task {asked.name} reads {head.note}, {nms}; score at least {asked.score_threshold:g}, IoU {asked.iou:g} "
        "or more"
    )
    return Task(asked.entry, note, each_input(head.names, read, count, further))
