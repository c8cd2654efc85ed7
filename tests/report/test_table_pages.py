"""The pages of ``compare``, ``sensitivity``, ``worst``, ``profile`` and ``check`` in Chromium, against NumPy."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import pages
from tests.support.accessibility import grave_findings
from tests.support.editions import edition
from tests.support.page_parts import plotted
from tests.support.recorded import results
from trt_bisect.view.index import RESULTS

PAGES = [f"{kind.COMMAND}.html" for kind in RESULTS]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a result of each kind, of a network with strange names and a planted culprit."""
    return results(tmp_path_factory)


def column(page, section: str, key: str) -> list[str]:
    """The cells of a column that are on the screen."""
    place = page.evaluate(
        "([id, key]) => [...document.querySelectorAll(`#${id}-table .head button`)]"
        ".findIndex(button => button.dataset.key === key)",
        [section, key],
    )
    return page.locator(f"#{section}-table .body [role=row] > :nth-child({place + 1})").all_inner_texts()


@pytest.fixture(scope="module", params=PAGES)
def page(request, tab, made):
    """The page of each kind of result, opened once for all tests that look at it."""
    with tab.shown(made / request.param, ready="usable", width=1280) as page:
        yield page


def on(name: str) -> pytest.MarkDecorator:
    """Runs a test on the page of one kind of result."""
    return pytest.mark.parametrize("page", [name], indirect=True)


@pytest.fixture
def wide(page):
    """The page as wide and light as it was opened."""
    yield page
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(media="null", color_scheme="light")


def test_each_page_opens_without_a_complaint(page, made):
    data = pages.data_of(made / Path(page.url).name)
    assert page.locator("h1").inner_text() == data["headline"]
    assert data["sections"]
    for section in data["sections"]:
        for place in range(len(section["plots"])):
            assert plotted(page, f"#{section['id']} .plot >> nth={place}").locator(".main-svg").count() > 0
    assert page.locator("main img, main b").count() == 0
    page.locator(".table .body [role=row]").first.click()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.keyboard.press("Escape")


@pytest.mark.parametrize("page", edition(["profile.html"], PAGES), indirect=True)
def test_axe_finds_nothing_serious_on_a_dark_phone(wide):
    wide.set_viewport_size({"width": 390, "height": 900})
    wide.emulate_media(color_scheme="dark")
    wide.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    row = wide.locator(".table .body [role=row]").first
    wide.locator("#search").fill(row.locator(".name").inner_text())  # axe looks at every row
    row.click()
    assert wide.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert grave_findings(wide) == []
    wide.keyboard.press("Escape")
    wide.locator("#search").fill("")


def test_the_pages_scripts_stay_small(made):
    """All but Plotly and the data is less than the tenth of Plotly."""
    text = (made / "check.html").read_text()
    assert len(text) < 1_330_000


@on("compare.html")
def test_sorted_filtered_and_searched(page, made):
    table = trt_bisect.Comparison.load(made).table()
    page.locator("#tensors-table .head [data-key=mse]").click()
    by_mse = table.sort_values("mse", ascending=False, kind="stable")
    wanted = [layer or tensor for layer, tensor in zip(by_mse["layer"], by_mse["tensor"], strict=True)]
    assert column(page, "tensors", "layer") == wanted
    page.locator("#tensors-filters select[data-key=op_type]").select_option("Relu")
    assert set(column(page, "tensors", "op_type")) == {"Relu"}
    count = int((table["op_type"] == "Relu").sum())
    assert page.locator("#tensors-table-count").inner_text() == f"{count} of {len(table)} rows"
    page.locator("#tensors-filters select[data-key=op_type]").select_option("*")
    page.locator("#search").fill(pages.STRANGE[0])
    assert set(column(page, "tensors", "layer")) == {pages.STRANGE[0]}
    page.locator("#search").fill("")


@on("compare.html")
def test_all_metrics_and_ranges_are_the_tables(page, made):
    table = trt_bisect.Comparison.load(made).table()
    panels, ranges = (
        plotted(page, f"#tensors .plot >> nth={place}").evaluate("plot => plot.data.map(({ x, y }) => [x, y])")
        for place in (0, 1)
    )
    for (x, y), metric in zip(panels, ("cosine", "sqnr", "mse", "l1", "kl", "max_abs", "max_rel"), strict=True):
        assert len(x) == len(table)
        assert [np.nan if value is None else value for value in y] == pytest.approx(list(table[metric]), nan_ok=True)
    before, after = table["fp32_max"] - table["fp32_min"], table["int8_max"] - table["int8_min"]
    assert ranges[0][1] == pytest.approx(list(before))
    assert ranges[1][1] == pytest.approx(list(after))
    assert ranges[2][1] == pytest.approx(list(100 * (after - before) / before), abs=1e-9)


