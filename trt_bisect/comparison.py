"""``compare``: every tensor of a network in FP32 and in INT8, or of two saved runs, and which layers are abnormal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.advisor import LEAST_COSINE, advise
from trt_bisect.analyzer.both_runs import BothRuns
from trt_bisect.analyzer.compared import compare_tensors, compare_weights
from trt_bisect.analyzer.origins import Origin, activation_origins, weight_origins
from trt_bisect.builder.base import EMULATED
from trt_bisect.builder.engines import ENGINES, ONNXRUNTIME
from trt_bisect.calibration.source import Calibrating, ranges_of
from trt_bisect.calibration.usable import keeping_unusable_high
from trt_bisect.data import Dataset, open_dataset
from trt_bisect.dumps import open_dumps
from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.network import Network, load_network
from trt_bisect.model.qdq import PlanWriter, Target
from trt_bisect.precision import Precision, PrecisionPlan, int8_set
from trt_bisect.progress import Progress, Showing, default_progress
from trt_bisect.report.comparison import Comparison
from trt_bisect.report.exports import PLAN
from trt_bisect.report.tensorboard.board import Board, open_board
from trt_bisect.report.tensorboard.comparison_logs import ComparisonLogs
from trt_bisect.runs.folder import make_folder

SAVED = "saved"


def compare(
    model: str | Path | Network | None = None,
    calibration: Any = None,
    inputs: Any = None,
    *,
    recipe: str | Path | None = None,
    high: Sequence[str] = (),
    fp32: str | Path | None = None,
    int8: str | Path | None = None,
    engine: str = ONNXRUNTIME,
    threshold: float = LEAST_COSINE,
    calibrator: str = "entropy",
    percentile: float = 99.99,
    keep_mask_ranges: bool = False,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    output: str | Path | None = None,
    tensorboard: str | Path | None = None,
    tensorboard_channels: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Every tensor and weight of a network in FP32 and in INT8, over all samples, and the abnormal layers with reasons.

    Full INT8 is emulated on ONNX Runtime, all activations as outputs. A tensor is compared as its layer made it; what
    its own rounding then does to it is told apart. Figures are summed while the samples pass by: no more than one
    sample's tensors are held.

    Args:
        model: an FP32 ONNX file or a loaded network; not needed for two saved runs, which get the layers from it.
        calibration: as for ``run``: data, or a TensorRT calibration cache. Two saved runs get the scales from it.
        inputs: the samples to run; without it the calibration data.
        recipe: a run folder of ``run``, its ``recipe`` folder or the ``plan.json`` in it: layers that it leaves high.
        high: names of layers that stay high.
        fp32: a saved FP32 run to be compared instead of running anything (see ``trt_bisect.dumps``).
        int8: the saved INT8 run, of the same inputs.
        engine: TensorRT's engines give only final outputs: another than ``onnxruntime`` adds a note that says so.
        threshold: the cosine below which the advisor calls a tensor's similarity low.
        calibrator: ``entropy``, ``minmax`` or ``percentile``.
        percentile: for that calibrator, of |x|, in per cent.
        keep_mask_ranges: quantize tensors with mask-like ranges too.
        shapes: sizes of dynamic inputs, by name.
        output: a folder for ``compare.json`` and the tables as CSV.
        tensorboard: a folder for TensorBoard's logs of both runs.
        tensorboard_channels: of how many channels of a tensor, the loudest, logs have histograms as well.
        progress: where progress is shown; tqdm in a notebook by default.

    Raises:
        BadInput: something given cannot be used.
    """
    if engine not in ("auto", *ENGINES):
        raise BadInput(f"There is no engine '{engine}'.", f"Use one of auto, {', '.join(ENGINES)}.")
    if not 0 <= threshold <= 1:
        raise BadInput(f"The threshold {threshold:g} is no cosine.", "Give --threshold from 0 to 1.")
    folder = None if output is None else make_folder(Path(output))
    board = open_board(tensorboard, tensorboard_channels)
    how = Calibrating(calibrator, percentile, keep_mask_ranges)
    with Showing(progress or default_progress()) as shown:
        network = model if model is None or isinstance(model, Network) else load_network(model, shapes)
        saved = fp32 is not None or int8 is not None
        if network is None and not saved:
            raise BadInput("There is no network.", "Give MODEL, or two saved runs with --fp32 and --int8.")
        knows_scales = network is not None and (not saved or calibration is not None or network.has_pairs)
        planned = None
        if network is not None and knows_scales:
            planned = _planned(network, calibration, recipe, high, how, shown)
        if saved:
            found, logs = _saved_runs(network, planned, fp32, int8, threshold, shown, board)
        else:
            assert planned is not None
            found, logs = _emulated(planned, inputs, engine, threshold, shown, board)
    if folder is not None:
        found.save(folder)
    if logs is not None:
        logs.write(found, planned.writer if planned else None, planned.plan if planned else None)
    return found


@dataclass(frozen=True)
class _Planned:
    """A network with its INT8 plan.

    Attributes:
        data: what it was calibrated with, if that was data.
        notes: which layers stay high because of their ranges, and what else.
    """

    network: Network
    writer: PlanWriter
    plan: PrecisionPlan
    data: Dataset | None
    notes: tuple[str, ...]

    def origins(self) -> dict[str, Origin]:
        return activation_origins(self.network, self.writer, self.plan.int8)

    def weights(self) -> list[Origin]:
        return weight_origins(self.network, self.writer, self.plan.int8)


