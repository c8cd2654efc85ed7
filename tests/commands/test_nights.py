"""Nights in their folder: numbered, gone on with; no clock decides which came last."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import time_machine

from trt_bisect.commands.regress import begin, latest_baseline, nightly_runs

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def begun(folder, suite="s"):
    return begin(folder, nightly_runs(folder), suite)


def pass_night(folder, baseline=True):
    night, _ = begun(folder)
    if baseline:
        night.baseline.mkdir()
    return replace(night, status="passed" if baseline else "failed", is_baseline=baseline).saved()


def latest(folder):
    return latest_baseline(nightly_runs(folder)).number


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
        first, goes_on = begun(tmp_path)
        assert not goes_on
        clock.shift(timedelta(hours=2))
        assert begun(tmp_path) == (first, True)
        other, goes_on = begun(tmp_path, "another suite")
        assert (other.number, goes_on) == (2, False)
        assert begun(tmp_path)[0].number == 3
        clock.shift(timedelta(hours=22))
        assert begun(tmp_path)[0].number == 4


def test_what_is_no_night_is_passed_over(tmp_path):
    pass_night(tmp_path)
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"number": "x"}'), ("d", "[" * 100_000), ("e", "\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "night.json").write_text(text)
    (tmp_path / "2026-01-01T000000Z").mkdir()
    assert [night.number for night in nightly_runs(tmp_path)] == [1]


def test_a_baseline_that_was_thrown_away_is_none(tmp_path):
    pass_night(tmp_path)
    second = pass_night(tmp_path)
    second.baseline.rmdir()
    assert latest(tmp_path) == 1
    assert json.loads((second.folder / "night.json").read_text())["is_baseline"] is True
