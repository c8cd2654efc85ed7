"""The server of ``trt-bisect view``: what is told of runs that go on, stop and vanish."""

import shutil
from dataclasses import replace

import pytest

from tests.support.run_states import embedded, interrupted, running
from trt_bisect import Report
from trt_bisect.report.parts import REPORT, SO_FAR
from trt_bisect.report.words import headline
from trt_bisect.runs.progress_file import FINISHED, INTERRUPTED, PROGRESS, RUNNING
from trt_bisect.support.codec import write
from trt_bisect.view import index as pace
from trt_bisect.view.index import Gone, RunFolder, Throttled


def test_a_finished_run_is_told_as_its_report_html_has_it(viewer, finished):
    page = (finished / "report.html").read_text()
    web = viewer(finished)
    assert web.get("/data.json").json() == embedded(page)
    assert embedded(web.get("/").text) == embedded(page)
    assert 'data-live="data.json"' in web.get("/").text
    assert viewer(finished.parent).get("/run/lenet/data.json").json() == embedded(page)


def test_nothing_new_is_304(viewer, finished):
    web = viewer(finished)
    first = web.get("/data.json")
    again = web.get("/data.json", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert web.get("/data.json", headers={"If-None-Match": '"other"'}).status_code == 200
    plain = web.get("/data.json", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == first.json()
    assert first.headers["content-encoding"] == "gzip"


@pytest.mark.usefixtures("_always_looks")
def test_the_tag_changes_with_the_run(viewer, run):
    (run / REPORT).unlink()
    running(run)
    web = viewer(run)
    first = web.get("/data.json")
    progress = {"stage": "Measuring plans", "done": 3, "total": 9, "seconds": 1.0, "what": "ip1", "left": None}
    assert first.json()["progress"] == progress
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


def test_a_look_that_takes_long_is_rarer(monkeypatch):
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


def test_a_run_that_goes_on_is_running_until_it_is_through(run, under_way):
    report = (run / REPORT).read_bytes()
    interrupted(run, replace(under_way[0], started=Report.load(run).started))
    running(run)
    folder = RunFolder(run)
    assert (folder.snapshot().status, folder.snapshot().whole) == (RUNNING, False)
    (run / REPORT).write_bytes(report)
    assert (folder.snapshot().status, folder.snapshot().whole) == (RUNNING, True)  # the page is still being written
    (run / PROGRESS).unlink()
    assert folder.snapshot().status == FINISHED  # also if the run was killed before it removed the report so far
    (run / SO_FAR).unlink()
    assert folder.snapshot().status == FINISHED


def test_a_run_that_only_calibrates_yet_is_shown(viewer, tmp_path):
    running(tmp_path, stage="Calibrating", began=5.0)
    look = RunFolder(tmp_path).snapshot()
    assert (look.status, look.progress["stage"], look.when) == (RUNNING, "Calibrating", 5.0)
    answer = viewer(tmp_path).get("/")
    assert answer.status_code == 200
    assert embedded(answer.text)["report"]["layers"] == []


def test_a_run_after_another_in_the_same_folder(run, under_way):
    """While the second prepares, the first is shown; then the second, also if it is killed."""
    first = (run / REPORT).read_bytes()
    folder, began = RunFolder(run), Report.load(run).started + 60.0
    second = replace(under_way[0], threshold=0.2, started=began + 1.0)
    running(run, began=began)
    look = folder.snapshot()
    assert (look.status, look.report.culprits, look.when) == (RUNNING, ("ip2",), began)
    write(run / SO_FAR, second)
    look = folder.snapshot()
    assert (look.status, look.report.threshold, look.report.culprits) == (RUNNING, 0.2, ())
    interrupted(run, second)
    (run / REPORT).write_bytes(first)
    look = folder.snapshot()
    assert (look.status, look.report.threshold, look.report.culprits) == (INTERRUPTED, 0.2, ())
    data = folder.state().data
    assert (data.explanation, data.recipe) == (None, {}), "these files are of the first run"
    running(run, began=began + 120.0)  # the same command, which goes on
    assert (folder.snapshot().status, folder.snapshot().report.threshold) == (RUNNING, 0.2)
    write(run / REPORT, replace(Report.load(run), threshold=0.2, started=began + 121.0))
    (run / SO_FAR).unlink()
    (run / PROGRESS).unlink()
    look = folder.snapshot()
    assert (look.status, look.report.threshold, look.report.culprits) == (FINISHED, 0.2, ("ip2",))


def test_a_verdict_that_is_being_explained_is_shown_with_its_recipe(run, under_way):
    """Also if the run is killed then."""
    verdict = Report.load(run)
    running(run)
    write(run / SO_FAR, replace(verdict, started=verdict.started + 60.0, state=RUNNING))
    for status, began in ((RUNNING, "Still running. So far: "), (INTERRUPTED, "Interrupted. So far: ")):
        data = RunFolder(run).state().data
        assert (data.status, data.report.culprits, data.explanation) == (status, ("ip2",), None)
        assert data.headline == began + headline(verdict)
        assert "README.md" in data.recipe
        (run / PROGRESS).unlink(missing_ok=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 99}', b'{"schema": 1, "report": 3}', b"\xff"])
@pytest.mark.parametrize("name", [SO_FAR, REPORT, PROGRESS, "network.json", "explanation.json", "pictures.json"])
def test_files_that_cannot_be_read_break_nothing(run, under_way, name, content):
    if name == REPORT:
        write(run / SO_FAR, under_way[-1])
    (run / name).write_bytes(content)
    data = RunFolder(run).state().data
    assert [row.name for row in data.report.layers if row.culprit or row.suspect] == ["ip2"]


@pytest.mark.usefixtures("_always_looks")
def test_a_folder_that_is_deleted_is_not_there_any_more(viewer, run):
    web, parent = viewer(run), viewer(run.parent)
    assert web.get("/").status_code == 200
    assert "lenet" in parent.get("/rows").text
    shutil.rmtree(run)
    assert web.get("/").status_code == 404
    assert web.get("/data.json").status_code == 404
    assert parent.get("/run/lenet/data.json").status_code == 404
    assert "lenet" not in parent.get("/rows").text
    with pytest.raises(Gone):
        RunFolder(run).snapshot()
