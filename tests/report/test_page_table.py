"""The table of layers and the search on a run's page in Chromium."""

from playwright.sync_api import expect

from tests.support import pages
from tests.support.page_parts import in_order, names_in_table, plotted, selected


def test_it_sorts_and_filters(opened, report):
    opened.locator("#table-head [data-key=loss]").click()
    drops = sorted((row.loss for row in report.layers if row.loss is not None), reverse=True)
    by_name = {row.name: row.loss for row in report.layers}
    assert [by_name[name] for name in names_in_table(opened)][: len(drops)] == drops
    assert opened.locator('#table-head [aria-sort="descending"]').inner_text().startswith("Loss")
    opened.locator("#table-head [data-key=loss]").click()
    assert [by_name[name] for name in names_in_table(opened)][: len(drops)] == drops[::-1]
    opened.locator("#table-head [data-key=name]").click()
    assert sorted(names_in_table(opened)) == sorted(by_name)
    opened.get_by_label("Show", exact=True).select_option("culprits")
    assert names_in_table(opened) == list(report.culprits)
    opened.get_by_label("Show", exact=True).select_option("all")
    opened.locator("#op").select_option("Conv")
    opened.locator("#table-head [data-key=index]").click()
    assert names_in_table(opened) == [row.name for row in report.layers if row.op_type == "Conv"]


def test_it_searches_and_escape_leaves_the_search(opened, report):
    focused = "document.activeElement.id"
    opened.locator("body").press("/")
    assert opened.evaluate(focused) == "search"
    opened.keyboard.press("Escape")
    assert opened.evaluate(focused) == ""
    opened.keyboard.press("/")
    opened.keyboard.type("BLOCK2")
    found = [row.name for row in report.layers if "block2" in row.name]
    assert found
    assert names_in_table(opened) == found
    assert opened.locator("#table-count").inner_text() == f"{len(found)} of {len(report.layers)} layers"
    assert opened.locator("#graph .missed").count() == len(report.layers) - len(found)
    opened.keyboard.press("Enter")
    assert selected(opened)["panel"] in found
    opened.keyboard.press("Escape")
    assert names_in_table(opened) == [row.name for row in report.layers]
    assert selected(opened)["panel"] in found
    assert (opened.evaluate(focused), opened.locator("#search").input_value()) == ("", "")
    opened.keyboard.press("n")
    assert selected(opened)["panel"] in report.culprits
    opened.locator("#search").fill("no layer has this name")
    assert opened.locator("#table-empty").is_visible()
    assert opened.locator("#hits").inner_text().startswith("No ")


def test_it_goes_by_keyboard(opened, report):
    table = opened.locator("#table")
    table.focus()
    opened.keyboard.press("Home")
    opened.keyboard.press("ArrowDown")
    opened.keyboard.press("ArrowDown")
    active = opened.locator("#" + table.get_attribute("aria-activedescendant"))
    assert active.locator(".name").inner_text() == report.layers[2].name
    opened.keyboard.press("Enter")
    assert selected(opened) == {"panel": report.layers[2].name, "table": report.layers[2].name, "curve": 2}
    opened.keyboard.press("Escape")
    assert selected(opened) == {"panel": None, "table": None, "curve": None}


def test_a_thousand_rows_are_not_a_thousand_elements(tab, strange_run, report, tmp_path):
    long = pages.long_report(report, 1000)
    with tab.shown(pages.written(tmp_path, long), ready="usable") as page:
        in_order(page)
        assert page.locator("#table").get_attribute("aria-rowcount") == "1001"
        assert page.locator("#table-body [role=row]").count() < 100
        page.locator("#table").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        last = long.layers[-1].name
        page.wait_for_function("name => document.querySelector('.layer-name').textContent === name", arg=last)
        assert names_in_table(page)[-1] == last


