"""The list of runs that the server of ``trt-bisect view`` shows."""

import json
import os
import re
import shutil

import trt_bisect
from tests.support.run_states import interrupted, running
from trt_bisect.report.choices import FP16_INSTEAD
from trt_bisect.report.parts import FAILS, REPORT, UNMEASURED
from trt_bisect.runs.progress_file import INTERRUPTED, RUNNING
from trt_bisect.view.index import Runs


def changed(folder, **facts):
    """Writes other facts into the report of a run folder."""
    report = json.loads((folder / REPORT).read_bytes())
    (folder / REPORT).write_text(json.dumps({**report, **facts}))


def test_the_list_has_every_run_and_escapes_its_names(viewer, finished, tmp_path):
    strange = '<script>alert(1)</script> & "q" ?#%2e'.replace("/", "|")
    for name in (strange, "lenet"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "no run").mkdir()
    (tmp_path / "file").write_text("")
    changed(tmp_path / strange, model="<img src=x onerror=alert(2)>.onnx", engine="<b>", culprits=["<i>"])
    web = viewer(tmp_path)
    page = web.get("/").text
    assert page.count("<script") == 1
    for tag in ("<img", "<b>", "<i>"):
        assert tag not in page
    addresses = re.findall(r'<a href="([^"]*)"', page)
    assert len(addresses) == 2
    for found in addresses:
        assert web.get(f"/{found}").status_code == 200
        assert web.get(f"/{found}data.json").status_code == 200
    assert "no run" not in page


def test_names_that_are_no_text_are_left_out(viewer, finished, tmp_path):
    shutil.copytree(finished, tmp_path / os.fsdecode(b"run\xff"))
    assert viewer(tmp_path).get("/").status_code == 200
    assert Runs(tmp_path).rows() == []


def test_the_history_of_a_model_is_in_the_order_of_its_runs(viewer, finished, tmp_path):
    figures = {"b": (2.0, 0.5), "a": (1.0, 0.25), "c": (3.0, 0.75)}
    for name, (when, figure) in figures.items():
        folder = shutil.copytree(finished, tmp_path / name)
        changed(folder, started=when, similarity={"int8": figure, "recipe": 0.999})
    changed(shutil.copytree(finished, tmp_path / "other"), model="another.onnx")
    entries = {entry.name: entry for entry in Runs(tmp_path).rows()}
    assert [name for name in entries if name != "other"] == ["c", "b", "a"]
    assert entries["c"].history == (0.25, 0.5, 0.75)
    assert entries["b"].history == (0.25, 0.5)
    assert len(entries["other"].history) == 1
    assert entries["c"].points == [(4.0, 18.0), (48.0, 11.0), (92.0, 4.0)]
    page = viewer(tmp_path).get("/rows").text
    assert page.count("<polyline") == 2
    assert "fails; with 1 layer" in page


def test_runs_below_are_listed_with_their_folders(viewer, finished, tmp_path):
    for name in ("b/deep/est", "b/deep/est/too deep", ".hidden/run", "demo", "demo/lenet"):
        shutil.copytree(finished, tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "demo")
    assert sorted(entry.name for entry in Runs(tmp_path).rows()) == ["b/deep/est", "demo", "demo/lenet"]
    web = viewer(tmp_path)
    page = web.get("/").text
    for address in re.findall(r'<a href="([^"]*)"', page):
        assert web.get(f"/{address}").status_code == 200
        assert web.get(f"/{address}data.json").json()["report"]["culprits"] == ["ip2"]
    for outside in ("run/demo/../", "run/b/", "run//", "run/../demo/", "run/demo/recipe/"):
        assert web.get(f"/{outside}").status_code == 404


def test_no_verdict_has_no_colour(run, under_way):
    """The colours of the others are in test_contradictions."""
    changed(run, verdict=UNMEASURED)
    assert [entry.tone for entry in Runs(run.parent).rows()] == [""]
    changed(run, verdict=FAILS)
    interrupted(run, under_way[-1])
    assert [entry.tone for entry in Runs(run.parent).rows()] == [""]


def test_the_list_names_another_low_precision_and_fp16_where_it_is_the_plan_to_ship(run):
    [entry] = Runs(run.parent).rows()
    assert (entry.figure("int8").endswith("%"), "ship" in entry.verdict) == (True, False)
    report = json.loads((run / REPORT).read_text())
    changed(run, lines=[{"kind": FP16_INSTEAD, "text": ""}, *report["lines"]])
    [entry] = Runs(run.parent).rows()
    assert entry.verdict == "fails; ship FP16"
    changed(run, low="fp16")
    [entry] = Runs(run.parent).rows()
    assert entry.figure("int8").endswith("% (FP16)")
    assert entry.figure("recipe").endswith("%")


def test_times_are_told_in_utc(run):
    [entry] = Runs(run.parent).rows()
    assert entry.took.endswith(" s")
    record = json.loads((run / REPORT).read_bytes())
    changed(run, started=86400.0 * 365, seconds={**record["seconds"], "total": 150.0})
    [entry] = Runs(run.parent).rows()
    assert (entry.began, entry.took) == ("1971-01-01T00:00:00+00:00", "2 min")
    assert entry.history == (record["similarity"]["int8"],)


def test_the_list_marks_runs_that_go_on_and_that_were_interrupted(finished, under_way, tmp_path):
    for name in ("on", "off"):
        shutil.copytree(finished, tmp_path / name)
    interrupted(tmp_path / "off", under_way[-1])
    (tmp_path / "on" / REPORT).unlink()
    running(tmp_path / "on")
    shutil.copytree(tmp_path / "on", tmp_path / "told")
    running(tmp_path / "told", left=200.0)
    verdicts = {entry.name: (entry.status, entry.verdict) for entry in Runs(tmp_path).rows()}
    assert verdicts["on"] == (RUNNING, "Measuring plans, 3 of 9"), "the time left is not known"
    assert verdicts["told"] == (RUNNING, "Measuring plans, 3 of 9, about 3 min left")
    assert verdicts["off"][0] == INTERRUPTED
    assert verdicts["off"][1].startswith("interrupted after ")


def test_results_of_other_commands_are_listed_with_their_pages(viewer, lenet, tmp_path):
    """A damaged one is left out, a link is not followed, and a page needs no run beside it."""
    trt_bisect.check(lenet / "lenet.onnx", output=tmp_path / "checked")
    trt_bisect.check(lenet / "lenet.onnx", output=tmp_path)
    for name, text in (("damaged", "{}"), ("other", None)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "check.json").write_text(text)
    (tmp_path / "other" / "check.json").symlink_to(tmp_path / "check.json")
    entries = {entry.name: entry for entry in Runs(tmp_path).rows()}
    assert set(entries) == {"check.html", "checked/check.html"}
    web = viewer(tmp_path)
    page = web.get("/").text
    addresses = re.findall(r'<a href="([^"]*)"', page)
    assert sorted(addresses) == ["result/check.html", "result/checked/check.html"]
    for address in addresses:
        assert "lenet.onnx" in web.get(f"/{address}").text
    for outside in ("result/other/check.html", "result/damaged/check.html", "result/../check.json", "result/x"):
        assert web.get(f"/{outside}").status_code == 404
