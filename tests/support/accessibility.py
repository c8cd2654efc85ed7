"""axe-core's findings on a page; ``make assets`` puts axe-core into ``tests/support/axe``, and no page holds it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

_AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
_GRAVE = ("serious", "critical")
_RUN = """async () => {
  const facts = (element) => [
    element.tagName,
    ...element.getAttributeNames(),
    ...['class', 'role', 'tabindex', 'aria-selected', 'aria-sort'].map((name) => element.getAttribute(name)),
    element.textContent.trim() !== '',
  ];
  const shape = (row) => JSON.stringify([
    facts(row),
    ...[...row.querySelectorAll('*')].map((element) => [...facts(element), element.getAttribute('style')]),
  ]);
  const seen = new Set();
  const repeated = [...document.querySelectorAll('[role=row]')].filter((row) => {
    const known = seen.size;
    return seen.add(shape(row)).size === known;
  });
  const places = repeated.map((row) => {
    const place = new Comment();
    row.replaceWith(place);
    return place;
  });
  try {
    return await axe.run(document, { resultTypes: ['violations'], selectors: false });
  } finally {
    places.forEach((place, number) => place.replaceWith(repeated[number]));
  }
}"""


def grave_findings(page: Page) -> list[tuple[str, list[str]]]:
    """Returns the rules that a page breaks with serious or critical impact, each with its first elements.

    Of a table's rows that differ in texts and figures alone one is looked at: axe-core takes seconds for a hundred.
    """
    page.evaluate(_AXE)
    found = page.evaluate(_RUN)
    assert found["testEngine"]["name"] == "axe-core"
    return [
        (rule["id"], [node["html"][:120] for node in rule["nodes"][:3]])
        for rule in found["violations"]
        if rule["impact"] in _GRAVE
    ]