@on("sensitivity.html")
def test_a_distribution_is_numpys(page, made):
    gains = trt_bisect.Sensitivity.load(made).table()["cosine"].to_numpy()
    page.locator("#layers .choice select").select_option("cosine")
    counts = plotted(page, "#layers .plot >> nth=-1").evaluate("plot => plot.data[0].y")
    assert counts == np.histogram(gains, 30)[0].tolist()


@on("profile.html")
def test_on_paper_are_the_first_rows(wide):
    wide.emulate_media(media="print")
    wide.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert wide.locator("#tensors-table .body [role=row]").count() == 12
    assert wide.locator("#tensors-table-cut").is_visible()
    wide.evaluate("window.dispatchEvent(new Event('afterprint'))")


def cells(page):
    """The number of cells in the head of the table of tensors, and in each row."""
    head = page.locator("#tensors-table .head button").count()
    rows = page.locator("#tensors-table .body [role=row]").evaluate_all("rows => rows.map(row => row.children.length)")
    return head, set(rows)


@on("profile.html")
def test_a_window_that_becomes_narrow_or_wide_shows_the_columns_of_that_width(wide):
    before, rows = cells(wide)
    assert rows == {before}
    for width, fewer in ((390, True), (1280, False)):
        wide.set_viewport_size({"width": width, "height": 900})
        wide.wait_for_function(
            "([count, fewer]) => (document.querySelectorAll('#tensors-table .head button').length < count) === fewer",
            arg=[before, fewer],
        )
        head, rows = cells(wide)
        assert rows == {head}


@on("profile.html")
def test_a_weights_histogram_and_channels(page, made):
    model = onnx.load(str(made / "strange.onnx"))
    values = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    page.locator("#tensors-filters select[data-key=role]").select_option("weight")
    page.locator("#tensors-table .body [role=row]").nth(1).click()
    shown_tensor = page.locator("#details-body dd").all_inner_texts()
    (name,) = [text for text in shown_tensor if text in values]
    weight = values[name].astype(np.float64)
    trace = plotted(page, "#details .plot").evaluate("({ data: [{ x, y, width }] }) => [x, y, width]")
    half = trace[2] / 2
    edges = np.array([*(x - half for x in trace[0]), trace[0][-1] + half])
    assert [count or 0 for count in trace[1]] == np.histogram(weight, edges)[0].tolist()
    assert sum(count or 0 for count in trace[1]) == weight.size
    canvas = page.locator("#details canvas")
    painted = canvas.evaluate(
        "canvas => { const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        "return [...data].filter((_, place) => place % 4 === 3).map(alpha => alpha > 0) }"
    )
    low, high = weight.min(), weight.max()
    rows = [np.histogram(channel, 24, (low, high))[0] > 0 for channel in weight]
    assert np.array(painted).reshape(24, len(weight)).tolist() == np.array(rows).T[::-1].tolist()
    assert page.locator("#details .map .plot").is_hidden()
    box, chosen = canvas.bounding_box(), len(weight) // 2
    canvas.click(position={"x": (chosen + 0.5) * box["width"] / len(weight), "y": 9})
    for key, number in ((None, chosen), ("ArrowLeft", chosen - 1), ("ArrowRight", chosen)):
        if key:
            canvas.press(key)
        assert canvas.get_attribute("aria-valuetext") == f"channel {number}"
        bars = plotted(page, "#details .map .plot").evaluate("({ data: [{ x, text }] }) => [x, text]")
        counts = np.histogram(weight[number], 24, (low, high))[0]
        assert bars[0] == pytest.approx((np.arange(24) + 0.5) * (high - low) / 24 + low)
        for count, text in zip(counts, bars[1], strict=True):
            least, *most = re.findall("[0-9]+", text.replace("no", "0").replace(",", ""))
            assert int(least) <= count <= int((most or [least])[0])
    page.locator("#tensors-filters select[data-key=role]").select_option("*")
    page.keyboard.press("Escape")


@on("sensitivity.html")
def test_a_point_of_a_plot_selects_its_row(page):
    row = page.locator("#layers-table .body [role=row]").first
    name = row.locator(".name").inner_text()
    row.click()
    assert page.locator("#details .layer-name").inner_text() == name
    line = plotted(page, "#layers .plot >> nth=0").evaluate("plot => plot.layout.shapes[0].x0")
    assert line == int(row.locator(".index").inner_text())
    page.keyboard.press("Escape")
    assert page.locator("#details-body").inner_text() == ""


def test_a_result_without_rows_has_a_page(made, tmp_path):
    found = replace(trt_bisect.CheckReport.load(made), findings=(), tensors=())
    found.save(tmp_path)
    assert pages.data_of(tmp_path / "check.html")["sections"] == []
