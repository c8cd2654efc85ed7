"""``trt-bisect history``: what it prints of nights with known causes, and what it writes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pandas as pd
import pytest

from tests.support.nights import at, night as night_in
from trt_bisect import History
from trt_bisect.history.queries import changes, heights, spark_text, trends
from trt_bisect.history.store import HISTORY

START = at("2026-11-01T02:00")
DAY = 86400.0


def latency(int8: float) -> dict[str, dict[str, float]]:
    times = {"fp32": 4.0, "int8": int8, "recipe": 2.5}
    return {plan: {"mean_ms": ms, "median_ms": ms, "p99_ms": ms, "runs": 9} for plan, ms in times.items()}


@pytest.fixture(scope="module")
def nights(finished, tmp_path_factory):
    """Nights of one network, not to be changed: nothing new, another TensorRT, a culprit more, none, slower, cut."""
    folder = tmp_path_factory.mktemp("nights")
    versions = {"tensorrt": "10.1.0", "device": "Orin"}
    newer = {**versions, "tensorrt": "10.2.0"}
    changes = [
        {"versions": versions, "int8": 0.5, "latency": latency(2.0)},
        {"versions": versions, "int8": 0.5, "latency": latency(2.02)},
        {"versions": newer, "int8": 0.25, "latency": latency(2.0), "fingerprint": "b" * 64},
        {"versions": newer, "int8": 0.25, "culprits": ["conv1", "[red]ip2"], "latency": latency(2.0)},
        {"versions": newer, "int8": 1.0, "culprits": [], "latency": latency(2.2)},
        {"versions": newer, "answered": False},
    ]
    kept = History(folder / HISTORY)
    for day, changed in enumerate(changes):
        kept.record(night_in(finished, folder / f"night{day}", START + day * DAY, **changed), "[b]net[/b]")
    return folder


@pytest.fixture
def shown(command):
    """Runs ``trt-bisect history`` with exit code 0; gives its output."""

    def call(*arguments):
        code, out, err = command("history", *arguments)
        assert code == 0, err
        return out

    return call


@pytest.fixture
def week(nights, tmp_path):
    """A copy of these nights."""
    shutil.copytree(nights, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_one_row_a_network_with_its_line_and_the_last_change(shown, week, finished):
    kept = History(week / HISTORY)
    kept.record(finished, "other")
    out = shown(week)
    lines = out.splitlines()
    (ours,) = [line for line in lines if line.startswith("[b]net[/b]")]
    assert "6  2026-11-06 02:00  fails      100%  ▃▃▁▁█" in ours
    assert "2.200  ▁▂▁▁█" in ours
    told = "2026-11-05: INT8 25% → 100%, former culprits 'conv1' and '[red]ip2', INT8 2.000 → 2.200 ms"
    assert told in " ".join(out.split())
    (other,) = [line for line in lines if line.startswith("other")]
    assert other.split()[1:4] == ["onnxruntime", "cosine", "1"]
    assert other.rstrip().endswith("-")


def test_one_row_a_run_with_what_differs(shown, week):
    _, *rows = shown(week, "--label", "[b]net[/b]").splitlines()
    assert [row[:16] for row in rows] == [f"2026-11-0{day} 02:00" for day in range(1, 7)]
    assert "'ip2'" in rows[0]
    assert "→" not in rows[0] + rows[1]
    assert "INT8 50% → 25%, TensorRT 10.1.0 → 10.2.0" in rows[2]
    assert "new culprits 'conv1' and '[red]ip2', former culprit 'ip2'" in rows[3]
    assert "interrupted" in rows[5]
    assert [row.rstrip().rpartition(" ")[2] for row in rows] == [f"night{day}" for day in range(6)]
    lines = shown(week, "--label", "[b]net[/b]", "--top", 2).splitlines()
    assert [line.split() for line in lines[1:3]] == [row.split() for row in rows[-2:]]
    assert lines[3] == "2 of 6 rows; --top 0 shows all."


def test_since(shown, finished, tmp_path, kept):
    for days in (10.0, 2.0, 0.1):
        kept.record(night_in(finished, tmp_path / str(days), time.time() - days * DAY), "net")

    def runs(since):
        out = shown(tmp_path, "--since", since, "--label", "net")
        return [line.split()[-1] for line in out.splitlines()[1:]] if "Nothing" not in out else []

    assert runs("7d") == ["2.0", "0.1"]
    assert runs("2w") == ["10.0", "2.0", "0.1"]
    assert runs("12h") == runs("720m") == ["0.1"]
    assert runs("1m") == []


@pytest.mark.parametrize(("since", "left"), [
    ("2026-11-03", 4), ("2026-11-03T02:00", 4), ("2026-11-03T02:00Z", 4), ("2026-11-03T02:01Z", 3),
    ("2026-11-03T03:30+01:00", 3), ("2026-11-03T02:59+01:00", 4),
])  # fmt: skip
def test_since_a_time_in_any_zone(shown, week, since, left):
    assert len(shown(week, "--since", since, "--label", "[b]net[/b]").splitlines()) - 1 == left


def test_csv_and_parquet_have_what_the_reports_have(shown, week, finished):
    assert shown(week, "--csv", week / "x.csv", "--parquet", week / "x.parquet").count("6 rows written") == 2
    report = json.loads((finished / "report.json").read_text())
    csv, parquet = pd.read_csv(week / "x.csv"), pd.read_parquet(week / "x.parquet")
    for table in (csv, parquet):
        assert list(table["similarity_int8"][:5]) == [0.5, 0.5, 0.25, 0.25, 1.0]
        assert pd.isna(table["similarity_int8"][5])
        started = pd.to_datetime(table["started"]).map(lambda when: when.timestamp())
        assert list(started) == [START + day * DAY for day in range(6)]
        assert json.loads(table["made_of"][2])["versions"]["tensorrt"] == "10.2.0"
        assert json.loads(table["made_of"][2])["model"] == report["made_of"]["model"]
        assert (table["verdict"][0], table["similarity_recipe"][0]) == ("fails", report["similarity"]["recipe"])
        assert list(table["state"]) == ["finished"] * 5 + ["interrupted"]
        assert list(table["latency_int8_mean_ms"][:5]) == [2.0, 2.02, 2.0, 2.0, 2.2]
        assert "layers" not in table
    assert json.loads(csv["culprits"][3]) == list(parquet["culprits"][3]) == ["conv1", "[red]ip2"]
    assert str(parquet["started"].dtype).endswith("UTC]")


def test_the_reports_as_json(shown, week):
    fifth, sixth = json.loads(shown(week, "--json", "--since", "2026-11-05T00:00"))
    assert (fifth["id"], fifth["label"], fifth["report"]["similarity"]["int8"]) == (5, "[b]net[/b]", 1.0)
    assert (sixth["report"]["state"], sixth["report"]["similarity"]["int8"]) == ("interrupted", None)


def test_csv_into_a_pipe(command, week):
    pipe = week / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as other:
        read = other.submit(pipe.read_bytes)
        assert command("history", week, "--csv", pipe)[0] == 0
        rows = len(pd.read_csv(BytesIO(read.result())))
    assert (rows, pipe.is_fifo()) == (6, True)
    assert command("history", week, "--copy", pipe)[0] == 2
    assert pipe.is_fifo()


def test_a_table_without_a_row_has_its_columns_and_types(shown, week):
    assert "has no such run" in shown(week, "--since", "2030-01-01")
    shown(week, "--since", "2030-01-01", "--csv", week / "x.csv")
    kept = History(week / HISTORY)
    full = kept.reports()
    none = kept.reports(label="nothing")
    assert list(pd.read_csv(week / "x.csv").columns) == list(full.columns)
    assert dict(none.dtypes) == dict(full.dtypes)


def test_without_pyarrow(command, week, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = command("history", week, "--parquet", week / "x.parquet")
    assert code == 2
    assert "pip install 'pyarrow>=16'" in err
    assert not list(week.glob("*.parquet"))


def test_folders_are_taken_in_the_oldest_first(shown, tmp_path, kept, night):
    for name, day in (("c", 1), ("a/deep", 3), ("b", 2)):
        night(f"runs/{name}", day)
    (tmp_path / "runs/b/recipe").mkdir()
    (tmp_path / "runs/other").mkdir()
    (tmp_path / "runs/other/report.json").write_text("{}")
    out = shown(tmp_path, "--add", tmp_path / "runs", "--label", "net")
    assert out.split()[0] == "3"
    assert [line.split()[-1] for line in out.splitlines()[2:]] == ["c", "b", "deep"]
    shown(tmp_path, "--add", tmp_path / "runs/c", "--add", tmp_path / "runs/b")
    assert [report.label for report in kept.past()] == ["net"] * 3


def test_the_history_of_a_run_folder_and_of_the_current_one(shown, week, monkeypatch):
    whole = shown(week)
    assert shown(week / "night2") == shown(week / HISTORY) == whole
    monkeypatch.chdir(week)
    assert shown() == whole


def test_the_history_of_a_suites_nights_is_found_from_the_suites_folder(command, shown, week, monkeypatch):
    (week / "suite/nightly").mkdir(parents=True)
    shutil.copy(week / HISTORY, week / "suite/nightly")
    monkeypatch.chdir(week / "suite")
    assert shown() == shown("nightly")
    (week / "suite/other").mkdir()
    shutil.copy(week / HISTORY, week / "suite/other")
    code, _, err = command("history")
    assert code == 2
    assert "'nightly' and 'other'" in err


def test_a_copy_by_command(shown, week):
    assert shown(week, "--copy", week / "copy.jsonl") == f"Copied to {week / 'copy.jsonl'}\n"
    assert len(History(week / "copy.jsonl").past()) == 6
    assert shown(week / "copy.jsonl") == shown(week)


@pytest.mark.parametrize(("arguments", "said"), [
    (["nowhere"], "nowhere"), (["--since", "yesterday"], "'yesterday'"), (["--since", ""], "''"),
    (["--since", "7000000000d"], "'7000000000d'"), (["--fingerprint", "xyz"], "'xyz'"),
    (["--csv", "."], "cannot be written"), (["--parquet", "no/where.parquet"], "no/where.parquet"),
    (["--copy", "no/where.jsonl"], "no/where.jsonl"), (["--copy", "."], "cannot be written"),
    (["--copy", HISTORY], "the history itself"), (["--add", "empty"], "'empty'"), (["--add", "nowhere"], "'nowhere'"),
])  # fmt: skip
def test_bad_use(command, week, monkeypatch, arguments, said):
    monkeypatch.chdir(week)
    (week / "empty").mkdir()
    code, _, err = command("history", *arguments)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) <= 2
    assert "Traceback" not in err


def test_another_metric_or_low_precision_is_a_row_of_its_own_which_names_it(shown, week, night):
    kept = History(week / HISTORY)
    for k in range(2):
        kept.record(night(f"fp16-{k}", 1, low="fp16", int8=0.995 + k / 1000), "[b]net[/b]")
    kept.record(night("sqnr", metric="sqnr", int8=20.0), "[b]net[/b]")
    groups = trends(kept.past())
    told = [(group[0].report.metric, group[0].report.low, len(group)) for group in groups]
    assert told == [("cosine", "fp16", 2), ("cosine", "int8", 6), ("sqnr", "int8", 1)]
    before, after = (entry.report for entry in groups[0])
    assert [words for words in changes(before, after) if "→" in words] == ["FP16 99.5% → 99.6%"]
    out = shown(week / HISTORY)
    assert "99.6% (FP16)" in out
    assert "(INT8)" not in out


def test_everything_that_a_fingerprint_is_made_of_is_named(finished, kept, night):
    report = json.loads((finished / "report.json").read_text())
    parts = report["made_of"]
    other = {
        **parts,
        **{"model": "m", "ranges": "r", "inputs": ["i"], "high": "fp16", "workspace": 5, "metric": "code"},
        "versions": {**parts["versions"], "device": "H100", "driver": "1"},
    }
    kept.record(night("a", 1))
    changed = {"made_of": other, "fingerprint": "b" * 64, "threshold": 0.9, "strategy": "bisect"}
    kept.record(night("b", 1, **changed))
    before, after = (entry.report for entry in kept.past())
    assert set(changes(before, after)) == {
        "option threshold 0.99 → 0.9", "option strategy exhaustive → bisect", "option precision fp32 → fp16",
        "other data", "another metric", "another network", "other ranges", "option workspace none → 5",
        f"GPU or processor {parts['versions']['device']} → H100", "driver none → 1",
    }  # fmt: skip
    assert changes(before, before) == []


def test_small_lines():
    assert heights([3.0, 1.0, 2.0]) == [1.0, 0.0, 0.5]
    assert heights([2.0, 2.0]) == [0.5, 0.5]
    assert heights([]) == []
    assert spark_text([0.0, None, 7.0, 1.0]) == "▁ █▂"
    assert spark_text([]) == ""
