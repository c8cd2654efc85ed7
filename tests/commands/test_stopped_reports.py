"""The report of a run that is interrupted, or ended by ``--time-limit``: its recipe holds in plain ONNX Runtime."""

import errno
import io
import json
import os
import re
import shutil
import signal
from dataclasses import replace
from itertools import product
from time import perf_counter

import numpy as np
import pytest
import rich.console
from rich.console import Console

import trt_bisect
from tests.support import networks
from tests.support.by_hand import worst_cosine
from tests.support.editions import edition
from tests.support.progress_doubles import Said, Steps, StopsAt
from trt_bisect import BadInput, NothingMeasured, Report
from trt_bisect.answer import search
from trt_bisect.answer.each_alone import EachAlone
from trt_bisect.commands.run import run
from trt_bisect.commands.run.live import StoppedRun, cost_of
from trt_bisect.options.kinds import parse_time
from trt_bisect.report.answer import FUSED, HALF
from trt_bisect.report.model import read_report
from trt_bisect.report.next_step import GO_ON
from trt_bisect.report.parts import FAILS, PASSES, SO_FAR, UNMEASURED
from trt_bisect.report.words import headline
from trt_bisect.support import progress
from trt_bisect.view.index import RunFolder

DRAW, THRESHOLD, EFFORT = edition((networks.depthwise, 0.99995, "quick"), (networks.transformer, 0.9999, "default"))
ASKED = {"engine": "onnxruntime", "explain": "none", "history": "none", "threshold": THRESHOLD, "effort": EFFORT}
WAYS, SHARES = ("interrupted", "time limit"), (0.02, 0.3, 0.6, 0.9)
FEW_STOPS = [(0.02, WAYS[0]), (0.3, WAYS[1]), (0.6, WAYS[0]), (0.9, WAYS[1])]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A network, six inputs on which it misses in INT8, and the run that nobody stopped."""
    folder = tmp_path_factory.mktemp("given")
    model = DRAW(blocks=1)
    path, data = networks.given(model, folder, 6)
    feeds = [{name: values[k : k + 1] for name, values in data.items()} for k in range(6)]
    counted = Steps()
    whole = trt_bisect.run(path, feeds, inputs=feeds, output=folder / "whole", progress=counted, **ASKED)
    assert whole.culprits
    return path, feeds, whole, counted.count


def ran(given, **more):
    """Runs the question of ``ASKED`` on the six inputs, or with other options."""
    path, feeds, *_ = given
    return trt_bisect.run(path, feeds, **{"inputs": feeds, **ASKED, **more})


def stopped(way, at, given, folder, monkeypatch, **more):
    """Runs until a step; returns the report."""
    try:
        if way == "interrupted":
            return ran(given, output=folder, progress=Steps(at), **more)
        with monkeypatch.context() as clock:
            steps = iter(range(1 << 20))
            clock.setattr(progress, "perf_counter", lambda: next(steps))
            return ran(given, output=folder, time_limit=at, **more)
    except StoppedRun as stop:
        return stop.report
    except NothingMeasured:
        return Report.load(folder)


def test_fp16_that_was_not_measured_comes_before_a_plan_that_may_be_slower(given, tmp_path, monkeypatch):
    """On an A100 so small a network is bound by launches: INT8 saves less than 5 % of FP16's time."""
    report = stopped(WAYS[1], int(0.6 * given[-1]), given, tmp_path, monkeypatch, gpu="A100")
    by_plan = {choice.plan: choice for choice in report.choices}
    assert by_plan["fp16"].meets is None
    assert by_plan["fp16"].ms == report.predicted.plans["fp16"].ms
    assert report.choices[-1].ms > 0.95 * by_plan["fp16"].ms
    assert (report.next.kind, report.next.command) == (GO_ON, report.command)


