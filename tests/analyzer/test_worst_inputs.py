"""The worst inputs: against brute force, against NumPy, in one pass, with few samples held, saved and loaded."""

import csv
import io
import math
import weakref
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

import trt_bisect
from tests.support import networks
from tests.support.progress_doubles import StopsAt
from trt_bisect import BadInput, WorstReport
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.analyzer.worst import SampleFigures, WorstSamples, distribution_of, verdict, worst_inputs
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.commands.run.live import StoppedRun
from trt_bisect.data.feeds import load_samples, save_samples
from trt_bisect.precision import int8_set

LOSSES = st.sampled_from([0.0, 0.1, 0.2, 0.5, math.inf])
OCTAVES = st.integers(-30, 30)


def searched(samples, count):
    search = WorstSamples(count)
    for place, (loss, octaves) in enumerate(samples):
        search.offer({"x": np.array(place)}, SampleFigures(loss, 0.0, tuple(2.0**octave for octave in octaves)))
    return search


@given(st.lists(st.tuples(LOSSES, st.tuples(OCTAVES, OCTAVES)), min_size=1, max_size=40), st.integers(1, 5))
def test_one_pass_finds_what_two_passes_do(samples, count):
    """Brute force: the medians of all first, then every sample that is not faint, sorted."""
    medians = [sorted(octaves[k] for _, octaves in samples)[(len(samples) - 1) // 2] for k in (0, 1)]
    faint = [p for p, (_, octaves) in enumerate(samples) if any(octaves[k] < medians[k] - 10 for k in (0, 1))]
    telling = [p for p in range(len(samples)) if p not in faint] or list(range(len(samples)))
    expected = sorted(telling, key=lambda p: (-samples[p][0], p))[:count]
    search = searched(samples, count)
    assert [place for place, _ in search.worst()] == expected
    assert [int(feeds["x"]) for _, feeds in search.worst()] == expected
    assert list(search.faint()) == faint


@given(st.lists(LOSSES, min_size=1, max_size=40), st.integers(1, 5))
def test_where_nothing_can_be_faint_only_the_worst_are_held(losses, count):
    search = searched([(loss, ()) for loss in losses], count)
    assert search.held == min(count, len(losses))
    assert [place for place, _ in search.worst()] == sorted(range(len(losses)), key=lambda p: -losses[p])[:count]


def test_the_samples_held_do_not_grow_with_the_data_set():
    """The worst case, each sample a little worse and a little fainter than the one before, over three octaves."""
    search, most = WorstSamples(4), 0
    for place in range(3000):
        search.offer({}, SampleFigures(float(place), 0.0, (8.0 * 2.0 ** (-3.0 * place / 3000),)))
        most = max(most, search.held)
    assert most <= 4 * 4


class Recorded:
    """An engine that hands out one of a sample's own arrays."""

    def __init__(self, name):
        self.name = name

    def infer(self, feeds):
        return {"y": feeds[self.name]}


def test_a_silent_output_is_faint_and_a_metric_that_is_not_relative_does_not_care():
    random = np.random.default_rng(0)
    samples = [{"r": random.normal(size=8), "q": random.normal(size=8)} for _ in range(9)]
    samples[4] = {"r": np.zeros(8), "q": np.full(8, 1e-9)}
    samples[7] = {"r": samples[7]["r"] * 1e-5, "q": samples[7]["q"] * 1e3}
    cosine = worst_inputs(iter(samples), Recorded("r"), Recorded("q"), make_rule(BUILT_IN["cosine"], None), 2)
    assert cosine.faint == (4, 7)
    mse = worst_inputs(iter(samples), Recorded("r"), Recorded("q"), make_rule(BUILT_IN["mse"], 1.0), 1)
    assert mse.faint == ()
    assert mse.places == (7,)
    assert mse.inputs[0] is samples[7]


def test_a_score_near_0_is_not_faint():
    scores = [0.5, 0.6, 4e-11, 0.4]
    samples = [{"r": np.array([[score]]), "q": np.array([[score]])} for score in scores]
    assert worst_inputs(samples, Recorded("r"), Recorded("q"), make_rule(BUILT_IN["cosine"], None)).faint == ()


def test_ctrl_c_keeps_what_was_found_only_where_that_is_asked():
    def stopping():
        yield from ({"r": np.ones(2), "q": np.array([1.0, float(k)])} for k in range(3))
        raise KeyboardInterrupt

    rule = make_rule(BUILT_IN["mse"], 1.0)
    found = worst_inputs(stopping(), Recorded("r"), Recorded("q"), rule, keep_when_stopped=True)
    assert found.stopped
    assert found.similarities == (0.5, 0.0, 0.5)
    with pytest.raises(KeyboardInterrupt):
        worst_inputs(stopping(), Recorded("r"), Recorded("q"), rule)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_and_histogram_against_numpy(losses):
    found = distribution_of(losses, losses, 10.0)
    for p, value in found.percentiles.items():
        assert value == np.percentile(losses, p, method="inverted_cdf")
    assert (found.best, found.worst) == (min(losses), max(losses))
    assert found.median == np.percentile(losses, 50, method="higher")
    assert sum(bar.count for bar in found.bins) == len(losses)
    assert (found.bins[0].low, found.bins[-1].high) == (min(losses), max(losses))
    assert found.bad == sum(np.array(losses) > 10.0)


def spread(bad, count=1000, allowed=0.01, worst=0.5):
    """``count`` samples by cosine, ``bad`` of them far below the threshold."""
    losses = [0.002] * (count - bad) + [worst] * bad
    return verdict(distribution_of([1 - loss for loss in losses], losses, allowed))


def test_the_verdict_tells_one_bad_input_from_a_thousand():
    assert spread(0).startswith("No input is bad: 1000 inputs")
    assert spread(1).startswith("A few bad inputs: 1 of 1000 inputs")
    assert spread(100).startswith("A few bad inputs: 100 of 1000 inputs")
    assert spread(300).startswith("A part of the data is bad: 300 of 1000 inputs")
    assert spread(1000).startswith("A bad network, not a bad input: 1000 of 1000 inputs")
    assert "1 of 1000 stands out" in spread(1, allowed=0.9)
    assert spread(1, count=1).startswith("The only input")


def test_the_verdict_without_a_threshold():
    assert spread(0, allowed=None).startswith("No input stands out: 1000 inputs")
    assert spread(3, allowed=None).startswith("3 of 1000 stand out")
    assert "a few" in spread(3, allowed=None)
    assert "two kinds" in spread(300, allowed=None)
    assert "--threshold" in spread(3, allowed=None)


def test_outputs_that_are_not_finite_are_the_worst():
    found = distribution_of([0.9, math.nan, 0.8], [0.1, math.inf, 0.2], 0.5)
    assert (found.worst, found.not_finite, found.median, found.bad) == (None, 1, 0.8, 1)


STEPS = 30


@pytest.fixture(scope="module")
def outputs(lenet):
    """The outputs of the planted LeNet in FP32 and full INT8 on the first samples, from the parts of the package."""
    network = trt_bisect.load_network(lenet / "lenet_planted.onnx")
    scales = trt_bisect.calibrate(network, trt_bisect.open_dataset(lenet / "calibration.npz", network.inputs)).scales
    builder = trt_bisect.make_builder("onnxruntime", "strong", network, scales, BuildOptions())
    samples = list(trt_bisect.open_dataset(lenet / "digits.npz", network.inputs))[:STEPS]
    plan = int8_set(len(network.layers), network.quantizable)
    with builder.reference() as fp32, builder.build(plan) as int8:
        return [tuple(engine.infer(feeds)["prob"].astype(np.float64) for engine in (fp32, int8)) for feeds in samples]


BY_NUMPY = {
    "Cosine": lambda r, o: (r * o).sum() / np.linalg.norm(r) / np.linalg.norm(o),
    "MSE": lambda r, o: ((r - o) ** 2).mean(),
    "L1": lambda r, o: np.abs(r - o).mean(),
    "KL": lambda r, o: (r * np.log(np.maximum(r, 1e-300) / np.maximum(o, 1e-12))).sum(),
    "SQNR": lambda r, o: 10 * np.log10((r**2).sum() / ((r - o) ** 2).sum()),
}


@pytest.mark.parametrize("metric", BY_NUMPY)
def test_figures_and_order_are_numpys(metric, lenet, outputs):
    given = (lenet / "lenet_planted.onnx", lenet / "calibration.npz", lenet / "digits.npz")
    report = trt_bisect.worst(*given, engine="onnxruntime", steps=STEPS, keep=4, metric=metric)
    expected = np.array([BY_NUMPY[metric](r, o) for r, o in outputs])
    np.testing.assert_allclose(report.values, expected, rtol=1e-5, atol=1e-9)
    ascending = metric in ("Cosine", "SQNR")
    assert report.order == ("ascending" if ascending else "descending")
    values = [report.values[place] for place in report.places]
    assert values == sorted(report.values, reverse=not ascending)[:4]


def chain(tmp_path):
    model = networks.chain(depth=3)
    return networks.save(model, tmp_path), networks.samples(model, 16)["x"]


def test_one_bad_input_among_good_ones(tmp_path):
    """An input far beyond the calibrated range is clipped: the network is not to blame."""
    path, images = chain(tmp_path)
    data = np.concatenate([images, images[:1] * 1000])
    options = {"calibration": images, "engine": "onnxruntime", "calibrator": "minmax"}
    report = trt_bisect.worst(path, dataset=data, metric="sqnr", threshold=5.0, keep=3, **options)
    assert report.places[0] == 16
    assert report.verdict.startswith("A few bad inputs: 1 of 17 inputs")
    np.testing.assert_array_equal(report.inputs[0]["x"], data[16:])
    assert not report.faint


@pytest.mark.slow
def test_the_worst_is_the_one_that_a_run_takes(lenet, tmp_path):
    """Both search with the same code; the saved inputs are read by ``run``."""
    model, data = lenet / "lenet_planted.onnx", lenet / "calibration.npz"
    common = {"engine": "onnxruntime", "calibrator": "minmax"}
    report = trt_bisect.worst(model, calibration=data, keep=3, output=tmp_path / "w", **common)
    stacked = np.load(tmp_path / "w" / "worst.npz")
    opened = [*trt_bisect.open_dataset(tmp_path / "w", trt_bisect.load_network(model).inputs)]
    assert len(opened) == 3
    assert all(np.array_equal(feeds[name], stacked[name][k]) for k, feeds in enumerate(opened) for name in feeds)
    options = {**common, "curve": "culprits", "explain": "none", "validation": 0.0, "effort": "quick"}
    run = trt_bisect.run(model, data, samples=3, **options)
    assert report.places == run.inputs.places
    again = trt_bisect.run(model, data, tmp_path / "w/worst.npz", **options)
    assert again.inputs.judged == 3
    assert vars(again.similarity) == pytest.approx(vars(run.similarity), rel=1e-6)


def test_the_inputs_and_ranks_are_saved(tmp_path):
    path, images = chain(tmp_path)
    report = trt_bisect.worst(path, calibration=images, engine="onnxruntime", keep=2, output=tmp_path / "out")
    for one, other in zip(WorstReport.load(tmp_path / "out").inputs, report.inputs, strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/worst.csv").read_text())))
    assert [float(row["value"]) for row in rows] == list(report.values)
    by_rank = [int(row["sample"]) for row in sorted(rows, key=lambda row: int(row["rank"]))]
    assert by_rank == sorted(range(16), key=lambda place: (report.values[place], place))
    assert by_rank[:2] == list(report.places)


def test_samples_of_different_shapes_and_odd_names(tmp_path):
    ragged = [{"file": np.ones((1, n), np.float32), "s": np.float32(n)} for n in (2, 3)]
    assert save_samples(tmp_path, "worst", ragged) == tmp_path / "worst"
    assert [sample["file"].shape for sample in load_samples(tmp_path, "worst")] == [(1, 2), (1, 3)]
    alike = [{"file": np.ones((1, 2), np.float32), "s": np.asarray(n, np.float32)} for n in (2, 3)]
    assert save_samples(tmp_path, "worst", alike) == tmp_path / "worst.npz"
    assert [sample["s"].shape for sample in load_samples(tmp_path, "worst")] == [(), ()]
    assert not (tmp_path / "worst").exists()


def test_a_generator_is_gone_through_once_and_let_go(tmp_path):
    """An endless one, of which no more samples are alive at a time than are kept."""
    path, images = chain(tmp_path)
    alive, most, given = [], 0, 0

    def endless():
        nonlocal most, given
        random = np.random.default_rng(4)
        while True:
            sample = random.normal(0, 1, (1, 3, 16, 16)).astype(np.float32)
            alive.append(weakref.ref(sample))
            given += 1
            most = max(most, sum(reference() is not None for reference in alive))
            yield {"x": sample}
            del sample

    report = trt_bisect.worst(path, images, endless(), engine="onnxruntime", steps=120, keep=3)
    assert given == len(report.values) == 120
    assert most <= 20


def test_a_function_of_the_user_in_either_direction(tmp_path):
    path, images = chain(tmp_path)
    options = {"calibration": images, "engine": "onnxruntime", "keep": 16}

    def shift(reference, output):
        return float((output - reference).mean())

    up = trt_bisect.worst(path, metric=shift, **options)
    assert up.order == "ascending"
    shift.higher_is_better = False
    down = trt_bisect.worst(path, metric=shift, **options)
    assert up.values == down.values
    assert list(up.places) == sorted(range(16), key=lambda place: up.values[place])
    assert list(down.places) == sorted(range(16), key=lambda place: -up.values[place])
    assert up.threshold is None
    assert "--threshold" in up.verdict


def test_a_distance_has_to_say_that_lower_is_better(tmp_path):
    """Equal outputs give 0, and others more: taken as a similarity it has the best inputs first."""
    path, images = chain(tmp_path)

    def distance(reference, output):
        return float(np.abs(output - reference).max())

    for job in (trt_bisect.worst, partial(trt_bisect.run, threshold=-1.0)):
        with pytest.raises(BadInput, match="'distance'") as refused:
            job(path, images, metric=distance, engine="onnxruntime")
        assert "higher_is_better = False" in refused.value.remedy
    assert (
        trt_bisect.worst(path, images, metric=lambda r, o: -distance(r, o), engine="onnxruntime").order == "ascending"
    )
    distance.higher_is_better = False
    with pytest.raises(BadInput, match="allows no loss"):
        trt_bisect.worst(path, images, metric=distance, threshold=0.0, engine="onnxruntime")
    assert trt_bisect.worst(path, images, metric=distance, engine="onnxruntime").order == "descending"


def test_an_output_that_int8_makes_infinite_is_named_as_such(tmp_path):
    """1 / x where x is rounded to zero."""
    sketch = networks.Sketch(5)
    pooled = sketch.node("GlobalAveragePool", ["x"], "pool")
    one = sketch.constant("one", np.ones(1))
    sketch.node("Div", [one, pooled], "inverse", out="y")
    path = networks.save(sketch.model(["n", 3, 8, 8], ["n", 3, 1, 1]), tmp_path)
    data = np.ones((4, 3, 8, 8), np.float32)
    data[2] *= 1e-4
    report = trt_bisect.worst(path, calibration=data, engine="onnxruntime", calibrator="minmax", keep=1)
    assert report.places == (2,)
    assert report.values[2] is None
    assert report.distribution.not_finite == 1


def test_a_cache_of_scales_is_no_data_set_to_search(tmp_path):
    path, _ = chain(tmp_path)
    scales = dict.fromkeys(trt_bisect.load_network(path).activations, np.float32(1))
    (tmp_path / "it.cache").write_text(trt_bisect.format_cache(scales))
    with pytest.raises(BadInput, match="no data set"):
        trt_bisect.worst(path, engine="onnxruntime", calibration=tmp_path / "it.cache")


class OnePlace:
    """ONNX Runtime under the name of an engine of a certain typing and version."""

    engine, arithmetic = "foreign", "measured"

    def __init__(self, builder, typing, version):
        self.build, self.reference = builder.build, builder.reference
        self.typing, self.versions = typing, {"foreign": version}


@pytest.mark.slow
def test_worst_inputs_are_kept_for_one_typing_version_and_precision(monkeypatch, tmp_path):
    """An engine of another typing, version or precision may have others: they are searched anew, and then kept."""
    calls, network_and_data = [], networks.given(networks.chain(2), tmp_path)

    def counted(*arguments, **options):
        calls.append(arguments)
        return worst_inputs(*arguments, **options)

    def run(typing="weak", version="10.1", **options):
        def opened(engine, _typing, network, scales, options, shapes, workshop=None):
            return OnePlace(OnnxRuntimeBuilder(network, scales, options), typing, version)

        monkeypatch.setattr("trt_bisect.preparation.experiment.open_builder", opened)
        before = len(calls)
        less = {"calibrator": "minmax", "progress": StopsAt("Full INT8"), "output": tmp_path / "run"}
        with pytest.raises(StoppedRun) as stop:
            trt_bisect.run(*network_and_data, **less, **options)
        return len(calls) - before, stop.value.report.inputs.similarities

    monkeypatch.setattr("trt_bisect.preparation.preparation.choose_engine", lambda _: "foreign")
    monkeypatch.setattr("trt_bisect.preparation.experiment.typing_of", lambda *_, **__: "weak")
    monkeypatch.setattr("trt_bisect.preparation.preparation.worst_inputs", counted)
    count, found = run()
    assert (count, bool(found)) == (1, True)
    assert run() == (0, found)
    assert run(typing="strong")[0] == 1
    assert run(version="10.2")[0] == 1
    assert run(precision="fp16")[0] == 1
    assert run(trtexec="--builderOptimizationLevel=2")[0] == 1
