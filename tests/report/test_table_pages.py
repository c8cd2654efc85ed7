"""The pages of ``compare``, ``sensitivity``, ``worst``, ``profile`` and ``check`` in Chromium, against NumPy."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import trt_bisect
from tests.support import networks, pages
from tests.support.accessibility import grave_findings
from tests.support.editions import edition
from trt_bisect.report.page.tables.pages import RESULTS

PAGES = [kind.page_name() for kind in RESULTS]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a result of each kind, of a network with strange names and a planted culprit."""
    place = tmp_path_factory.mktemp("tables")
    model, _ = pages.strange_network(place)
    data = networks.samples(onnx.load(str(model)))
    options = {"calibrator": "minmax", "output": place}
    trt_bisect.compare(model, data, **options)
    trt_bisect.profile(model, data, **options)
    trt_bisect.sensitivity(model, data, **options)
    trt_bisect.worst(model, data, calibration=data, **options)
    trt_bisect.check(model, output=place)
    return place


def data_of(page: Path) -> dict:
    return json.loads(pages.Elements(page.read_text()).scripts["data"])


def column(page, section: str, key: str) -> list[str]:
    """The cells of a column that are on the screen."""
    place = page.evaluate(
        "([id, key]) => [...document.querySelectorAll(`#${id}-table .head button`)]"
        ".findIndex(button => button.dataset.key === key)",
        [section, key],
    )
    return page.locator(f"#{section}-table .body [role=row] > :nth-child({place + 1})").all_inner_texts()


@pytest.mark.parametrize(
    ("name", "look", "width"),
    [
        *product(PAGES, ["light"], [1280]),
        *product(edition(["compare.html", "sensitivity.html"], PAGES), ["dark"], [390]),
    ],
)
def test_each_page_opens_without_a_complaint_and_axe_finds_nothing_serious(tab, made, name, look, width):
    with tab.shown(made / name, ready="plots", look=look, width=width) as page:
        assert page.locator("h1").inner_text() == data_of(made / name)["headline"]
        sections = data_of(made / name)["sections"]
        assert sections
        for section in sections:
            drawn = page.locator(f"#{section['id']} .plot .main-svg").count()
            assert drawn >= len(section["plots"])
        assert page.locator("main img, main b").count() == 0
        page.locator(".table .body [role=row]").first.click()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert grave_findings(page) == []


def test_the_pages_scripts_stay_small(made):
    """All but Plotly and the data is less than the tenth of Plotly."""
    text = (made / "check.html").read_text()
    assert len(text) < 1_330_000


def test_sorted_filtered_and_searched(tab, made):
    table = trt_bisect.Comparison.load(made).table()
    with tab.shown(made / "compare.html", ready="plots") as page:
        page.locator("#tensors-table .head [data-key=mse]").click()
        by_mse = table.sort_values("mse", ascending=False, kind="stable")
        wanted = [layer or tensor for layer, tensor in zip(by_mse["layer"], by_mse["tensor"], strict=True)]
        assert column(page, "tensors", "layer") == wanted
        page.locator("#tensors-filters select[data-key=op_type]").select_option("Relu")
        assert set(column(page, "tensors", "op_type")) == {"Relu"}
        count = int((table["op_type"] == "Relu").sum())
        assert page.locator("#tensors-count").inner_text() == f"{count} of {len(table)} rows"
        page.locator("#tensors-filters select[data-key=op_type]").select_option("*")
        page.locator("#search").fill(pages.STRANGE[0])
        assert set(column(page, "tensors", "layer")) == {pages.STRANGE[0]}


def test_all_metrics_and_ranges_are_the_tables(tab, made):
    table = trt_bisect.Comparison.load(made).table()
    with tab.shown(made / "compare.html", ready="plots") as page:
        panels, ranges = (
            page.evaluate(f"document.querySelectorAll('#tensors .plot')[{place}].data.map(({{ x, y }}) => [x, y])")
            for place in (0, 1)
        )
        for (x, y), metric in zip(panels, ("cosine", "sqnr", "mse", "l1", "kl", "atol", "rtol"), strict=True):
            assert len(x) == len(table)
            assert [np.nan if value is None else value for value in y] == pytest.approx(
                list(table[metric]), nan_ok=True
            )
        before, after = table["fp32_max"] - table["fp32_min"], table["int8_max"] - table["int8_min"]
        assert ranges[0][1] == pytest.approx(list(before))
        assert ranges[1][1] == pytest.approx(list(after))
        assert ranges[2][1] == pytest.approx(list(100 * (after - before) / before), abs=1e-9)


def test_a_distribution_is_numpys(tab, made):
    gains = trt_bisect.Sensitivity.load(made).table()["cosine"].to_numpy()
    with tab.shown(made / "sensitivity.html", ready="plots") as page:
        page.locator("#layers .choice select").select_option("cosine")
        counts = page.evaluate("[...document.querySelectorAll('#layers .plot')].at(-1).data[0].y")
        assert counts == np.histogram(gains, 30)[0].tolist()


def test_a_weights_histogram_and_channels(tab, made):
    model = onnx.load(str(made / "strange.onnx"))
    values = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    with tab.shown(made / "profile.html", ready="plots") as page:
        page.locator("#tensors-filters select[data-key=role]").select_option("weight")
        page.locator("#tensors-table .body [role=row]").nth(1).click()
        shown_tensor = page.locator("#details-body dd").all_inner_texts()
        (name,) = [text for text in shown_tensor if text in values]
        weight = values[name].astype(np.float64)
        page.wait_for_selector("#details .plot .main-svg")
        trace = page.evaluate("(({ x, y, width }) => [x, y, width])(document.querySelector('#details .plot').data[0])")
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


def test_a_point_of_a_plot_selects_its_row(tab, made):
    with tab.shown(made / "sensitivity.html", ready="plots") as page:
        row = page.locator("#layers-table .body [role=row]").first
        name = row.locator(".name").inner_text()
        row.click()
        assert page.locator("#details .layer-name").inner_text() == name
        line = page.evaluate("document.querySelector('#layers .plot').layout.shapes[0].x0")
        assert line == int(row.locator(".index").inner_text())
        page.keyboard.press("Escape")
        assert page.locator("#details-body").inner_text() == ""


def test_on_paper_are_the_first_rows(tab, made):
    with tab.shown(made / "profile.html", ready="plots") as page:
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.locator("#tensors-table .body [role=row]").count() == 12
        assert page.locator("#tensors-table-cut").is_visible()
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")


def test_a_result_without_rows_has_a_page(made, tmp_path):
    found = replace(trt_bisect.CheckReport.load(made), findings=(), tensors=())
    found.save(tmp_path)
    assert data_of(tmp_path / "check.html")["sections"] == []
