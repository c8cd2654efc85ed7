"""Engines decide what the emulation proposes: which engines a run builds, and what they change of its answer."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from benchmarks.builds.standin import Difference, StandIn
from tests.conftest import SAMPLES
from tests.support.editions import edition
from trt_bisect.answer.on_engines import OnEngines
from trt_bisect.evaluator import workers
from trt_bisect.support.progress import Silent

NOTHING = Difference()
KINDS = {"full INT8", "all in fp32", "all in fp16", "all in INT8 but ip2 in fp32"}
"""The engines of a run without a contradiction: full INT8 is the recipe with its only layer put back, too."""


@pytest.fixture(scope="module")
def data():
    """A tenth of LeNet's calibration data."""
    with np.load(SAMPLES / "lenet/calibration.npz") as found:
        return {"data": found["data"][::10]}


@pytest.fixture
def decided(lenet, data):
    """Runs the planted LeNet, whose culprit is ``ip2``, on a stand-in; returns the report and the stand-in."""

    def run(difference=NOTHING, **options):
        standin = options.pop("standin", None) or StandIn(difference)
        with standin.installed():
            how = {"engine": "tensorrt", "explain": "none", "calibrator": "minmax", "effort": "quick", **options}
            report = trt_bisect.run(lenet / "lenet_planted.onnx", how.pop("data", data), **how)
        return report, standin

    return run


def built(standin):
    return [build.text.split(" (")[0] for build in standin.builds]


def line_kinds(report):
    return [line.kind for line in report.answer.on_engines.lines]


def test_without_a_contradiction_four_engines_are_built(decided):
    report, standin = decided()
    assert sorted(built(standin)) == sorted(KINDS)
    assert (report.verdict, report.culprits, report.recipe.high) == ("fails", ("ip2",), ("ip2",))
    assert (report.engine, report.arithmetic, report.builds) == ("tensorrt", "measured", 4)
    assert {plan: timed.mean_ms for plan, timed in report.latency.items()} == {
        "fp32": 2.0,
        "fp16": 2.0,
        "int8": 1.0,
        "recipe": pytest.approx(1 + 1 / 6),
    }
    assert report.answer.held_out.inputs == 4
    assert line_kinds(report) == []
    assert report.answer.on_engines.apart_recipe < 1e-4


def test_a_pass_that_the_emulation_fails_is_doubted_and_the_layer_that_disobeys_is_named(decided):
    report, standin = decided(Difference(disobeys=("ip2",)))
    assert "only ip2 in INT8" in built(standin)
    assert report.verdict == "passes with doubts"
    assert line_kinds(report) == ["engine passes"]
    (doubt,) = report.doubts
    assert "does not run 'ip2' in INT8" in doubt


def test_an_engine_that_tells_what_it_ran_needs_no_engine_more(decided):
    report, standin = decided(Difference(disobeys=("ip2",), tells=True))
    assert "only ip2 in INT8" not in built(standin)
    assert report.verdict == "passes with doubts"
    assert any("'ip2' ran in FP32" in doubt for doubt in report.doubts)


def test_a_wrong_kernel_is_named_apart_from_the_culprits(decided):
    report, standin = decided(Difference(wrong={"conv2": 0.5}))
    (line,) = report.answer.on_engines.lines
    assert (line.kind, line.layers) == ("wrong kernel", ("conv2",))
    assert (report.culprits, report.recipe.high) == (("ip2",), ("conv2", "ip2"))
    assert len(standin.builds) == standin.distinct <= 8


@pytest.mark.parametrize("grows", [0.0, 0.043, 0.3], ids=["at once", "roundings add up", "later layers enlarge it"])
def test_the_place_of_a_difference_is_where_it_jumps(grows):
    """Unit 50 of 80 is computed otherwise; the loss allowed is 0.05. By hand: the distances of ocr and of a ResNet."""

    def apart(kept, _):
        low = 80 - len(kept)
        if grows == 0.043:
            return grows * min(low, 40) / 40 + 0.07 * (low > 50)
        return (low > 50) * (0.045 + grows * (low - 50) / 30)

    engines = SimpleNamespace(
        space=SimpleNamespace(all=frozenset(range(80))), kept=frozenset(), budget=0.05, _apart=apart
    )
    assert OnEngines._leaves_the_emulation(engines) == 50


