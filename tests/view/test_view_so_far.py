"""The report of a run under way, against the trials in the journal and the report at the end."""

from __future__ import annotations

import json
import shutil
import threading
from functools import cache

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.run_states import looked_at
from tests.support.waiting import wait_until
from trt_bisect.commands.run import live
from trt_bisect.commands.run.live import Live
from trt_bisect.commands.run.state import Phase
from trt_bisect.driver.curves import bisect, exhaustive
from trt_bisect.driver.search import Findings, Question, drive
from trt_bisect.report.model import read_report
from trt_bisect.report.parts import FAILS, NOT_TRIED, SO_FAR
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import FINISHED, RUNNING
from trt_bisect.view.index import RunFolder

WAYS = {
    "exhaustive": {"strategy": "exhaustive"},
    "bisect": {"strategy": "bisect", "calibrator": "minmax"},
    "auto": {"strategy": "auto", "calibrator": "minmax"},
    "auto, little memory": {"strategy": "auto", "memory": 60_000, "calibrator": "minmax"},
    "auto, culprits": {"strategy": "auto", "curve": "culprits", "calibrator": "minmax"},
    "auto, adaptive": {"strategy": "auto", "curve": "adaptive", "calibrator": "minmax"},
}
SHOWN = ("similarity", "loss", "outcome", "asked", "ran", "sqnr", "output")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Two planted culprits in a MobileNet-like network, and its data."""
    folder = tmp_path_factory.mktemp("network")
    model = networks.depthwise()
    networks.plant_between(model, "block0.depthwise", "block0.project")
    networks.plant_between(model, "block2.depthwise", "block2.project", channel=3)
    np.savez(folder / "data.npz", **networks.samples(model))
    return networks.save(model, folder), folder / "data.npz"


def seen(network, folder, **options):
    """The folder of a run, its report, and what was seen of it meanwhile."""
    asked = {"output": folder, "threshold": 0.999, **options}
    return folder, *looked_at(lambda shown: trt_bisect.run(*network, progress=shown, **asked))


@pytest.fixture(scope="module")
def by_way(network, tmp_path_factory):
    """Returns a function that makes a run in one of ``WAYS``, once; the exhaustive one explains its verdict."""

    def make(way):
        explain = {} if way == "exhaustive" else {"explain": "none"}
        return seen(network, tmp_path_factory.mktemp("run"), **explain, **WAYS[way])

    return cache(make)


@pytest.fixture(scope="module", params=edition(("exhaustive", "bisect", "auto"), tuple(WAYS)))
def run(request, by_way):
    return by_way(request.param)


@pytest.fixture(scope="module")
def swept(by_way):
    """The run that measures the boundaries one after the other and explains its verdict."""
    return by_way("exhaustive")


def journal(folder, run):
    """The trials in a journal with a fingerprint, by the texts of their plans."""
    records = [json.loads(line) for line in (folder / JOURNAL).read_bytes().splitlines()]
    trials = [record["trial"] for record in records if record["run"] == run and "trial" in record]
    return {trial["plan"]: trial for trial in trials}


def journals(folder) -> set[str]:
    """The fingerprints of a journal's trials: other ranges make another one."""
    records = [json.loads(line) for line in (folder / JOURNAL).read_bytes().splitlines()]
    return {record["run"] for record in records if "trial" in record}


def int8_layers(key: str) -> list[int]:
    """The layers in INT8 of a plan, read off its key: ``8*3.f*2``."""
    letters = "".join(run.split("*")[0] * int(run.split("*")[1]) for run in key.split(" ")[-1].split("."))
    return [place for place, letter in enumerate(letters) if letter == "8"]


def blamed(report) -> set[str]:
    """The suspects that a report names, and the culprits, which it has from the verdict on."""
    assert {row.name for row in report.layers if row.culprit} == set(report.culprits)
    return {row.name for row in report.layers if row.suspect or row.culprit}


def measured(report):
    return {row.index: row for row in report.layers if row.quantizable and row.outcome != NOT_TRIED}


