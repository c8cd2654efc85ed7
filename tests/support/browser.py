"""Debian's Chromium, driven by Playwright; for the tests, the benchmark and the pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.support.waiting import LIMIT

_NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "TRT_BISECT_BROWSER"
"""The environment variable that, set to ``required``, makes a missing browser a failure instead of a skip."""


def find_chromium() -> str | None:
    """The path of a Chromium on this machine."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running Chromium; without its sandbox where it is root's, as it will not start otherwise."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=1000 * LIMIT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, and all that it complained of or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def open_page(browser: Browser, address: Path | str, *, ready: str = "graph", **context: object) -> Watched:
    """Opens a file or an address in a context of its own and waits for the mark ``ready``.

    Args:
        ready: ``usable`` (verdict and table), ``plots`` or ``graph``.
        context: of Playwright's ``new_context``, such as ``viewport`` or ``color_scheme``.
    """
    page = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **context}).new_page()
    page.set_default_timeout(1000 * LIMIT)
    watched = Watched(page)
    page.on("console", lambda said: watched.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.requests.append(request.url))
    page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    page.wait_for_function("name => performance.getEntriesByName(name).length > 0", arg=ready)
    return watched