def test_the_place_of_a_small_difference_is_where_engine_and_emulation_cease_to_agree():
    """LeNet with other scales: of 0.01 allowed, half is agreement, and half of the whole distance is less."""
    distances = [0.0, 0.004, 0.0056, 0.0061, 0.0044, 0.006, 0.0075]
    engines = SimpleNamespace(
        space=SimpleNamespace(all=frozenset(range(6))),
        kept=frozenset(),
        budget=0.01,
        _apart=lambda kept, _: distances[6 - len(kept)],
    )
    assert OnEngines._leaves_the_emulation(engines) == 1


@pytest.mark.parametrize(("names_it", "builds"), [(True, 5), (False, 7)])
def test_a_layer_without_a_kernel_stays_high_with_the_reason(decided, names_it, builds):
    """The message names the layer, or bisection on failed builds finds it."""
    report, standin = decided(Difference(refuses=("ip1",), tells=names_it))
    row = next(row for row in report.layers if row.name == "ip1")
    assert "no INT8 kernel" in row.why_not
    assert row.recipe == "fp32"
    assert report.culprits == ("ip2",)
    times = {choice.plan: choice.ms for choice in report.choices}
    assert times == {"fp32": 2.0, "fp16": 2.0, "int8": pytest.approx(1 + 1 / 6), "recipe": pytest.approx(1 + 2 / 6)}
    assert report.answer.cost == pytest.approx((1 / 6) / (5 / 6)), "of 5/6 ms that INT8 saves, by measured times"
    assert len(standin.builds) == standin.distinct == report.builds == builds
    assert 1 <= sum(build.refused for build in standin.builds) <= 2


def test_a_base_that_misses_ends_the_builds(decided):
    """FP16 overflows behind the planted culprit, so that nothing is left to compare."""
    report, standin = decided(Difference(base16=True), threshold=0.999999999)
    assert built(standin) == ["all in fp32", "full INT8"]
    assert (report.verdict, report.recipe.meets, line_kinds(report)) == ("fails", False, ["base misses"])


def test_scales_of_another_engine_are_told_instead_of_a_kernel(decided):
    report, _ = decided(Difference(scales=(0.1, 0.3)))
    assert (report.verdict, report.recipe.meets, line_kinds(report)) == ("fails", False, ["other scales"])


def test_a_layer_that_the_engine_does_not_need_goes_to_int8(decided, lenet):
    """Two layers are weak on this threshold in the emulation; an engine that runs one in FP32 needs only the other."""
    how = {"data": lenet / "unsure.npz", "threshold": 0.999, "as_is": True}
    emulated, _ = decided(**how)
    (other,) = set(emulated.recipe.high) - {"ip2"}
    report, _ = decided(Difference(disobeys=(other,)), **how)
    assert other not in report.recipe.high
    assert "not needed on the engine" in line_kinds(report)


@pytest.mark.parametrize("at", edition((5,), range(8)))
def test_a_run_stopped_at_any_build_builds_no_plan_twice(decided, tmp_path, at):
    """The wrong kernel takes eight engines. The build under way is lost with the process, and comes again."""
    difference, count = Difference(wrong={"conv2": 0.5}), 0

    def stop(_build):
        nonlocal count
        count += 1
        if count == at + 1:
            raise KeyboardInterrupt

    first = StandIn(difference, before_build=stop)
    with pytest.raises(KeyboardInterrupt):
        decided(standin=first, output=tmp_path / "run")
    stopped = json.loads((tmp_path / "run" / "report.json").read_text())
    assert stopped["stopped"] == "interrupted"
    assert stopped["recipe"]["high"], "the emulation's recipe is known before any engine"
    report, second = decided(difference, output=tmp_path / "run")
    keys = [build.key for build in (*first.builds, *second.builds)]
    assert len(keys) == len(set(keys)) == 8
    assert report.builds == 8


def test_a_time_limit_begins_no_build_that_it_would_cut_off(decided, tmp_path, monkeypatch):
    """An hour of limit, and builds that claim two: the second one is not begun."""
    tried = workers.tried

    def slow(*arguments):
        trial, result = tried(*arguments)
        return replace(trial, build_seconds=7200.0), result

    monkeypatch.setattr(workers, "tried", slow)
    report, standin = decided(time_limit="1h", output=tmp_path / "run", progress=Silent())
    assert built(standin) == ["all in fp32"]
    assert report.stopped == "time limit"
    assert (report.engine, report.recipe.high) == ("onnxruntime", ("ip2",))
    assert "no engine of tensorrt has confirmed the recipe" in report.answer.not_done
