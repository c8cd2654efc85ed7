"""The curve of a run's page in Chromium: its points, lines, gaps and metrics."""

from __future__ import annotations

import json
import re

import pytest

from tests.support import pages
from tests.support.page_parts import hovered, names_in_table, plotted, row_of, selected
from trt_bisect.report.network_graph import NETWORK


def heights(page) -> dict[int, float]:
    """The points of the curve: by layer the height."""
    traces = plotted(page, "#curve-plot").evaluate("plot => plot.data.map(t => [t.mode, t.x, t.y])")
    points = [point for mode, xs, ys in traces if mode == "markers" for point in zip(xs, ys, strict=True)]
    assert len(points) == len(dict(points))
    return dict(points)


def test_the_curve_has_every_layer_once_on_a_logarithmic_scale_that_can_be_switched(opened, report):
    similarities = {row.index: row.similarity for row in report.layers if row.quantizable}
    losses = heights(opened)
    assert losses.keys() == similarities.keys()
    for index, value in similarities.items():
        if 1 - value > 1e-6:
            assert losses[index] == pytest.approx(1 - value, rel=1e-6)
    assert plotted(opened, "#curve-plot").evaluate("plot => plot.layout.yaxis.type") == "log"
    opened.get_by_label("log scale").uncheck()
    assert heights(opened) == similarities


def test_a_point_of_the_curve_tells_its_name_as_text_and_is_selected_by_a_click(opened, report):
    row = next(row for row in report.layers if row.quantizable and row.name in pages.STRANGE and not row.culprit)
    hovered(opened, row)
    assert row.name in opened.locator("#curve-plot .hoverlayer").text_content()
    opened.mouse.down()
    opened.mouse.up()
    opened.wait_for_function("name => document.querySelector('.layer-name').textContent === name", arg=row.name)
    assert selected(opened)["table"] == row.name


def test_failed_layers_are_gaps_with_their_message(tab, strange_run, report, tmp_path):
    """The panel also has modules and source lines, from ``network.json``; text from strangers stays text."""
    folder = pages.copied(strange_run, tmp_path)
    rows = [4, 5, 12]
    facts = json.loads((folder / NETWORK).read_text())
    origin = {"module": "head.<b>1</b> (Linear)", "code": "/nets/model.py:12"}
    (layer,) = (each for each in facts["layers"] if each["name"] == report.layers[rows[0]].name)
    layer |= origin
    (folder / NETWORK).write_text(json.dumps(facts))
    assert all(report.layers[k].quantizable and not report.layers[k].culprit for k in rows)
    page_file = pages.rewritten(folder, lambda row: pages.failed(row) if row.index in rows else row)
    with tab.shown(page_file, ready="usable") as page:
        bands = plotted(page, "#curve-plot").evaluate("plot => plot.layout.shapes.filter(s => s.type === 'rect')")
        assert [(band["x0"], band["x1"]) for band in bands] == [(3.5, 5.5), (11.5, 12.5)]
        line = plotted(page, "#curve-plot").evaluate("plot => plot.data[0]")
        assert {x for x, y in zip(line["x"], line["y"], strict=True) if y is None} == set(rows)
        hovered(page, report.layers[rows[0]])
        assert "Error Code 10: <no kernel>" in page.locator("#curve-plot .hoverlayer").text_content()
        page.get_by_label("Show", exact=True).select_option("failed")
        assert names_in_table(page) == [report.layers[k].name for k in rows]
        page.locator("#table-body [role=row]").first.click()
        assert page.locator("#details-body .message").inner_text() == "Error Code 10: <no kernel>"
        text = page.locator("#details-body").inner_text()
        assert all(each in text for each in ("Module", "Source line", *origin.values()))
        page.locator("#table-body [role=row]").nth(1).click()
        assert "Source line" not in page.locator("#details-body").inner_text()


def test_layers_that_were_not_tried_are_not_drawn(tab, strange_model, tmp_path):
    """The page is that of another metric too."""
    given = {"metric": "kl", "threshold": None, "strategy": "bisect", "explain": "none"}
    report = pages.run_on(strange_model, tmp_path / "run", samples=2, **given)
    untried = [row.index for row in report.layers if row.outcome == "not tried"]
    assert untried
    with tab.shown(tmp_path / "run" / "report.html", ready="usable") as page:
        assert heights(page).keys() == {row.index for row in report.layers if row.quantizable} - set(untried)
        assert f"not tried ({len(untried)})" in page.locator("#curve-legend").inner_text()
        assert page.get_by_label("log scale").is_checked()
        shown_figure = float(page.locator('[data-plan="int8"] .figure').inner_text())
        assert shown_figure == pytest.approx(report.similarity.int8, rel=1e-2)
        row_of(page, report.layers[untried[0]].name).click()
        assert "not tried" in page.locator("#details-body").inner_text()


def test_the_curve_has_lines_for_full_int8_and_the_recipe(opened, report):
    shapes = plotted(opened, "#curve-plot").evaluate("plot => plot.layout.shapes.filter(s => s.xref === 'paper')")
    heights = [1 - report.threshold, 1 - report.similarity.int8, 1 - report.similarity.recipe]
    assert [shape["y0"] for shape in shapes] == pytest.approx(heights)
    words = " ".join(opened.locator("#curve-plot .annotation").all_text_contents())
    for name, value in (("full INT8", report.similarity.int8), ("recipe", report.similarity.recipe)):
        assert re.search(rf"{name}(, \d+ inputs)? {re.escape(pages.percent(value, report.threshold))}", words)
