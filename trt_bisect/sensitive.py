"""Sensitivity: what each layer costs alone in INT8, and what it gives back when it alone stays high."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.judge import DEFAULT_SHARE, Rule
from trt_bisect.analyzer.metrics import BUILT_IN, DEFAULT_THRESHOLDS
from trt_bisect.bench import Bench
from trt_bisect.builder.base import DEFAULT_TIMEOUT, EMULATED, BuildOptions
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.branch import BranchEvaluator
from trt_bisect.evaluator.trial import Trial
from trt_bisect.job import Job
from trt_bisect.machine import MEMORY
from trt_bisect.model.cost import macs
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.shapes import facts_for
from trt_bisect.precision import Precision, PrecisionPlan, all_but, int8_set, only
from trt_bisect.progress import Progress, default_progress
from trt_bisect.request import Request, high_precision
from trt_bisect.runs.folder import make_folder, write_whole
from trt_bisect.runs.working import working_in
from trt_bisect.strategy import BRANCH, FULL, Way

if TYPE_CHECKING:
    import pandas as pd

WAYS = {"both": Precision.INT8, "weight": Precision.INT8_WEIGHT, "activation": Precision.INT8_ACTIVATION}
"""What of a layer is rounded, and the precision that stands for it."""
JSON, CSV = "sensitivity.json", "sensitivity.csv"


@dataclass(frozen=True)
class SensitiveOp:
    """One layer, in one way.

    Attributes:
        op_name: the layer.
        sensitive_type: ``both``, ``weight`` or ``activation``: what of it is rounded, while all else is high.
        metrics: every metric of the final outputs' worst, by name.
        loss: how bad that is by the metric asked for; None where it could not be measured.
        gain: for ``both``: the loss that full INT8 is rid of when this layer alone stays high.
        macs: the layer's multiply-adds for one inference; ``share`` its part of the network's.
    """

    index: int
    op_name: str
    sensitive_type: str
    op_type: str
    metrics: Mapping[str, float]
    loss: float | None
    gain: float | None
    macs: int
    share: float

    def figure(self, name: str) -> float | None:
        """``loss``, ``gain``, ``worth``, ``macs``, or a metric by its name; None where there is none."""
        if name in ("loss", "gain", "worth", "macs"):
            value: float | None = getattr(self, name)
            return value
        return self.metrics.get(name)

    @property
    def worth(self) -> float | None:
        """The gain for each share of the multiply-adds that go back to high precision; None where one is not known."""
        return None if self.gain is None or not self.share else self.gain / self.share


@dataclass(frozen=True)
class Sensitivity:
    """The layers of a network by how much INT8 hurts them.

    Attributes:
        ops: a row a layer and way, the worst first.
        full: the loss of full INT8.
    """

    model: str
    metric: str
    arithmetic: str
    full: float | None
    ops: tuple[SensitiveOp, ...]

    def sorted_by(self, figure: str, *, descending: bool = True, way: str | None = None) -> tuple[SensitiveOp, ...]:
        """The rows by ``loss``, ``gain``, ``worth``, ``macs`` or a metric, those without that figure last.

        Args:
            figure: one of these.
            descending: the largest first.
            way: only the rows of this one.

        Raises:
            BadInput: no row has such a figure.
        """
        rows = [op for op in self.ops if way in (None, op.sensitive_type)]
        if not any(op.figure(figure) is not None for op in rows):
            known = ["loss", "gain", "worth", "macs", *dict.fromkeys(name for op in self.ops for name in op.metrics)]
            raise BadInput(f"There is nothing to sort by '{figure}'.", f"Use one of {', '.join(known)}.")
        sign = -1.0 if descending else 1.0
        return tuple(sorted(rows, key=lambda op: _place(op.figure(figure), sign)))

    def table(self) -> pd.DataFrame:
        """All rows as a pandas table, a column a metric."""
        import pandas as pd

        table: pd.DataFrame = pd.DataFrame(self._records())
        return table

    def _records(self) -> list[dict[str, Any]]:
        flat = []
        for op in self.ops:
            record = asdict(op)
            flat.append({**record, **record.pop("metrics"), "worth": op.worth})
        return [{name: value for name, value in record.items() if name != "metrics"} for record in flat]

    def to_csv(self) -> str:
        """The rows as CSV."""
        records = self._records()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for r in records for name in r)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in record.items()} for record in records)
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """The whole as JSON's types."""
        return {
            "schema": 1,
            "model": self.model,
            "metric": self.metric,
            "arithmetic": self.arithmetic,
            "full": self.full,
            "ops": [{**asdict(op), "worth": op.worth} for op in self.ops],
        }

    def save(self, folder: str | Path) -> Path:
        """Writes ``sensitivity.json`` and ``sensitivity.csv``; raises BadInput where the folder cannot be written."""
        path = make_folder(Path(folder))
        write_whole(path / CSV, self.to_csv().encode())
        write_whole(path / JSON, (json.dumps(self.to_json(), indent=1) + "\n").encode())
        return path


