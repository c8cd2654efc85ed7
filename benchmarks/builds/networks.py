"""The networks of the benchmark, and the layers at which its stand-ins differ from the emulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

from benchmarks.answer.judge import Cuts
from benchmarks.answer.published import NETWORKS, make_networks
from benchmarks.builds.standin import Difference
from benchmarks.measure import ROOT
from tests.support import networks

Files = tuple[Path, Path, Path]
"""A network, its calibration data, and its inputs."""


@dataclass(frozen=True)
class Subject:
    """A network of the benchmark.

    Attributes:
        name: its name in the table.
        make: writes it into a folder, or finds it.
        healthy: a layer that the emulation leaves in INT8.
        factor: the error of its kernel where it is wrong (``Difference.wrong``): the emulation's recipe misses by it.
        culprit: a layer that the emulation keeps high; empty where full INT8 passes.
        threshold: the cosine asked for.
        cuts: outputs whose parts differ in magnitude, and where they are cut on axis 1.
        every_plan: it has so few layers that all plans can be tried.
    """

    name: str
    make: Callable[[Path], Files]
    healthy: str
    factor: float
    culprit: str = ""
    threshold: float = 0.99
    cuts: Cuts = field(default_factory=dict)
    every_plan: bool = False


def _sample(network: str, inputs: str) -> Callable[[Path], Files]:
    path = ROOT / "samples" / network
    return lambda _: (path, path.with_name("calibration.npz"), path.with_name(inputs))


def _published(name: str) -> Callable[[Path], Files]:
    def make(_: Path) -> Files:
        make_networks()
        inputs = NETWORKS / name / "given.npz"
        return NETWORKS / name / "network.onnx", inputs, inputs

    return make


def _drawn(make: Callable[[], onnx.ModelProto], *pairs: tuple[str, str]) -> Callable[[Path], Files]:
    """A network with drawn weights, a culprit planted between the layers of each pair."""

    def write(folder: Path) -> Files:
        model, data = networks.planted(make(), *pairs), folder / "given.npz"
        np.savez(data, **networks.samples(model))  # type: ignore[arg-type]
        return networks.save(model, folder), data, data

    return write


def _mobile() -> onnx.ModelProto:
    """Twelve blocks; the loud sixth one keeps its part in the sums up to the end."""
    model = networks.depthwise(12)
    networks.scale_constant(model, "block5.project.weight", lambda weights: 4.0 * weights)
    return model


_BLOCKS = ("block12.conv1", "block12.conv2"), ("block13.conv1", "block13.conv2")
_DOWN = "block0.up", "block0.down"
_DOWNS = tuple((f"block{number}.up", f"block{number}.down") for number in (1, 3, 5))
_TWO_PROJECTIONS = tuple((f"block{number}.depthwise", f"block{number}.project") for number in (5, 11))
SUBJECTS = (
    Subject("lenet", _sample("lenet/lenet_planted.onnx", "digits.npz"), "conv2", 1.0, "ip2", every_plan=True),
    Subject(
        "transformer", _drawn(networks.transformer, ("block0.up", "block0.down")), "block0.mix", 0.5, "block0.down"
    ),
    Subject("transformer-three", _drawn(lambda: networks.transformer(6), *_DOWNS), "block2.mix", 0.5, "block3.down"),
    Subject("resnet-two", _drawn(lambda: networks.residual(14), *_BLOCKS), "block9.conv2", 2.0, "block13.conv2"),
    Subject("resnet", _drawn(lambda: networks.residual(14)), "block9.conv2", 2.0),
    Subject("mobile-two", _drawn(_mobile, *_TWO_PROJECTIONS), "block8.depthwise", 2.0, "block5.project"),
    Subject(
        "detector",
        _sample("detector/detector.onnx", "test.npz"),
        "/model.10/conv/Conv",
        2.0,
        threshold=0.95,
        cuts={"output0": [4]},
    ),
    Subject("ocr", _sample("ocr/network.onnx", "inputs.npz"), "p2o.Conv.40", 1.0, "p2o.Conv.3", threshold=0.95),
    Subject("akiki-vad", _published("akiki-vad"), "/model/encoder.2/Conv", 1.0, "/model/head/MatMul"),
    Subject("page-classifier", _published("page-classifier"), "Conv.12", 1.0),
)

STANDINS: dict[str, Callable[[Subject], Difference | None]] = {
    "same": lambda _: Difference(),
    "noise": lambda _: Difference(jitter=1e-4),
    "disobeys": lambda subject: Difference(disobeys=(subject.culprit,), tells=True) if subject.culprit else None,
    "disobeys-untold": lambda subject: Difference(disobeys=(subject.culprit,)) if subject.culprit else None,
    "wrong-kernel": lambda subject: Difference(wrong={subject.healthy: subject.factor}),
    "scales-1": lambda _: Difference(scales=(0.7, 1.2), seed=1),
    "scales-2": lambda _: Difference(scales=(0.7, 1.2), seed=2),
    "far-scales": lambda _: Difference(scales=(0.3, 0.6), seed=1),
    "fp16-base": lambda _: Difference(base16=True),
    "no-int8-build": lambda subject: Difference(refuses=(subject.healthy,), tells=True),
    "no-int8-untold": lambda subject: Difference(refuses=(subject.healthy,)),
}
"""By name, the difference on a network; None where it has none."""
