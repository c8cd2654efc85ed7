"""Whole nights: real networks with real regressions planted, and invented reports for what no CPU can show."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import onnx
import pytest
import time_machine

import trt_bisect
from tests.support import networks
from tests.support.waiting import wait_until
from trt_bisect.cluster.settings import ClusterSettings
from trt_bisect.errors import BadInput, NothingMeasured
from trt_bisect.history.store import HISTORY, History
from trt_bisect.jobs.regress.regress import regress, run_network
from trt_bisect.jobs.regress.suite import read_suite
from trt_bisect.results.run_report import Report

OLD_REPORT = Path(__file__).parents[1] / "files" / "report-1" / "report.json"
"""Of the planted LeNet, written by version 0.1.0."""
SUITE = """
[defaults]
engine = "onnxruntime"
repeats = 2

[[network]]
name = "chain"
model = "chain.onnx"
calibration = "calibration.npz"
input = "inputs.npz"
"""


@pytest.fixture
def suite(tmp_path):
    """A suite of one small network in a folder of its own."""
    model = networks.chain(3)
    networks.save(model, tmp_path, "chain.onnx")
    np.savez(tmp_path / "calibration.npz", **networks.samples(model, 8))
    np.savez(tmp_path / "inputs.npz", **networks.samples(model, 2, seed=5))
    path = tmp_path / "trt-bisect.toml"
    path.write_text(SUITE)
    return path


def only(regression):
    (result,) = regression.networks
    return result


def failing(regression):
    return [(change.kind, change.what) for change in only(regression).failures]


def differing(regression):
    return {difference.what for difference in only(regression).differs}


def test_the_same_suite_twice_is_unchanged(suite):
    first = regress(suite)
    assert (first.exit_code, first.accepted, first.baseline) == (0, True, "")
    assert sorted(path.name for path in (first.folder / "repeats/chain").iterdir()) == ["2"]
    second = regress(suite)
    result = only(second)
    assert (second.exit_code, result.changes, result.noise, result.differs) == (0, (), (), ())
    assert second.baseline.startswith("nightly run 1 ")
    assert not (second.folder / "repeats").exists()
    assert (second.folder / "runs/chain/report.html").is_file()
    one, other = (night.folder / "baseline/chain.json" for night in (first, second))
    assert one.read_bytes() == other.read_bytes()
    record = json.loads(one.read_text())
    assert (record["repeats"], len(record["runs"])) == (2, 1)


def test_a_planted_culprit_is_found_and_told(suite):
    regress(suite)
    model = networks.chain(3)
    networks.plant_between(model, "conv0", "conv1")
    networks.save(model, suite.parent, "chain.onnx")
    night = regress(suite)
    assert night.exit_code == 1
    assert ("culprit", "conv1") in failing(night)
    assert ("similarity", "int8") in failing(night)
    assert {"model", "ranges"} <= differing(night)
    assert "data (the judged inputs)" not in differing(night)
    assert (night.folder / "repeats/chain/2/report.json").is_file()
    summary = (night.folder / "summary.md").read_text()
    assert "new culprit 'conv1'" in summary
    assert "--update-baseline" in summary
    record = json.loads((night.folder / "regression.json").read_text())
    assert record["networks"][0]["tonight"]["culprits"] == ["conv1"]
    assert record["exit_code"] == 1


def test_scaled_calibration_data(suite):
    regress(suite)
    data = networks.samples(networks.chain(3), 8)
    np.savez(suite.parent / "calibration.npz", **{name: 40 * array for name, array in data.items()})
    night = regress(suite)
    assert night.exit_code == 1
    assert ("similarity", "int8") in failing(night)
    assert differing(night) == {"ranges"}


def test_another_sample_set(suite):
    regress(suite)
    data = networks.samples(networks.chain(3), 2, seed=6)
    np.savez(suite.parent / "inputs.npz", **data)
    assert differing(regress(suite)) == {"data (the judged inputs)"}


def test_another_option(suite):
    regress(suite)
    suite.write_text(SUITE + 'precision = "fp16"\nthreshold = 0.98\n')
    night = regress(suite)
    options = {"option precision", "option base", "option threshold"}
    converted = {"model"}  # from opset 17 to 19: Q/DQ pairs on tensors in FP16 need it
    assert differing(night) == options | converted | {"how layers in FP16 and BF16 are written"}
    assert only(night).changes == ()


def test_another_metric_cannot_be_compared_and_is_accepted(suite):
    regress(suite)
    suite.write_text(SUITE + 'metric = "sqnr"\n')
    night = regress(suite)
    assert night.exit_code == 3
    assert "judged by 'sqnr' and its baseline by 'cosine'" in only(night).message
    assert regress(suite, update_baseline=True).exit_code == 0
    assert regress(suite).exit_code == 0


def test_a_metric_of_the_users_own_of_which_less_is_better(suite):
    (suite.parent / "mine.py").write_text(
        "import numpy as np\n\n\ndef error(r, o):\n    return float(np.abs(r - o).max())\n"
    )
    suite.write_text(SUITE + 'metric = "mine.py:error"\ndirection = "lower"\nthreshold = 0.5\n')
    assert regress(suite).exit_code == 0
    assert only(regress(suite)).changes == ()
    data = networks.samples(networks.chain(3), 8)
    np.savez(suite.parent / "calibration.npz", **{name: 40 * array for name, array in data.items()})
    night = regress(suite)
    assert ("similarity", "int8") in failing(night)
    before, now = only(night).changes[0].before, only(night).changes[0].now
    assert now > max(before) + 0.05  # a tenth of what the threshold allows


def test_a_target_holds_whatever_the_baseline_says(suite):
    suite.write_text(SUITE + "target = 0.999999\n")
    first = regress(suite)
    assert (first.exit_code, first.accepted) == (1, False)
    assert failing(first) == [("target", "int8")]
    assert not (first.folder / "baseline").exists()
    second = regress(suite, update_baseline=True)
    assert (second.exit_code, second.accepted, second.baseline) == (1, True, "")
    third = regress(suite)
    assert third.exit_code == 1
    assert third.baseline.startswith("nightly run 2 ")
    assert not (third.folder / "baseline").exists()
    assert "--update-baseline" not in (third.folder / "summary.md").read_text()


def test_update_baseline_keeps_a_folder_for_git(suite, tmp_path):
    kept = tmp_path / "baseline"
    with pytest.raises(BadInput, match="no baseline in"):
        regress(suite, kept)
    assert not kept.exists()
    made = regress(suite, kept, update_baseline=True)
    assert (made.exit_code, made.accepted) == (0, True)
    text = (kept / "chain.json").read_text()
    assert next(line for line in text.splitlines() if '"conv1"' in line).count(",") >= 5
    night = regress(suite, kept)
    assert (night.exit_code, night.baseline, night.accepted) == (0, str(kept), False)
    assert not (night.folder / "baseline").exists()
    suite.write_text(SUITE.replace('name = "chain"', 'name = "other"'))
    renamed = regress(suite, kept, update_baseline=True)
    assert renamed.gone == ("chain",)
    assert [path.name for path in kept.iterdir()] == ["other.json"]


def test_a_report_of_schema_1_as_baseline_and_what_differs_is_said(suite, report):
    stored = json.loads(OLD_REPORT.read_text())
    regress(suite, runner=Invented(report))
    night = regress(suite, OLD_REPORT, runner=Invented(report))
    result = only(night)
    assert result.baseline.runs[0].culprits == tuple(stored["culprits"])
    assert result.baseline.runs[0].similarity == stored["similarity"]
    [schema] = [each for each in result.differs if "schema" in each.what]
    assert (schema.before, schema.now) == ("1", "2")
    assert schema.what in (night.folder / "summary.md").read_text().replace("\\", "")


def test_a_run_a_report_and_a_night_as_baseline(suite, tmp_path):
    run = tmp_path / "run"
    trt_bisect.run(
        suite.parent / "chain.onnx", suite.parent / "calibration.npz", suite.parent / "inputs.npz", output=run
    )
    for baseline in (run, run / "report.json"):
        night = regress(suite, baseline)
        assert (night.exit_code, only(night).differs) == (0, ())
        with pytest.raises(BadInput, match="is not overwritten"):
            regress(suite, baseline, update_baseline=True)
    first = regress(suite)
    assert only(regress(suite, first.folder)).changes == ()
    older = json.loads((run / "report.json").read_text())
    del older["made_of"], older["budget"]
    (tmp_path / "older.json").write_text(json.dumps(older))
    night = regress(suite, tmp_path / "older.json")
    assert only(night).differs is None
    assert "not known" in (night.folder / "junit.xml").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not a report"),
        ("[]", "is not a report"),
        ('{"schema": 99}', "is not a report"),
        ('{"schema": 1, "layers": [], "culprits": [], "notes": [], "recipe": 3}', "is not a report"),
        ("[" * 100_000, "is not a report"),
    ],
)
def test_a_file_that_is_no_report(suite, tmp_path, content, said):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(BadInput, match=said):
        regress(suite, tmp_path / "report.json")
    assert not list((tmp_path / "nightly").glob("*/night.json"))


@pytest.mark.parametrize(
    "change", [None, {"runs": []}, {"runs": [{}]}, {"schema": 2}, {"kind": "x"}, {"origin": 3}, "text"]
)
def test_a_folder_of_other_json_is_no_baseline_and_left_alone(suite, tmp_path, change):
    kept = tmp_path / "kept"
    regress(suite, kept, update_baseline=True)
    path = kept / "chain.json"
    record = json.loads(path.read_text())
    if change == "text":
        change = {"runs": [{**record["runs"][0], "similarity": {"int8": "high"}}]}
    path.write_text("{" if change is None else json.dumps({**record, **change}))
    before = path.read_bytes()
    for update in (False, True):
        with pytest.raises(BadInput, match=r"chain\.json' is no baseline"):
            regress(suite, kept, update_baseline=update)
    assert path.read_bytes() == before


def test_of_several_networks_the_runs_own_is_compared(suite, tmp_path):
    run = tmp_path / "run"
    trt_bisect.run(
        suite.parent / "chain.onnx", suite.parent / "calibration.npz", suite.parent / "inputs.npz", output=run
    )
    networks.save(networks.chain(4), tmp_path, "other.onnx")
    suite.write_text(SUITE + SUITE[SUITE.index("[[network]]") :].replace("chain", "other"))
    night = regress(suite, run)
    assert [result.baseline is not None for result in night.networks] == [True, False]
    suite.write_text(suite.read_text().replace('"chain.onnx"', '"other.onnx"'))
    with pytest.raises(BadInput, match="the model of none of the suite's networks"):
        regress(suite, run)


def test_a_network_that_fails_does_not_cost_the_others(suite):
    (suite.parent / "broken.onnx").write_bytes(b"no network")
    suite.write_text(SUITE.replace("[[network]]", '[[network]]\nname = "bad"\nmodel = "broken.onnx"\n\n[[network]]'))
    night = regress(suite)
    assert [result.status for result in night.networks] == ["error", "passed"]
    assert night.exit_code == 3
    assert "broken.onnx" in night.networks[0].message
    assert [path.name for path in (night.folder / "baseline").iterdir()] == ["chain.json"]
    again = regress(suite)
    assert again.exit_code == 3
    assert again.baseline.startswith("nightly run 1 ")
    assert not (again.folder / "baseline").exists()


def test_a_bug_in_one_network_does_not_cost_the_others(suite):
    suite.write_text(SUITE + SUITE[SUITE.index("[[network]]") :].replace('"chain"', '"second"'))

    def buggy(task, folder, progress):
        if task.name == "chain":
            raise KeyError("a bug")
        return run_network(task, folder, progress)

    night = regress(suite, runner=buggy)
    assert [result.status for result in night.networks] == ["error", "passed"]
    assert "an error of trt-bisect itself, KeyError at test_regress.py" in night.networks[0].message


# Invented reports: what a night makes of figures, whatever measured them.


@pytest.fixture(scope="module")
def report(finished):
    """A real report with latencies, and precisions that an engine says it obeyed."""
    found = Report.from_json(json.loads((finished / "report.json").read_text()))
    layers = tuple(replace(row, obeyed=True) if row.quantizable else row for row in found.layers)
    return replace(found, layers=layers, latency=timed(fp32=4.0, fp16=2.0, int8=1.0, recipe=1.2))


def timed(**milliseconds):
    return {
        plan: {"mean_ms": value, "median_ms": value, "p99_ms": value, "runs": 9, "layers": []}
        for plan, value in milliseconds.items()
    }


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


def test_every_run_of_a_night_has_a_folder_of_its_own(suite, report):
    runner = Invented(report)
    first = regress(suite, runner=runner)
    night = first.folder
    assert runner.folders == [night / "runs/chain", night / "repeats/chain/2"]


def test_a_latency_beyond_the_spread_of_the_baseline(suite, report):
    spread = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=1.1, recipe=1.2))
    regress(suite, runner=Invented(report, spread))
    inside = replace(report, latency=timed(fp32=4.1, fp16=2.0, int8=1.19, recipe=1.2))
    assert regress(suite, runner=Invented(inside)).exit_code == 0
    outside = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=1.21, recipe=1.2))
    night = regress(suite, runner=Invented(outside))
    assert failing(night) == [("latency", "int8")]
    assert "latency of int8 is slower: 1.210 ms, was 1.000 ms to 1.100 ms" in (night.folder / "junit.xml").read_text()


def test_what_a_repeat_does_not_show_again_is_noise(suite, report):
    regress(suite, runner=Invented(report))
    slow = replace(report, latency=timed(fp32=9.0, fp16=2.0, int8=1.0, recipe=1.2))
    runner = Invented(slow, report)
    night = regress(suite, runner=runner)
    assert (night.exit_code, only(night).changes) == (0, ())
    assert [change.key for change in only(night).noise] == [("latency", "worse", "fp32")]
    assert len(runner.folders) == 2
    assert "noise" in (night.folder / "summary.md").read_text()
    slow_twice = Invented(slow, slow)
    assert failing(regress(suite, runner=slow_twice)) == [("latency", "fp32")]


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ({"obeyed": False, "ran": "fp32"}, ("obeyed", "conv2")),
        ({"outcome": "build failed", "similarity": None, "drop": None}, ("outcome", "conv2")),
        ({"culprit": True, "drop": 0.5}, ("culprit", "conv2")),
    ],
)
def test_a_layer_that_gets_worse(suite, report, changed, failure):
    regress(suite, runner=Invented(report))
    night = regress(suite, runner=Invented(with_layer(report, "conv2", **changed)))
    assert failing(night) == [failure]
    assert night.exit_code == 1


def test_a_culprit_that_is_gone_passes_and_is_handed_on(suite, report):
    regress(suite, runner=Invented(report))
    better = replace(with_layer(report, "ip2", culprit=False, drop=0.0), similarity={"int8": 0.9999, "recipe": 0.9999})
    runner = Invented(better)
    night = regress(suite, runner=runner)
    assert night.exit_code == 0
    assert ("culprit", "better", "ip2") in [change.key for change in only(night).changes]
    assert len(runner.folders) == 2
    back = regress(suite, runner=Invented(report))
    assert ("culprit", "ip2") in failing(back)
    assert back.baseline.startswith("nightly run 2 ")


def test_a_failed_night_is_no_baseline_for_the_next(suite, report):
    regress(suite, runner=Invented(report))
    slow = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=2.0, recipe=1.2))
    for _ in range(3):
        night = regress(suite, runner=Invented(slow))
        assert (night.exit_code, night.baseline[:14]) == (1, "nightly run 1 ")
    accepted = regress(suite, update_baseline=True, runner=Invented(slow))
    assert (accepted.exit_code, only(accepted).status) == (0, "passed")
    assert [change.key for change in only(accepted).changes] == [("latency", "worse", "int8")]
    after = regress(suite, runner=Invented(slow))
    assert (after.exit_code, after.baseline[:14]) == (0, "nightly run 5 ")


def test_a_slide_in_small_steps_is_seen_when_it_leaves_the_noise(suite, report):
    """Each night is 2 % slower than the one before, which passes alone."""
    regress(suite, runner=Invented(report))
    codes = []
    for step in range(1, 5):
        slower = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=1.02**step, recipe=1.2))
        codes.append(regress(suite, runner=Invented(slower)).exit_code)
    assert codes == [0, 0, 1, 1]


def test_the_origin_is_the_last_passed_nights_though_the_figures_stay(suite, report):
    def on(version):
        made_of = {**report.made_of, "versions": {**report.made_of["versions"], "onnxruntime": version}}
        return replace(report, made_of=made_of)

    regress(suite, runner=Invented(on("1.0")))
    assert differing(regress(suite, runner=Invented(on("2.0")))) == {"ONNX Runtime"}
    assert differing(regress(suite, runner=Invented(on("2.0")))) == set()


def test_a_network_that_is_new_joins_the_baseline(suite, report):
    regress(suite, runner=Invented(report))
    suite.write_text(SUITE + SUITE[SUITE.index("[[network]]") :].replace('"chain"', '"second"'))
    runner = Invented(report)
    night = regress(suite, runner=runner)
    assert night.exit_code == 0
    assert [result.baseline is None for result in night.networks] == [False, True]
    assert len(runner.folders) == 3
    assert all(result.baseline for result in regress(suite, runner=Invented(report)).networks)


def test_the_newest_nights_files_stand_beside_the_nights(suite, report):
    """A CI job finds them there; one that was broken off must not show yesterday's."""
    files = [suite.parent / "nightly" / name for name in ("junit.xml", "regression.json", "summary.md")]
    night = regress(suite, runner=Invented(report)).folder
    assert [path.read_bytes() for path in files] == [(night / path.name).read_bytes() for path in files]

    def stopped(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        regress(suite, runner=stopped)
    assert not any(path.exists() for path in files)


def test_a_smaller_suite_in_the_same_folder_does_not_forget_the_others(suite, report):
    other = SUITE[SUITE.index("[[network]]") :].replace('"chain"', '"second"')
    suite.write_text(SUITE + other)
    regress(suite, runner=Invented(report))
    suite.write_text(SUITE)
    night = regress(suite, runner=Invented(report))
    assert (night.exit_code, night.gone) == (0, ("second",))
    assert "no longer in the suite: 'second'" in (night.folder / "summary.md").read_text()
    suite.write_text(SUITE + other)
    slow = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=2.0, recipe=1.2))
    both = regress(suite, runner=Invented(slow))
    assert [result.status for result in both.networks] == ["failed", "failed"]
    regress(suite, update_baseline=True, runner=Invented(report))
    assert regress(suite, runner=Invented(report)).gone == ()