def _planned(
    network: Network,
    calibration: Any,
    recipe: str | Path | None,
    high: Sequence[str],
    how: Calibrating,
    progress: Progress,
) -> _Planned:
    ranges, data = ranges_of(network, calibration, how, progress)
    network, kept_high = keeping_unusable_high(network, ranges)
    plan = _plan(network, recipe, high)
    writer = PlanWriter(network, ranges.scales, Target.ONNXRUNTIME)
    return _Planned(network, writer, plan, data, (*network.notes, *kept_high))


def _emulated(
    planned: _Planned, inputs: Any, engine: str, threshold: float, progress: Progress, board: Board | None
) -> tuple[Comparison, ComparisonLogs | None]:
    samples = planned.data if inputs is None else open_dataset(inputs, planned.network.inputs)
    if samples is None:
        raise BadInput(
            "There is no input to run: the ranges do not come from data.", "Give --input with one or more samples."
        )
    progress.stage("Comparing", samples.length)
    origins, counted = planned.origins(), _Counted(progress)
    both = BothRuns(planned.writer, planned.plan, origins)
    runs = chain.from_iterable(both.on(feeds, position) for position, feeds in enumerate(samples))
    logs = None if board is None else ComparisonLogs(board, origins, planned.network)
    tensors = compare_tensors(logs.watched(runs) if logs else runs, origins, counted)
    weights, channels = compare_weights(planned.network, planned.weights())
    found = Comparison(
        model=planned.network.source,
        arithmetic=EMULATED,
        source=samples.source,
        samples=counted.count,
        tensors=tensors,
        weights=weights,
        channels=channels,
        advice=advise(tensors, weights, threshold),
        notes=(
            *planned.notes,
            *(
                ()
                if engine == ONNXRUNTIME
                else (f"{final_outputs_only(engine)}; 'trt-bisect run' measures the engine",)
            ),
        ),
    )
    return found, logs


def final_outputs_only(engine: str) -> str:
    """What is to be said of tensors beside the outputs of an NVIDIA engine."""
    return (
        f"engine '{engine}': TensorRT fuses layers and gives final outputs only, so the tensors are those of the "
        "emulation on ONNX Runtime"
    )


def _saved_runs(
    network: Network | None,
    planned: _Planned | None,
    fp32: str | Path | None,
    int8: str | Path | None,
    threshold: float,
    progress: Progress,
    board: Board | None,
) -> tuple[Comparison, ComparisonLogs | None]:
    if fp32 is None or int8 is None:
        raise BadInput("One saved run has nothing to be compared with.", "Give both --fp32 and --int8.")
    names, pairs, unmatched = open_dumps(fp32, int8)
    progress.stage("Comparing", None)
    known: dict[str, Origin] = {}
    if planned is not None:
        known = planned.origins()
    elif network is not None:
        known = activation_origins(network, PlanWriter(network, {}, Target.ONNXRUNTIME), ())
    origins = {name: origin for name, origin in known.items() if name in names}
    origins = {**origins, **{name: Origin(name) for name in names if name not in origins}}
    counted = _Counted(progress)
    logs = None if board is None else ComparisonLogs(board, origins, planned.network if planned else network)
    tensors = compare_tensors(logs.watched(pairs) if logs else pairs, origins, counted)
    weights, channels = compare_weights(planned.network, planned.weights()) if planned else ((), ())
    found = Comparison(
        model=network.source if network else "",
        arithmetic=SAVED,
        source=f"{fp32} and {int8}",
        samples=counted.count,
        tensors=tensors,
        weights=weights,
        channels=channels,
        advice=advise(tensors, weights, threshold),
        notes=(*(planned.notes if planned else ()), *unmatched),
    )
    return found, logs


class _Counted:
    """Samples counted, and shown."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self._progress.step(f"sample {self.count}")


def _plan(network: Network, recipe: str | Path | None, high: Sequence[str]) -> PrecisionPlan:
    """All quantizable layers in INT8 but those that are to stay high."""
    kept = {network.layer_named(name).index for name in high}
    precision = Precision.FP32
    if recipe is not None:
        precision, names = _read_recipe(Path(recipe))
        kept |= {network.layer_named(name).index for name in names}
    return int8_set(len(network.layers), set(network.quantizable) - kept, precision)


def _read_recipe(path: Path) -> tuple[Precision, list[str]]:
    """The high precision of a recipe, and the names of the layers in it."""
    places = [path, path / PLAN, path / "recipe" / PLAN]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise BadInput(f"There is no recipe at '{path}'.", f"Give a run's folder, or the {PLAN} in its recipe folder.")
    try:
        record = json.loads(file.read_bytes())
        layers = {str(name): Precision(precision) for name, precision in record["layers"].items()}
        return Precision(record["high"]), [name for name, chosen in layers.items() if chosen is not Precision.INT8]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(
            f"The recipe '{file}' cannot be read: {type(error).__name__}: {first_line(error)}",
            f"Give the {PLAN} that 'trt-bisect run' wrote.",
        ) from error
