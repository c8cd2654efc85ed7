"""A search that goes on, read from its journal, against the journal itself and the report at the end."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from trt_bisect.report.manifest import MANIFEST, RunManifest
from trt_bisect.view.replay import Replay

import trt_bisect
from tests.support import networks
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric, metric_of_facts
from trt_bisect.driver.suspects.bisect import bisect
from trt_bisect.driver.suspects.exhaustive import exhaustive
from trt_bisect.driver.suspects.search import Findings, Question, drive
from trt_bisect.report.model import NOT_TRIED
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import INTERRUPTED
from trt_bisect.view.file_tail import JournalTail
from trt_bisect.view.snapshot import RunFolder

WAYS = {
    "exhaustive": {"strategy": "exhaustive"},
    "bisect": {"strategy": "bisect", "calibrator": "minmax"},
    "branch": {"strategy": "branch", "calibrator": "minmax"},
    "branch, little memory": {"strategy": "branch", "memory": 60_000, "calibrator": "minmax"},
    "branch, culprits": {"strategy": "branch", "curve": "culprits", "calibrator": "minmax"},
    "branch, adaptive": {"strategy": "branch", "curve": "adaptive", "calibrator": "minmax"},
}
SHOWN = ("similarity", "drop", "outcome", "asked", "ran", "sqnr", "output")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Two planted culprits in a MobileNet-like network, and its data."""
    folder = tmp_path_factory.mktemp("network")
    model = networks.depthwise()
    networks.plant_between(model, "block0.depthwise", "block0.project")
    networks.plant_between(model, "block2.depthwise", "block2.project", channel=3)
    np.savez(folder / "data.npz", **networks.samples(model))
    return networks.save(model, folder), folder / "data.npz"


def ran(network, folder, **options):
    """The folder and the report of a run."""
    return folder, trt_bisect.run(*network, output=folder, threshold=0.999, explain="none", **options)


@pytest.fixture(scope="module", params=WAYS)
def run(request, network, tmp_path_factory):
    """A finished run: its folder and its report."""
    if request.param == "exhaustive":
        return request.getfixturevalue("whole")
    return ran(network, tmp_path_factory.mktemp("run"), **WAYS[request.param])


@pytest.fixture(scope="module")
def whole(network, tmp_path_factory):
    """A finished run by ``exhaustive``: its folder and its report."""
    return ran(network, tmp_path_factory.mktemp("whole"), **WAYS["exhaustive"])


@pytest.fixture
def swept(whole, tmp_path):
    """A copy of its folder, which may be changed, and its report."""
    return shutil.copytree(whole[0], tmp_path / "run"), whole[1]


class Growing:
    """A copy of a run's folder in which the journal grows."""

    def __init__(self, run, folder):
        self.lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
        self.curve = curve_of(run)
        self.journal = folder / JOURNAL
        self.journal.write_bytes(b"")
        shutil.copy(run / MANIFEST, folder)
        self.looked_at = RunFolder(folder)

    def append(self, content: bytes):
        with self.journal.open("ab") as file:
            file.write(content)

    def report(self):
        look = self.looked_at.snapshot()
        assert look.status == INTERRUPTED
        return look.report


def is_of_the_curve(line: bytes) -> bool:
    """True for trials on the first inputs together; those of the answer's search have a name of their own first."""
    return b'"trial"' in line and not json.loads(line)["trial"]["plan"].startswith("inputs ")


def curve_of(run) -> list[bytes]:
    """The trials of the curve in a run's journal, with the ranges that the run chose."""
    key = json.loads((run / MANIFEST).read_bytes())["report"]["fingerprint"]
    lines = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    return [line for line in lines if is_of_the_curve(line) and json.loads(line)["run"] == key]


def int8_layers(key: str) -> list[int]:
    """The layers in INT8 of a plan, read off its key: ``8*3.f*2``."""
    letters = "".join(run.split("*")[0] * int(run.split("*")[1]) for run in key.split(" ")[-1].split("."))
    return [place for place, letter in enumerate(letters) if letter == "8"]


def suspects(report) -> set[str]:
    """The suspects that a report names. A report of a search under way names no culprit, and adds no layer to them."""
    assert report.culprits == ()
    assert not any(row.culprit for row in report.layers)
    assert report.recipe.added == []
    return {row.name for row in report.layers if row.suspect}


def measured(report):
    return {row.index: row for row in report.layers if row.quantizable and row.outcome != NOT_TRIED}


