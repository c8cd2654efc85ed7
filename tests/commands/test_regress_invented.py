"""Nights of ``regress`` on invented reports: baselines, noise, slides and what no CPU can show. Clocks: test_nights."""

import math
import shlex
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.support.suites import NETWORK, ONCE, SUITE, differing, failing, only
from trt_bisect.builder.base import Latency
from trt_bisect.commands.regress import regress
from trt_bisect.errors import BadInput
from trt_bisect.report.model import Report
from trt_bisect.report.parts import UNMEASURED, ByPlan
from trt_bisect.support.text import Note


@pytest.fixture(scope="module")
def report(finished):
    """A real report with latencies, and precisions that an engine says it obeyed."""
    found = Report.load(finished)
    layers = tuple(replace(row, obeyed=True) if row.quantizable else row for row in found.layers)
    return replace(found, layers=layers, latency=timed())


@pytest.fixture(scope="module")
def slow(report):
    """The same one with full INT8 at half the speed."""
    return replace(report, latency=timed(int8=2.0))


def timed(fp32=4.0, int8=1.0):
    milliseconds = {"fp32": fp32, "fp16": 2.0, "int8": int8, "recipe": 1.2}
    return {plan: Latency.of([value] * 9) for plan, value in milliseconds.items()}


def with_layer(report, name, **changed):
    layers = tuple(replace(row, **changed) if row.name == name else row for row in report.layers)
    return replace(report, layers=layers, culprits=tuple(row.name for row in layers if row.culprit))


class Invented:
    """A runner whose runs give these reports, one after another; the last one again and again."""

    def __init__(self, *reports):
        self.reports = list(reports)
        self.folders = []

    def __call__(self, task, folder, progress):
        self.folders.append(folder)
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


@pytest.fixture
def passed(suite):
    """Passes a night of the suite whose runs give these reports, one after another."""
    return lambda *reports, **how: regress(suite, runner=Invented(*reports), **how)


def test_what_a_repeat_does_not_show_again_is_noise(suite, passed, report):
    passed(report)
    slow = replace(report, latency=timed(fp32=9.0))
    runner = Invented(slow, report)
    night = regress(suite, runner=runner)
    assert (night.exit_code, only(night).changes) == (0, ())
    assert [change.key for change in only(night).noise] == [("latency", "worse", "fp32")]
    assert len(runner.folders) == 2
    assert "noise" in (night.folder / "summary.md").read_text()
    slow_twice = Invented(slow, slow)
    assert failing(regress(suite, runner=slow_twice)) == [("latency", "fp32")]


def test_a_culprit_that_is_gone_passes_and_is_handed_on(suite, passed, report):
    passed(report)
    better = replace(with_layer(report, "ip2", culprit=False, loss=0.0), similarity=ByPlan(0.9999, 0.9999))
    runner = Invented(better)
    night = regress(suite, runner=runner)
    assert night.exit_code == 0
    assert ("culprit", "better", "ip2") in [change.key for change in only(night).changes]
    assert len(runner.folders) == 2
    back = passed(report)
    assert ("culprit", "ip2") in failing(back)
    assert back.baseline.startswith("nightly run 2 ")


def test_a_failed_night_is_no_baseline_for_the_next(passed, report, slow):
    passed(report)
    for _ in range(3):
        night = passed(slow)
        assert (night.exit_code, night.baseline[:14]) == (1, "nightly run 1 ")
    accepted = passed(slow, update_baseline=True)
    assert (accepted.exit_code, only(accepted).status) == (0, "passed")
    assert [change.key for change in only(accepted).changes] == [("latency", "worse", "int8")]
    after = passed(slow)
    assert (after.exit_code, after.baseline[:14]) == (0, "nightly run 5 ")


def test_a_slide_in_small_steps_is_seen_when_it_leaves_the_noise(passed, report):
    """Each night is 2 % slower than the one before, which passes alone."""
    passed(report)
    codes = []
    for step in range(1, 5):
        slower = replace(report, latency=timed(int8=1.02**step))
        codes.append(passed(slower).exit_code)
    assert codes == [0, 0, 1, 1]


def test_the_origin_is_the_last_passed_nights_though_the_figures_stay(suite, passed, report):
    def on(version):
        made_of = {**report.made_of, "versions": {**report.made_of["versions"], "onnxruntime": version}}
        return replace(report, made_of=made_of)

    passed(on("1.0"))
    looser = Invented(replace(on("2.0"), threshold=0.98))
    assert differing(regress(suite, runner=looser)) == {"ONNX Runtime", "option threshold"}
    assert differing(regress(suite, runner=looser)) == set()


def test_the_latest_baseline_of_another_version_is_refused_until_it_is_replaced(passed, report):
    baseline = passed(report).folder / "baseline/chain.json"
    baseline.write_text('{"kind": "trt-bisect baseline", "schema": 1}')
    with pytest.raises(BadInput, match=r"chain\.json.* baseline of an"):
        passed(report)
    accepted = passed(report, update_baseline=True)
    assert (accepted.exit_code, accepted.baseline, only(accepted).baseline) == (0, "", None)
    assert passed(report).baseline.startswith("nightly run 2 ")


def test_a_figure_that_is_not_finite_is_not_measured(passed, report):
    passed(report)
    lost = with_layer(report, "conv2", loss=math.inf, similarity=math.nan)
    night = passed(replace(lost, similarity=ByPlan(math.nan, 0.9999)))
    assert failing(night) == [("similarity", "int8")]
    assert only(night).failures[0].now is None


