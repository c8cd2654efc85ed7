"""The checks of the main job: all plans of a network on the engine and in emulation, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import subjects
from bench import Experiment
from measures import outputs_of, relative_difference

import trt_bisect
from benchmarks.answer.judge import worst
from trt_bisect.builder.base import UNPROVEN, BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_build import new_config, parse_file, serialize, start_tensorrt
from trt_bisect.builder.tensorrt_engine import Buffer, TensorRTEngine, open_device
from trt_bisect.builder.tensorrt_weak import TensorRTWeakBuilder, constrain, walk_steps
from trt_bisect.calibration.cache import read_cache
from trt_bisect.calibration.collect import calibrate
from trt_bisect.data.datasets import open_dataset, profile_of
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.trial import WHOLE, Trial, TrialKey
from trt_bisect.model.file import save_model
from trt_bisect.model.network import Network, load_network
from trt_bisect.options.kinds import Engine, Strategy
from trt_bisect.precision import Precision, all_but
from trt_bisect.report.model import Report
from trt_bisect.report.precision_check import disobeyed, obedience_doubts, unproven
from trt_bisect.support.progress import Silent

NEAR = 0.10
"""As a ratio of 1 - cosine: the emulation then names the engine's culprits, whose steps are far larger."""

FAINT = 1e-10
"""Below this 1 - cosine is float noise, and its ratio says nothing."""

LOUDEST = 90.0
"""Above this many dB there is nothing but float noise."""

MIGRATED_DIFFERENCE = 0.02
"""Relative: a value that float noise moves across the middle between two levels moves by a whole level."""

LARGEST_RATIO = "largest difference of 1 - cosine, as a ratio"
MEDIAN_RATIO = "median difference of 1 - cosine, as a ratio"

Trials = dict[str, Trial]
"""The trials of a journal on one engine each, by plan."""


def _all_plans_of(make: Callable[[Path], subjects.TrialSpec]) -> Callable[[Experiment], None]:
    return lambda bench: _side_by_side(bench, make(bench.folder))


lenet, planted, residual, depthwise = map(
    _all_plans_of, (subjects.lenet, subjects.planted, subjects.residual, subjects.depthwise)
)


def half(bench: Experiment) -> None:
    """All plans of the ResNet-like network on an FP16 base: what is deployed."""
    subject = subjects.residual(bench.folder)
    network = load_network(bench.folder / "residual.onnx", base=Precision.FP16)
    _side_by_side(bench, replace(subject, network=network))


def _side_by_side(bench: Experiment, subject: subjects.TrialSpec) -> None:
    emulated = _run(bench, subject, "onnxruntime")
    measured = _run(bench, subject, bench.engine, "auto")
    on_engines = None if measured.answer is None else measured.answer.on_engines
    if on_engines is not None:
        bench.figure("what engines said", on_engines)
        bench.figure("seconds of the answer", measured.seconds)
        most = 4 + len(measured.recipe.high)
        what = "base, full INT8, recipe, FP16 and each layer put back are built, no more"
        bench.expect(what, on_engines.builds <= most, on_engines.builds)
    measured = _run(bench, subject, bench.engine)
    rows = [row for row in measured.layers if row.quantizable]
    bench.figure("table", {"emulated": [row for row in emulated.layers if row.quantizable], "measured": rows})
    bench.figure("culprits", {"emulated": emulated.culprits, "measured": measured.culprits})
    bench.figure("similarity", {"emulated": emulated.similarity, "measured": measured.similarity})
    bench.figure("seconds", measured.seconds)
    on_emulation, on_engine = _on_engines(bench.folder / "onnxruntime"), _on_engines(bench.folder / bench.engine)
    as_asked = {plan: trial for plan, trial in on_engine.items() if _ran_as_asked(trial, subject.network)}
    bench.figure("plans that ran as asked", f"{len(as_asked)} of {len(on_engine)}")
    fidelity = _fidelity(on_emulation, as_asked)
    bench.figure("fidelity", fidelity)
    bench.figure("latency", measured.latency)
    trial_rows = [_told(trial, subject.network) for trial in on_engine.values()]
    bench.figure("trials", trial_rows)
    bench.expect("every plan was measured", all(row.outcome == "measured" for row in rows))
    _expect_culprits(bench, subject, measured)
    bench.expect("the emulation names the planted culprits", emulated.culprits == subject.culprits, emulated.culprits)
    bench.expect("the recipe meets the threshold", bool(measured.recipe.meets))
    bench.expect("the engine tells what ran in every trial", all(trial["told of"] for trial in trial_rows))
    wrong = [trial for trial in trial_rows if any(row["ran"] == "int8" for row in trial["disobeyed"])]
    bench.expect("no layer kept high ran low", not wrong, f"in {len(wrong)} of {len(trial_rows)} trials")
    bench.figure("unproven", sorted({name for trial in trial_rows for name in trial["unproven"]}))
    ratio = fidelity[MEDIAN_RATIO]
    bench.expect(
        f"the emulation is near: 1 - cosine differs by less than {NEAR:.0%} in the median",
        ratio is None or ratio <= NEAR,
        ratio,
    )


