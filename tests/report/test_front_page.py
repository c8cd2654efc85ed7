"""The front of a run, ``front=True``: its costs, its file and table, on the page and in a notebook."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import onnx
import pandas as pd
import pytest

from tests.support import pages
from tests.support.page_parts import plotted
from tests.support.pages import data_of, percent
from tests.support.recorded import ASKED_FRONT
from trt_bisect import BadInput, Report
from trt_bisect.report.answer import ALL_HIGH, Accuracies, FrontPoint, Goal
from trt_bisect.report.page import PAGE
from trt_bisect.report.parts import FRONT
from trt_bisect.report.words import headline

ABSENT = "not in the network"
"""The name of a layer that the network lacks."""
STRANGE = pages.STRANGE[1]


@pytest.fixture(scope="module")
def fronted(recorded) -> Path:
    """The folder of a run with a front; not to be changed."""
    return recorded("fronted") / "runs/fronted"


@pytest.fixture(scope="module")
def found(fronted) -> Report:
    return pages.read(fronted)


@pytest.fixture
def by_accuracy(found) -> Report:
    """A report whose figure is an accuracy, with two high precisions, and figures that are not known."""

    def changed(row):
        recipe = "fp16" if row.name == found.recipe.high[0] else row.recipe
        return replace(row, put_back=0.5 if row.culprit else None, recipe=recipe)

    front = (
        FrontPoint(0.0, None, None, ("all INT8",), {}),
        FrontPoint(0.3, 0.92, 0.03, ("recipe",), {STRANGE: "fp32", ABSENT: "fp16"}),
        FrontPoint(1.0, 0.95, 0.0, (ALL_HIGH,), {row.name: "fp32" for row in found.layers}),
    )
    figures = {"goal": Goal(drop="5%"), "accuracy": Accuracies(0.95, None, 0.92, least=0.9025)}
    return replace(found, layers=tuple(map(changed, found.layers)), front=front, **figures)


# The files.


def test_file_and_table_have_a_row_for_each_plan_and_call_the_figure_by_its_name(fronted, found, by_accuracy):
    rows = [(point.cost, point.figure, len(point.high)) for point in found.front]
    written = pd.read_csv(fronted / FRONT, keep_default_na=False)
    for table in (found.front_table(), written):
        assert list(table[["cost", "cosine", "layers"]].itertuples(index=False, name=None)) == rows
    assert list(written["names"]) == [", ".join(point.names) for point in found.front]
    assert list(by_accuracy.front_table()["accuracy"])[1:] == [0.92, 0.95]


def test_the_costs_are_those_of_multiply_adds_and_the_ends_are_there(found, strange_model):
    """All layers low give up nothing; all in FP32 take 4 units instead of 1, where FP16, the unit of cost, takes 2.

    Between them more expensive plans are better.
    Costs are told to two decimals of a per cent, and compared as they are.
    """
    first, *_, last = found.front
    assert (first.names[0], first.cost, dict(first.high)) == ("all INT8", 0.0, {})
    assert last.names[-1] == ALL_HIGH
    assert last.cost == pytest.approx((4 - 1) / (2 - 1))
    quantizable = {node.name for node in onnx.load(str(strange_model)).graph.node
                   if node.op_type in ("Conv", "Gemm", "Add", "GlobalAveragePool")}  # fmt: skip
    assert set(last.high) == quantizable
    for one, other in zip(found.front, found.front[1:], strict=False):
        assert one.cost <= other.cost
        assert one.figure < other.figure
    [recipe] = [point for point in found.front if "recipe" in point.names]
    assert set(recipe.high) == set(found.recipe.high) != set()
    assert recipe.cost == pytest.approx(found.answer.cost, abs=5e-5)
    assert recipe.figure == found.similarity.recipe
    assert first.figure == found.similarity.int8


def test_the_headline_is_of_the_figure_that_decides(found, by_accuracy):
    assert headline(found).startswith("Full INT8 fails: it misses 99.999%; ")
    assert "it gives no figure; " in headline(by_accuracy)
    measured = replace(by_accuracy, accuracy=replace(by_accuracy.accuracy, int8=0.5))
    assert "it misses 90.25%; " in headline(measured)


# The notebook.


def test_the_plot_has_the_plans_and_the_target(found):
    figure = found.plot_front()
    (trace,) = figure.data
    assert list(trace.x) == [pytest.approx(100.0 * point.cost) for point in found.front]
    assert list(trace.y) == [pytest.approx(max(1e-9, 1.0 - point.figure)) for point in found.front]
    assert [text for text in trace.text if text] == [", ".join(p.names) for p in found.front if p.names]
    assert not any("<script" in hover for hover in trace.customdata)
    assert figure.layout.shapes[0].y0 == pytest.approx(1.0 - ASKED_FRONT["threshold"])
    assert figure.layout.yaxis.type == "log"
    plain = found.plot_front(log=False)
    assert list(plain.data[0].y) == [point.figure for point in found.front]


def test_the_plot_of_accuracies_leaves_out_what_is_not_known(by_accuracy):
    figure = by_accuracy.plot_front()
    (trace,) = figure.data
    assert list(trace.x) == [30.0, 100.0]
    assert list(trace.y) == [0.92, 0.95]
    assert figure.layout.shapes[0].y0 == 0.9025
    assert not any("<img" in hover for hover in trace.customdata)
    assert "accuracy 92%" in trace.customdata[0]


def test_without_a_front_there_is_no_plot_and_no_file(found, fronted, tmp_path):
    assert ".plot_front()" in found._repr_html_()
    without = replace(found, front=())
    folder = shutil.copytree(fronted, tmp_path / "again")
    without.save(folder)
    assert data_of(folder / PAGE)["report"]["front"] == []
    assert not (folder / FRONT).exists()
    assert ".plot_front()" not in without._repr_html_()
    with pytest.raises(BadInput, match=r"front was not measured"):
        without.plot_front()


# The browser.


def click_plan(page, place: int) -> None:
    """Clicks a plan in the plot, where Plotly drew it."""
    at = plotted(page, "#front-plot").evaluate(
        """(plot, place) => {
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
    return page.locator("#front-point [data-layer]").all_inner_texts()


def test_the_section_is_there_and_clicks_select(tab, fronted, found):
    with tab.shown(fronted / PAGE) as page:
        assert page.locator("#front").is_visible()
        assert page.locator('nav a[href="#front"]').is_visible()
        assert page.locator("#front-words dd").all_inner_texts() == ["multiply-adds", "onnxruntime (emulated)"]
        assert listed(page) == list(found.recipe.high), "the recipe is chosen"
        labels = plotted(page, "#front-plot").locator(".annotation-text").all_text_contents()
        assert {"all INT8", "all high", "target 99.999%"} <= set(labels)
        assert any("recipe" in label for label in labels)
        assert f"{len(found.recipe.high)} layers in FP32" in page.locator("#recipe-words").inner_text()
        assert_a_click_on_a_layer_selects_it_everywhere(page, found.recipe.high[-1])
        assert_a_click_on_a_plan_lists_what_it_leaves_high(page, found)


def assert_a_click_on_a_plan_lists_what_it_leaves_high(page, found: Report) -> None:
    place = next(place for place, point in enumerate(found.front) if 0.6 < point.cost < 2.1 and not point.names)
    click_plan(page, place)
    point = found.front[place]
    told = "text => document.querySelector('#front-point').textContent.includes(text)"
    page.wait_for_function(told, arg=f"{100 * point.cost:.2f}%")
    assert listed(page) == list(point.high)
    page.locator("#front-plans summary").click()
    pressed = page.locator('#front-plans [aria-pressed="true"]')
    assert pressed.get_attribute("data-place") == str(place)
    page.locator('#front-plans button[data-place="0"]').press("Enter")
    assert listed(page) == list(found.front[0].high) == []
    assert "INT8" in page.locator("#front-point").inner_text()


def assert_a_click_on_a_layer_selects_it_everywhere(page, name: str) -> None:
    page.locator("#front-point button", has_text=name).click()
    assert page.locator("#details-body .layer-name").text_content() == name
    assert page.locator('#table-body [aria-selected="true"] .name').text_content() == name
    page.wait_for_function("name => document.querySelector('#graph .selected')?.dataset.layer === name", arg=name)
    assert page.locator("#front-point li.chosen button").inner_text() == name


def test_nulls_strange_names_and_accuracy(tab, fronted, by_accuracy, tmp_path):
    """A figure that is not known has no point; a hover has the name as text."""
    folder = shutil.copytree(fronted, tmp_path / "odd")
    by_accuracy.save(folder)
    with tab.shown(folder / PAGE, ready="usable") as page:
        assert plotted(page, "#front-plot").evaluate("plot => plot.data[1].x") == [30, 100]
        labels = plotted(page, "#front-plot").locator(".annotation-text").all_text_contents()
        assert "target 90.25%" in labels
        figures = [page.locator(f'[data-plan="{plan}"] .figure').inner_text() for plan in ("fp32", "recipe")]
        assert figures == ["95%", "92%"]
        under = [page.locator(f'[data-plan="{plan}"] .under').inner_text() for plan in ("fp32", "recipe")]
        assert under[0] == "reference; threshold 90.25%"
        layers = f"{len(by_accuracy.recipe.high)} layers in FP16 and FP32"
        assert under[1] == f"{layers}; accuracy"
        assert page.locator("#recipe-words").inner_text() == f"{layers}."
        similar, kept = page.locator('[data-plan="recipe"] .speed').all_inner_texts()
        assert similar == f"cosine similarity {percent(by_accuracy.similarity.recipe, ASKED_FRONT['threshold'])}"
        assert kept == f"keeps {percent(1 - by_accuracy.answer.cost, 0.5)} of INT8's speedup over FP16"
        backs = page.locator("#culprits tbody td:nth-child(2)").all_inner_texts()
        assert backs == ["50%"] * len(by_accuracy.culprits)
        hover = plotted(page, "#front-plot").evaluate("plot => plot.data[1].text[0]")
        assert "&lt;img" in hover
        assert "<img" not in hover
        page.locator("#front-plans summary").click()
        page.locator('#front-plans button[data-place="1"]').click()
        assert listed(page) == [STRANGE]
        assert page.locator("#front-point code").all_inner_texts() == [ABSENT]
        assert "accuracy 92%" in page.locator("#front-point").inner_text()
        assert page.locator("#front img").count() == 0
