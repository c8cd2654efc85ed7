"""Words of the checks on a GPU, of their rehearsal, and of the benchmarks of reliability."""

from __future__ import annotations

NO_TIME_LEFT = "no time left"
TREE_ALONE = "the tree alone"
NOTICED = "TF32 would have been noticed"
CACHE_WRITTEN = "the timing cache is written"
MEMORY_IS_BACK = "memory is back after 20 builds"
NO_MESSAGE = "without a message"
NONE_HIGH_RAN_LOW = "no layer kept high ran low"


def whole(parts: int) -> str:
    """Returns the sentence on parts that are as they were packed."""
    return f"{parts} parts are whole"
