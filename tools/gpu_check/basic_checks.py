"""The checks that cost seconds: the engine starts, builds, runs, agrees in FP32, and reports its precisions."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import subjects
from bench import Experiment
from measures import outputs_of, relative_difference

from benchmarks.answer.judge import worst
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.debug_tensors import ENGINE, FIRST_WITH_UNFUSED, engine_tensors
from trt_bisect.builder.engines import engine_status, engine_version, make_builder, typing_of
from trt_bisect.builder.inspector import engine_layers
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.tensorrt_build import RTX, start_tensorrt, version_of
from trt_bisect.builder.tensorrt_engine import TensorRTEngine
from trt_bisect.builder.tensorrt_weak import TensorRTWeakBuilder, walk_steps
from trt_bisect.data.datasets import profile_of
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.trial import MEASURED, Trial
from trt_bisect.model.file import save_model
from trt_bisect.model.network import load_network
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.precision import Precision, all_but, prefix
from trt_bisect.report.precision_check import disobeyed, unproven
from trt_bisect.support.machine import find_gpu

FP32_DIFFERENCE = 1e-5
TF32_DIFFERENCE = 1e-4
FLOAT_NOISE = 1e-6
"""Relative: about what another order of additions does."""

NOISY_SAMPLES = 16


def start(bench: Experiment) -> None:
    """Import, version, the NumPy that goes with it, GPU, and a ``trt.Builder``."""
    bench.figure("version", engine_version(bench.engine))
    bench.figure("typing", typing_of(bench.engine, subjects.TYPING))
    if bench.gpu:
        bench.figure("gpu", find_gpu())
    note = engine_status(bench.engine).note
    bench.figure("numpy", np.__version__)
    bench.expect("the installed NumPy goes with this version", not note, note)
    rt = start_tensorrt(bench.engine)
    bench.figure("tactic sources", list(rt.module.TacticSource.__members__))
    bench.figure("builder flags", list(rt.module.BuilderFlag.__members__))
    bench.expect("the engine starts", True)


def build(bench: Experiment) -> None:
    """Every plan of LeNet becomes an engine; a builder that refuses the GPU says here why."""
    subject = subjects.lenet(bench.folder)
    builder = subjects.maker_of(subject, bench.engine)()
    rows = []
    for k in (-1, *subject.network.quantizable):
        began = perf_counter()
        with builder.build(prefix(len(subject.network.layers), k)) as engine:
            assert isinstance(engine, TensorRTEngine)
            size = len(engine.serialized.data)
            rows.append({"k": k, "seconds": perf_counter() - began, "bytes": size, "warnings": engine.messages})
        bench.figure("engines", rows)
    bench.expect("every engine holds something", all(row["bytes"] > 1000 for row in rows))


def fp32(bench: Experiment) -> None:
    """The FP32 reference is ONNX Runtime's but for float noise; with TF32 on it would not be."""
    subject = subjects.residual(bench.folder)
    reference = _emulated(subject).reference().infer(subject.feeds[0])
    builder = subjects.maker_of(subject, bench.engine)()
    with builder.reference() as engine:
        difference = relative_difference(reference, engine.infer(subject.feeds[0]))
    bench.figure("relative difference from ONNX Runtime", difference)
    bench.expect(
        f"FP32 differs from ONNX Runtime by less than {FP32_DIFFERENCE:g}", difference < FP32_DIFFERENCE, difference
    )
    with _reference_with_tf32(bench, subject) as engine:
        loose = relative_difference(reference, engine.infer(subject.feeds[0]))
    bench.figure("the same with TF32 allowed", loose)
    bench.figure("TF32 would have been noticed", loose > TF32_DIFFERENCE)


def _reference_with_tf32(bench: Experiment, subject: subjects.TrialSpec) -> TensorRTEngine:
    path = bench.folder / "plain.onnx"
    save_model(subject.network.skeleton, subject.network.weights, path)
    return subjects.engine_of(bench.engine, path, subject.network, profile_of(subject.feeds).shapes, "TF32")


