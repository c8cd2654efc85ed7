"""Nights in their folder: numbered, locked, gone on with; no clock decides which came last."""

import json
import multiprocessing
import re
from datetime import datetime, timedelta, timezone

import pytest
import time_machine

from trt_bisect.commands.regress import nightly_runs_in
from trt_bisect.errors import BadInput

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def pass_night(folder, suite="s", baseline=True):
    with nightly_runs_in(folder) as nights:
        night, _ = nights.begin(suite)
        if baseline:
            night.baseline.mkdir()
        return night.finish("passed" if baseline else "failed", baseline)


def latest(folder):
    with nightly_runs_in(folder) as nights:
        found = nights.latest_baseline()
        return found and found.number


def test_nights_are_named_in_utc_and_numbered(tmp_path):
    with time_machine.travel(datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2))), tick=False):
        night = pass_night(tmp_path)
    assert night.folder.name == "2026-02-28T233000Z"
    assert (night.number, night.began) == (1, "2026-02-28T23:30:00+00:00")


def test_two_nights_in_one_second_are_two(tmp_path):
    with time_machine.travel(NOON, tick=False):
        folders = [pass_night(tmp_path).folder for _ in range(3)]
    assert [folder.name[17:] for folder in folders] == ["Z", "Z-2", "Z-3"]
    assert latest(tmp_path) == 3


def test_a_clock_that_goes_backwards_does_not_change_which_is_the_latest(tmp_path):
    for number, when in enumerate([NOON, NOON - timedelta(days=400), NOON + timedelta(days=1)], 1):
        with time_machine.travel(when, tick=False):
            assert pass_night(tmp_path, baseline=number != 3).number == number
            assert latest(tmp_path) == min(number, 2)


def test_an_interrupted_night_is_gone_on_with_on_the_same_day_and_for_the_same_suite(tmp_path):
    with time_machine.travel(NOON, tick=False) as clock:
        with nightly_runs_in(tmp_path) as nights:
            first, goes_on = nights.begin("s")
            assert not goes_on
        clock.shift(timedelta(hours=2))
        with nightly_runs_in(tmp_path) as nights:
            assert nights.begin("s") == (first, True)
            other, goes_on = nights.begin("another suite")
            assert (other.number, goes_on) == (2, False)
            assert nights.begin("s")[0].number == 3
        clock.shift(timedelta(hours=22))
        with nightly_runs_in(tmp_path) as nights:
            assert nights.begin("s")[0].number == 4


def test_what_is_no_night_is_passed_over(tmp_path):
    pass_night(tmp_path)
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"number": "x"}'), ("d", "[" * 100_000), ("e", "\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "night.json").write_text(text)
    (tmp_path / "2026-01-01T000000Z").mkdir()
    with nightly_runs_in(tmp_path) as nights:
        assert [night.number for night in nights.all()] == [1]
    assert latest(tmp_path) == 1


def test_a_baseline_that_was_thrown_away_is_none(tmp_path):
    pass_night(tmp_path)
    second = pass_night(tmp_path)
    second.baseline.rmdir()
    assert latest(tmp_path) == 1
    assert json.loads((second.folder / "night.json").read_text())["is_baseline"] is True


def _hold(folder, held, leave):
    with nightly_runs_in(folder):
        held.set()
        leave.wait(60)


def test_a_second_process_is_refused_until_the_first_one_is_gone(tmp_path):
    context = multiprocessing.get_context("fork")
    held, leave = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, held, leave))
    holder.start()
    try:
        assert held.wait(60)
        with pytest.raises(BadInput, match=re.escape(f"'{tmp_path}'")) as refused, nightly_runs_in(tmp_path):
            pass
        assert "'output'" in refused.value.remedy
    finally:
        holder.kill()
        holder.join()
    with nightly_runs_in(tmp_path) as nights:
        assert nights.all() == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=re.escape(f"'{tmp_path / 'file'}'")), nightly_runs_in(tmp_path / "file"):
        pass