def test_a_network_that_is_new_joins_the_baseline(suite, passed, report):
    passed(report)
    suite.write_text(SUITE + NETWORK.replace('"chain"', '"second"'))
    runner = Invented(report)
    night = regress(suite, runner=runner)
    assert night.exit_code == 0
    assert [result.baseline is None for result in night.networks] == [False, True]
    assert len(runner.folders) == 3
    assert all(result.baseline for result in passed(report).networks)


def test_the_newest_nights_files_stand_beside_the_nights(suite, passed, report):
    """A CI job finds them there; one that was broken off must not show yesterday's."""
    files = [suite.parent / "nightly" / name for name in ("junit.xml", "regression.json", "summary.md")]
    night = passed(report).folder
    assert [path.read_bytes() for path in files] == [(night / path.name).read_bytes() for path in files]

    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regress(suite, runner=stopped)
    assert [path.exists() for path in files] == [True, False, False]
    running = ElementTree.parse(files[0]).getroot()
    assert running.get("errors") == "1"
    assert "running" in running.find(".//error").get("message")
    suite.write_text("zzz = 1\n" + SUITE)
    with pytest.raises(BadInput):
        passed(report)
    mistaken = ElementTree.parse(files[0]).getroot()
    assert mistaken.get("errors") == "1"
    assert "'zzz'" in mistaken.find(".//error").get("message")


def test_a_smaller_suite_in_the_same_folder_does_not_forget_the_others(suite, passed, report, slow):
    other = NETWORK.replace('"chain"', '"second"')
    suite.write_text(SUITE + other)
    passed(report)
    suite.write_text(SUITE)
    night = passed(report)
    assert (night.exit_code, night.gone) == (0, ("second",))
    assert "'second'" in (night.folder / "summary.md").read_text()
    suite.write_text(SUITE + other)
    both = passed(slow)
    assert [result.status for result in both.networks] == ["failed", "failed"]
    passed(report, update_baseline=True)
    assert passed(report).gone == ()


def test_what_accepts_a_night_is_the_command_that_it_prints(suite, passed, report, slow, tmp_path):
    kept = tmp_path / "kept here"
    passed(report, baseline=kept, update_baseline=True)
    said = (passed(slow, baseline=kept).folder / "summary.md").read_text().splitlines()[-2]
    assert shlex.split(said)[2:] == ["--config", str(suite), "--baseline", str(kept), "--update-baseline"]
    passed(slow, baseline=kept, update_baseline=True)
    assert passed(slow, baseline=kept).exit_code == 0
    night = passed(report).folder
    against_night = passed(slow, baseline=night)
    assert against_night.exit_code == 1
    assert against_night.baseline_folder is None


def test_a_second_one_at_once_is_refused(suite, passed, report):
    def second(task, folder, progress):
        with pytest.raises(BadInput, match="'output'"):
            passed(report)
        return report

    assert regress(suite, runner=second).number == 1
    assert passed(report).number == 2


def test_a_report_with_nothing_measured_is_an_error(passed, report):
    empty = replace(report, verdict=UNMEASURED, notes=(Note("engine", "the engine is gone"),))
    night = passed(empty)
    assert (night.exit_code, only(night).status) == (3, "error")
    assert empty.notes[0].text in only(night).message
    assert only(passed(report)).baseline is None


def test_a_first_night_whose_recipe_misses_is_no_baseline_until_it_is_accepted(suite, report):
    misses = Invented(replace(report, recipe=replace(report.recipe, meets=False)))
    for number in (1, 2):
        night = regress(suite, runner=misses)
        assert (night.number, night.exit_code, night.accepted, night.baseline) == (number, 1, False, "")
        assert failing(night) == [("threshold", "recipe")]
        assert "--update-baseline" in (night.folder / "summary.md").read_text()
    accepted = regress(suite, update_baseline=True, runner=misses)
    assert (accepted.exit_code, accepted.accepted) == (0, True)
    after = regress(suite, runner=misses)
    assert (after.exit_code, after.baseline[:14]) == (0, "nightly run 3 ")


def test_a_first_night_that_only_full_int8_misses_says_so_and_is_the_baseline(passed, report):
    night = passed(replace(report, similarity=ByPlan(0.5, 0.999)))
    assert (night.exit_code, night.accepted) == (0, True)
    assert [(change.kind, change.what, change.now) for change in only(night).changes] == [("threshold", "int8", 0.5)]
    summary = (night.folder / "summary.md").read_text().replace("\\", "")
    assert "full INT8 measures 50%" in summary
    assert "set a 'target'" in summary


def test_a_first_night_that_misses_a_target_is_not_told_to_set_one(suite, passed, report):
    suite.write_text(ONCE + "target = 0.995\n")
    night = passed(replace(report, similarity=ByPlan(0.5, 0.999)))
    assert failing(night) == [("target", "int8")]
    summary = (night.folder / "summary.md").read_text().replace("\\", "")
    assert "the threshold is 99%" in summary
    assert "set a 'target'" not in summary
    assert "with this baseline" not in summary


def test_a_night_says_what_it_is_compared_with_and_why(passed, report, slow):
    """Night 2 changes nothing, so that night 3 is compared with night 2, whose figures are those of night 1."""
    first, *_, after = [passed(found) for found in (report, report, slow, report)]
    assert after.baseline.startswith("nightly run 2 (")
    assert after.baseline.endswith("run 3 (failed)")
    assert only(after).baseline.measured == f"nightly run 1 ({first.began})"