@pytest.mark.parametrize(("share", "way"), edition(FEW_STOPS, list(product(SHARES, WAYS))))
def test_a_stopped_run_leaves_a_verdict_and_a_recipe_that_holds_and_goes_on(given, tmp_path, monkeypatch, share, way):
    path, feeds, whole, steps = given
    began = perf_counter()
    found = stopped(way, max(int(share * steps), 1), given, tmp_path, monkeypatch)
    assert found.stopped == way
    assert Report.load(tmp_path) == found
    if found.verdict == UNMEASURED:
        assert share < 0.1
        assert found.state == "interrupted"
        assert found.exit_code == 3
        assert [layer.name for layer in found.layers] == [layer.name for layer in whole.layers]
    else:
        assert found.answer.not_done
        assert found.similarity.int8 < THRESHOLD
        assert found.exit_code == 1
        assert len(found.by_input.int8.values) == len(feeds)
        assert "no single layer is to blame" not in headline(found), "no layer was put back yet"
        if found.recipe.meets:
            assert found.answer.cost < 3, "cheaper than the whole network in FP32"
            assert worst_cosine(path, tmp_path / "recipe" / "network.qdq.onnx", feeds) >= THRESHOLD
            told, settings = " ".join(found.answer.not_done), {*whole.answer.settings}
            if not any(layer.recipe == "fp16" for layer in found.layers):
                settings -= {HALF, FUSED}
            # Stopped early, the recipe has no INT8 layers around an unquantized one.
            if share > 0.5:
                assert {name for name in settings if name in told} == settings - found.answer.settings.keys()
        else:
            assert way == "interrupted"
            assert share < 0.5, "later, plans that hold on all six inputs were measured"
    if share == 0.6:
        goes_on = perf_counter()
        again = ran(given, output=tmp_path)
        ended = perf_counter()
        assert ended - goes_on < again.seconds.total < ended - began, "the time of both sittings"
        assert not again.stopped
        assert (again.culprits, again.recipe, again.answer) == (whole.culprits, whole.recipe, whole.answer)


def test_a_run_stopped_after_its_curve_lacks_something(given, tmp_path, monkeypatch):
    def pressed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(EachAlone, "gains", pressed)
    with pytest.raises(StoppedRun) as stop:
        ran(given, output=tmp_path)
    assert "the curve" not in str(stop.value.report.answer.not_done)
    assert all(stop.value.report.answer.not_done)
    assert stop.value.report.answer.not_done


@pytest.mark.parametrize("asked", edition([{"budget": 0.9, "precision": "mixed"}], [{}, {"budget": 0.9}]))
def test_a_run_stopped_after_its_search_has_its_recipe(given, tmp_path, asked):
    with pytest.raises(StoppedRun) as stop:
        ran(given, output=tmp_path, progress=StopsAt("Measuring on all inputs, its layers"), **asked)
    found = stop.value.report
    assert found.recipe.meets
    assert found.answer.not_done == ("the curve was not measured",)
    assert worst_cosine(given[0], tmp_path / "recipe" / "network.qdq.onnx", given[1]) >= THRESHOLD


class InTheCurve(Said):
    """Presses Ctrl-C, or ends the time, in the first boundaries of the curve."""

    def __init__(self, error):
        super().__init__()
        self.error, self.begun = error, False

    def stage(self, title, total):
        self.begun = title.startswith("Measuring plans")

    def step(self, what, size=1):
        if self.begun and what.startswith("block0"):
            raise self.error


@pytest.mark.parametrize(
    "title",
    edition(
        ["Searching for the cheapest recipe"],
        ["Each layer alone", "Searching for the cheapest recipe", "Each layer of the recipe"],
    ),
)
def test_a_stopped_run_has_the_calibrator_that_was_named(tmp_path, title):
    """Min-max wastes levels on a value of 300; full INT8 passes with percentile 99.9, which was not asked for."""
    model = networks.chain(depth=3)
    data = networks.samples(model, 5)
    data["x"][:, 0, 0, 0] = 300.0
    asked = {"engine": "onnxruntime", "explain": "none", "threshold": 0.998, "calibrator": "minmax", "output": tmp_path}
    with pytest.raises(StoppedRun) as stop:
        trt_bisect.run(networks.save(model, tmp_path), data, progress=StopsAt(title), **asked)
    found = stop.value.report
    assert any(row.meets for row in found.answer.calibrators if row.calibrator != "minmax")
    assert (found.ranges.origin, found.verdict) == ("minmax", FAILS)