def int8(bench: Experiment) -> None:
    """LeNet in full INT8: near the emulation; what each layer rounds and computes in; the inspector's own words.

    With weak typing TensorRT may run small layers in float, and compile the last ones into a region that tells nothing:
    both are recorded and no failure.
    """
    subject = subjects.lenet(bench.folder)
    count = len(subject.network.layers)
    emulated, builder = _emulated(subject), subjects.maker_of(subject, bench.engine)()
    if isinstance(builder, TensorRTWeakBuilder):
        definition = builder.network_definition(all_but(count, ()))
        steps = walk_steps(definition.network, subject.network.layers)
        bench.figure(
            "parsed", [{"name": s.layer.name, "type": s.kind, "owner": s.owner, "named": s.named} for s in steps]
        )
        bench.expect("every layer of the network has a TensorRT layer of its name", _all_named(steps, count))
    plan = all_but(count, ())
    with builder.build(plan) as engine:
        assert isinstance(engine, TensorRTEngine)
        outputs = engine.infer(subject.feeds[0])
        text = engine.inspect()
        ran, computed = dict(engine.ran), dict(engine.computed)
    bench.figure("inspector", text)
    names = [layer.name for layer in subject.network.layers]
    bench.figure("ran", {names[k]: precision for k, precision in ran.items()})
    bench.figure("computed", {names[k]: precision for k, precision in computed.items()})
    bench.figure("warnings", engine.messages)
    trial = Trial(plan.key(), MEASURED, ran=ran)
    bench.figure("unproven", [names[k] for k in unproven(subject.network, trial)])
    bench.figure("not in INT8", [names[k] for k in disobeyed(subject.network, trial)])
    if bench.engine != RTX:
        bench.expect("the engine tells of layers in which precision they compute", bool(computed), text[:500])
    similar = worst(emulated.build(plan).infer(subject.feeds[0]), outputs)
    bench.figure("cosine with the emulation", similar)
    bench.expect("full INT8 is near the emulation", similar > 0.999, similar)


def clamp(bench: Experiment) -> None:
    """An INT8 activation rounds to even and ends at -128 and 127, as TensorRT's documentation says ("Quantization
    Schemes"); ONNX Runtime's does."""
    subject = subjects.passing(bench.folder)
    (read,) = subject.feeds[0].values()
    builder = subjects.maker_of(subject, bench.engine, force_int8=True)()
    with builder.build(all_but(1, ())) as engine:
        levels = np.rint(engine.infer(subject.feeds[0])["conv_out"] / 0.5)
        bench.figure("ran", dict(engine.ran))
    expected = np.rint(np.clip(read / 0.5, -128, 127))
    bench.figure("least and largest level", [levels.min(), levels.max()])
    bench.expect("levels end at -128 and 127", (levels.min(), levels.max()) == (-128, 127))
    bench.expect("every value is rounded to even", np.array_equal(levels, expected))


def denormal(bench: Experiment) -> None:
    """Scales that are denormal in FP16 are not taken for 0: full INT8 on an FP16 base is near the emulation."""
    subject = subjects.faint(bench.folder)
    plan, feeds = subject.network.full(Precision.FP32), subject.feeds[:4]
    reference = outputs_of(_emulated(subject).reference(), feeds)
    emulated = outputs_of(_emulated(subject).build(plan), feeds)
    with subjects.maker_of(subject, bench.engine)().build(plan) as engine:
        measured = outputs_of(engine, feeds)
    figures = {"emulated": worst(reference, emulated), "measured": worst(reference, measured)}
    bench.figure("cosine with FP32", figures)
    bench.figure("scales", {name: float(scale) for name, scale in subject.ranges.scales.items()})
    bench.expect("every output is finite", all(np.isfinite(values).all() for values in measured.values()))
    bench.expect("the engine is near the emulation", abs(figures["measured"] - figures["emulated"]) < 1e-3, figures)


def _all_named(steps: list, count: int) -> bool:
    return {step.owner for step in steps if step.main} == set(range(count))