def sensitivity(
    model: str | Path | Network,
    calibration: Any = None,
    inputs: Any = None,
    *,
    dataset: Any = None,
    engine: str = "auto",
    typing: str = "auto",
    metric: str | Callable[..., Any] = "cosine",
    direction: str = "higher",
    precision: str = "fp32",
    outputs: Sequence[str] = (),
    samples: int | None = None,
    calibrator: str = "entropy",
    percentile: float = 99.99,
    keep_mask_ranges: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    memory: int = MEMORY,
    build_timeout: float | None = DEFAULT_TIMEOUT,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """Each quantizable layer alone in INT8, by its weights, its activations and both, and alone in high precision.

    On ONNX Runtime each family of plans is one pass of the evaluator ``branch``. On NVIDIA engines a layer is rounded
    as a whole, so only ``both`` is there.

    Args:
        model: and the other arguments: as for ``run``.
        output: a folder for the journal, so that it can be stopped and goes on, and for the result.

    Raises:
        BadInput: something given cannot be used.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: the FP32 network itself could not be run.
    """
    request = Request(
        engine=engine,
        typing=typing,
        way=Way(BRANCH, FULL, memory),
        metric=metric,
        direction=direction,
        threshold=_anything_goes(metric, direction),
        share=DEFAULT_SHARE,
        outputs=tuple(outputs),
        samples=samples,
        calibrator=calibrator,
        percentile=percentile,
        keep_mask_ranges=keep_mask_ranges,
        options=BuildOptions(high=high_precision(precision), timeout=build_timeout),
    )
    folder = None if output is None else make_folder(Path(output))
    with working_in(folder, progress or default_progress()) as shown:
        network = model if isinstance(model, Network) else load_network(model, shapes)
        job = Job(request, network, folder, shown)
        with job.opened(calibration, inputs, dataset) as bench:
            found = measure_alone(bench, shown)
        if folder is not None:
            found.save(folder)
    return found


def _anything_goes(metric: str | Callable[..., Any], direction: str) -> float | None:
    """A threshold for metrics that have none of their own; nothing is judged by it here."""
    if metric in DEFAULT_THRESHOLDS:
        return None
    return 1e300 if metric in BUILT_IN or direction == "lower" else -1e300


def measure_alone(bench: Bench, progress: Progress, chosen: Collection[int] | None = None) -> Sensitivity:
    """Each layer alone in INT8, on a bench.

    Args:
        bench: where it is measured.
        progress: shows it.
        chosen: only these layers, by index, and without their gains; every layer, with them, where it is None.
    """
    network, high = bench.network, bench.whole.high
    layers = len(network.layers)
    ways = WAYS if bench.builder.arithmetic == EMULATED else {"both": Precision.INT8}
    alone = {
        (k, way): only(layers, k, high, precision)
        for way, precision in ways.items()
        for k in (network.quantizable if chosen is None else chosen)
        if way == "both" or {rounding.is_weight for rounding in network.layers[k].roundings} == {True, False}
    }
    everything = int8_set(layers, network.quantizable, high)
    followers = set(range(layers)) - set(network.quantizable)
    restoring = network.quantizable if chosen is None else ()
    without = {k: all_but(layers, followers | {k}, high) for k in restoring}
    trials = _trials(bench, [*alone.values(), everything, *without.values()], progress)
    full = bench.rule.loss(trials[everything])
    cost = macs(network, facts_for(network, bench.feeds[0]))
    total = sum(cost.values()) or 1
    ops = []
    for (k, way), plan in alone.items():
        left = bench.rule.loss(trials[without[k]]) if way == "both" and k in without else None
        gain = None if full is None or left is None else full - left
        layer, trial = network.layers[k], trials[plan]
        loss = bench.rule.loss(trial)
        metrics = _worst_metrics(bench.rule, trial)
        ops.append(SensitiveOp(k, layer.name, way, layer.op_type, metrics, loss, gain, cost[k], cost[k] / total))
    ops.sort(key=lambda op: (-(op.loss if op.loss is not None else float("inf")), op.index))
    return Sensitivity(network.source, bench.rule.metric.name, bench.builder.arithmetic, full, tuple(ops))


def _trials(bench: Bench, plans: Sequence[PrecisionPlan], progress: Progress) -> dict[PrecisionPlan, Trial]:
    title, evaluator = f"Measuring {len(plans)} plans", bench.evaluator
    if isinstance(evaluator, BranchEvaluator):
        progress.stage(title, evaluator.work(plans))
        return dict(zip(plans, evaluator.measure_all(plans, progress.step), strict=True))
    progress.stage(title, len(plans))
    trials = {}
    for plan in plans:
        progress.step(plan.key())
        trials[plan] = evaluator.measure(plan)
    return trials


def _place(value: float | None, sign: float) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value


def _worst_metrics(rule: Rule, trial: Trial) -> dict[str, float]:
    """The metrics of the output that decides."""
    judged = rule.judged(trial)
    return dict(judged[max(judged, key=lambda name: rule.output_loss(judged[name]))].values) if judged else {}