@pytest.mark.parametrize("way", edition(WAYS[:1], WAYS))
def test_a_run_stopped_in_its_curve_has_its_answer_and_a_part_of_the_curve(given, tmp_path, way):
    path, feeds, whole, _ = given
    asked = {**ASKED, "strategy": "exhaustive", "output": tmp_path, "inputs": feeds}
    if way == "interrupted":
        with pytest.raises(StoppedRun) as stop:
            trt_bisect.run(path, feeds, progress=InTheCurve(KeyboardInterrupt), **asked)
        found = stop.value.report
    else:
        found = trt_bisect.run(path, feeds, progress=InTheCurve(progress.TimeUp), **asked)
    assert (found.stopped, found.state) == (way, "interrupted" if way == "interrupted" else "finished")
    assert found.answer.not_done == ("the curve was measured in part",)
    assert (found.culprits, found.recipe) == (whole.culprits, whole.recipe)
    assert replace(found.answer, not_done=()) == whole.answer
    known = [row.outcome == "measured" for row in found.layers if row.quantizable]
    assert any(known)
    assert not all(known)
    assert Report.load(tmp_path) == found
    again = trt_bisect.run(path, feeds, **asked)
    assert (again.answer, again.culprits, again.stopped) == (whole.answer, whole.culprits, "")
    assert all(row.outcome == "measured" for row in again.layers if row.quantizable)


@pytest.mark.parametrize("threshold", [0.5, 0.9999999])
def test_full_int8_is_judged_as_soon_as_it_is_known_on_all_inputs(given, tmp_path, threshold):
    path, feeds, *_ = given
    asked = {**ASKED, "threshold": threshold, "inputs": feeds, "output": tmp_path}
    with pytest.raises(StoppedRun) as stop:
        trt_bisect.run(path, feeds, progress=StopsAt("Full INT8 with each calibrator"), **asked)
    found = stop.value.report
    recipe = tmp_path / "recipe"
    assert set(json.loads((recipe / "plan.json").read_text())["layers"].values()) == {"int8"}
    worst = worst_cosine(path, recipe / "network.qdq.onnx", feeds)
    assert found.similarity.int8 == pytest.approx(worst, abs=1e-6)
    assert found.verdict == (PASSES if found.similarity.int8 >= threshold else FAILS)
    assert found.recipe.meets == (found.verdict == PASSES)
    assert found.similarity.recipe == (found.similarity.int8 if found.recipe.meets else None)
    assert "the curve was not measured" in found.answer.not_done


KILLED = """
import os, signal
from trt_bisect.runs.progress_file import Heartbeat

shown = Heartbeat.stage

def stage(self, title, total):
    shown(self, title, total)
    if title.startswith("A recipe with a reserve"):
        os.kill(os.getpid(), signal.SIGKILL)

Heartbeat.stage = stage
from trt_bisect.cli import main; main()
"""


@pytest.fixture
def killed(given, forks, tmp_path):
    """The question and the report so far of a run that was killed after its first recipe."""
    path, feeds, *_ = given
    data, folder = tmp_path / "data.npz", tmp_path / "run"
    np.savez(data, **{name: np.concatenate([sample[name] for sample in feeds]) for name in feeds[0]})
    asked = (
        "--engine",
        "onnxruntime",
        "--threshold",
        THRESHOLD,
        "--effort",
        "quick",
        "--explain",
        "none",
        "--history",
        "none",
    )
    done = forks.run("run", path, "--calibration", data, "--input", data, *asked, "--output", folder, code=KILLED)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return {"model": path, "calibration": data, "inputs": data, "output": folder}, read_report(folder / SO_FAR)


