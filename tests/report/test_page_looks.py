"""A run's page on other screens, in other colours and on paper, in Chromium."""

from __future__ import annotations

import re

from tests.support.page_parts import names_in_table, plotted


def test_the_theme_can_be_switched_and_the_page_tapped_and_printed(tab, strange_run, report):
    ground = "getComputedStyle(document.body).backgroundColor"
    with tab.shown(strange_run / "report.html") as page:
        assert page.evaluate(ground) == "rgb(255, 255, 255)"
        page.get_by_role("button", name="Switch to the dark theme").click()
        assert page.evaluate(ground) == "rgb(17, 22, 28)"
        assert plotted(page, "#curve-plot").evaluate("plot => plot.layout.font.color") == "#e6ebf1"
        page.set_viewport_size({"width": 320, "height": 800})
        page.reload()
        page.wait_for_function(f"() => {ground} === 'rgb(17, 22, 28)'")
        page.wait_for_function("() => performance.getEntriesByName('graph').length > 0")
        assert_a_tap_on_a_phone_opens_the_layer(page, report)
        assert_prints(page, report)


def assert_prints(page, report) -> None:
    """A dark page is light on paper, five sheets at the most, with the first rows and the columns that fit."""
    pdf = page.pdf(format="A4")
    page.set_viewport_size({"width": 718, "height": 1000})
    assert pdf.startswith(b"%PDF")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()
    assert names_in_table(page)[0] == report.culprits[0]
    assert len(names_in_table(page)) == 12
    assert page.locator("#table").evaluate("table => table.scrollWidth <= table.clientWidth")
    heads = [text.split()[0] for text in page.locator("#table-head [role=columnheader]").all_inner_texts()]
    assert heads[:3] == ["#", "Layer", "Verdict"]
    assert len(heads) > 4
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 5


def assert_a_tap_on_a_phone_opens_the_layer(page, report) -> None:
    """Nothing is wider than the screen, neither there nor on a tablet."""
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.set_viewport_size({"width": 390, "height": 800})
    assert not page.locator("#details").is_visible()
    tap(page, page.locator("#table-body [role=row]").first)
    page.locator("#details").wait_for()
    assert page.locator("#details .layer-name").inner_text() == report.culprits[0]
    tap(page, page.get_by_role("button", name="Close"))
    page.locator("#details").wait_for(state="hidden")
    page.set_viewport_size({"width": 768, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 768


def tap(page, locator) -> None:
    """Touches the middle of an element with a finger."""
    locator.scroll_into_view_if_needed()
    box = locator.bounding_box()
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True, "maxTouchPoints": 1})
    session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [place]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": False})
    session.detach()
