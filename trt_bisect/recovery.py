"""The best recipe: the plan that meets a target at the least cost in speed, or the most accurate one within a cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule
from trt_bisect.analyzer.metrics import code_digest
from trt_bisect.bench import Bench
from trt_bisect.builder.base import DEFAULT_TIMEOUT, MEASURED, BuildOptions
from trt_bisect.calibration.collect import magnitudes, recalibrated
from trt_bisect.data import load_function, open_dataset
from trt_bisect.driver.search import Loss
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import Accuracy, AccuracyEvaluator, read_labels, top1
from trt_bisect.evaluator.speed import measure_times
from trt_bisect.fleet.cluster import RETRIES, Cluster
from trt_bisect.job import Job
from trt_bisect.machine import MEMORY
from trt_bisect.model.cost import shares, times_by_macs, times_from_csv
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.shapes import facts_for
from trt_bisect.model.together import LAYERS, TOGETHER, units
from trt_bisect.moves import Moves, needed, suggest
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.progress import Progress, default_progress
from trt_bisect.recovery_verdict import Found, recovery_verdict
from trt_bisect.report.recovered import Recovery
from trt_bisect.report.words import listed
from trt_bisect.request import Request, one_of
from trt_bisect.runs.folder import make_folder
from trt_bisect.runs.keeping import BESIDE
from trt_bisect.runs.working import working_in
from trt_bisect.seeking import AUTO, BLOCKS, Aim, Costs, Sought, make_space, seek
from trt_bisect.strategy import BRANCH, FULL, Way
from trt_bisect.targets import AccuracyTarget, SimilarityTarget, Target

MACS, MEASURED_TIME = "macs", "measured"
MIXED = "mixed"
_PRECISIONS = {
    "fp32": (Precision.FP32,),
    "fp16": (Precision.FP16,),
    MIXED: (Precision.FP32, Precision.FP16),
}


@dataclass(frozen=True)
class _Wish:
    """What is asked for beside the request; ``recover`` says what each of it means."""

    accuracy: str | Callable[..., Any] | None
    labels: Any
    dataset: Any
    least: float | None
    drop: str | float | None
    cost: str | Path
    together: str
    remedies: bool
    aim: Aim


def recover(
    model: str | Path | Network,
    calibration: Any = None,
    inputs: Any = None,
    *,
    dataset: Any = None,
    engine: str = "auto",
    typing: str = "auto",
    metric: str | Callable[..., Any] = "cosine",
    direction: str = "higher",
    threshold: float | None = None,
    accuracy: str | Callable[..., Any] | None = None,
    labels: Any = None,
    target: float | None = None,
    drop: str | float | None = None,
    budget: str | float | None = None,
    cost: str | Path = AUTO,
    precision: str = "fp32",
    together: str = LAYERS,
    blocks: str = AUTO,
    plans: int | None = None,
    remedies: bool = True,
    outputs: Sequence[str] = (),
    samples: int | None = None,
    calibrator: str = "entropy",
    percentile: float = 99.99,
    keep_mask_ranges: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    memory: int = MEMORY,
    build_timeout: float | None = DEFAULT_TIMEOUT,
    cluster: str = "",
    cluster_cpus: int = 1,
    retries: int = RETRIES,
    output: str | Path | None = None,
    history: str | Path = BESIDE,
    progress: Progress | None = None,
) -> Recovery:
    """The plan that meets the target at the least cost in speed, every step back from it measured to miss.

    Args:
        model: and the other arguments that are not here: as for ``run``.
        threshold: the worst similarity that is still good, unless an accuracy is asked for.
        accuracy: ``module:function``, or a function; it is called with ``infer``, from feeds to outputs, both by name,
            and returns a number, higher for better.
        labels: or else the right classes of the samples of ``dataset``, ``.npy``, a text file, or integers; the
            accuracy is then the share that is right.
        target: the least accuracy that is still good.
        drop: or else how much of FP32's may be lost: 0.01, or ``1%`` of it. Without both nothing may be lost.
        budget: the largest cost, 0.05 or ``5%`` of INT8's gain in speed; then the most accurate plan within it is
            found.
        cost: ``macs``, ``measured`` on the engine, ``auto`` for the better of these, or a CSV of times by layer.
        precision: of layers not in INT8: ``fp32``, ``fp16``, or ``mixed``, where each has the cheaper one that will do.
        together: ``layers``, or ``fused`` for layers that TensorRT fuses or that share an input to move together.
        blocks: whether whole blocks of layers are searched first and then opened: ``auto``, ``always`` or ``never``.
        plans: how many are tried before it stops looking for cheaper ones.
        cluster: of whole engines; the passes of ``branch``, and accuracies, stay here.
        remedies: try other calibrators for single tensors before leaving layers high.
        output: a folder for the journal, so that it can be stopped and goes on, and for the result.
        history: as for ``run``.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    high = _PRECISIONS[one_of("precision", precision, list(_PRECISIONS))]
    one_of("way of moving together", together, TOGETHER)
    one_of("use of blocks", blocks, BLOCKS)
    if plans is not None and plans < 1:
        raise BadInput(f"{plans} plans are none.", "Give --plans 1 or more.")
    aim = Aim(high, None if budget is None else _share(budget, "budget"), blocks, plans)
    wish = _Wish(accuracy, labels, dataset, target, drop, cost, together, remedies, aim)
    _check(wish)
    request = Request(
        engine=engine,
        typing=typing,
        way=Way(BRANCH, FULL, memory),
        metric=metric,
        direction=direction,
        threshold=threshold,
        share=DEFAULT_SHARE,
        outputs=tuple(outputs),
        samples=samples,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        options=BuildOptions(high=high[0], timeout=build_timeout),
        cluster=Cluster(cluster, cluster_cpus, retries),
    )
    folder = None if output is None else make_folder(Path(output))
    with working_in(folder, progress or default_progress(), history) as shown:
        network = model if isinstance(model, Network) else load_network(model, shapes)
        job = Job(request, network, folder, shown)
        with job.opened(calibration, inputs, dataset) as bench:
            found = _recovered(job, bench, wish)
        if folder is not None:
            found.save(folder)
    return found


