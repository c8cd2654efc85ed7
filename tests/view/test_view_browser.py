"""``trt-bisect view`` in real Chromium: a run that grows while somebody looks, and the list of runs."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.page_parts import in_order, names_in_table, row_of, selected
from tests.support.view_server import QUERY, serving
from trt_bisect import Report
from trt_bisect.report.answer import RecipeLayers
from trt_bisect.report.parts import REPORT, SO_FAR, ByPlan
from trt_bisect.report.words import headline
from trt_bisect.runs.progress_file import PROGRESS, Heartbeat
from trt_bisect.support.codec import write
from trt_bisect.support.progress import Silent

playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
pytestmark = pytest.mark.usefixtures("_always_looks")


@pytest.fixture
def page(web):
    """A page that complains of any error on its console and of any request to another host."""
    web.leave()
    web.stand(1300, 900, "light")
    opened = web.watched.page
    yield opened
    assert web.watched.complaints == []
    hosts = {re.sub(r"^blob:", "", url).split("/")[2].split(":")[0] for url in web.watched.requests}
    assert hosts <= {"127.0.0.1"}
    web.leave()


class Grown:
    """A run in a folder of its own that goes on in this process, a layer at a time."""

    def __init__(self, finished: Path, under_way: list[Report], folder: Path):
        self.folder = folder
        folder.mkdir()
        shutil.copy(finished / "network.json", folder)
        self.beat = Heartbeat(folder, Silent())
        self.began = json.loads((folder / PROGRESS).read_bytes())["began"]
        self.show(under_way[0])

    def show(self, report: Report) -> None:
        write(self.folder / SO_FAR, replace(report, started=self.began))

    def finish(self, finished: Path) -> None:
        shutil.copytree(finished, self.folder, dirs_exist_ok=True)
        (self.folder / SO_FAR).unlink()
        self.beat.close()


def before_the_answer(report: Report) -> Report:
    """The same where the curve comes first: engines are built for each plan."""

    def undecided(row):
        return replace(row, culprit=False, suspect="not decided yet" if row.culprit and row.loss else "")

    return replace(report, layers=tuple(map(undecided, report.layers)), answer=None, culprits=(), recipe=RecipeLayers())


def test_the_curve_grows_while_somebody_looks(page, finished, under_way, tmp_path):
    """Before the verdict and below it."""
    run = Grown(finished, under_way, tmp_path / "lenet")
    undecided = [before_the_answer(report) for report in under_way]
    run.show(undecided[1])
    run.beat.stage("Measuring plans", 9)
    run.beat.step("conv1")
    with serving(run.folder) as base:
        page.goto(f"{base}/{QUERY}")
        expect(page.locator("#headline")).to_contain_text("Measuring: 1 of ")
        expect(page.locator("#live")).to_contain_text("Measuring plans")
        page.get_by_role("row", name=re.compile("conv2")).click()
        expect(page.locator("#details-body .layer-name")).to_have_text("conv2")
        run.show(undecided[2])
        expect(page.locator("#headline")).to_contain_text("Measuring: 2 of ")
        expect(page.locator("#details-body .layer-name")).to_have_text("conv2")  # what was selected stays so
        run.show(undecided[-1])
        expect(page.locator("#headline")).to_contain_text("1 suspect so far")
        page.locator("div[role=row]", has_text="ip2").click()
        expect(page.locator("#details-body .chip", has_text="suspect")).to_be_visible()
        expect(page.locator("#curve-legend")).to_contain_text("not decided yet (1)")
        expect(page.locator("#curve-legend .diamond.culprit")).to_have_count(0)
        expect(page.locator("#recipe-words")).to_have_text("It is decided at the end of the run.")
        for layers in (1, 2):
            run.show(under_way[layers])
            expect(page.locator("#headline")).to_contain_text("Still running. So far: Full INT8 fails")
            expect(page.locator("#headline")).to_contain_text("'ip2'")
            expect(page.locator("#curve-legend")).to_contain_text(f"not tried ({6 - layers})")
            expect(page.locator("#recipe-words")).to_contain_text("1 layer in FP32")
        run.finish(finished)
        expect(page.locator("#live")).to_have_text("finished")
        expect(page.locator("#headline")).to_contain_text("'ip2'")


def test_what_the_reader_chose_stays_when_the_run_goes_on(page, recorded, tmp_path):
    """Layer, order of the table and folded groups; a page asks only for what is new."""
    whole = recorded("strange") / "runs/strange"
    report = Report.load(whole)
    blank = {"similarity": None, "loss": None, "outcome": "not tried", "culprit": False}
    half = len(report.layers) // 2
    rows = (replace(row, **blank) if row.quantizable and row.index >= half else row for row in report.layers)
    so_far = replace(report, layers=tuple(rows), similarity=ByPlan(None, None), lines=(), culprits=(), answer=None)
    run = Grown(whole, [so_far], tmp_path / "strange")
    run.beat.stage("Measuring plans", 24)
    with serving(run.folder) as base:
        page.goto(f"{base}/{QUERY}")
        expect(page.locator("#live")).to_contain_text("Measuring plans 0 of 24")
        name = report.layers[1].name
        in_order(page)
        row_of(page, name).click()
        page.locator("#table-head [data-key=name]").click()
        unfolded = page.locator("#graph .node").count()
        page.get_by_role("button", name="Fold all").click()
        page.wait_for_function("count => document.querySelectorAll('#graph .node').length < count", arg=unfolded)
        order, drawn = names_in_table(page), page.locator("#graph .node").count()
        with page.expect_request(lambda request: "if-none-match" in request.headers):
            pass
        run.finish(whole)
        expect(page.locator("#live")).to_have_text("finished")
        assert page.locator("h1").inner_text() == headline(report)
        assert (selected(page)["panel"], names_in_table(page)) == (name, order)
        assert page.locator("#graph .node").count() == drawn
        assert page.locator("#graph .node.culprit").count() == len(report.culprits)


def test_a_run_that_goes_away_and_comes_back_is_told(web, page, finished, under_way, tmp_path):
    run = Grown(finished, under_way, tmp_path / "lenet")
    with serving(run.folder) as base:
        page.goto(f"{base}/{QUERY}")
        expect(page.locator("#live.running")).to_contain_text("live")
        run.folder.rename(tmp_path / "away")
        expect(page.locator("#live.lost")).to_have_text("connection lost")
        (tmp_path / "away").rename(run.folder)
        expect(page.locator("#live.running")).to_contain_text("live")
        run.beat.close()
    web.watched.complaints.clear()  # Chromium tells of each answer 404


@pytest.mark.parametrize("below", [True, False])
def test_an_empty_folder_waits_for_the_first_run(page, finished, under_way, tmp_path, below):
    """The run begins in a folder below it, or in it; nobody has to load the page again."""
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as base:
        page.goto(f"{base}/{QUERY}")
        expect(page.locator("#none")).to_have_text("No run has written here yet.")
        expect(page.locator("#live")).to_have_text("live")
        folder = tmp_path / "runs/first" if below else tmp_path / "runs"
        if below:
            run = Grown(finished, under_way, folder)
            expect(page.locator("tbody th")).to_have_text(["first"])
            run.beat.close()
        else:
            shutil.copytree(finished, folder, dirs_exist_ok=True)
            expect(page.locator("#headline")).to_contain_text("'ip2'")
            expect(page.locator("#live")).to_have_text("finished")


def test_the_list_sorts_links_follows_what_happens_and_fits_a_phone_in_the_dark(
    web, page, finished, under_way, tmp_path
):
    strange = "a & <script>alert(1)|b 100%25"
    for name, figure, started in ((strange, 0.9, 10.0), ("later", 0.5, 20.0)):
        folder = Path(shutil.copytree(finished, tmp_path / name))
        report = json.loads((folder / REPORT).read_bytes())
        report["similarity"]["int8"] = figure
        (folder / REPORT).write_text(json.dumps({**report, "started": started}))
    with serving(tmp_path) as base:
        page.goto(f"{base}/{QUERY}")
        names = page.locator("tbody th")
        expect(names).to_have_text(["later", strange])
        page.get_by_role("button", name="INT8").click()
        expect(names).to_have_text(["later", strange])
        page.get_by_role("button", name="INT8").click()
        expect(names).to_have_text([strange, "later"])
        expect(page.locator("svg.history")).to_have_count(1)
        run = Grown(finished, under_way[1:], tmp_path / "third")
        expect(page.locator("tbody .live.running")).to_have_count(1)
        expect(names).to_have_text([strange, "later", "third"])  # as it was sorted
        run.beat.close()
        expect(page.locator("tbody .live.interrupted")).to_have_count(1)
        web.stand(380, 700, "dark")
        page.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
        page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="Light").click()
        assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
        page.get_by_role("link", name=strange).click()
        expect(page.locator("#headline")).to_contain_text("'ip2'")
