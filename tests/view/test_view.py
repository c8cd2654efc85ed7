"""The server of ``trt-bisect view``: who is let in, what is told, runs that go on, stop and vanish."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

import trt_bisect
from tests.support.view_server import QUERY, TOKEN, serving
from tests.support.waiting import LIMIT, wait_until
from trt_bisect.results.manifest import MANIFEST
from trt_bisect.results.run_report import REPORT
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, PROGRESS, RUNNING
from trt_bisect.view import throttle as pace
from trt_bisect.view.index import Runs, sparkline
from trt_bisect.view.live_state import LiveRun
from trt_bisect.view.snapshot import Gone, RunFolder
from trt_bisect.view.throttle import Throttled

PATHS = [
    "/",
    "/data.json",
    "/rows",
    "/run/lenet/",
    "/run/lenet/data.json",
    "/nothing",
    "/favicon.ico",
    "/../../etc/passwd",
]


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it that a test may change."""
    return Path(shutil.copytree(finished, tmp_path / "lenet"))


@pytest.fixture
def _always_looks(monkeypatch):
    """Every request looks anew."""
    monkeypatch.setattr(pace, "BETWEEN", 0.0)
    monkeypatch.setattr(pace, "SHARE", float("inf"))


@pytest.fixture(scope="session")
def address_of():
    """Where a folder is served; a server is kept to the end."""
    with contextlib.ExitStack() as servers:
        known: dict[Path, str] = {}

        def serve(folder: Path) -> str:
            if folder not in known:
                known[folder] = servers.enter_context(serving(folder))
            return known[folder]

        yield serve


@pytest.fixture
def client(address_of):
    """Connects to the server of a folder, with no cookies yet."""
    with contextlib.ExitStack() as clients:
        yield lambda folder: clients.enter_context(httpx.Client(base_url=address_of(folder)))


def interrupted(folder: Path) -> None:
    """Makes of a finished run's folder what a killed run leaves."""
    (folder / REPORT).unlink()
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    progress = {"pid": int(dead.stdout), "born": 1, "host": socket.gethostname(), "began": 0.0}
    progress |= {"stage": "Measuring plans", "total": 9, "done": 3, "what": "ip1", "seconds": 1.0}
    (folder / PROGRESS).write_text(json.dumps(progress))


def running(folder: Path, **changed) -> None:
    """Writes the progress of a run that goes on in this process."""
    from trt_bisect.runs.progress_file import _born

    progress = {"pid": os.getpid(), "born": _born(os.getpid()), "host": socket.gethostname(), "began": 0.0}
    progress |= {"stage": "Measuring plans", "total": 9, "done": 3, "what": "ip1", "seconds": 1.0, **changed}
    (folder / PROGRESS).write_text(json.dumps(progress))


# Who is let in


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"params": {"token": ""}},
        {"params": {"token": "wrong"}},
        {"params": {"token": TOKEN[:-1]}},
        {"headers": {"Authorization": "token wrong"}},
        {"headers": {"Authorization": "Basic b3BlbjpzZXNhbWU="}},
        {"headers": {"Cookie": "trt-bisect-00000000=guess"}},
    ],
)
def test_without_the_right_token_there_is_403_and_nothing_else(client, finished, path, shown):
    for folder in (finished, finished.parent):
        web = client(folder)
        answers = [web.request(method, path, **shown) for method in ("GET", "HEAD", "POST", "OPTIONS")]
        assert {answer.status_code for answer in answers} == {403}
        assert {answer.content for answer in answers} == {b""}
        assert len({tuple(answer.headers.items()) for answer in answers}) == 1
        assert not {"server", "date", "location", "set-cookie", "www-authenticate", "allow"} & set(answers[0].headers)


@pytest.mark.parametrize("path", PATHS)
def test_with_the_right_token_there_is_what_there_is(client, finished, path):
    known = path in ("/", "/rows") or "lenet" in path
    assert client(finished.parent).get(f"{path}{QUERY}").status_code == (200 if known else 404)