def test_what_accepts_a_night_is_the_command_that_it_prints(suite, report, tmp_path):
    kept = tmp_path / "kept here"
    regress(suite, kept, update_baseline=True, runner=Invented(report))
    slow = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=2.0, recipe=1.2))
    said = (regress(suite, kept, runner=Invented(slow)).folder / "summary.md").read_text().splitlines()[-2]
    assert shlex.split(said)[2:] == ["--config", str(suite), "--baseline", str(kept), "--update-baseline"]
    regress(suite, kept, update_baseline=True, runner=Invented(slow))
    assert regress(suite, kept, runner=Invented(slow)).exit_code == 0
    night = regress(suite, runner=Invented(report)).folder
    against_night = regress(suite, night, runner=Invented(slow))
    assert against_night.exit_code == 1
    assert against_night.baseline_folder is None


def test_a_second_one_at_once_is_refused(suite, report):
    def second(task, folder, progress):
        with pytest.raises(BadInput, match="Another run is writing"):
            regress(suite, runner=Invented(report))
        return report

    assert regress(suite, runner=second).number == 1
    assert regress(suite, runner=Invented(report)).number == 2


def test_a_report_with_nothing_measured_is_an_error(suite, report):
    empty = replace(report, exit_code=NothingMeasured.exit_code, notes=("the engine is gone",))
    night = regress(suite, runner=Invented(empty))
    assert (night.exit_code, only(night).status) == (3, "error")
    assert "No plan could be measured. the engine is gone" in only(night).message
    assert only(regress(suite, runner=Invented(report))).baseline is None


