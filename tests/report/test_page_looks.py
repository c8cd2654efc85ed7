"""A run's page on other screens, in other colours and on paper, in Chromium."""

from __future__ import annotations

import re

import pytest

from tests.support.browser import Tab
from tests.support.page_parts import names_in_table

READABLE = 4.5
"""The contrast that WCAG 2.2 AA asks of text."""


@pytest.mark.parametrize("look", ["light", "dark"])
def test_colours_can_be_read(tab, strange_run, look):
    with tab.shown(strange_run / "report.html", look=look) as page:
        assert page.evaluate("document.documentElement.dataset.theme") == look
        names = ("text", "muted", "accent", "culprit", "warn", "good", "high")
        texts = {name: colour(page, name) for name in names}
        grounds = {name: colour(page, name) for name in ("background", "surface")}
        for name, text in texts.items():
            for ground in grounds.values():
                assert contrast(text, ground) >= READABLE, name
        for tint in ("int8-tint", "high-tint", "heat-tint", "row", "chosen"):
            assert contrast(texts["text"], colour(page, tint)) >= READABLE, tint
        assert contrast(texts["culprit"], colour(page, "chosen")) >= READABLE


def colour(page, name: str) -> tuple[float, ...]:
    text = page.evaluate("name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)", name)
    return tuple(int(text.strip()[place : place + 2], 16) / 255 for place in (1, 3, 5))


def contrast(one, other) -> float:
    """WCAG 2.2's contrast ratio of two sRGB colours."""

    def luminance(parts):
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_theme_can_be_switched(fresh):
    ground = "getComputedStyle(document.body).backgroundColor"
    assert fresh.evaluate(ground) == "rgb(255, 255, 255)"
    fresh.get_by_role("button", name="Switch to the dark theme").click()
    assert fresh.evaluate(ground) == "rgb(17, 22, 28)"
    assert fresh.evaluate("document.querySelector('#curve-plot').layout.font.color") == "#e6ebf1"
    fresh.reload()
    assert fresh.evaluate(ground) == "rgb(17, 22, 28)"


@pytest.mark.parametrize("width", [320, 768])
def test_nothing_is_wider_than_the_screen(tab, strange_run, width):
    with tab.shown(strange_run / "report.html", width=width, height=800) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_tap_on_a_phone_opens_the_layer(browser, strange_run, report):
    phone = Tab(browser, has_touch=True)
    with phone.shown(strange_run / "report.html", width=390, height=800) as page:
        assert not page.locator("#details").is_visible()
        page.locator("#table-body [role=row]").first.tap()
        assert page.locator("#details").is_visible()
        assert page.locator("#details .layer-name").inner_text() == report.culprits[0]
        page.get_by_role("button", name="Close").tap()
        assert not page.locator("#details").is_visible()
    page.context.close()


def test_it_prints(tab, strange_run, report):
    with tab.shown(strange_run / "report.html", look="dark") as page:
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        page.emulate_media(media="print")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.locator("nav").is_visible()
        assert names_in_table(page)[0] == report.culprits[0]
        assert len(names_in_table(page)) == 12
        assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 3
