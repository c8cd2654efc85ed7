"""Takes the documentation's pictures of ``report.html``, from a finished run, in Chromium.

python -m tools.make_page_pictures demo-run docs
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from tests.support.browser import chromium, open_page

LARGEST = 400_000
"""Bytes that a picture may have."""


def main(run: str, docs: str) -> None:
    """Writes page.png, page-graph.png and page-phone.png into ``docs``."""
    with chromium() as browser:
        wide: dict[str, Any] = {"viewport": {"width": 1440, "height": 1000}}
        picture(browser, run, Path(docs) / "page.png", **wide)
        picture(browser, run, Path(docs) / "page-graph.png", at="#network", color_scheme="dark", **wide)
        phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
        picture(browser, run, Path(docs) / "page-phone.png", **phone)


def picture(browser: Browser, run: str, to: Path, *, at: str = "", **context: Any) -> None:
    """One picture of the screen, scrolled to the element ``at``, with the plots there drawn."""
    page = open_page(browser, Path(run) / "report.html", **context).page
    if at:
        page.evaluate("at => document.querySelector(at).scrollIntoView({ behavior: 'instant' })", at)
        page.evaluate("document.querySelector('#details').scrollTop = document.querySelector('.tensor').offsetTop - 90")
    page.wait_for_function(
        """() => [...document.querySelectorAll('.plot[aria-busy]')]
             .map(plot => plot.getBoundingClientRect()).every(({ top, bottom }) => bottom < 0 || top > innerHeight)"""
    )
    page.screenshot(path=to)
    page.context.close()
    if to.stat().st_size > LARGEST:
        raise SystemExit(f"{to} has {to.stat().st_size} bytes, more than {LARGEST}")


if __name__ == "__main__":
    main(*sys.argv[1:])
