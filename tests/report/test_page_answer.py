"""The answer on a run's page in Chromium: culprits, recipe, advice and inputs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support import pages
from tests.support.odd_names import NAMES
from tests.support.page_parts import idle, in_order, plotted, row_of
from tests.support.recorded import explained
from trt_bisect import Report
from trt_bisect.model.gpu_time import Predicted
from trt_bisect.recipe.commands import Command
from trt_bisect.report.answer import Accuracies, CalibratorRow, FrontPoint, Goal, Held, PredictedTimes, RecipeLayers
from trt_bisect.report.choices import Choice
from trt_bisect.report.explanation import Cause, CulpritAdvice, Explanation, Remedy, Tried
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.page import page_data, recipe_texts
from trt_bisect.report.parts import PASSES, ByPlan, NextStep
from trt_bisect.report.summary import doubt_lines
from trt_bisect.support.codec import read
from trt_bisect.support.text import Line

CLIPPED = "output 'y' is clipped at 25.0%"
CANCELLED = "later layers cancel its error"


def test_the_recipe_is_copied(opened, strange_run):
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for form, name in (("Weak typing", "trtexec.flags"), ("ModelOpt", "modelopt_nodes_to_exclude.json")):
        opened.get_by_role("tab", name=form).click()
        opened.get_by_role("button", name="Copy file").click()
        opened.get_by_role("button", name="Copied").wait_for()
        assert opened.evaluate("navigator.clipboard.readText()") == (strange_run / "recipe" / name).read_text()
    opened.keyboard.press("Tab")
    opened.get_by_role("tab", name="ModelOpt").press("ArrowRight")
    assert opened.get_by_role("tab", selected=True).inner_text() == "Plan"
    assert "plan.json" in opened.locator("#recipe-panel").inner_text()
    opened.context.clear_permissions()


def test_the_recipe_is_copied_where_there_is_no_clipboard(opened, strange_run):
    """Plain HTTP has no clipboard: only the old way is left, which needs the text selected."""
    copied = "document.addEventListener('copy', () => { window.copied = String(document.activeElement.value); })"
    opened.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    opened.evaluate(copied)
    opened.get_by_role("tab", name="Weak typing").click()
    opened.get_by_role("button", name="Copy file").click()
    opened.get_by_role("button", name="Copied").wait_for()
    assert opened.evaluate("window.copied") == (strange_run / "recipe" / "trtexec.flags").read_text()
    opened.evaluate("delete navigator.clipboard")


def test_what_to_do_is_grouped_by_cause(opened, strange_run, report):
    explanation = json.loads((strange_run / "explanation.json").read_text())
    cards = opened.locator("article.advice:not(.everywhere)")
    assert cards.count() == len(explanation["causes"]) == 1
    [cause], [advice] = explanation["causes"], explanation["advice"]
    text = cards.first.text_content()
    assert cause["words"] in text
    assert report.culprits[0] in text
    assert advice["evidence"] in text
    for remedy in cause["remedies"]:
        assert remedy["remedy"] in text
    measured = opened.locator(".everywhere tbody tr, article.advice tbody tr")
    assert measured.count() == len(cause["measured"])


def with_form(report: Report, version: str) -> Report:
    """The report as if measured on a version of TensorRT."""
    return replace(report, engine="tensorrt", typing="weak", versions={**report.versions, "tensorrt": version})


def assert_form(page, form: str) -> None:
    """The first form of the recipe is that of the user's TensorRT; tests of a page's opening know that of no engine."""
    assert page.get_by_role("tab", selected=True).inner_text() == form
    expected = {
        "Strong typing": "trtexec '--onnx=my run/recipe/network.qdq.onnx' --stronglyTyped --noTF32 "
        "--minShapes=x:1x3x16x16 --optShapes=x:1x3x16x16 --maxShapes=x:1x3x16x16",
        "Weak typing": "(cd 'my run/recipe' && grep -v '^#' trtexec.flags | xargs trtexec --onnx=network.onnx)",
    }
    assert page.locator("#recipe-panel .command code").inner_text() == expected[form]


def test_causes_and_tables_name_all_their_culprits(tab, strange_run, report, tmp_path):
    """Commands are shown of remedies that were measured to help alone; weak culprits have a table of their own."""
    some = [row.name for row in report.layers if row.quantizable][:4]
    layers = tuple(replace(row, culprit=row.name in some) for row in report.layers)
    helps = Tried(tuple(some[:2]), "a", "99.9 for these", 0.98, 0.02, True, high=1, cost=0.05)
    misses = replace(helps, remedy="b", what="b", meets=False, part=True, high=0, cost=0.0)
    remedies = [
        Remedy(each.remedy, "why", commands=(Command("trtexec", f"build {each.remedy}"),), tried=each)
        for each in (helps, misses)
    ]
    causes = (
        Cause("a", tuple(some[:2]), "entropy clips 2 %", (helps, misses), ()),
        Cause("b", tuple(some[2:3]), "one channel", (), ()),
    )
    advice = CulpritAdvice(some[0], "evidence", (), None, tuple(remedies))
    ranked, weak = (some[2], some[0], some[3], some[1]), (some[3], some[1])
    answer = replace(report.answer, ranked=ranked, weak=weak, changes="2 weights rounded")
    told = replace(with_form(report, "10.12.0"), layers=layers, culprits=tuple(some), answer=answer)
    explanation = Explanation(2, {}, (), (), (advice,), causes=causes)
    data = page_data(told, explanation=explanation, recipe=recipe_texts(strange_run / "recipe"), folder="my run")
    with tab.shown(pages.drawn(tmp_path, data), ready="usable") as page:
        idle(page)
        assert page.locator("#graph-box").is_hidden()
        assert_form(page, "Strong typing")
        titles = page.locator("article.advice h3").all_inner_texts()
        assert titles == ["2 of 4 culprits: entropy clips 2 %", "1 of 4 culprits: one channel"]
        rows = page.locator("article.advice tbody tr")
        assert [row.locator("td").all_inner_texts() for row in rows.all()] == [
            ["99.9 for these", "98%", "1", "5%", "passes"],
            ["b", "98% or worse", "0", "0%", "misses"],
        ]
        assert page.locator("#advice details.action summary").all_inner_texts() == ["Commands: 99.9 for these"]
        for table, names in (("#culprits", [some[2], some[0]]), ("#weak-culprits", [some[3], some[1]])):
            assert page.locator(f"{table} tbody td:first-child").all_inner_texts() == names
            assert "unchanged network" in page.locator(f"{table} thead th").first.inner_text()
        page.locator("article.advice button.link").nth(1).click()
        assert page.locator("#details-body .layer-name").inner_text() == some[1]
        page.locator("body").press("n")
        assert page.locator("#details-body .layer-name").inner_text() == some[2]
        page.locator("#details").get_by_role("button", name="Next culprit").click()
        assert page.locator("#details-body .layer-name").inner_text() == some[3]


@pytest.fixture(scope="module")
def answered(report) -> Report:
    """The report with held-out inputs, a doubt, a suspect, and another set that will do."""
    figures = {"data/b.npz 0": 0.9, "data/b.npz 1": 0.9999}
    answer = replace(
        report.answer,
        held_out=Held("b.npz", 2, 1, 0.9, "data/b.npz 0", 0.95, 0.91, figures),
        equals=(("first", "second"),),
        doubts=(Line("clipped", CLIPPED),),
    )
    suspect = next(row for row in report.layers if row.quantizable and not row.culprit)
    layers = tuple(replace(row, suspect=CANCELLED) if row == suspect else row for row in report.layers)
    lines = (*doubt_lines(answer), *report.lines)
    step = NextStep("recipe", "build the recipe", "trtexec <b>x</b>")
    return replace(report, answer=answer, layers=layers, lines=lines, next=step)


def test_the_answer_a_suspect_and_what_could_reverse_the_verdict(tab, strange_run, answered, tmp_path):
    """As a phone and a wide window show it; of labelled data it is told which percentages are accuracies."""
    settings = {"scales as they are": 1.0, "unquantized layers in INT8": 0.5}
    fragile = replace(
        answered,
        answer=replace(answered.answer, close=True, settings=settings),
        recipe=replace(answered.recipe, meets=True),
        layers=tuple(replace(row, recipe="fp16") if row.recipe == "fp32" else row for row in answered.layers),
        accuracy=Accuracies(fp32=0.8, int8=0.4, recipe=0.75),
        network="0123456789abcdef",
        started=86400.0,
    )
    with tab.shown(pages.drawn(tmp_path, page_data(fragile, read(Graph, strange_run / NETWORK))), width=390) as page:
        assert page.locator("#graph-box").is_visible()
        assert page.locator("#graph-legend li").nth(1).inner_text() == "FP16"
        assert page.locator("#recipe-empty").is_visible()
        words = page.locator("#fragile").inner_text()
        assert "noise" in words
        assert "50%" in words
        assert "optimisations" not in words
        assert "cosine similarity" in page.locator('[data-plan="int8"] .under').inner_text()
        basis = page.locator("#basis").inner_text()
        assert "Accuracies are on the labelled data. The other percentages are cosine similarities" in basis
        made = page.locator(".made").inner_text()
        assert "0123456789ab" in made
        assert "1970-01-02" in made
        assert not page.locator("#culprits thead th").nth(1).is_visible()
        cells = page.locator("#culprits tbody tr").first.locator("td")
        assert cells.evaluate_all("tds => tds.map(td => td.dataset.title)")[1] == "if put back in INT8"
        assert_answer(page, fragile, width=390)
        page.set_viewport_size({"width": 2600, "height": 900})
        assert_answer(page, fragile, width=2600)
        page.locator("#filter").select_option("suspects")
        [cells] = page.locator("#table-body [role=row]").evaluate_all("rows => rows.map(row => row.innerText)")
        assert "suspect" in cells
        assert CANCELLED in cells
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("#advice details.action:not([open])").count() == 0
    steady = replace(fragile, answer=replace(fragile.answer, close=False, settings={"scales as they are": 1.0}))
    assert page_data(steady).fragile == ()


def assert_answer(page, answered: Report, width: int) -> None:
    """The answer's parts say what the report says, and the window is wide enough for them."""
    assert page.locator("#doubts").inner_text() == f"Doubt: {CLIPPED}"
    assert page.locator("#next .command code").inner_text() == "trtexec <b>x</b>"
    [row] = [row for row in answered.layers if row.culprit]
    cells = page.locator("#culprits tbody td").all_inner_texts()
    figures = [f"{100 * value:.2f}%" for value in (row.loss, row.alone)]
    assert cells == [
        row.name,
        pages.percent(row.put_back, answered.threshold),
        *figures,
        row.op_type,
        "no single cause found",
    ]
    unseen = page.locator("#held tbody tr").last.locator("td").all_inner_texts()
    assert unseen == ["held-out inputs", "1 of 2", "95%", "91%", "90%", "data/b.npz 0"]
    worst = page.locator("#inputs-table tbody tr").filter(has_text="held out").first
    assert worst.locator("td").all_inner_texts()[:3] == ["data/b.npz 0", "held out", "90%"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_costs_are_the_predicted_times_and_figures_have_the_digits_that_matter(tab, strange_run, answered, tmp_path):
    """Full INT8 takes 2 ms and FP16 3: a cost of 0.4 is 2.4 ms.

    0.98996 is written with as many digits as tell that it is below 99 %. The page is also that of few inputs, which
    have whole ticks, and of a version with weak typing.
    """
    texts = {0.2997595: "29.98%", 0.9966012: "99.66%", 0.99999763: "99.9998%", 1.0: "100%", 0.0: "0%", 0.99: "99%"}
    texts[0.98996] = "98.996%"
    measured = dict(zip((row.name for row in answered.layers if row.quantizable), texts, strict=False))
    assert len(measured) == len(texts)
    times = {"fp32": 4.0, "fp16": 3.0, "int8": 2.0, "recipe": 2.4}
    choices = tuple(Choice(plan, True, None, None, ms, None) for plan, ms in times.items())
    rows = tuple(CalibratorRow(name, 0.9, 2, False, 0.4, 1) for name in ("entropy", "mse"))
    front = tuple(FrontPoint(cost, 0.99, 0.01, (), {}) for cost in (0.0, 0.4, 2.0))
    plans = {plan: Predicted(ms, ms, ms) for plan, ms in times.items()}
    three = Held("a.npz", 3, 3, 0.9, "a.npz 0", 0.95, 0.91, {f"a.npz {k}": 0.9 + k / 100 for k in range(3)})
    told = replace(
        with_form(answered, "10.9.0"),
        layers=tuple(replace(row, similarity=measured.get(row.name)) for row in answered.layers),
        threshold=0.99,
        choices=choices,
        front=front,
        goal=Goal(costs="time on H200"),
        predicted=PredictedTimes("H200", plans),
        answer=replace(answered.answer, calibrators=rows, given=three, held_out=None),
    )
    costs = ["2 ms", "2.4 ms", "4 ms"]
    assert [told.cost_text(cost) for cost in (0.0, 0.4, 2.0)] == costs
    assert list(told.plot_front().data[0].x) == [2.0, 2.4, 4.0]
    data = page_data(told, recipe=recipe_texts(strange_run / "recipe"), folder="my run")
    with tab.shown(pages.drawn(tmp_path, data), ready="usable") as page:
        assert_form(page, "Weak typing")
        speeds = [page.locator(f'[data-plan="{plan}"] .speed').first.inner_text() for plan in times]
        after = {"fp16": " · 1.33× FP32", "int8": " · 2.00× FP32", "recipe": " · 1.67× FP32"}
        assert speeds == [f"{ms:g} ms predicted on H200{after.get(plan, '')}" for plan, ms in times.items()]
        in_order(page)
        for name, value in measured.items():
            assert texts[value] in row_of(page, name).locator("[role=gridcell]").all_inner_texts()
        cells = page.locator("#calibrators tbody tr").first.locator("td").all_inner_texts()
        assert cells[4] == "2.4 ms"
        assert page.locator("#front-plans button").all_text_contents() == costs
        assert plotted(page, "#front-plot").evaluate("plot => plot.data[0].x") == [2.0, 2.4, 4.0]
        assert "2 ms" in page.locator("#front-point").inner_text()
        assert plotted(page, "#inputs-plot").locator(".xtick text").all_text_contents() == ["1", "2", "3"]


def test_a_plan_without_a_recipe_is_called_full_int8_and_has_no_second_card(tab, answered, tmp_path):
    passing = replace(answered, verdict=PASSES, recipe=RecipeLayers(meets=True), lines=(), culprits=())
    ship = Line("ship fp16", "SHIP FP16: it is as fast")
    with tab.shown(pages.drawn(tmp_path, page_data(replace(passing, lines=(ship,)))), ready="usable") as page:
        assert page.locator('[data-plan="recipe"]').count() == 0
        assert page.get_by_role("heading", name="Full INT8 on all inputs").count() == 1
        assert page.locator("#ship").inner_text() == "Ship FP16: it is as fast"
        assert "SHIP" not in page.locator("#answer").inner_text()


def test_layers_with_odd_names_stand_in_the_advice_and_are_selected_from_it(tab, recorded):
    folder = recorded("odd") / "runs/odd"
    report = explained(folder)
    with tab.shown(folder / "report.html", ready="usable") as page:
        cards = page.locator("article.advice:not(.everywhere)")
        named = [name for card in cards.all() for name in card.locator("p.chips button.link").all_inner_texts()]
        assert [named.count(name) for name in NAMES] == [1] * len(NAMES)
        causes = report.explanation.causes
        assert named == [name for cause in causes for name in cause.culprits]
        for place, name in enumerate(named):
            page.locator("article.advice p.chips button.link").nth(place).click()
            assert page.locator("#details-body .layer-name").inner_text() == name
        found = page.locator("details.findings li button.link").all_text_contents()
        assert found == [name for each in report.explanation.findings for name in each.layers][: len(found)]
        assert set(NAMES) <= set(found)


def test_the_accuracy_stands_under_the_similarity_and_is_no_figure_of_another_metric(tab, report, tmp_path):
    """SQNR has no perfect value: FP32's card has no large figure."""
    accuracy = Accuracies(fp32=0.8, int8=0.4, recipe=None)
    told = replace(report, metric="sqnr", threshold=20.0, similarity=ByPlan(11.5, 30.25), accuracy=accuracy)
    with tab.shown(pages.drawn(tmp_path, page_data(told)), ready="usable") as page:
        plans = ("fp32", "int8", "recipe")
        figures = [page.locator(f'[data-plan="{plan}"] .figure').inner_text() for plan in plans]
        assert figures == ["–", "11.50 dB", "30.25 dB"]
        beside = [page.locator(f'[data-plan="{plan}"] .speed').all_inner_texts() for plan in plans]
        kept = f"keeps {pages.percent(1 - report.answer.cost, 0.5)} of INT8's speedup over FP16"
        assert beside == [["accuracy 80%"], ["accuracy 40% · 50% of FP32's"], ["accuracy not measured", kept]]
        assert page.locator('[data-plan="fp32"] .under').inner_text() == "reference; threshold 20.00 dB"
        assert plotted(page, "#curve-plot").evaluate("plot => plot.layout.yaxis.type") != "log"
        assert page.get_by_label("log scale").is_hidden()
    told = replace(told, accuracy=Accuracies(fp32=-0.2, int8=-17.5, recipe=None))
    with tab.shown(pages.drawn(tmp_path, page_data(told)), ready="usable") as page:
        beside = [page.locator(f'[data-plan="{plan}"] .speed').first.inner_text() for plan in ("fp32", "int8")]
        assert beside == ["accuracy -0.2", "accuracy -17.5"]
