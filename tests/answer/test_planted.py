"""Culprits planted in four kinds of networks are named, no innocent is, and the recipe meets the threshold."""

from functools import partial
from itertools import product

import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition

CASES = {
    "chain-1": (networks.chain, [("conv2", "conv3")]),
    "chain-2": (networks.chain, [("conv0", "conv1"), ("conv5", "conv6")]),
    "chain-4": (networks.chain, [("conv0", "conv1"), ("conv2", "conv3"), ("conv4", "conv5"), ("conv6", "conv7")]),
    "residual-1": (networks.residual, [("block2.conv1", "block2.conv2")]),
    "residual-3": (networks.residual, [(f"block{b}.conv1", f"block{b}.conv2") for b in (0, 1, 3)]),
    "depthwise-1": (networks.depthwise, [("block1.depthwise", "block1.project")]),
    "depthwise-2": (networks.depthwise, [(f"block{b}.depthwise", f"block{b}.project") for b in (0, 3)]),
    "transformer-1": (networks.transformer, [("block0.up", "block0.down")]),
    "residual-4": (networks.residual, [(f"block{b}.conv1", f"block{b}.conv2") for b in range(4)]),
    "depthwise-4": (networks.depthwise, [(f"block{b}.depthwise", f"block{b}.project") for b in range(4)]),
    "transformer-4": (partial(networks.transformer, blocks=4), [(f"block{b}.up", f"block{b}.down") for b in range(4)]),
    "transformer-2": (networks.transformer, [(f"block{b}.up", f"block{b}.down") for b in (0, 1)]),
}


WAYS = {
    "auto": {"strategy": "auto"},
    "auto-culprits": {"strategy": "auto", "curve": "culprits"},
    "auto-adaptive": {"strategy": "auto", "curve": "adaptive"},
    "exhaustive": {"strategy": "exhaustive"},
    "bisect": {"strategy": "bisect"},
}

FEW = [("residual-3", "auto"), ("transformer-2", "auto-adaptive"), ("depthwise-2", "exhaustive")]
"""Kinds of networks with several culprits, and the ways that the tests of networks that mislead do not have."""


@pytest.mark.parametrize(("case", "way"), edition(FEW, list(product(CASES, WAYS))))
def test_planted_culprits(case, way, tmp_path):
    make, pairs = CASES[case]
    model = networks.planted(make(), *pairs)
    how = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}
    report = trt_bisect.run(*networks.given(model, tmp_path, 4), **WAYS[way], **how)
    assert report.culprits == tuple(reader for _, reader in pairs)
    assert report.exit_code == 1
    assert report.similarity.int8 < 20.0
    assert report.similarity.recipe >= 20.0
    assert report.recipe.high == report.culprits


KINDS = ("chain", "residual", "depthwise", "transformer")
FEW_HEALTHY = [("transformer", "exhaustive")]


@pytest.mark.parametrize(("kind", "way"), edition(FEW_HEALTHY, list(product(KINDS, WAYS))))
def test_healthy_networks_blame_nobody(kind, way, tmp_path):
    given = networks.given(getattr(networks, kind)(), tmp_path, 4)
    report = trt_bisect.run(*given, **WAYS[way], engine="onnxruntime", explain="none")
    assert report.culprits == ()
    assert report.exit_code == 0
    assert report.recipe.high == ()