def _expect_culprits(bench: Experiment, subject: subjects.TrialSpec, measured: Report) -> None:
    """Records if the planted culprits are named: those that ran in INT8 in full INT8.

    With weak typing TensorRT may run a layer in float, which makes it no culprit. Nothing can be expected of a layer in
    a region, or of one that the engine does not tell of.
    """
    precisions = _ran_in_full(bench.folder / bench.engine, subject.network)
    ran = {layer.name: precisions.get(layer.index, "") for layer in subject.network.layers}
    low = {name for name in subject.culprits if ran[name] == "int8"}
    unknown = {name for name in subject.culprits if ran[name] in ("", *UNPROVEN)}
    bench.figure("planted", {name: ran[name] for name in subject.culprits})
    bench.expect(
        "the planted culprits that ran in INT8 are named, and no other layer",
        low <= set(measured.culprits) <= low | unknown,
        measured.culprits,
    )


def _ran_in_full(folder: Path, network: Network) -> Mapping[int, str]:
    """Returns by index the precision that each layer ran in, in a trial of full INT8 on whole engines."""
    full = network.full(Precision.FP32).key()
    for trial in _trials(folder):
        if trial.plan == full and trial.ran:
            return trial.ran
    return {}


def _run(bench: Experiment, subject: subjects.TrialSpec, engine: Engine, strategy: Strategy = "exhaustive") -> Report:
    return trt_bisect.run(
        subject.network,
        subject.ranges,
        str(subject.inputs),
        engine=engine,
        typing="strong" if engine == "onnxruntime" else subjects.TYPING,
        strategy=strategy,
        metric=subject.metric,
        threshold=subject.threshold,
        trtexec="" if engine == "onnxruntime" else subjects.flags(engine),
        explain="none",
        output=bench.folder / engine,
        progress=Silent(),
    )


def _fidelity(emulated: Trials, measured: Trials) -> dict[str, float | None]:
    """Returns the differences between emulated and measured figures of the plans that both have."""
    shared = [plan for plan in emulated if plan in measured and emulated[plan].outputs and measured[plan].outputs]
    cosines = [(_least("cosine", emulated[plan]), _least("cosine", measured[plan])) for plan in shared]
    sqnrs = [(_least("sqnr", emulated[plan]), _least("sqnr", measured[plan])) for plan in shared]
    ratios = [abs((1 - m) / (1 - e) - 1) for e, m in cosines if 1 - e > FAINT]
    decibels = [abs(m - e) for e, m in sqnrs if max(m, e) < LOUDEST]
    return {
        "plans": len(shared),
        "largest difference in cosine": max((abs(m - e) for e, m in cosines), default=None),
        "median difference in cosine": _median([abs(m - e) for e, m in cosines]),
        LARGEST_RATIO: max(ratios, default=None),
        MEDIAN_RATIO: _median(ratios),
        "largest difference in SQNR, dB": max(decibels, default=None),
        "median difference in SQNR, dB": _median(decibels),
    }


def _least(metric: str, trial: Trial) -> float:
    return min(figures.values[metric] for figures in trial.outputs.values())


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _trials(folder: Path) -> list[Trial]:
    lines = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [Trial.from_json(line["trial"]) for line in lines if "trial" in line]


def _on_engines(folder: Path) -> Trials:
    """Returns the trials of plans on engines of their own, on all inputs."""
    return {trial.plan: trial for trial in _trials(folder) if TrialKey.from_text(trial.plan).measured_in == WHOLE}