def test_a_first_night_whose_recipe_misses_is_no_baseline_until_it_is_accepted(suite, report):
    misses = Invented(replace(report, recipe={**report.recipe, "meets": False}))
    for number in (1, 2):
        night = regress(suite, runner=misses)
        assert (night.number, night.exit_code, night.accepted, night.baseline) == (number, 1, False, "")
        assert failing(night) == [("threshold", "recipe")]
        assert "--update-baseline" in (night.folder / "summary.md").read_text()
    accepted = regress(suite, update_baseline=True, runner=misses)
    assert (accepted.exit_code, accepted.accepted) == (0, True)
    after = regress(suite, runner=misses)
    assert (after.exit_code, after.baseline[:14]) == (0, "nightly run 3 ")


def test_a_first_night_that_only_full_int8_misses_says_so_and_is_the_baseline(suite, report):
    night = regress(suite, runner=Invented(replace(report, similarity={"int8": 0.5, "recipe": 0.999})))
    assert (night.exit_code, night.accepted) == (0, True)
    assert [(change.kind, change.what, change.now) for change in only(night).changes] == [("threshold", "int8", 0.5)]
    summary = (night.folder / "summary.md").read_text().replace("\\", "")
    assert "full INT8 measures 50.0000%, the threshold is 99" in summary


