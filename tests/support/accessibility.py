"""axe-core's findings on a page; ``make assets`` puts axe-core into ``tests/support/axe``, and no page holds it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

_AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
_GRAVE = ("serious", "critical")


def grave_findings(page: Page, part: str = "html") -> list[tuple[str, list[str]]]:
    """Returns the rules that a part of a page breaks with serious or critical impact, each with its first elements."""
    page.evaluate(_AXE)
    found = page.evaluate("part => axe.run(part, { resultTypes: ['violations'], selectors: false })", part)
    assert found["testEngine"]["name"] == "axe-core"
    return [
        (rule["id"], [node["html"][:120] for node in rule["nodes"][:3]])
        for rule in found["violations"]
        if rule["impact"] in _GRAVE
    ]
