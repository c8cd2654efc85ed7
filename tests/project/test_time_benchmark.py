"""``python -m benchmarks.time``: what it says of engines that were measured, and the fit of the model's constants."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import astuple, replace
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.time import engines_in, fitted, main
from trt_bisect.model.gpu_time import FIT, GPUS, seconds
from trt_bisect.precision import Precision

ROOT = Path(__file__).parents[2]
EVIDENCE, SHARED = ROOT / "docs" / "evidence" / "engines", ROOT.parent / "shared" / "profiles" / "A100"

needs_profiles = pytest.mark.skipif(not SHARED.exists(), reason="../shared/profiles/A100 is not here")


def figures(capsys, folder, name, gpu):
    assert main([str(folder / f"{name}.{kind}.json") for kind in ("graph", "profile")] + ["--gpu", gpu, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def engines():
    return engines_in(SHARED, GPUS["A100"])


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("h200-resnet50-b32.int8", 0.05),
        ("h200-resnet50-b32.fp16", 0.2),
        ("h200-mobilenet_v2-b32.int8", 0.12),
        ("h200-mobilenet_v2-b32.fp16", 0.2),
    ],
)
def test_engines_of_another_gpu_that_the_fit_does_not_know(capsys, name, within):
    found = figures(capsys, EVIDENCE, name, "H200")
    assert found["predicted_ms"] == pytest.approx(found["measured_ms"], rel=within)
    assert found["range_ms"][0] < found["measured_ms"] < found["range_ms"][1]
    assert found["wrong_share_model"] <= 0.1 < 0.2 < found["wrong_share_macs"]


@pytest.mark.parametrize("network", ["resnet50", "mobilenet_v2"])
def test_int8_over_fp16_is_predicted_to_a_fifth(capsys, network):
    int8, fp16 = (figures(capsys, EVIDENCE, f"h200-{network}-b32.{kind}", "H200") for kind in ("int8", "fp16"))
    ratio = {kind: int8[kind] / fp16[kind] for kind in ("measured_ms", "predicted_ms")}
    assert ratio["predicted_ms"] == pytest.approx(ratio["measured_ms"], rel=0.2)


def test_an_engine_with_regions_has_a_range_that_reaches_its_time(capsys):
    found = figures(capsys, EVIDENCE, "h200-convnext_tiny-b8.int8", "H200")
    assert found["predicted_ms"] < found["measured_ms"] < found["range_ms"][1]
    assert found["wrong_share_model"] < 0.09 < 0.2 < found["wrong_share_macs"]


@needs_profiles
@pytest.mark.parametrize(("name", "measured", "macs", "model", "reformats"), [
    ("resnet-fp32", 2.1238, 0.23, 0.05, 1),
    ("resnet-fp16", 1.0168, 0.12, 0.05, 2),
    ("resnet-qat-residual", 0.7311, 0.18, 0.08, 3),
    ("resnet-qat", 1.0957, 0.28, 0.05, 12),
])  # fmt: skip
def test_published_engines(capsys, name, measured, macs, model, reformats):
    found = figures(capsys, SHARED, name, "A100")
    assert found["measured_ms"] == pytest.approx(measured, abs=1e-4)
    assert found["predicted_ms"] == pytest.approx(measured, rel=0.1)
    assert found["wrong_share_macs"] == pytest.approx(macs, abs=0.005)
    assert found["wrong_share_model"] < model
    assert found["reformats"]["count"] == reformats


@needs_profiles
def test_the_order_of_variants_and_the_ratios_to_fp16(engines):
    measured = {name: engine.measured_ms for name, engine in engines.items()}
    model = {name: engine.predicted().ms for name, engine in engines.items()}
    assert sorted(model, key=model.__getitem__) == sorted(measured, key=measured.__getitem__)
    for name in ("resnet-qat", "resnet-qat-residual"):
        ratio = measured[name] / measured["resnet-fp16"]
        assert model[name] / model["resnet-fp16"] == pytest.approx(ratio, rel=0.15)


@needs_profiles
def test_the_constants_are_those_that_the_four_engines_give(engines):
    assert astuple(fitted(list(engines.values()))) == pytest.approx(astuple(FIT), rel=0.02)


@needs_profiles
def test_constants_from_the_other_three_engines_do_nearly_as_well(engines):
    for name, engine in engines.items():
        fit = fitted([other for known, other in engines.items() if known != name])
        assert engine.predicted(fit).ms == pytest.approx(engine.measured_ms, rel=0.2)
        assert engine.wrong_share(engine.by_model(fit)) < 0.1


def shares_from(known, other, power):
    """The wrong share of an engine's convolutions, each corrected by the ratio of the other engine's to a power."""
    waiting = defaultdict(list)
    for one in convolutions(known):
        waiting[shape(one)].append(one)
    pairs = [(waiting[shape(one)].pop(0), one) for one in convolutions(other)]
    ratios = [one.ms * 1e-3 / seconds(one.kernel, known.gpu) for one, _ in pairs]
    corrected = [seconds(one.kernel, other.gpu) * ratio**power for (_, one), ratio in zip(pairs, ratios, strict=True)]
    whole, measured = sum(corrected), sum(one.ms for _, one in pairs)
    return sum(abs(a / whole - one.ms / measured) for a, (_, one) in zip(corrected, pairs, strict=True)) / 2


def convolutions(engine):
    return [one for one in engine.kernels if one.is_convolution]


def shape(one):
    return replace(one.kernel.product, precision=Precision.INT8, by_fours=False)


def test_half_of_an_error_in_one_precision_is_there_in_another():
    """So ``model.cost`` takes the root of a ratio, where the engine ran in another precision."""
    engines, means = engines_in(EVIDENCE, GPUS["H200"]), []
    for power in (0, 0.5, 1):
        shares = []
        for name in ("resnet50", "mobilenet_v2"):
            int8, fp16 = (engines[f"h200-{name}-b32.{precision}"] for precision in ("int8", "fp16"))
            shares += [shares_from(int8, fp16, power), shares_from(fp16, int8, power)]
        means.append(fmean(shares))
    assert means == pytest.approx((0.067, 0.058, 0.067), abs=6e-4)


def test_wrong_use_is_told(capsys, tmp_path):
    assert main([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["a", "b", "--gpu", "Voodoo 2"]) == 2
    assert "No peaks are known of the GPU 'Voodoo 2'" in capsys.readouterr().err