def test_fed_line_by_line_it_shows_what_the_journal_holds_and_ends_as_the_report(run, tmp_path):
    folder, final = run
    growing = Growing(folder, tmp_path)
    figures: dict[int, set[float]] = {}
    counts = []
    for line in growing.lines:
        growing.append(line)
        trial = json.loads(line)["trial"] if line in growing.curve else None
        if trial and int8_layers(trial["plan"]):
            figures.setdefault(max(int8_layers(trial["plan"])), set()).add(trial["outputs"]["y"]["values"]["cosine"])
        report = growing.report()
        rows = measured(report)
        counts.append(len(rows))
        for index, row in rows.items():
            assert row.similarity in figures[index]
        assert suspects(report) <= set(final.culprits)
    assert counts[0] == 0
    assert [[getattr(row, name) for name in SHOWN] for row in report.layers] == [
        [getattr(row, name) for name in SHOWN] for row in final.layers
    ]
    assert suspects(report) == set(final.culprits)
    assert len(final.culprits) == 2
    assert report.similarity.int8 == final.similarity.int8
    assert report.plans == final.plans


def test_the_exhaustive_curve_grows_by_a_layer_a_trial(swept, tmp_path):
    run, _ = swept
    (tmp_path / "copy").mkdir()
    growing = Growing(run, tmp_path / "copy")
    growing.append(b"".join(growing.curve[:2]))  # full INT8, and nothing in INT8
    asked = [row.index for row in growing.report().layers if row.quantizable]
    assert measured(growing.report()) == {}
    for count, line in enumerate(growing.curve[2 : 2 + len(asked)], 1):
        growing.append(line)
        assert list(measured(growing.report())) == asked[:count]


def test_a_line_that_is_half_written_is_left_for_the_next_time(swept, tmp_path):
    run, _ = swept
    (tmp_path / "copy").mkdir()
    growing = Growing(run, tmp_path / "copy")
    growing.append(b"".join(growing.curve[:7]) + growing.curve[7][:40])
    before = growing.report()
    assert before.plans == 7
    assert growing.report() is before
    growing.append(growing.curve[7][40:-1])
    assert growing.report().plans == 7
    growing.append(growing.curve[7][-1:])
    assert growing.report().plans == 8


def test_trials_of_another_fingerprint_are_not_mixed_in(network, swept):
    run, _ = swept
    other = (run / JOURNAL).read_bytes()
    final = trt_bisect.run(*network, output=run, strategy="exhaustive", calibrator="minmax")
    (run / "report.json").unlink()
    assert (run / JOURNAL).read_bytes().startswith(other)
    report = RunFolder(run).snapshot().report
    added = (run / JOURNAL).read_bytes()[len(other) :]
    mine = [json.loads(line) for line in added.splitlines()]
    trials = [line["trial"]["plan"] for line in mine if line["run"] == final.fingerprint and "trial" in line]
    assert report.plans == len(set(trials))
    assert final.plans >= report.plans
    assert [row.similarity for row in report.layers] == [row.similarity for row in final.layers]


def test_lines_that_are_no_trials_are_passed_over(swept, tmp_path):
    run, final = swept
    key = final.fingerprint
    with (run / JOURNAL).open("ab") as file:
        file.write(b"\xff\xfe\n[1, 2]\n{}\nnull\n")
        file.write(f'{{"run": "{key}", "trial": 3}}\n{{"run": "{key}", "trial": {{"plan": "x"}}}}\n'.encode())
    (run / "report.json").unlink()
    assert RunFolder(run).snapshot().report.plans == final.plans


def test_a_trial_that_was_tried_again_replaces_the_first(swept, tmp_path):
    """One that timed out is tried again when a run is resumed; the replay must not hold on to what it was told."""
    run, final = swept
    (tmp_path / "copy").mkdir()
    growing = Growing(run, tmp_path / "copy")
    sixth = json.loads(growing.curve[5])
    sixth["trial"] |= {"outcome": "timed out", "outputs": {}, "message": "1800 s"}
    growing.append(b"".join(growing.curve[:5]) + json.dumps(sixth).encode() + b"\n")
    layer = max(int8_layers(sixth["trial"]["plan"]))
    assert growing.report().layers[layer].outcome == "timed out"
    assert growing.report().layers[layer].message == "1800 s"
    growing.append(b"".join(growing.curve[5:]))
    assert suspects(growing.report()) == set(final.culprits)
    assert growing.report().layers[layer].outcome == "measured"