@pytest.mark.subprocess
def test_a_run_that_goes_on_after_a_kill_keeps_what_was_known_until_it_knows_more(given, killed):
    asked, before = killed
    assert before.recipe.meets
    folder, seen = asked["output"], []
    plan = (folder / "recipe" / "plan.json").read_bytes()

    class Watching(StopsAt):
        def stage(self, title, total):
            seen.append(read_report(folder / SO_FAR))
            super().stage(title, total)

    with pytest.raises(StoppedRun) as stop:
        trt_bisect.run(**asked, progress=Watching("Full INT8 with each calibrator"), **ASKED)
    assert {report.started for report in seen} == {before.started}, "this run has no recipe yet"
    assert stop.value.report.recipe == before.recipe == Report.load(folder).recipe
    assert (folder / "recipe" / "plan.json").read_bytes() == plan
    assert worst_cosine(asked["model"], folder / "recipe" / "network.qdq.onnx", given[1]) >= THRESHOLD
    again = trt_bisect.run(**asked, **ASKED)
    assert (again.culprits, again.recipe, again.state) == (given[2].culprits, given[2].recipe, "finished")


@pytest.mark.parametrize(
    "title", edition(("Calibrating",), ("Calibrating", "Searching for the worst inputs", "FP32 reference"))
)
def test_a_run_stopped_before_full_int8_leaves_a_report_that_every_command_reads(given, tmp_path, title):
    path, feeds, whole, _ = given
    folder, asked = tmp_path / "run", {**ASKED, "history": "beside"}
    asked |= {"inputs": None} if title.startswith("Searching") else {"inputs": feeds}
    with pytest.raises(StoppedRun) as stop:
        trt_bisect.run(path, feeds, output=folder, progress=StopsAt(title), **asked)
    found = Report.load(folder)
    assert found == stop.value.report
    assert (found.state, found.stopped, found.verdict) == ("interrupted", "interrupted", UNMEASURED)
    assert (found.metric, found.threshold, found.lines[-1].kind) == ("cosine", THRESHOLD, "stopped")
    assert [row.name for row in found.layers] == [row.name for row in whole.layers]
    assert RunFolder(folder).snapshot().status == "interrupted"
    history = trt_bisect.History(tmp_path / "trt-bisect-history.jsonl")
    assert list(history.reports()["state"]) == ["interrupted"]
    again = trt_bisect.run(path, feeds, output=folder, **asked)
    assert (again.state, again.stopped) == ("finished", "")
    history = trt_bisect.History(tmp_path / "trt-bisect-history.jsonl")
    assert list(history.reports()["state"]) == ["finished"]


def test_a_run_stopped_while_its_network_is_read_leaves_a_report(given, tmp_path, monkeypatch):
    path, *_ = given

    def pressed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "asked_network", pressed)
    with pytest.raises(StoppedRun):
        ran(given, output=tmp_path)
    found = Report.load(tmp_path)
    assert (found.model, found.state, found.layers) == (str(path), "interrupted", ())


