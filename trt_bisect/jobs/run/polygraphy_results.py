"""Writes saved tensors as Polygraphy's JSON, with its own classes: for its ``--load-inputs`` and ``--load-outputs``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trt_bisect.data.array_files import read_archive
from trt_bisect.data.feeds import Feeds
from trt_bisect.report.saved_run import INPUTS_JSON, POLYGRAPHY, SAMPLE
from trt_bisect.support.files import make_folder, write_whole


def write_polygraphy(folder: Path, plans: Iterable[str], feeds: Sequence[Feeds]) -> None:
    """Writes the samples, and for each plan its run with one runner, named ``trt-bisect-`` and the plan's name.

    The arrays of one plan are held at a time.

    Args:
        folder: the folder of the tensors; it has an ``.npz`` for each plan and sample.
        plans: their names.
        feeds: the samples, in order.
    """
    from polygraphy.comparator import IterationResult, RunResults
    from polygraphy.json import to_json

    place = make_folder(folder / POLYGRAPHY)
    inputs = [{name: np.asarray(values) for name, values in sample.items()} for sample in feeds]
    write_whole(place / INPUTS_JSON, to_json(inputs).encode())
    for plan in plans:
        runner = f"trt-bisect-{plan}"
        saved = (read_archive(folder / plan / SAMPLE.format(number)) for number in range(len(feeds)))
        iterations = [IterationResult(outputs=arrays, runner_name=runner) for arrays in saved]
        results = RunResults([(runner, iterations)])
        write_whole(place / f"{plan}.json", results.to_json().encode())