def _ran_as_asked(trial: Trial, network: Network) -> bool:
    """True if an engine ran each layer as asked, as far as it tells: only then is the emulation the same plan."""
    low = {k: network.layers[k] for k in network.quantizable}
    return not disobeyed(network, trial) and not obedience_doubts(low, trial)


def _told(trial: Trial, network: Network) -> dict[str, Any]:
    """Returns a record of the precisions that the engine reported for a trial."""
    wrong = [
        {"layer": network.layers[k].name, "asked": asked, "ran": ran}
        for k, (asked, ran) in disobeyed(network, trial).items()
    ]
    return {
        "plan": trial.plan,
        "outcome": trial.outcome,
        "message": trial.message,
        "told of": len(set(trial.ran) & set(network.quantizable)),
        "unproven": [network.layers[k].name for k in unproven(network, trial)],
        "disobeyed": wrong,
    }


def ocr(bench: Experiment) -> None:
    """The PP-OCR sample: a published network on the engine, and what its recipe costs in time."""
    samples = subjects.ROOT / "samples" / "ocr"
    report = trt_bisect.run(
        samples / "network.onnx",
        str(samples / "calibration.npz"),
        str(samples / "inputs.npz"),
        engine=bench.engine,
        typing=subjects.TYPING,
        threshold=0.95,
        trtexec=subjects.flags(bench.engine),
        explain="none",
        output=bench.folder / "run",
        progress=Silent(),
    )
    for name in ("summary", "culprits", "similarity", "builds", "seconds", "latency"):
        bench.figure(name, getattr(report, name))
    bench.figure("not obeyed", [(row.name, row.asked, row.ran) for row in report.layers if row.obeyed is False])
    bench.expect("it was measured", report.similarity.int8 is not None)
    bench.expect("the recipe meets the threshold", bool(report.recipe.meets))


def calibrator(bench: Experiment) -> None:
    """TensorRT's own calibrator on LeNet: its scales beside ours, and its cache read by it and by us."""
    subject = subjects.lenet(bench.folder)
    data = list(open_dataset(str(subjects.ROOT / "samples/lenet/calibration.npz"), subject.network.inputs))
    cache = _calibrated_by_tensorrt(bench, subject, data)
    path = bench.folder / "tensorrt.cache"
    path.write_bytes(cache)
    bench.figure("cache", cache.decode())
    theirs = read_cache(path, subject.network.rounded_activations).scales
    for method in ("entropy", "minmax"):
        ours = calibrate(subject.network, data, method).scales
        ratios = {name: float(theirs[name] / ours[name]) for name in ours if name in theirs}
        bench.figure(f"TensorRT's scales over our {method}", ratios)
    missing = set(subject.network.rounded_activations) - set(theirs)
    bench.expect("the cache has the tensors that are rounded", not missing, sorted(missing))
    shapes, options = profile_of(subject.feeds).shapes, subjects.options_for(bench.engine)
    read_by_us = TensorRTWeakBuilder(subject.network, theirs, options, shapes)
    plan = all_but(len(subject.network.layers), ())
    with _built_from_cache(bench, subject, options, cache) as first, read_by_us.build(plan) as second:
        similar = worst(first.infer(subject.feeds[0]), second.infer(subject.feeds[0]))
    bench.figure("cosine of the two engines", similar)
    bench.expect("TensorRT and trt-bisect read the cache alike", similar > 0.9999, similar)