def test_columns_of_names_stay_and_the_ring_is_whole(opened):
    opened.set_viewport_size({"width": 900, "height": 900})
    table = opened.locator("#table")
    places = "table => [...table.querySelectorAll('.name')].map(cell => cell.getBoundingClientRect().x)"
    before = table.evaluate(places)
    table.evaluate("table => { table.scrollLeft = 300 }")
    assert table.evaluate("table => table.scrollLeft") == 300
    assert table.evaluate(places) == before
    assert len(set(before)) == 1, "title and cells of a column stand under each other"
    opened.locator("#search").focus()
    opened.keyboard.press("Tab")
    table.focus()
    opened.keyboard.press("ArrowDown")
    rings = opened.locator("#table-body .cursor > *").evaluate_all(
        "cells => cells.map(cell => getComputedStyle(cell).boxShadow)"
    )
    assert rings
    assert all(ring != "none" for ring in rings)


def assert_no_flag_is_broken_inside_its_hyphens(page):
    flags = page.locator(".unbroken")
    assert flags.count() > 0
    wraps = "flags => flags.filter(flag => flag.getClientRects().length > 1).map(flag => flag.textContent)"
    assert flags.evaluate_all(wraps) == []
    assert all(text.startswith("--") for text in flags.all_text_contents())


def test_a_phone_sees_name_verdict_and_drop(opened):
    assert_no_flag_is_broken_inside_its_hyphens(opened)
    opened.set_viewport_size({"width": 390, "height": 800})
    assert_no_flag_is_broken_inside_its_hyphens(opened)
    opened.wait_for_function("() => document.querySelectorAll('#table-head [role=columnheader]').length < 4")
    heads = opened.locator("#table-head [role=columnheader]")
    assert [text.split()[0] for text in heads.all_inner_texts()] == ["Layer", "Verdict", "Loss"]
    table = opened.locator("#table")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")


def test_the_search_drops_down_its_hits(opened, report):
    opened.locator("body").press("/")
    opened.keyboard.type("Block2")
    hits = opened.locator("#hits [data-place]")
    found = [row for row in report.layers if "block2" in row.name]
    assert sorted(hits.locator(".hit-name").all_inner_texts()) == sorted(row.name for row in found)
    assert set(hits.locator("mark").all_inner_texts()) == {"block2"}
    opened.keyboard.press("ArrowDown")
    active = opened.locator("#" + opened.locator("#search").get_attribute("aria-activedescendant"))
    name = active.locator(".hit-name").inner_text()
    assert name == hits.nth(1).locator(".hit-name").inner_text()
    opened.keyboard.press("Enter")
    assert opened.locator("#details-body .layer-name").inner_text() == name
    assert not opened.locator("#hits").is_visible()
    opened.keyboard.press("Enter")
    assert opened.locator("#details-body .layer-name").inner_text() != name
    opened.locator("#search").fill("block2.conv1")
    hits.first.click()
    assert opened.locator("#details-body .layer-name").inner_text() == "block2.conv1"


def test_titles_of_columns_are_not_cut_and_those_of_axes_hold_no_markup(opened):
    cut = "heads => heads.filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.innerText)"
    heads = opened.locator("#table-head [role=columnheader]")
    assert heads.evaluate_all(cut) == []
    assert heads.locator("button").evaluate_all(cut) == []
    titles = plotted(opened, "#curve-plot").locator(".xtitle, .ytitle").all_text_contents()
    assert titles
    assert not [title for title in titles if "<" in title]


def test_the_reader_chooses_the_columns(opened):
    heads = opened.locator("#table-head [role=columnheader]")
    before = [text.split()[0] for text in heads.all_inner_texts()]
    opened.locator("#table-columns summary").click()
    opened.locator("#table-columns label", has_text="Similarity").first.click()
    expect(heads).to_have_count(len(before) - 1)
    after = [text.split()[0] for text in heads.all_inner_texts()]
    assert set(before) - set(after) == {"Similarity"}
    assert after.index("Layer") == before.index("Layer"), "names cannot be left out"
    assert opened.locator("#table-columns label", has_text="Layer").filter(has_text="Layer shape").count() <= 1
    opened.locator("#table-columns label", has_text="Similarity").first.click()
    expect(heads).to_have_count(len(before))