def fused(bench: Experiment) -> None:
    """Records the network layers that each fused engine layer computes, in FP32 and in INT8."""
    subject = subjects.residual(bench.folder)
    names = {layer.name for layer in subject.network.layers}
    builder = subjects.maker_of(subject, bench.engine)()
    for what, k in (("fp32", -1), ("half int8", len(names) // 2), ("int8", len(names) - 1)):
        with builder.build(prefix(len(names), k)) as engine:
            assert isinstance(engine, TensorRTEngine)
            layers = engine_layers(engine.inspect())
        mapped = {name for layer in layers for name in layer.network_layers}
        bench.figure(f"{what} layers", layers)
        bench.figure(f"{what} not told of", sorted(names - mapped))
        computing = sum(not names.isdisjoint(layer.network_layers) for layer in layers)
        what = f"{what}: engine layers are mapped to network layers"
        bench.expect(what, computing > 0, f"{computing} of {len(layers)}")


def shown(bench: Experiment) -> None:
    """The tensors that a fused engine shows, beside the emulation: some inside, and no kernel to blame."""
    if bench.engine == RTX or version_of(engine_version(bench.engine)) < FIRST_WITH_UNFUSED:
        bench.figure("remark", "TensorRT 10.8 and later show what they do not fuse")
        return
    subject, options = subjects.residual(bench.folder), BuildOptions(debug_tensors=True)
    network, scales = subject.network, subject.ranges.scales
    writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME)
    builder = make_builder(bench.engine, "strong", network, scales, options, profile_of(subject.feeds).shapes)
    for what, plan in (("fp32", network.free_plan()), ("int8", network.full(Precision.FP32))):
        with builder.build(plan) as engine:
            bench.figure(f"{what} names", sorted(engine.infer(subject.feeds[0])))
            rows = engine_tensors(writer, plan, engine.infer, subject.feeds[:4])
        bench.figure(f"{what} tensors", rows)
        inside = [row for row in rows if row.tensor not in {spec.name for spec in network.outputs}]
        bench.expect(f"{what}: it shows tensors inside", bool(inside), f"{len(inside)}")
        blamed = [row.tensor for row in rows if row.cause == ENGINE]
        bench.expect(f"{what}: no kernel is to blame", not blamed, blamed)


def timing_cache(bench: Experiment) -> None:
    """A second build of the same network, without and with a shared timing cache."""
    subject = subjects.residual(bench.folder)
    plan = prefix(len(subject.network.layers), len(subject.network.layers) // 2)
    seconds = {}
    for what, file in (("without", None), ("with", bench.folder / "timing.cache")):
        for turn in ("first", "second"):
            builder = subjects.maker_of(subject, bench.engine, file)()
            began = perf_counter()
            with builder.build(plan):
                seconds[f"{turn} {what}"] = perf_counter() - began
            bench.figure("seconds", seconds)
    if bench.engine == RTX:
        bench.figure("remark", "TensorRT-RTX times nothing at build time: its timing cache does nothing")
        return
    bench.expect("the timing cache is written", (bench.folder / "timing.cache").is_file())
    bench.expect("the second build is faster with it", seconds["second with"] < seconds["first with"], seconds)


def explicit_qdq(bench: Experiment) -> None:
    """Explicit Q/DQ with the INT8 flag, the second witness on a version without strong typing: LeNet, every k."""
    subject = subjects.lenet(bench.folder)
    path = bench.folder / "qdq.onnx"
    count = len(subject.network.layers)
    written = PlanWriter(subject.network, subject.ranges.scales, GraphTarget.TENSORRT).write(all_but(count, ()))
    save_model(written.model, written.weights, path)
    again = load_network(path)
    builder = make_builder(
        bench.engine, "weak", again, {}, subjects.options_for(bench.engine), profile_of(subject.feeds).shapes
    )
    emulated = _emulated(subject)
    reference = emulated.reference().infer(subject.feeds[0])
    rows, near = [], True
    for k in again.quantizable:
        plan = prefix(count, k)
        with builder.build(plan) as engine:
            outputs = engine.infer(subject.feeds[0])
            assert isinstance(engine, TensorRTEngine)
            computed = dict(engine.computed)
        measured, expected = worst(reference, outputs), worst(reference, emulated.build(plan).infer(subject.feeds[0]))
        near &= abs(measured - expected) < 1e-3
        ran = {again.layers[k].name: computed.get(k, "") for k in again.quantizable}
        rows.append({"layer": again.layers[k].name, "engine": measured, "emulated": expected, "computed": ran})
        bench.figure("table", rows)
    bench.expect("it has the same layers", [i.name for i in again.layers] == [i.name for i in subject.network.layers])
    bench.expect("it is near the emulation", near)


def _emulated(subject: subjects.TrialSpec) -> OnnxRuntimeBuilder:
    return OnnxRuntimeBuilder(subject.network, subject.ranges.scales, subjects.options_for("onnxruntime"))


def noise(bench: Experiment) -> None:
    """Records how far float noise alone moves the emulation's figures: no engine can agree better than that."""
    floors = {}
    for make in (subjects.lenet, subjects.planted, subjects.residual, subjects.depthwise):
        subject = make(bench.folder)
        builder, feeds = _emulated(subject), subject.feeds[:NOISY_SAMPLES]
        noisy = [_with_noise(sample, seed) for seed, sample in enumerate(feeds)]
        exact, exact_noisy = outputs_of(builder.reference(), feeds), outputs_of(builder.reference(), noisy)
        changes, last = [], 0.0
        for k in subject.network.quantizable:
            engine = builder.build(prefix(len(subject.network.layers), k))
            last = 1 - worst(exact, outputs_of(engine, feeds))
            changes.append(abs((1 - worst(exact_noisy, outputs_of(engine, noisy))) / last - 1))
        floors[subject.name] = {
            "plans": len(changes),
            "1 - cosine of full INT8": last,
            "largest change": max(changes),
            "median change": float(np.median(changes)),
        }
        bench.figure("relative change of 1 - cosine", floors)
    largest = max(floor["largest change"] for floor in floors.values())
    bench.expect("float noise moves 1 - cosine by less than 5 %", largest < 0.05, largest)


def _with_noise(sample: Feeds, seed: int) -> Feeds:
    random = np.random.default_rng(seed)
    return {
        name: (array * (1 + random.normal(0, FLOAT_NOISE, array.shape))).astype(array.dtype)
        for name, array in sample.items()
    }
