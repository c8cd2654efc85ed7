"""Planted networks for thorough runs and runs with a goal, and figures of their recipes that ONNX Runtime gives."""

from functools import partial

import numpy as np

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.builder.base import BuildOptions
from trt_bisect.model.cost import shares, times_by_macs
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision

CASES = {
    "chain-1": (networks.chain, [("conv2", "conv3")]),
    "chain-3": (networks.chain, [("conv0", "conv1"), ("conv2", "conv3"), ("conv5", "conv6")]),
    "residual-2": (networks.residual, [(f"block{b}.conv1", f"block{b}.conv2") for b in (0, 3)]),
    "residual-4": (networks.residual, [(f"block{b}.conv1", f"block{b}.conv2") for b in range(4)]),
    "residual-6": (partial(networks.residual, blocks=6), [(f"block{b}.conv1", f"block{b}.conv2") for b in range(6)]),
    "depthwise-3": (networks.depthwise, [(f"block{b}.depthwise", f"block{b}.project") for b in (0, 1, 3)]),
    "transformer-2": (networks.transformer, [(f"block{b}.up", f"block{b}.down") for b in (0, 1)]),
    "transformer-5": (partial(networks.transformer, blocks=5), [(f"block{b}.up", f"block{b}.down") for b in range(5)]),
}


JUDGED = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}
JUDGED |= {"precision": "fp32", "margin": 0.0}
WISHES = {**JUDGED, "effort": "thorough"}
QUICK = {**JUDGED, "effort": "quick"}


def planted(case, tmp_path):
    make, pairs = CASES[case]
    return *networks.given(networks.planted(make(), *pairs), tmp_path, 4), {reader for _, reader in pairs}


SMALL = {
    "chain": (partial(networks.chain, depth=6), [("conv1", "conv2"), ("conv3", "conv4")]),
    "residual": (partial(networks.residual, blocks=2), [("block0.conv1", "block0.conv2")]),
    "depthwise": (partial(networks.depthwise, blocks=1), [("block0.depthwise", "block0.project")]),
}


def engines_of(network, data):
    """Ranges, one input, and the SQNR on it of an engine with some layers high."""
    feeds = {"x": data["x"][:1]}
    ranges = trt_bisect.calibrate(network, networks.feeds(data["x"]), "minmax")
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, ranges.scales, BuildOptions())
    with builder.reference() as engine:
        reference = engine.infer(feeds)["y"]

    def sqnr(high):
        with builder.build(trt_bisect.all_but(len(network.layers), high)) as engine:
            return trt_bisect.similarity(reference, engine.infer(feeds)["y"], "sqnr")

    return ranges, feeds, sqnr


def costs_of(network, feeds):
    """The cost of each quantizable layer in FP32 by its multiply-adds, by index."""
    return {k: by[Precision.FP32] for k, by in shares(times_by_macs(network, facts_for(network, feeds))).items()}


def kept_high(report):
    """The layers of the recipe with their precisions."""
    return {row.name: row.recipe for row in report.layers if row.name in report.recipe.high}


def named_points(report):
    """The points of the front by their names."""
    return {name: point for point in report.front for name in point.names}


def figures_on(recipe, path, samples):
    """The SQNR of an exported network on each sample, in ONNX Runtime alone."""
    exact, ours = map(plain_session, (path, recipe / "network.qdq.onnx"))
    figures = []
    for sample in samples:
        wanted, found = (session.run(None, {"x": sample[None]})[0] for session in (exact, ours))
        figures.append(10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum()))
    return figures
