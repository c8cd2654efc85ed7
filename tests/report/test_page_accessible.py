"""The page for everyone: axe-core's rules in Chromium, and the page in Firefox."""

from __future__ import annotations

import pytest

from tests.support.accessibility import grave_findings
from tests.support.editions import edition
from tests.support.firefox import Firefox, find_firefox, firefox

LOOKS = edition([("dark", 390), ("light", 1024)], [("light", 1024), ("dark", 1360), ("light", 390), ("dark", 390)])


@pytest.mark.parametrize(("look", "width"), LOOKS)
def test_nothing_is_wider_than_the_screen_and_axe_finds_nothing_serious(opened, look, width):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=look)
    opened.wait_for_function("look => document.documentElement.dataset.theme === look", arg=look)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.locator("#search").fill("block2.conv1")
    opened.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert grave_findings(opened) == []
    opened.evaluate("document.querySelectorAll('details').forEach(each => { each.open = false })")


@pytest.fixture(scope="module")
def fox():
    """A running Firefox."""
    if find_firefox() is None:
        pytest.skip("there is no Firefox here; apt-get install firefox-esr brings one")
    with firefox() as running:
        yield running


def test_the_page_in_firefox(fox: Firefox, strange_run, report):
    """It draws, sorts, searches, folds and keeps its columns in sight as in Chromium."""
    [culprit] = report.culprits
    fox.open(strange_run / "report.html", width=1360, height=900)
    assert fox.run("return document.querySelector('.layer-name').textContent") == culprit
    assert fox.run("return document.querySelector('#table-body .name').textContent") == culprit
    drawn = """
      const plot = document.querySelector('#curve-plot');
      plot.scrollIntoView();
      return new Promise(done => {
        const look = () => plot.hasAttribute('aria-busy') ? requestAnimationFrame(look) : done(plot.data.length);
        look();
      });
    """
    assert fox.run(drawn) > 0
    assert fox.run("return document.querySelectorAll('#graph .node').length") > 1
    moved = """
      const table = document.querySelector('#table'), name = table.querySelector('.row .name');
      const before = name.getBoundingClientRect().x;
      table.scrollLeft = 300;
      return [before, name.getBoundingClientRect().x];
    """
    before, after = fox.run(moved)
    assert before == pytest.approx(after, abs=1)
    fox.run("""
      const search = document.querySelector('#search');
      search.value = 'block2';
      search.dispatchEvent(new Event('input'));
    """)
    hits = fox.run("return [...document.querySelectorAll('#hits .hit-name')].map(hit => hit.textContent)")
    assert hits
    assert all("block2" in hit for hit in hits)


@pytest.mark.parametrize("width", [450, 1024])
def test_nothing_is_wider_than_the_screen_in_firefox(fox: Firefox, strange_run, width):
    """450 pixels are the least that Firefox's window takes."""
    fox.open(strange_run / "report.html", width=width, height=800)
    assert fox.run("return document.documentElement.scrollWidth <= window.innerWidth")