@pytest.mark.parametrize("share", edition((0.6,), (0.05, 0.6)))
def test_a_full_disk_leaves_the_best_so_far(given, tmp_path, monkeypatch, share):
    """The journal finds no room from one of its lines on."""
    path, feeds, whole, _ = given
    journal = (path.parent / "whole" / "journal.jsonl").read_bytes()
    left = [int(share * journal.count(b"\n"))]

    def synced(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", synced)
        with pytest.raises(BadInput, match=r"journal.*No space left"):
            ran(given, output=tmp_path)
    found = Report.load(tmp_path)
    assert (found.state, found.stopped) == ("interrupted", "no room")
    assert found.recipe.meets or share < 0.5
    if found.recipe.meets:
        assert worst_cosine(path, tmp_path / "recipe" / "network.qdq.onnx", feeds) >= THRESHOLD
    again = ran(given, output=tmp_path)
    assert (again.state, again.answer) == ("finished", whole.answer)


def test_ctrl_c_pressed_again_while_the_report_is_written_leaves_it(given, tmp_path, monkeypatch):
    path, feeds, *_ = given
    save, calls = Report.save, []

    def pressed(self, *arguments, **options):
        calls.append(self)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return save(self, *arguments, **options)

    monkeypatch.setattr(Report, "save", pressed)
    with pytest.raises(StoppedRun):
        ran(given, output=tmp_path)
    found = Report.load(tmp_path)
    assert found.recipe.meets
    assert worst_cosine(path, tmp_path / "recipe" / "network.qdq.onnx", feeds) >= THRESHOLD


def test_a_recipe_that_holds_on_all_inputs_is_known_before_the_search_ends(given, tmp_path):
    """Of 20 inputs the search judges on few, so that none of its own plans is known on all."""
    path, *_ = given
    (name, values), *_ = networks.samples(DRAW(blocks=1), 20).items()
    feeds = [{name: values[k : k + 1]} for k in range(20)]
    shown = StopsAt("A recipe with a reserve")
    with pytest.raises(StoppedRun) as stop:
        trt_bisect.run(path, feeds, inputs=feeds[:1], output=tmp_path, validation=0, progress=shown, **ASKED)
    assert stop.value.report.recipe.meets
    assert worst_cosine(path, tmp_path / "recipe" / "network.qdq.onnx", feeds) >= THRESHOLD


@pytest.mark.parametrize("short", [0.0, 1e6])
def test_the_time_of_a_long_search_is_said_before_it_begins(given, short, monkeypatch):
    """The inferences that the effort allows, at the pace of the first ones."""
    monkeypatch.setattr(search, "_LEAST_FORECAST", short)
    shown = StopsAt("A recipe with a reserve")
    with pytest.raises(StoppedRun):
        ran(given, progress=shown, as_is=True, effort="default")
    said = [line for line in shown.lines if "--time-limit" in line]
    assert len(said) == (short == 0.0)
    assert all(f"{sum(row.quantizable for row in given[2].layers)} layers, 6 inputs" in line for line in said)
    assert all(line.startswith("The search will take up to ") for line in said)


def test_a_bar_is_full_only_at_the_end(monkeypatch):
    """On a terminal: a stage of unknown length, and one that takes more steps than expected."""
    screen = io.StringIO()
    terminal = {"file": screen, "force_terminal": True, "width": 120, "color_system": "standard"}
    monkeypatch.setattr(rich.console, "Console", lambda **_: Console(**terminal))
    for total in (None, 4):
        shown = progress.RichProgress()
        shown.stage("Searching", total)
        for _ in range(9):
            shown.step("a plan")
        shown.close()
        last = [line for line in screen.getvalue().splitlines() if "a plan" in line][-1]
        assert "?" not in last
        shown_count = re.search(r"8(/\d+)?", re.sub("\x1b[^m]*m", "", last))[0]
        assert shown_count == ("8" if total is None else "8/11"), "a quarter more than the nine steps begun"
        assert re.search("\x1b\\[90m[\u2501\u257a]", last), "a part of the bar is grey"


@pytest.mark.parametrize("way", WAYS)
def test_a_finished_report_and_its_recipe_are_not_replaced_by_those_of_a_run_that_knows_less(
    given, tmp_path, monkeypatch, way
):
    """Without the journal the run measures anew, until a recipe that costs more, or before any."""
    path, _, whole, steps = given
    shutil.copytree(path.parent / "whole", tmp_path / "run", dirs_exist_ok=True)
    (tmp_path / "run" / "journal.jsonl").unlink()
    alone = stopped(way, int(0.3 * steps), given, tmp_path / "alone", monkeypatch)
    assert alone.recipe.meets == (way == "time limit")
    assert cost_of(alone) > cost_of(whole)
    names = ("report.json", "recipe/plan.json", "recipe/network.qdq.onnx")
    before = [(tmp_path / "run" / name).read_bytes() for name in names]
    found = stopped(way, int(0.3 * steps), given, tmp_path / "run", monkeypatch)
    assert [(tmp_path / "run" / name).read_bytes() for name in names] == before
    assert (found.culprits, found.stopped) == (whole.culprits, "")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h", 3600), ("1.5m", 90), ("45", 45), (0.5, 0.5)]
)
def test_times(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["0", "10 minutes", "-5s", "1h30m", ""])
def test_what_is_no_time_is_refused(text, given):
    path, feeds, *_ = given
    with pytest.raises(BadInput, match=r"90s, 10m or 1h"):
        trt_bisect.run(path, feeds, time_limit=text)