def test_a_night_says_what_it_is_compared_with_and_why(suite, report):
    """Night 2 changes nothing, so that night 3 is compared with night 2, whose figures are those of night 1."""
    slow = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=2.0, recipe=1.2))
    first, *_, after = [regress(suite, runner=Invented(found)) for found in (report, report, slow, report)]
    assert after.baseline.startswith("nightly run 2 (")
    assert after.baseline.endswith("the newest that passed or was accepted; not nightly run 3 (failed)")
    assert only(after).baseline.measured == f"nightly run 1 ({first.began})"


def test_the_suite_says_where_its_networks_are_measured(suite):
    suite.write_text('cluster = "local:2"\nretries = 5\n' + SUITE)
    assert read_suite(suite).cluster == ClusterSettings("local:2", 1, 5)
    suite.write_text('cluster = "nowhere"\n' + SUITE)
    with pytest.raises(BadInput, match=r"trt-bisect\.toml: There is no cluster 'nowhere'"):
        regress(suite)


def test_a_week_of_nights(suite, report):
    """The clock goes back an hour on Wednesday, to 1970 on Thursday; the network is worse on Friday and Saturday."""
    monday = datetime(2026, 10, 19, 1, 30, tzinfo=timezone.utc)
    slow = replace(report, latency=timed(fp32=4.0, fp16=2.0, int8=2.0, recipe=1.2))
    clocks = [monday + timedelta(days=day) for day in range(7)]
    clocks[2] -= timedelta(hours=1)
    clocks[3] = datetime(1970, 1, 1, tzinfo=timezone.utc)
    seen = []
    for clock, found in zip(clocks, [report] * 4 + [slow, slow, report], strict=True):
        with time_machine.travel(clock, tick=False):
            night = regress(suite, runner=Invented(found))
            seen.append((night.number, night.exit_code, night.baseline.split(" (")[0]))
    assert seen == [
        (1, 0, ""),
        (2, 0, "nightly run 1"),
        (3, 0, "nightly run 2"),
        (4, 0, "nightly run 3"),
        (5, 1, "nightly run 4"),
        (6, 1, "nightly run 4"),
        (7, 0, "nightly run 4"),
    ]
    assert len(list((suite.parent / "nightly").glob("*/night.json"))) == 7