def _check(wish: _Wish) -> None:
    if wish.accuracy is not None and wish.labels is not None:
        raise BadInput("Both an accuracy function and labels were given.", "Give one of --accuracy and --labels.")
    if wish.labels is not None and wish.dataset is None:
        raise BadInput("There are labels and no data set that they belong to.", "Give --dataset with its samples.")
    if wish.accuracy is None and wish.labels is None and (wish.least is not None or wish.drop is not None):
        raise BadInput(
            "An accuracy to reach was given, and nothing to measure it with.", "Give --accuracy or --labels as well."
        )
    if wish.least is not None and wish.drop is not None:
        raise BadInput("Both a least accuracy and a drop were given.", "Give one of --target and --drop.")


def _share(given: str | float, what: str) -> float:
    """``0.05``, or ``5%``."""
    text = str(given).strip()
    try:
        value = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise BadInput(f"The {what} '{given}' is no share.", f"Give --{what} as 0.05 or 5%, from 0 to 100%.")
    return value


def _recovered(job: Job, bench: Bench, wish: _Wish) -> Recovery:
    costs, origin = _costs(job, bench, wish)
    similarity = SimilarityTarget(bench)
    accuracy = _accuracy(job, bench, wish)
    target = _target(bench, similarity, accuracy, wish)
    groups = units(bench.network, wish.together)
    space = make_space(bench.network, groups, costs, wish.aim, target.budget)
    sought = seek(bench.network, space, costs, wish.aim, target, similarity, job.progress)
    full = space.plan(frozenset())
    (loss,) = target.exact([full], lambda _: None)
    found = Found(bench, target, sought, (target.figure(full), loss), {})
    if wish.remedies and sought.kept and wish.aim.most is None and bench.data and not bench.network.has_pairs:
        found = _with_moves(job, found, wish, accuracy, costs)
    return recovery_verdict(job, found, bench, wish.aim, costs, origin)


def _costs(job: Job, bench: Bench, wish: _Wish) -> tuple[Costs, str]:
    network = bench.network
    measured = bench.builder.arithmetic == MEASURED
    if wish.cost == MEASURED_TIME or (wish.cost == AUTO and measured):
        job.progress.stage("Timing the layers", None)
        high = {Precision.FP32, *wish.aim.high}
        return shares(measure_times(bench.builder, network, high, bench.feeds[0])), MEASURED_TIME
    if wish.cost in (AUTO, MACS):
        return shares(times_by_macs(network, facts_for(network, bench.feeds[0]))), MACS
    times = times_from_csv(Path(wish.cost), network)
    for k, by in times.items():
        for precision in wish.aim.high:
            if precision not in by:
                raise BadInput(
                    f"'{wish.cost}' has no time of layer '{network.layers[k].name}' in {precision}.",
                    "Add a column fp16, or use --precision fp32.",
                )
    return shares(times), str(wish.cost)


def _accuracy(job: Job, bench: Bench, wish: _Wish) -> Accuracy | None:
    if wish.accuracy is not None:
        given = wish.accuracy
        function = load_function(given, "accuracy function") if isinstance(given, str) else given
        return Accuracy(function, code_digest(function, True))
    if wish.labels is None:
        return None
    labels = read_labels(Path(wish.labels)) if isinstance(wish.labels, (str, Path)) else np.asarray(wish.labels)
    return top1(open_dataset(wish.dataset, bench.network.inputs), labels, job.request.outputs[0])