def migrated(bench: Experiment) -> None:
    """An engine with weak typing, from TensorRT's own cache of the ResNet-like network, and what ``migrate`` makes of
    that cache: the network with Q/DQ pairs, built."""
    subject = subjects.residual(bench.folder)
    data = list(open_dataset(str(bench.folder / "residual-calibration.npz"), subject.network.inputs))
    cache = bench.folder / "tensorrt.cache"
    cache.write_bytes(_calibrated_by_tensorrt(bench, subject, data))
    shapes, options = profile_of(subject.feeds).shapes, subjects.options_for(bench.engine, force_int8=True)
    report = trt_bisect.migrate(
        subject.network, cache=cache, inputs=str(subject.inputs), output=bench.folder / "migrated", progress=Silent()
    )
    bench.figure("proof", None if report.proof is None else replace(report.proof, folder=""))
    bench.figure("choices", report.choices)
    new = subjects.engine_of(bench.engine, Path(report.network), subject.network, shapes, "INT8", force_int8=True)
    with _built_from_cache(bench, subject, options, cache.read_bytes()) as first, new as second:
        bench.figure("old ran", first.ran)
        outputs = {"cache": outputs_of(first, subject.feeds), "migrated": outputs_of(second, subject.feeds)}
        for name, engine in (("cache", first), ("migrated", second)):
            bench.figure(f"median ms, {name}", engine.latency(subject.feeds[0]).median_ms)
    exact = outputs_of(OnnxRuntimeBuilder(subject.network, {}, options).reference(), subject.feeds)
    session = onnxruntime.InferenceSession(report.network, providers=["CPUExecutionProvider"])
    made = [dict(zip(exact, session.run(list(exact), dict(sample)), strict=True)) for sample in subject.feeds]
    outputs["emulated"] = {name: np.concatenate([output[name] for output in made]) for name in exact}
    figures = {name: worst(exact, made) for name, made in outputs.items()}
    bench.figure("cosine with FP32", figures)
    bench.figure("cosine of the two engines", worst(outputs["cache"], outputs["migrated"]))
    near = relative_difference(outputs["emulated"], outputs["migrated"])
    bench.expect("the migrated engine is the emulated network", near < MIGRATED_DIFFERENCE, near)
    lost = (1 - figures["migrated"]) / max(1 - figures["cache"], FAINT)
    bench.expect("it loses no more than the old engine, to a tenth", lost < 1.1, lost)


def _calibrated_by_tensorrt(bench: Experiment, subject: subjects.TrialSpec, data: list[Feeds]) -> bytes:
    rt, device = start_tensorrt(bench.engine), open_device()
    path = bench.folder / "plain.onnx"
    save_model(subject.network.skeleton, subject.network.weights, path)
    shapes = profile_of(subject.feeds).shapes
    with device.current():
        definition = parse_file(rt, path)
        config, profile = new_config(rt, subjects.options_for(bench.engine), shapes)
        config.set_flag(rt.module.BuilderFlag.INT8)
        config.int8_calibrator = streaming = _streaming_calibrator(rt.module, device, data)
        if profile is not None:
            config.set_calibration_profile(profile)
        serialize(rt, definition, config, subjects.options_for(bench.engine))
    return bytes(streaming.cache)


def _built_from_cache(
    bench: Experiment, subject: subjects.TrialSpec, options: BuildOptions, cache: bytes
) -> TensorRTEngine:
    """Builds full INT8 with weak typing; TensorRT reads a calibration cache for it."""
    network, rt, path = subject.network.for_parser, start_tensorrt(bench.engine), bench.folder / "from_cache.onnx"
    save_model(network.skeleton, network.weights, path)
    shapes = profile_of(subject.feeds).shapes
    definition = parse_file(rt, path)
    steps = walk_steps(definition.network, network.layers)
    constrain(rt.module, definition.network, steps, network, all_but(len(network.layers), ()), options.force_int8)
    config, profile = new_config(rt, options, shapes, definition)
    config.set_flag(rt.module.BuilderFlag.INT8)
    config.set_flag(rt.module.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    config.int8_calibrator = calibrator = _cache_calibrator(rt.module, cache)
    if profile is not None:
        config.set_calibration_profile(profile)
    serialized = serialize(rt, definition, config, options)
    del calibrator
    return TensorRTEngine(rt, serialized, network, shapes, options)


def _cache_calibrator(trt: Any, cache: bytes) -> Any:
    class CacheCalibrator(trt.IInt8EntropyCalibrator2):
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, _names: list[str]) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return cache

        def write_calibration_cache(self, _cache: bytes) -> None:
            return None

    return CacheCalibrator()


def _streaming_calibrator(trt: Any, device: Any, data: list[Feeds]) -> Any:
    class StreamingCalibrator(trt.IInt8EntropyCalibrator2):
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)
            self.left = iter(data)
            self.buffers = {name: Buffer(device) for name in data[0]}
            self.cache = b""

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> list[int] | None:
            feeds = next(self.left, None)
            if feeds is None:
                return None
            for name in names:
                array = np.ascontiguousarray(feeds[name], np.float32)
                self.buffers[name].hold(array.nbytes)
                device.cuda.memcpy_htod(self.buffers[name].memory, array)
            return [self.buffers[name].address for name in names]

        def read_calibration_cache(self) -> None:
            return None

        def write_calibration_cache(self, cache: Any) -> None:
            self.cache = bytes(cache)

    return StreamingCalibrator()