def interrupted(suite):
    """A night that was stopped in the second of its two networks; gives the first one's journal."""
    suite.write_text(SUITE + SUITE[SUITE.index("[[network]]") :].replace('"chain"', '"second"'))

    def stopped(task, folder, progress):
        if task.name == "second":
            raise KeyboardInterrupt
        return run_network(task, folder, progress)

    with pytest.raises(KeyboardInterrupt):
        regress(suite, runner=stopped)
    return next((suite.parent / "nightly").glob("*/runs/chain/journal.jsonl"))


def test_an_interrupted_night_is_gone_on_with_where_it_was(suite):
    journal = interrupted(suite)
    measured, run_again = journal.read_bytes(), []

    def noting(task, folder, progress):
        run_again.append(folder.relative_to(journal.parents[2]).as_posix())
        return run_network(task, folder, progress)

    night = regress(suite, runner=noting)
    assert night.folder == journal.parents[2]
    assert journal.read_bytes() == measured
    assert (night.number, night.exit_code) == (1, 0)
    assert run_again == ["runs/second", "repeats/second/2"]
    with History(suite.parent / "nightly" / HISTORY, reading=True) as history:
        assert sorted(history.reports()["label"]) == ["chain", "chain", "second", "second"]
    assert regress(suite).number == 2


