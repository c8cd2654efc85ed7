"""The networks that the checks build, with scales and judged inputs, and their builders."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from tests.support import networks
from trt_bisect.builder.base import Builder, BuildOptions, ProfileShapes
from trt_bisect.builder.engines import engine_version, make_builder, typing_of
from trt_bisect.builder.tensorrt_build import TENSORRT, new_config, parse_file, serialize, start_tensorrt, version_of
from trt_bisect.builder.tensorrt_engine import TensorRTEngine
from trt_bisect.calibration.collect import calibrate
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data.datasets import open_dataset, profile_of
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.network import Network, load_network
from trt_bisect.precision import Precision
from trt_bisect.recipe.trtexec import options_in

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 200.0
TIMINGS = Path(os.environ["GPU_CHECK_TIMINGS"]) if "GPU_CHECK_TIMINGS" in os.environ else None
"""A timing cache that all checks share, also those of processes side by side; without it each check times anew."""
TYPING = os.environ.get("GPU_CHECK_TYPING", "auto")
"""The typing of the engines: ``weak``, ``strong``, or that of the engine's version."""
_PASSED = 32
"""Channels: as many as INT8 kernels take at once."""

_WITHOUT_LIBRARIES = "--tacticSources=+JIT_CONVOLUTIONS,+EDGE_MASK_CONVOLUTIONS"
"""TensorRT 8's own kernels: a packed TensorRT has neither cuBLAS nor cuDNN."""


@dataclass(frozen=True)
class TrialSpec:
    """A network, its scales, the inputs that it is judged on, and the rule of judgement.

    Attributes:
        culprits: those that were planted in it.
    """

    name: str
    network: Network
    ranges: Ranges
    inputs: Path
    feeds: tuple[Feeds, ...]
    metric: str = "cosine"
    threshold: float = 0.99
    culprits: tuple[str, ...] = ()


def lenet(_folder: Path) -> TrialSpec:
    """The LeNet sample, which INT8 does not hurt."""
    return _digits("lenet")


def planted(_folder: Path) -> TrialSpec:
    """The LeNet sample with a culprit."""
    return _digits("planted", "lenet_planted.onnx", culprits=("ip2",))


def _digits(name: str, file: str = "lenet.onnx", culprits: tuple[str, ...] = ()) -> TrialSpec:
    samples = ROOT / "samples" / "lenet"
    return _subject(name, samples / file, samples / "calibration.npz", samples / "digits.npz", culprits=culprits)


def residual(folder: Path) -> TrialSpec:
    """A ResNet-like network with a culprit."""
    model = networks.residual(width=32)
    networks.plant_between(model, "block2.conv1", "block2.conv2")
    return _made("residual", model, folder, ("block2.conv2",))


def depthwise(folder: Path) -> TrialSpec:
    """A MobileNet-like network with a culprit."""
    model = networks.depthwise(width=16)
    networks.plant_between(model, "block1.depthwise", "block1.project")
    return _made("depthwise", model, folder, ("block1.project",))


def faint(folder: Path) -> TrialSpec:
    """Two convolutions on an FP16 base, with values of about 1e-3: their scales, 2.7e-5, are denormal in FP16."""
    sketch = networks.Sketch()
    first = sketch.constant("first", sketch.weight("first", 32, 32, 3, 3))
    second = sketch.constant("second", sketch.weight("second", 32, 32, 3, 3))
    inner = sketch.node("Relu", [sketch.node("Conv", ["x", first], "conv1", pads=[1] * 4)], "relu")
    sketch.node("Conv", [inner, second], "conv2", pads=[1] * 4)
    shape = [1, 32, 12, 12]
    path = networks.save(sketch.model({"x": shape}, {"conv2_out": shape}), folder, "faint.onnx")
    values = np.random.default_rng(0).standard_normal((16, *shape[1:])).astype(np.float32)
    np.savez(folder / "faint.npz", x=np.float32(1e-3) * values)
    subject = _subject("faint", path, folder / "faint.npz", folder / "faint.npz")
    return replace(subject, network=load_network(path, base=Precision.FP16))