def test_a_journal_that_was_begun_anew_is_read_anew(swept, tmp_path):
    run, final = swept
    tail = JournalTail(run, final.fingerprint)
    tail.read()
    assert len(tail.trials) > 3
    (run / JOURNAL).write_bytes(b"".join(curve_of(run)[:3]))
    tail.read()
    assert len(tail.trials) == 3
    (run / JOURNAL).unlink()
    assert tail.read() is False


def test_the_curve_is_shown_before_full_int8_is_measured(swept, tmp_path):
    run, final = swept
    tail = JournalTail(run, final.fingerprint)
    tail.read()
    asked = RunManifest.from_json(json.loads((run / MANIFEST).read_bytes()))
    replay = Replay(asked)
    full = asked.question.all_but(()).key()
    of_curve = {plan: trial for plan, trial in tail.trials.items() if not plan.startswith("inputs ")}
    first = {plan: trial for plan, trial in list(of_curve.items())[:9] if plan != full}
    assert len(measured(replay.report(first))) == 7  # but full INT8 and nothing in INT8
    assert replay.report(first).similarity.int8 is None
    assert suspects(replay.report(tail.trials)) == set(final.culprits)


def test_a_threshold_that_full_int8_meets_convicts_nobody_once_it_is_known(network, swept):
    run, _ = swept
    lenient = trt_bisect.run(*network, output=run, threshold=0.01, strategy="exhaustive")
    (run / "report.json").unlink()
    assert lenient.culprits == ()
    assert suspects(RunFolder(run).snapshot().report) == set()
    assert RunFolder(run).snapshot().report.exit_code == lenient.exit_code


@pytest.mark.parametrize("accept", [False, True])
def test_a_doubted_pass_has_the_exit_code_of_its_run(network, tmp_path, accept):
    """Full INT8 passes. Its input is a hundredth of the calibration data, so the pass is doubted."""
    model, data = network
    with np.load(data) as file:
        inputs = {name: file[name] / 100 for name in file.files}
    options = {"threshold": 0.01, "explain": "none", "accept": accept, "output": tmp_path}
    ended = trt_bisect.run(model, data, inputs=inputs, **options)
    (tmp_path / "report.json").unlink()
    shown = RunFolder(tmp_path).snapshot().report
    assert shown.exit_code == ended.exit_code == (0 if accept else 1)


@pytest.mark.parametrize("driver", [exhaustive, bisect])
@pytest.mark.parametrize("failing", [(), (11,)])
def test_watched_steps_give_the_findings(driver, failing):
    """Additive losses with two culprits, and a layer that cannot be built."""
    question = Question(30, tuple(range(30)), 0.01, 0.005)
    costs = {7: 0.3, 20: 0.02}

    def measure(plan):
        return None if plan.int8 & set(failing) else sum(costs.get(k, 1e-6) for k in plan.int8)

    watched: list = []
    found = drive(driver(question, watched), measure)
    assert found.suspects == (7, 20)
    assert Findings.so_far(found.full, watched) == found


def test_what_a_run_asks_survives_its_file(tmp_path, network):
    def ratio(reference, output):
        return float("inf") if np.array_equal(reference, output) else 1.0 / float(np.abs(reference - output).max())

    report = trt_bisect.run(*network, output=tmp_path, metric=ratio, threshold=3.0, direction="higher")
    asked = RunManifest.from_json(json.loads((tmp_path / MANIFEST).read_bytes()))
    assert asked.rule.metric.perfect == float("inf")
    assert asked.rule.metric.name == "ratio"
    assert (asked.blank.threshold, asked.blank.fingerprint) == (3.0, report.fingerprint)
    assert all(row.outcome == NOT_TRIED and row.similarity is None for row in asked.blank.layers)
    with pytest.raises(trt_bisect.BadInput):
        asked.rule.metric.function(np.zeros(1), np.zeros(1))


@pytest.mark.parametrize("name", ["cosine", "sqnr", "mse", "top1"])
def test_a_metric_judges_alike_by_its_facts(name):
    metric = find_metric(name)
    again = metric_of_facts(json.loads(json.dumps(metric.facts())))
    assert make_rule(again, 0.5).budget == make_rule(metric, 0.5).budget


def test_a_users_metric_judges_alike_by_its_facts():
    def ratio(reference, output):
        return float(np.mean(output) / np.mean(reference))

    for direction in ("higher", "lower"):
        metric = find_metric(ratio, direction).knowing_perfect(np.ones((1, 2)))
        again = metric_of_facts(json.loads(json.dumps(metric.facts())))
        assert [again.loss(value) for value in (0.3, 1.0, 1.7)] == [metric.loss(value) for value in (0.3, 1.0, 1.7)]