def test_a_run_that_was_killed_is_not_taken_for_a_finished_one(suite):
    journal = interrupted(suite)
    (journal.parent / "progress.json").write_text("{}")
    run_again = []

    def noting(task, folder, progress):
        run_again.append(task.name)
        return run_network(task, folder, progress)

    assert regress(suite, runner=noting).exit_code == 0
    assert run_again[0] == "chain"


def test_a_night_whose_files_changed_begins_anew(suite):
    interrupted(suite)
    networks.save(networks.chain(4), suite.parent, "chain.onnx")
    assert regress(suite).number == 2


# The command.


@pytest.fixture
def night_command(command, suite, monkeypatch):
    """``trt-bisect regress`` in the suite's folder, as on a machine of its own."""
    monkeypatch.chdir(suite.parent)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return lambda *arguments: command("regress", *arguments)


def test_the_command(night_command, suite, monkeypatch, tmp_path):
    code, out, err = night_command()
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "passed  chain")
    assert "There is no baseline yet" in err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    (tmp_path / "step.md").write_text("before\n")
    data = networks.samples(networks.chain(3), 8)
    np.savez(suite.parent / "calibration.npz", **{name: 40 * array for name, array in data.items()})
    code, out, _ = night_command("--baseline", "latest", "--config", "trt-bisect.toml")
    assert code == 1
    assert "full INT8 is worse" in out
    assert "what differs: ranges (" in out
    assert (tmp_path / "step.md").read_text() == "before\n" + (suite.parent / "nightly/summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "gone/step.md"))
    code, _, err = night_command("--update-baseline")
    assert code == 0
    assert "$GITHUB_STEP_SUMMARY cannot be written" in err


def test_bad_use_is_two_lines_and_exit_code_2(night_command, suite, tmp_path):
    for arguments, said in (
        (("--config", "gone.toml"), "does not exist"),
        (("--baseline", "gone"), "no baseline in 'gone'"),
    ):
        code, out, err = night_command(*arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert len(err.splitlines()) == 2
    suite.write_text('output = "trt-bisect.toml"\n' + SUITE)
    assert night_command()[0] == 2
    assert not (tmp_path / "nightly/x").exists()


def test_layer_names_that_mean_something_elsewhere(night_command, suite):
    """Markup, a table's bar, XML's and Markdown's signs in a layer's name are shown and obeyed by nobody."""
    model = onnx.load(suite.parent / "chain.onnx")
    hostile = "<b>|[red]`x`]]>&@me/../#1"
    model.graph.node[2].name = hostile
    networks.save(model, suite.parent, "chain.onnx")
    night_command()
    networks.scale_constant(model, "conv0.bias", lambda bias: np.where(np.arange(8) == 1, abs(bias) + 0.5, bias) * 1)
    networks.plant_between(model, "conv0", "conv1")
    networks.save(model, suite.parent, "chain.onnx")
    code, out, _ = night_command()
    assert code == 1
    assert hostile in out
    night = suite.parent / "nightly/summary.md"
    line = next(line for line in night.read_text().splitlines() if "new culprit" in line)
    assert r"'&lt;b&gt;\|\[red\]\`x\`\]\]&gt;&amp;&#64;me/\.\./\#1'" in line


@pytest.mark.subprocess
def test_kill_9_and_the_same_command(forks, suite):
    """Killed wherever it is after a while; the same command ends with the report of an undisturbed night."""
    process = forks.start("regress", "--config", suite)
    wait_until(lambda: list((suite.parent / "nightly").glob("*/runs/chain/journal.jsonl")))
    process.kill()
    process.wait()
    (record,) = (suite.parent / "nightly").glob("*/night.json")
    assert json.loads(record.read_text())["status"] == "running"
    done = forks.run("regress", "--config", suite)
    assert done.returncode == 0
    assert "Resuming the nightly run in" in done.stderr
    (folder,) = (suite.parent / "nightly").glob("2*")
    undisturbed = regress(suite, folder)
    assert only(undisturbed).changes == ()