def passing(folder: Path) -> TrialSpec:
    """A 1x1 convolution that passes on what it reads, with the scale 0.5: its output shows the INT8 levels it read."""
    sketch = networks.Sketch()
    weight = sketch.constant("weight", np.eye(_PASSED)[:, :, np.newaxis, np.newaxis])
    sketch.node("Conv", ["x", weight], "conv")
    shape = [1, _PASSED, 4, 4]
    path = networks.save(sketch.model({"x": shape}, {"conv_out": shape}), folder, "passing.onnx")
    levels = np.resize([-1000, -128.6, -128, -127.5, -127, -0.5, 0.5, 1.5, 126.5, 127, 127.6, 1000], shape)
    feeds = {"x": (0.5 * levels).astype(np.float32)}
    np.savez(folder / "passing.npz", **feeds)  # type: ignore[arg-type]
    ranges = Ranges({"x": np.float32(0.5), "conv_out": np.float32(0.5)})
    return TrialSpec("passing", load_network(path), ranges, folder / "passing.npz", (feeds,))


def _made(name: str, model: onnx.ModelProto, folder: Path, culprits: tuple[str, ...]) -> TrialSpec:
    path = networks.save(model, folder, f"{name}.onnx")
    files = folder / f"{name}-calibration.npz", folder / f"{name}-inputs.npz"
    for seed, file in enumerate(files):
        np.savez(file, **networks.samples(model, count=16, seed=seed))  # type: ignore[arg-type]
    return _subject(name, path, *files, metric="sqnr", threshold=20.0, culprits=culprits)


def _subject(name: str, model: Path, calibration: Path, inputs: Path, **more: object) -> TrialSpec:
    network = load_network(model)
    ranges = calibrate(network, open_dataset(str(calibration), network.inputs))
    feeds = tuple(open_dataset(str(inputs), network.inputs))
    return TrialSpec(name, network, ranges, inputs, feeds, **more)  # type: ignore[arg-type]


def options_for(engine: str, timing_cache: Path | None = TIMINGS, *, force_int8: bool = False) -> BuildOptions:
    """Returns the build options of the checks."""
    named = options_in(flags(engine))
    return BuildOptions(**named, timing_cache=timing_cache, timeout=BUILD_SECONDS, force_int8=force_int8)


def flags(engine: str) -> str:
    """Returns trtexec's flag that leaves cuBLAS and cuDNN out where TensorRT would use them; else nothing."""
    return _WITHOUT_LIBRARIES if engine == TENSORRT and version_of(engine_version(engine)) < (10, 0) else ""


def maker_of(
    subject: TrialSpec, engine: str, timing_cache: Path | None = TIMINGS, *, force_int8: bool = False
) -> Callable[[], Builder]:
    """Makes the builder of a subject, in the engine's usual typing; it can be pickled.

    Args:
        subject: the network, the ranges and the feeds.
        engine: the engine's name.
        timing_cache: the file of its timing cache.
        force_int8: with weak typing, INT8 layers are constrained to INT8. Else TensorRT may run those in float that are
            too small to be faster in INT8.
    """
    return partial(
        make_builder,
        engine,
        typing_of(engine, TYPING),
        subject.network,
        subject.ranges.scales,
        options_for(engine, timing_cache, force_int8=force_int8),
        profile_of(subject.feeds).shapes,
    )


def engine_of(
    engine: str, path: Path, network: Network, shapes: ProfileShapes, *flags: str, force_int8: bool = False
) -> TensorRTEngine:
    """Builds an ONNX file as it is, with the builder's flags of these names; ``force_int8`` as for ``maker_of``."""
    rt, options = start_tensorrt(engine), options_for(engine, force_int8=force_int8)
    definition = parse_file(rt, path)
    config, _ = new_config(rt, options, shapes, definition)
    for flag in flags:
        config.set_flag(rt.module.BuilderFlag.__members__[flag])
    return TensorRTEngine(rt, serialize(rt, definition, config, options), network, shapes)