def _target(bench: Bench, similarity: SimilarityTarget, accuracy: Accuracy | None, wish: _Wish) -> Target:
    if accuracy is None:
        return similarity
    evaluator = AccuracyEvaluator(accuracy, bench.whole, bench.store)
    relative = isinstance(wish.drop, str) and wish.drop.strip().endswith("%")
    drop = 0.0 if wish.drop is None else _share(wish.drop, "drop")
    return AccuracyTarget(evaluator, similarity, wish.least, drop, relative=relative)


def _with_moves(job: Job, found: Found, wish: _Wish, accuracy: Accuracy | None, costs: Costs) -> Found:
    """The recipe with scales chosen anew, if that makes it cheaper; else the one that was found."""
    bench, sought = found.bench, found.sought
    assert bench.data is not None
    job.progress.stage("Calibrating single tensors", bench.data.length)

    def tell(done: int) -> None:
        job.progress.step(f"sample {done}")

    seen = magnitudes(bench.network, bench.data, on_sample=tell, memory=job.request.way.memory)

    def other(moves: Moves) -> tuple[Bench, Target, SimilarityTarget]:
        changed = job.in_pieces(job.with_ranges(bench, recalibrated(bench.ranges, seen, moves)))
        similarity = SimilarityTarget(changed)
        return changed, _target(changed, similarity, accuracy, wish), similarity

    def measure(moves: Moves, plan: PrecisionPlan) -> Loss:
        whole = job.with_ranges(bench, recalibrated(bench.ranges, seen, moves)).whole if moves else bench.whole
        return bench.rule.loss(whole.measure(plan))

    job.progress.stage("Trying other scales", None)
    best = found
    for moves in suggest(bench.network, bench.ranges, seen, sought, measure, job.progress.step):
        changed, target, similarity = other(moves)
        again = seek(bench.network, sought.space, costs, wish.aim, target, similarity, job.progress)
        if not _beats(again, best.sought):
            continue
        better = _fewest_moves(replace(found, bench=changed, target=target, sought=again, moves=moves), other)
        if accuracy or _holds_elsewhere(job, found, better):
            best = better
    return best


def _beats(one: Sought, other: Sought) -> bool:
    """Whether a recipe meets the target where the other misses it, or is cheaper."""
    if one.meets != other.meets:
        return one.meets
    return one.space.price(frozenset(one.kept)) < other.space.price(frozenset(other.kept))


def _fewest_moves(found: Found, other: Callable[[Moves], tuple[Bench, Target, SimilarityTarget]]) -> Found:
    """The same recipe without the single moves that it does not need."""
    plan, budget = found.sought.plan, found.sought.space.budget

    def good(moves: Moves) -> bool:
        (loss,) = other(moves)[1].exact([plan], lambda _: None)
        return loss is not None and loss <= budget

    moves = needed(found.moves, good) if found.sought.meets else found.moves
    if moves == found.moves:
        return found
    changed, target, _ = other(moves)
    back = found.sought.back
    losses = target.exact([plan, *(each for each, _ in back.values())], lambda _: None)
    sought = replace(
        found.sought,
        loss=losses[0],
        back={unit: (each, loss) for (unit, (each, _)), loss in zip(back.items(), losses[1:], strict=True)},
    )
    return replace(found, bench=changed, target=target, sought=sought, moves=moves)


def _holds_elsewhere(job: Job, found: Found, better: Found) -> bool:
    """Whether new scales that do for the judged inputs do for the whole data set, or as well as the old ones do."""
    data, rule = found.bench.data, found.bench.rule
    assert data is not None
    worst = []
    for each in (found, better):
        high = [k for k in each.bench.network.quantizable if k not in each.sought.plan.int8]
        job.progress.stage("Judging the recipe on all samples", data.length)
        engine = each.bench.builder.engine
        worst.append(job.find_worst(engine, each.bench.ranges, data, 1, high))
    losses = [max(map(_loss(rule), each.similarities)) for each in worst]
    if losses[1] <= max(losses[0], rule.budget):
        return True
    job.notes.append(
        f"other scales for {listed(tuple(better.moves), 3)} would make the recipe cheaper, but with them sample "
        f"{worst[1].places[0]} of {data.source} is worse than the threshold: they are not taken"
    )
    return False


def _loss(rule: Rule) -> Callable[[float], float]:
    return lambda value: math.inf if math.isnan(value) else rule.metric.loss(value)
