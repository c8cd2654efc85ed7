"""The results of ``recover`` on the page: beside a run, without one, in ``view`` and in a notebook."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import onnx
import pytest

import trt_bisect
from tests.support import networks, pages
from tests.support.editions import edition
from tests.support.pages import Elements, percent
from tests.support.records import record_of
from tests.support.view_server import QUERY, serving
from trt_bisect.report.notebook.front_plot import front
from trt_bisect.report.page.headline import recovered_headline
from trt_bisect.report.page.render import render_page
from trt_bisect.report.recovery import ALL_HIGH, RECOVERY, FrontPoint, Measured, Move, Recovery, Target
from trt_bisect.report.verdict import WITH_DOUBTS, spoken
from trt_bisect.runs.progress_file import FINISHED, PROGRESS, RUNNING
from trt_bisect.support.codec import decode, encode
from trt_bisect.support.notes import Line
from trt_bisect.support.progress import Silent
from trt_bisect.view.index import Runs
from trt_bisect.view.run_folder import Gone, RunFolder

THRESHOLD = 0.99999
ABSENT = "not in the network"
"""The name of a layer that the network lacks."""
WISHES = {"engine": "onnxruntime", "calibrator": "minmax", "threshold": THRESHOLD}


@pytest.fixture(scope="module")
def model(strange_model) -> Path:
    return strange_model


@pytest.fixture(scope="module")
def alone(tmp_path_factory, model) -> Path:
    """The folder of ``recover`` without a run, in a parent with nothing else."""
    folder = tmp_path_factory.mktemp("alone") / "recovered"
    trt_bisect.recover(model, networks.samples(onnx.load(str(model))), output=folder, **WISHES)
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory, model) -> Path:
    """The folder of a run, and of ``recover`` after it with a target that needs more layers high."""
    folder = tmp_path_factory.mktemp("both") / "run"
    pages.run_on(model, folder)
    assert data_of(folder)["recovery"] is None
    trt_bisect.recover(model, networks.samples(onnx.load(str(model))), output=folder, **WISHES)
    return folder


@pytest.fixture(scope="module")
def found(alone) -> Recovery:
    return recovery_in(alone)


def recovery_in(folder: Path) -> Recovery:
    return decode(Recovery, (folder / RECOVERY).read_bytes())


def data_of(folder: Path) -> dict:
    return json.loads(Elements((folder / "report.html").read_text()).scripts["data"])


# The data.


def test_recovery_json_is_read_as_it_was_written(alone, found):
    assert record_of(found) == json.loads((alone / RECOVERY).read_text())
    unmeasured = replace(found, front=(FrontPoint(0.5, None, None, (), {}),))
    assert decode(Recovery, encode(unmeasured)) == unmeasured


def test_the_page_of_a_run_has_the_front_too(both):
    data = data_of(both)
    assert data["recovery"] == json.loads((both / RECOVERY).read_text())
    assert data["report"] == json.loads((both / "report.json").read_text())
    assert data["headline"].startswith("Full INT8 fails")


def test_a_run_after_it_keeps_the_front(both, model, tmp_path):
    folder = shutil.copytree(both, tmp_path / "again")
    pages.run_on(model, folder, explain="none")
    assert data_of(folder)["recovery"] == json.loads((folder / RECOVERY).read_text())


def test_a_recovery_of_another_network_is_left_out(both, tmp_path):
    folder = shutil.copytree(both, tmp_path / "other")
    report, found = pages.read(folder), recovery_in(folder)
    renamed = tuple(replace(row, name=f"{row.name}.") for row in report.layers)
    pages.written(folder, replace(report, layers=renamed))
    assert data_of(folder)["recovery"] is None
    pages.written(folder, replace(report, model="other.onnx"))
    assert data_of(folder)["recovery"] is None
    found.save(folder)
    assert data_of(folder)["recovery"] == record_of(found)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1}', '{"schema": 9}', '{"schema": 1, "high": 3}'])
def test_a_file_that_is_none_is_passed_over(both, tmp_path, text):
    folder = shutil.copytree(both, tmp_path / "broken")
    (folder / RECOVERY).write_text(text)
    pages.written(folder, pages.read(folder))
    assert data_of(folder)["recovery"] is None
    (folder / "report.json").unlink()
    with pytest.raises(Gone):
        RunFolder(folder).snapshot()


def test_without_a_run_the_page_has_the_networks_layers(alone, found, model):
    data = data_of(alone)
    nodes = onnx.load(str(model)).graph.node
    rows = data["report"]["layers"]
    assert [row["name"] for row in rows] == [node.name for node in nodes]
    assert [row["op_type"] for row in rows] == [node.op_type for node in nodes]
    assert all(row["quantizable"] == (row["op_type"] in ("Conv", "Gemm", "Add", "GlobalAveragePool")) for row in rows)
    high = {row.layer for row in found.high}
    assert high
    assert {row["name"] for row in rows if row["recipe"] == "fp32"} == high == set(data["report"]["recipe"]["high"])
    assert [layer["name"] for layer in data["graph"]["layers"]] == [node.name for node in nodes]
    assert not (alone / "report.json").exists()
    assert not (alone / PROGRESS).exists()


def test_its_headline(found):
    said = recovered_headline(found)
    high = len(found.high)
    assert said.startswith(f"With {high} layers in FP32 ")
    assert "meets the target of 99.999%" in said
    assert f"{100 * found.cost:.2f}% of INT8's" in said
    accuracy = replace(found, figure="accuracy", meets=False, measured=Measured(0.5, None, 1.0))
    assert "misses the target of 99.999%" in recovered_headline(accuracy)
    fine = recovered_headline(replace(found, high=(), moves=(), cost=0.0, doubts=()))
    assert fine.startswith("Full INT8 passes: it meets the target of 99.999%")
    moved = recovered_headline(replace(found, high=(), moves=(Move("x", "minmax", 1.0, 2.0),)))
    assert moved.startswith("With 1 other scale ")


def test_strange_names_stay_text_in_the_file(alone, both):
    """The elements of a page are the same whatever the layers are called."""
    for folder in (alone, both):
        data = RunFolder(folder).state().data
        plain = replace(data, recovery=None, headline="", report=replace(data.report, model=""))
        page = (folder / "report.html").read_text()
        assert Elements(page).names == Elements(render_page(plain)).names


# The notebook.


def test_the_compact_view_escapes_names(found):
    shown = found._repr_html_()
    assert "<script" not in shown
    assert all(row.layer in unescape(shown) for row in found.high)
    assert recovered_headline(found) in unescape(shown)
    moved = replace(found, moves=(Move("<b>x</b>", "minmax", 0.5, 0.25),))._repr_html_()
    assert "&lt;b&gt;x" in moved
    assert "<b>x" not in moved


def test_the_plot_has_the_plans_and_the_target(found):
    figure = front(found)
    (trace,) = figure.data
    assert list(trace.x) == [pytest.approx(100.0 * point.cost) for point in found.front]
    assert list(trace.y) == [pytest.approx(max(1e-9, 1.0 - point.figure)) for point in found.front]
    assert [text for text in trace.text if text] == [", ".join(p.names) for p in found.front if p.names]
    assert not any("<script" in hover for hover in trace.customdata)
    assert figure.layout.shapes[0].y0 == pytest.approx(1.0 - THRESHOLD)
    assert figure.layout.yaxis.type == "log"
    plain = found.plot(log=False)
    assert list(plain.data[0].y) == [point.figure for point in found.front]


# The browser.


def click_plan(page, place: int) -> None:
    """Clicks a plan in the plot, where Plotly drew it."""
    page.locator("#best-plot").scroll_into_view_if_needed()
    at = page.evaluate(
        """place => {
          const plot = document.querySelector('#best-plot');
          const trace = plot._fullData[1];
          const { xaxis, yaxis } = plot._fullLayout;
          const index = [...trace.customdata].indexOf(place);
          const box = plot.getBoundingClientRect();
          return [box.x + xaxis._offset + xaxis.d2p(trace.x[index]), box.y + yaxis._offset + yaxis.d2p(trace.y[index])];
        }""",
        place,
    )
    page.mouse.move(*at)
    page.mouse.click(*at)


def listed(page) -> list[str]:
    return page.locator("#best-point [data-layer]").all_inner_texts()


def test_the_section_is_there_and_clicks_select(tab, both):
    found = recovery_in(both)
    with tab.shown(both / "report.html") as page:
        assert page.locator("#best").is_visible()
        assert page.locator('nav a[href="#best"]').is_visible()
        assert page.locator("#best-words > p").all_inner_texts() == found.summary.splitlines()
        cells = page.locator("#best-high tbody tr").first.locator("td").all_inner_texts()
        first = found.high[0]
        assert cells[:4] == [first.layer, first.op_type, first.precision, f"{100 * first.cost:.2f}%"]
        assert cells[4] == percent(first.back, found.target.least)
        assert listed(page) == [row.layer for row in found.high]
        labels = page.locator("#best-plot .annotation-text").all_text_contents()
        assert {"all INT8", "all high", "target 99.999%"} <= set(labels)
        assert any("recipe" in label for label in labels)
        assert f"{len(found.high)} layers" in page.locator("#recipe-words").inner_text()
        assert_a_click_on_a_layer_selects_it_everywhere(page, found.high[-1].layer)
        assert_a_click_on_a_plan_lists_what_it_leaves_high(page, found)


def assert_a_click_on_a_plan_lists_what_it_leaves_high(page, found: Recovery) -> None:
    place = next(place for place, point in enumerate(found.front) if 0.2 < point.cost < 0.7 and not point.names)
    click_plan(page, place)
    point = found.front[place]
    page.wait_for_function(
        "text => document.querySelector('#best-point').textContent.includes(text)", arg=f"{100 * point.cost:.2f}%"
    )
    assert listed(page) == list(point.high)
    page.locator("#best-plans summary").click()
    pressed = page.locator('#best-plans [aria-pressed="true"]')
    assert pressed.get_attribute("data-place") == str(place)
    page.locator('#best-plans button[data-place="0"]').press("Enter")
    assert listed(page) == list(found.front[0].high) == []
    assert "INT8" in page.locator("#best-point").inner_text()


def assert_a_click_on_a_layer_selects_it_everywhere(page, name: str) -> None:
    page.locator("#best-high button", has_text=name).click()
    assert page.locator("#details-body .layer-name").text_content() == name
    assert page.locator('#table-body [aria-selected="true"] .name').text_content() == name
    page.wait_for_function("name => document.querySelector('#graph .selected')?.dataset.layer === name", arg=name)
    assert page.locator("#best-high tr.chosen td").first.inner_text() == name
    assert page.locator("#best-point li.chosen button").inner_text() == name


def test_no_recovery_no_section(opened):
    assert opened.locator("#best").is_hidden()
    assert opened.locator('nav a[href="#best"]').is_hidden()


def test_nulls_moves_strange_names_and_accuracy(tab, alone, found, tmp_path):
    """A figure that is not known has no point; a hover has the name as text."""
    strange = pages.STRANGE[1]
    odd = replace(
        found,
        figure="accuracy",
        target=Target("accuracy", 0.9, 0.95),
        measured=Measured(None, 0.92, 0.95),
        high=tuple(replace(row, back=None) for row in found.high),
        moves=(Move(strange, "minmax", 0.5, 0.25),),
        front=(
            FrontPoint(0.0, None, None, ("all INT8",), {}),
            FrontPoint(0.3, 0.92, 0.03, ("recipe",), {strange: "fp32", ABSENT: "fp16"}),
            FrontPoint(
                1.0, 0.95, 0.0, (ALL_HIGH,), {row["name"]: "fp32" for row in data_of(alone)["report"]["layers"]}
            ),
        ),
    )
    folder = shutil.copytree(alone, tmp_path / "odd")
    odd.save(folder)
    with tab.shown(folder / "report.html") as page:
        assert page.evaluate("document.querySelector('#best-plot').data[1].x") == [30, 100]
        figures = [page.locator(f'[data-plan="{plan}"] .figure').inner_text() for plan in ("fp32", "recipe")]
        assert figures == ["95%", "92%"]
        assert page.locator("#best-high td:last-child").all_inner_texts() == ["not measured"] * len(found.high)
        assert page.locator("#best-moves td").all_inner_texts() == [strange, "minmax", "0.5", "0.25"]
        hover = page.evaluate("document.querySelector('#best-plot').data[1].text[0]")
        assert "&lt;img" in hover
        assert "<img" not in hover
        page.locator("#best-plans summary").click()
        page.locator('#best-plans button[data-place="1"]').click()
        assert listed(page) == [strange]
        assert page.locator("#best-point code").all_inner_texts() == [ABSENT]
        assert page.locator("#best img").count() == 0


# The server.


def test_view_tells_the_same(alone, both):
    for folder in (alone, both):
        assert record_of(RunFolder(folder).state().data) == data_of(folder)


def test_the_list_has_a_folder_without_a_run(alone, found):
    (entry,) = Runs(alone.parent).rows()
    assert entry.status == FINISHED
    assert entry.command == "recover"
    assert (found.verdict, found.exit_code) == (WITH_DOUBTS, 1), "cosine and SQNR disagree"
    assert entry.verdict.startswith(f"{spoken(found.verdict)}; with {len(found.high)} layers ")
    assert entry.tone == "doubted"
    assert entry.value("recipe") == repr(found.measured.recipe)
    assert entry.when > 0


@pytest.mark.parametrize(("width", "look"), edition([(390, "dark")], [(390, "light"), (1360, "light"), (1360, "dark")]))
def test_without_a_run_the_served_page_is_whole(web, alone, found, width, look):
    """It is made of the same data as the file."""
    with serving(alone) as address, web.shown(f"{address}/{QUERY}", width=width, look=look) as page:
        page.locator("#live.finished").wait_for()
        assert page.locator("#best-words > p").all_inner_texts() == found.summary.splitlines()
        assert page.locator("h1").inner_text() == recovered_headline(found)
        assert page.locator("#curve").is_hidden()
        assert page.locator("#best-plot .main-svg").first.is_visible()
        assert page.locator("#graph .node").count() > 0
        assert page.locator('[data-plan="recipe"].doubted').count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_second_recovery_is_told(alone, tmp_path, found):
    folder = shutil.copytree(alone, tmp_path / "run")
    run = RunFolder(folder)
    before = run.state()
    assert run.state() is before
    replace(found, lines=(Line("passes", "Another."),)).save(folder)
    assert run.state().data.recovery.summary == "Another."


def test_a_recovery_that_goes_on_is_told(model, tmp_path):
    folder = tmp_path / "run"
    looks = []

    class Looking(Silent):
        def stage(self, title, total):
            looks.append(RunFolder(folder).snapshot())

    data = networks.samples(onnx.load(str(model)))
    trt_bisect.recover(model, data, output=folder, progress=Looking(), **WISHES)
    assert looks
    assert {look.status for look in looks} == {RUNNING}
    assert RunFolder(folder).snapshot().status == FINISHED