def test_it_shows_what_is_measured_and_ends_as_the_report(run):
    folder, final, looking = run
    trials = journal(folder, final.fingerprint)
    counts, plans = [], []
    for report, known in looking.kept:
        assert report.state == RUNNING
        figures: dict[int, set[float]] = {}
        for key in known & set(trials):
            if int8_layers(key) and not key.startswith("inputs "):
                layer = max(int8_layers(key))
                figures.setdefault(layer, set()).add(trials[key]["outputs"]["y"]["values"]["cosine"])
        rows = measured(report)
        counts.append(len(rows))
        plans.append(report.plans)
        assert all(row.similarity in figures[index] for index, row in rows.items())
        if report.similarity.int8 is not None:
            assert blamed(report) <= set(final.culprits)
    reports = [report for report, _ in looking.kept]
    costs = [report.answer.cost for report in reports if report.recipe.meets]
    assert costs == sorted(costs, reverse=True), "cheaper recipes replace the first one"
    assert not any(measured(report) for report in reports if report.culprits == ()), "the curve comes after the answer"
    last = reports[-1]
    for name in ("verdict", "culprits", "recipe", "answer", "similarity"):
        assert getattr(last, name) == getattr(final, name), "the verdict stays while it is explained"
    assert not (folder / SO_FAR).exists()
    assert (final.verdict, final.state, RunFolder(folder).snapshot().status) == (FAILS, FINISHED, FINISHED)
    assert counts[0] == 0
    assert plans == sorted(plans)
    shown, expected = ([[getattr(row, name) for name in SHOWN] for row in one.layers] for one in (last, final))
    assert shown == expected
    assert blamed(last) == set(final.culprits)
    assert len(final.culprits) == 2
    of_these_ranges = len(looking.kept[-1][1])
    assert of_these_ranges <= last.plans <= final.plans
    assert of_these_ranges == last.plans or len(journals(folder)) > 1, "plans with the first ranges count too"
    assert (last.seconds.calibrate, last.started) == (final.seconds.calibrate, final.started)
    assert 0 < last.seconds.build + last.seconds.infer <= last.seconds.total
    assert reports[0].seconds.total <= final.seconds.total


def test_the_exhaustive_curve_grows_by_a_layer_a_trial(swept):
    _, final, looking = swept
    asked = [row.index for row in final.layers if row.quantizable]
    curves = [list(measured(report)) for report, _ in looking.kept]
    grown = [curve for place, curve in enumerate(curves) if place == 0 or curve != curves[place - 1]]
    assert grown == [asked[:count] for count in range(len(asked) + 1)]


def test_a_bisection_shows_every_boundary_that_it_has_measured(by_way):
    """Also those that belong to no settled step; from the first suspect on, those with it in INT8 no longer count."""
    _, _, looking = by_way("bisect")
    step = looking.state.of_curve.question.step

    def has_a_suspect(report):
        return any(row.loss is not None and row.loss >= step for row in report.layers)

    before = [(report, known) for report, known in looking.kept if not has_a_suspect(report)]
    for report, known in before:
        curve = [int8_layers(key) for key in known if not key.startswith("inputs ")]
        assert set(measured(report)) == {max(layers) for layers in curve if layers}
    assert len(measured(before[-1][0])) >= 3


# The file.


class _Counted:
    """The state of a run, and how often its report is asked for."""

    phase = Phase.SEARCH

    def __init__(self, report):
        self.made = self.known = report
        self.asked, self.count, self.error = 0, 1, None

    def trials(self):
        return self.count

    def report(self, *, files):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.made


@pytest.fixture
def search(swept, monkeypatch):
    monkeypatch.setattr(live.reporting, "report_of", _Counted.report)
    return _Counted(swept[2].kept[3][0])


def test_it_is_written_again_only_with_more_trials(search, tmp_path, monkeypatch):
    """And without a step of the run: it may wait for an engine."""
    monkeypatch.setattr(live, "_EVERY", 0.001)
    monkeypatch.setattr(live, "SHARE", float("inf"))
    with Live(tmp_path) as written:
        written.watch(search)
        assert read_report(tmp_path / SO_FAR) == search.made
        search.count = 2
        wait_until(lambda: search.asked == 2)
        looks = threading.Event()
        search.trials = lambda: looks.set() or 2
        looks.wait()
    assert search.asked == 2
    assert read_report(tmp_path / SO_FAR) == search.made, "a run that ends without a report leaves what it knew"


def test_it_takes_a_twentieth_of_the_time(search, tmp_path, monkeypatch):
    """A report that takes a minute is made again after 20 minutes."""
    clock = iter(range(0, 6000, 60))
    waits = []
    monkeypatch.setattr(live, "perf_counter", lambda: float(next(clock)))
    written = Live(tmp_path)
    monkeypatch.setattr(written._ended, "wait", lambda seconds: waits.append(seconds) or len(waits) > 3)
    written.watch(search)
    for count in range(2, 4):
        search.count = count
        written._write_often()
        waits.pop()
    assert waits[0] == pytest.approx(1200.0)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a mistake of ours")])
def test_an_error_does_not_stop_the_run(search, tmp_path, error):
    with Live(tmp_path) as written:
        search.error = error
        written.watch(search)
        assert not (tmp_path / SO_FAR).exists()
        search.error = None
        shutil.rmtree(tmp_path)
        written.watch(search)
        tmp_path.mkdir()
        written.watch(search, search.made)
        assert read_report(tmp_path / SO_FAR) == search.made
        written.end()
    assert list(tmp_path.iterdir()) == []


# The drivers, whose steps are watched.


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