def test_the_token_as_a_header_or_a_query_and_then_the_cookie(client, finished):
    web = client(finished)
    assert web.get("/", headers={"Authorization": "token wrong"}).status_code == 403
    with serving(finished, token="plain") as base:
        assert httpx.get(base, headers={"Authorization": "Token plain"}).status_code == 200
    first = web.get("/", params={"token": TOKEN})
    assert first.status_code == 200
    kept = first.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Strict" in kept
    assert "Secure" not in kept
    assert TOKEN not in kept
    again = web.get("/data.json")
    assert again.status_code == 200
    assert "set-cookie" not in again.headers
    with serving(finished) as other:
        assert httpx.get(f"{other}/data.json", headers={"Cookie": kept.split(";")[0]}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "localhost:x"])
def test_a_foreign_host_name_is_refused_on_loopback(client, finished, host):
    assert client(finished).get("/", params={"token": TOKEN}, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1234", "[::1]:8765", "[::1]"])
def test_loopback_by_any_name_and_port_is_let_in(client, finished, host):
    assert client(finished).get("/", params={"token": TOKEN}, headers={"Host": host}).status_code == 200


def test_headers_that_keep_it_here(client, finished):
    for folder in (finished, finished.parent):
        for path in ("/", "/data.json", "/nothing"):
            headers = client(folder).get(path, params={"token": TOKEN}).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_only_reading_is_possible(client, finished):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client(finished).request(method, "/", params={"token": TOKEN}).status_code == 405


OUTSIDE = ["/run/..", "/run/../", "/run/%2e%2e/", "/run/%2e%2e%2flenet/", "/run/lenet/../../", "/run//", "/run/lenet"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_way_leads_out_of_the_parent(finished, path):
    with serving(finished.parent) as base:
        place = urlsplit(base)
        connection = http.client.HTTPConnection(place.hostname, place.port)
        connection.request("GET", f"{path}{QUERY}")  # as it stands: other clients tidy the path up
        assert connection.getresponse().status == 404
        connection.close()


def test_links_are_not_followed(client, finished, tmp_path):
    (tmp_path / "link").symlink_to(finished)
    shutil.copytree(finished, tmp_path / "real")
    assert [entry.name for entry in Runs(tmp_path).entries()] == ["real"]
    assert client(tmp_path).get("/run/link/", params={"token": TOKEN}).status_code == 404
    (tmp_path / "secret").write_text("never told")
    (tmp_path / "real" / "recipe" / "trtexec.flags").unlink()
    (tmp_path / "real" / "recipe" / "trtexec.flags").symlink_to(tmp_path / "secret")
    told = client(tmp_path).get("/run/real/data.json", params={"token": TOKEN}).json()["recipe"]
    assert "trtexec.flags" not in told
    assert "polygraphy_postprocess.py" in told


# What is told


def embedded(html: str) -> dict:
    """The data inside a page."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)[1])


def test_a_finished_run_is_told_as_its_report_html_has_it(client, finished):
    page = (finished / "report.html").read_text()
    web = client(finished)
    assert web.get("/data.json", params={"token": TOKEN}).json() == embedded(page)
    assert embedded(web.get("/").text) == embedded(page)
    assert 'data-live="data.json"' in web.get("/").text
    assert client(finished.parent).get("/run/lenet/data.json", params={"token": TOKEN}).json() == embedded(page)


def test_nothing_new_is_304(client, finished):
    web = client(finished)
    first = web.get("/data.json", params={"token": TOKEN})
    again = web.get("/data.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert web.get("/data.json", headers={"If-None-Match": '"other"'}).status_code == 200
    plain = web.get("/data.json", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == first.json()
    assert first.headers["content-encoding"] == "gzip"


@pytest.mark.usefixtures("_always_looks")
def test_the_tag_changes_with_the_run(client, run):
    (run / REPORT).unlink()
    running(run)
    web = client(run)
    first = web.get("/data.json", params={"token": TOKEN})
    assert first.json()["progress"] == {
        "stage": "Measuring plans",
        "done": 3,
        "total": 9,
        "seconds": 1.0,
        "what": "ip1",
    }
    running(run, done=4)
    second = web.get("/data.json", headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200
    assert second.json()["progress"]["done"] == 4
    assert web.get("/data.json", headers={"If-None-Match": second.headers["etag"]}).status_code == 304


def test_a_thousand_viewers_are_one_look_a_second():
    moment, looks = [0.0], []
    paced = Throttled(lambda: looks.append(moment[0]) or "seen", clock=lambda: moment[0])
    for tick in range(1000):
        moment[0] = tick / 100
        assert paced() == "seen"
    assert looks == [float(second) for second in range(10)]


def test_a_look_that_is_dear_is_rarer(monkeypatch):
    """One that takes 0.2 s of processor time is good for 20 s: one per cent of a core."""
    moment, spent, looks = [0.0], [0.0], []

    def look():
        spent[0] += 0.2
        looks.append(moment[0])
        return "seen"

    monkeypatch.setattr(pace.time, "process_time", lambda: spent[0])
    paced = Throttled(look, clock=lambda: moment[0])
    for moment[0] in range(60):
        paced()
    assert looks == [0, 20, 40]


# What goes on in a folder


def test_a_run_that_is_killed_is_interrupted_and_its_figures_stay(run):
    interrupted(run)
    look = RunFolder(run).snapshot()
    assert (look.status, look.progress) == (INTERRUPTED, None)
    assert [row.name for row in look.report.layers if row.suspect] == ["ip2"]


def test_a_run_that_goes_on_is_running_until_it_is_through(run):
    report = (run / REPORT).read_bytes()
    (run / REPORT).unlink()
    running(run)
    folder = RunFolder(run)
    assert folder.snapshot().status == RUNNING
    assert not folder.snapshot().whole
    (run / REPORT).write_bytes(report)
    assert folder.snapshot().status == RUNNING  # the page is still being written
    assert folder.snapshot().whole
    (run / PROGRESS).unlink()
    assert folder.snapshot().status == FINISHED


def test_a_run_that_only_calibrates_yet_is_shown(client, tmp_path):
    running(tmp_path, stage="Calibrating", began=5.0)
    look = RunFolder(tmp_path).snapshot()
    assert (look.status, look.progress["stage"], look.when) == (RUNNING, "Calibrating", 5.0)
    answer = client(tmp_path).get("/", params={"token": TOKEN})
    assert answer.status_code == 200
    assert embedded(answer.text)["report"]["layers"] == []


def test_another_threshold_in_the_same_folder_is_another_question(run, lenet):
    """The fingerprint is the same; the report of the first is not the answer to the second."""
    trt_bisect.run(
        lenet / "lenet_planted.onnx", lenet / "calibration.npz", output=run, strategy="exhaustive", threshold=0.2
    )
    lenient = (run / MANIFEST).read_bytes()
    assert RunFolder(run).snapshot().report.threshold == 0.2
    trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", output=run, strategy="exhaustive")
    (run / MANIFEST).write_bytes(lenient)
    look = RunFolder(run).snapshot()
    assert (look.status, look.report.threshold, look.report.culprits) == (INTERRUPTED, 0.2, ())


def test_an_old_run_folder_has_its_report_alone(run):
    for name in (MANIFEST, JOURNAL, "network.json"):
        (run / name).unlink()
    look = RunFolder(run).snapshot()
    assert (look.status, look.whole) == (FINISHED, True)
    assert look.when == pytest.approx((run / REPORT).stat().st_mtime)


def test_a_report_of_schema_1_is_shown(tmp_path):
    shutil.copytree(Path(__file__).parents[1] / "files" / "report-1", tmp_path / "old")
    data = LiveRun(tmp_path / "old").state().data
    assert (data["status"], data["report"]["schema"], data["report"]["answer"]) == (FINISHED, 1, None)
    assert data["report"]["culprits"] == ["ip2"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 99}', b'{"schema": 1, "report": 3}', b"\xff"])
@pytest.mark.parametrize("name", [MANIFEST, REPORT, PROGRESS, "network.json", "explanation.json"])
def test_files_that_cannot_be_read_break_nothing(run, name, content):
    (run / name).write_bytes(content)
    data = LiveRun(run).state().data
    assert [row["name"] for row in data["report"]["layers"] if row["culprit"] or row["suspect"]] == ["ip2"]


@pytest.mark.usefixtures("_always_looks")
def test_a_folder_that_is_deleted_is_not_there_any_more(client, run):
    web, parent = client(run), client(run.parent)
    assert web.get("/", params={"token": TOKEN}).status_code == 200
    assert "lenet" in parent.get("/rows", params={"token": TOKEN}).text
    shutil.rmtree(run)
    assert web.get("/").status_code == 404
    assert web.get("/data.json").status_code == 404
    assert parent.get("/run/lenet/data.json").status_code == 404
    assert "lenet" not in parent.get("/rows").text
    with pytest.raises(Gone):
        RunFolder(run).snapshot()


def test_it_writes_nothing_into_the_run_folder(client, run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    run.chmod(0o500)
    for folder in (run, run.parent):
        web = client(folder)
        for path in PATHS:
            web.get(path, params={"token": TOKEN})
    run.chmod(0o700)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@contextlib.contextmanager
def waiting_run(forks, lenet, folder, meeting):
    """LeNet's exhaustive sweep in a process of its own. After a few trials it waits for the file ``go on``."""
    meeting.mkdir()
    digits = meeting.with_name("digits.npz")
    np.savez(digits, data=np.load(lenet / "calibration.npz")["data"][:2])
    arguments = ["run", lenet / "lenet_planted.onnx", "--calibration", digits, "--calibrator", "entropy"]
    arguments += ["--input", digits]
    arguments += ["--metric", "tests.support.fake_metrics:cosine_that_waits", "--threshold", "0.99"]
    arguments += ["--strategy", "exhaustive", "--output", folder]
    environment = {**os.environ, "TRT_BISECT_TEST_FOLDER": str(folder)}
    environment["TRT_BISECT_TEST_MEETING"] = str(meeting)
    process = forks.start(*arguments, environment=environment)
    try:
        wait_until(lambda: process.poll() is not None or any(meeting.iterdir()))
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.subprocess
def test_a_real_run_is_watched_to_its_end(forks, lenet, tmp_path):
    """The curve grows, and the end is that of report.html."""
    folder, meeting = tmp_path / "runs" / "sweep", tmp_path / "meeting"
    seen, tag, stages, deadline = [], "", set(), time.monotonic() + LIMIT
    with (
        waiting_run(forks, lenet, folder, meeting) as process,
        serving(tmp_path / "runs") as base,
        httpx.Client(base_url=base, params={"token": TOKEN}) as web,
    ):
        while time.monotonic() < deadline:
            answer = web.get("/run/sweep/data.json", headers={"If-None-Match": tag})
            if answer.status_code == 304:
                time.sleep(0.05)
                continue
            assert answer.status_code == 200
            tag, data = answer.headers["etag"], answer.json()
            rows = [row for row in data["report"]["layers"] if row["outcome"] == "measured"]
            seen.append((data["status"], len(rows)))
            stages.add((data["progress"] or {}).get("stage"))
            if data["status"] == FINISHED:
                break
            assert process.poll() is None or data["status"] == RUNNING
            if rows and "Measuring plans" in stages:
                (meeting / "go on").touch()
        page = web.get("/run/sweep/").text
        assert process.wait() == 1
    assert data == embedded(page) == embedded((folder / "report.html").read_text())
    assert {status for status, _ in seen} == {RUNNING, FINISHED}
    counts = [count for _, count in seen]
    assert counts == sorted(counts)
    assert counts[-1] == len([row for row in data["report"]["layers"] if row["quantizable"]])
    assert any(0 < count < counts[-1] for count in counts)
    assert "Measuring plans" in stages
    assert not (folder / PROGRESS).exists()


@pytest.mark.subprocess
def test_a_real_run_that_is_killed_is_interrupted(forks, lenet, tmp_path):
    folder = RunFolder(tmp_path / "run")
    with waiting_run(forks, lenet, tmp_path / "run", tmp_path / "meeting"):
        assert folder.snapshot().status == RUNNING
        assert folder.snapshot().report.plans >= 3
    look = folder.snapshot()
    assert look.status == INTERRUPTED
    assert look.report.plans >= 3
    assert "Interrupted" in LiveRun(tmp_path / "run").state().data["headline"]


# The list


def test_the_list_has_every_run_and_escapes_its_names(client, finished, tmp_path):
    strange = '<script>alert(1)</script> & "q" ?#%2e'.replace("/", "|")
    for name in (strange, "lenet"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").write_text("")
    record = json.loads((tmp_path / strange / REPORT).read_bytes())
    record |= {"model": "<img src=x onerror=alert(2)>.onnx", "engine": "<b>", "culprits": ["<i>"]}
    (tmp_path / strange / REPORT).write_text(json.dumps(record))
    web = client(tmp_path)
    page = web.get("/", params={"token": TOKEN}).text
    assert page.count("<script") == 1
    for tag in ("<img", "<b>", "<i>"):
        assert tag not in page
    addresses = re.findall(r'<a href="([^"]*)"', page)
    assert len(addresses) == 2
    for found in addresses:
        assert web.get(f"/{found}").status_code == 200
        assert web.get(f"/{found}data.json").status_code == 200
    assert "no run" not in page


def test_names_that_are_no_text_are_left_out(client, finished, tmp_path):
    shutil.copytree(finished, tmp_path / os.fsdecode(b"run\xff"))
    assert client(tmp_path).get("/", params={"token": TOKEN}).status_code == 200
    assert Runs(tmp_path).entries() == []


def test_the_history_of_a_model_is_in_the_order_of_its_runs(client, finished, tmp_path):
    figures = {"b": (2.0, 0.5), "a": (1.0, 0.25), "c": (3.0, 0.75)}
    for name, (when, figure) in figures.items():
        folder = shutil.copytree(finished, tmp_path / name)
        for file in (REPORT, MANIFEST):
            record = json.loads((folder / file).read_bytes())
            if file == REPORT:
                record["similarity"]["int8"] = figure
            else:
                record["started"] = when
            (folder / file).write_text(json.dumps(record))
    other = shutil.copytree(finished, tmp_path / "other")
    record = json.loads((other / REPORT).read_bytes())
    (other / REPORT).write_text(json.dumps({**record, "model": "another.onnx"}))
    entries = {entry.name: entry for entry in Runs(tmp_path).entries()}
    assert [name for name in entries if name != "other"] == ["c", "b", "a"]
    assert entries["c"].history == (0.25, 0.5, 0.75)
    assert entries["b"].history == (0.25, 0.5)
    assert len(entries["other"].history) == 1
    assert entries["c"].points == [(4.0, 18.0), (48.0, 11.0), (92.0, 4.0)]
    page = client(tmp_path).get("/rows", params={"token": TOKEN}).text
    assert page.count("<polyline") == 2
    assert "INT8 misses the threshold; 1 layer high meets it" in page


def test_runs_below_are_listed_with_their_folders(client, finished, tmp_path):
    for name in ("b/deep/est", "b/deep/est/too deep", ".hidden/run", "demo", "demo/lenet"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "demo")
    assert sorted(entry.name for entry in Runs(tmp_path).entries()) == ["b/deep/est", "demo", "demo/lenet"]
    web = client(tmp_path)
    page = web.get("/", params={"token": TOKEN}).text
    for address in re.findall(r'<a href="([^"]*)"', page):
        assert web.get(f"/{address}").status_code == 200
        assert web.get(f"/{address}data.json").json()["report"]["culprits"] == ["ip2"]
    for outside in ("run/demo/../", "run/b/", "run//", "run/../demo/", "run/demo/recipe/"):
        assert web.get(f"/{outside}").status_code == 404


@pytest.mark.parametrize(
    ("change", "tone"),
    [
        ({}, "repaired"),
        ({"exit_code": 0}, "good"),
        ({"exit_code": 3}, "bad"),
        ({"recipe": {"high": [], "added": [], "meets": False}}, "bad"),
    ],
)
def test_the_verdict_has_a_colour(run, change, tone):
    report = json.loads((run / REPORT).read_bytes())
    (run / REPORT).write_text(json.dumps({**report, **change}))
    [entry] = Runs(run.parent).entries()
    assert entry.tone == tone
    interrupted(run)
    [entry] = Runs(run.parent).entries()
    assert entry.tone == ""


def test_a_recovery_beside_a_run_has_its_own_row_and_times_are_told_in_utc(run, lenet):
    found = trt_bisect.recover(lenet / "lenet_planted.onnx", lenet / "calibration.npz", samples=4, threshold=0.9)
    record = {**found.to_json(), "started": 86400.0 * 365, "seconds": 150.0}
    (run / "recovery.json").write_text(json.dumps(record))
    entries = {entry.command: entry for entry in Runs(run.parent).entries()}
    assert set(entries) == {"run", "recover"}
    recovered = entries["recover"]
    assert recovered.name == entries["run"].name == "lenet"
    assert recovered.address == "run/lenet/#best"
    assert recovered.value("recipe") == repr(found.measured["recipe"])
    assert recovered.began == "1971-01-01T00:00:00+00:00"
    assert (recovered.took, entries["run"].took.endswith(" s")) == ("2 min", True)
    assert entries["run"].history != ()
    (run / "recovery.json").write_text(json.dumps({**record, "model": "another.onnx"}))
    assert [entry.command for entry in Runs(run.parent).entries()] == ["run"]


def test_a_line_of_equal_figures_is_level():
    assert sparkline([0.5, 0.5]) == [(4.0, 11.0), (92.0, 11.0)]
    assert sparkline([]) == []


def test_the_list_marks_runs_that_go_on_and_that_were_interrupted(finished, tmp_path):
    for name in ("on", "off"):
        shutil.copytree(finished, tmp_path / name)
    interrupted(tmp_path / "off")
    (tmp_path / "on" / REPORT).unlink()
    running(tmp_path / "on")
    verdicts = {entry.name: (entry.snapshot.status, entry.verdict) for entry in Runs(tmp_path).entries()}
    assert verdicts["on"] == (RUNNING, "Measuring plans, 3 of 9")
    assert verdicts["off"][0] == INTERRUPTED
    assert verdicts["off"][1].startswith("interrupted after ")


def test_results_of_other_commands_are_listed_with_their_pages(client, lenet, tmp_path):
    """A damaged one is left out, a link is not followed, and a page needs no run beside it."""
    trt_bisect.check(lenet / "lenet.onnx", output=tmp_path / "checked")
    trt_bisect.check(lenet / "lenet.onnx", output=tmp_path)
    for name, text in (("damaged", "{}"), ("other", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "check.json").write_text(text)
    (tmp_path / "other" / "check.json").symlink_to(tmp_path / "check.json")
    entries = {entry.name: entry for entry in Runs(tmp_path).entries()}
    assert set(entries) == {"check.html", "checked/check.html"}
    web = client(tmp_path)
    page = web.get("/", params={"token": TOKEN}).text
    addresses = re.findall(r'<a href="([^"]*)"', page)
    assert sorted(addresses) == ["result/check.html", "result/checked/check.html"]
    for address in addresses:
        assert "Quantization of each layer" in web.get(f"/{address}").text
    for outside in ("result/other/check.html", "result/damaged/check.html", "result/../check.json", "result/x"):
        assert web.get(f"/{outside}").status_code == 404
