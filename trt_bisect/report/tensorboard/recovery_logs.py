"""The TensorBoard logs of ``recover``: the baseline and every tuning step, each a run of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from trt_bisect.data.feeds import Feeds
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.report.figure_text import ACCURACY
from trt_bisect.report.markdown import bullets, table
from trt_bisect.report.recovery import RECIPE, Recovery
from trt_bisect.report.tensorboard.board import Board
from trt_bisect.report.tensorboard.run_logs import PlanLogs, Shown
from trt_bisect.report.tensorboard.steps import Step, write_steps
from trt_bisect.report.tensorboard.tags import PLANS, run_name
from trt_bisect.report.tensorboard.writer import LogRun
from trt_bisect.support.progress import Progress


def write_recovery(
    board: Board,
    network: Network,
    scales: Mapping[str, np.float32],
    feeds: Sequence[Feeds],
    steps: Sequence[Step],
    found: Recovery,
    progress: Progress,
    memory: int,
) -> None:
    """Runs FP32 and every plan again in emulation, for the tensors of the layers that moved, and writes the logs.

    A run's name holds the accuracy where one was measured, else the metric and its value.

    Args:
        board: the log folder.
        network: the measured network.
        scales: the scales of its activations.
        feeds: the inputs that were judged.
        steps: the plans, in the order in which they were measured.
        found: the result.
        progress: gets a step for each input of each plan.
        memory: the bytes of tensors that may be held at once.

    Raises:
        BadInput: the logs cannot be written, or ONNX Runtime cannot run the network with its tensors as outputs.
    """
    accuracy = found.target.reference if found.figure == ACCURACY else None
    baseline = Step(network.free_plan(), accuracy=accuracy)
    names = [
        run_name(number, found.metric, each.similarity, each.accuracy) for number, each in enumerate([baseline, *steps])
    ]
    milliseconds = _milliseconds(network, found)
    progress.stage("Writing TensorBoard's logs", len(names) * len(feeds))
    board.clear()
    logs = PlanLogs(board, network, PlanWriter(network, scales, GraphTarget.ONNXRUNTIME), memory)
    before: PrecisionPlan | None = None
    for name, step in zip(names, [baseline, *steps], strict=True):
        latency = milliseconds.get("" if step is baseline else step.plan.key())
        logs.write(
            name,
            Shown(step.plan, "a plan of the search"),
            feeds,
            is_fp32=step is baseline,
            on_input=partial(progress.step, name),
            only=None if step is baseline or before is None else _moved(before, step.plan),
            figures={**step.figures(), **({} if latency is None else {"latency in ms": latency})},
        )
        before = before if step is baseline else step.plan
    with LogRun(board.folder / PLANS) as run:
        write_steps(run, steps)
        rows = [(name, step.similarity, step.accuracy) for name, step in zip(names[1:], steps, strict=True)]
        run.texts(summary=bullets(found.summary.splitlines()), runs=table(["run", found.metric, ACCURACY], rows))


def _moved(before: PrecisionPlan, after: PrecisionPlan) -> Collection[int]:
    """The layers whose precision differs from that of the step before."""
    pairs = enumerate(zip(before.precisions, after.precisions, strict=True))
    return frozenset(k for k, (one, other) in pairs if one is not other)


def _milliseconds(network: Network, found: Recovery) -> dict[str, float]:
    """The mean latencies by plan key, of FP32 under an empty key; empty where none was measured."""
    timed = {plan: facts.mean_ms for plan, facts in (found.latency or {}).items() if facts}
    recipe = next((point.high for point in found.front if RECIPE in point.names), None)
    keys = {"fp32": ""}
    for plan in ("int8", "recipe"):
        high = {} if plan == "int8" else recipe
        if high is not None:
            keys[plan] = _plan(network, high).key()
    return {keys[plan]: value for plan, value in timed.items() if plan in keys}


def _plan(network: Network, high: Mapping[str, str]) -> PrecisionPlan:
    plan = network.full(Precision.FP32)
    for precision in set(high.values()):
        plan = plan.keeping(
            [layer.index for layer in network.layers if high.get(layer.name) == precision], Precision(precision)
        )
    return plan
