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
    """Returns the path of a Chromium on this machine; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Runs Chromium; as root without its sandbox, as it does not start otherwise."""
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
    """A page, with its errors and its requests."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def open_page(browser: Browser, address: Path | str, *, ready: str = "graph", **context: object) -> Watched:
    """Opens a file or an address in a context of its own and waits for the mark ``ready``.

    Args:
        ready: ``usable`` (verdict and table), ``plots`` or ``graph``.
        context: of Playwright's ``new_context``, such as ``viewport`` or ``color_scheme``.
    """
    watched = watch(browser, **context)
    load(watched.page, address, ready)
    return watched


def watch(browser: Browser, **context: object) -> Watched:
    """Returns an empty page in a context of its own."""
    page = browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **context}).new_page()
    page.set_default_timeout(1000 * LIMIT)
    watched = Watched(page)
    page.on("console", lambda said: watched.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.requests.append(request.url))
    return watched


def load(page: Page, address: Path | str, ready: str) -> None:
    """Goes to a file or an address and waits for the mark ``ready``."""
    page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    page.wait_for_function("name => performance.getEntriesByName(name).length > 0", arg=ready)


class Tab:
    """A page that opens one file after another. The scripts are compiled once, which halves the cost of opening."""

    def __init__(self, browser: Browser, **context: object) -> None:
        self.watched = watch(browser, **context)

    @contextmanager
    def shown(
        self, file: Path, *, ready: str = "graph", width: int = 1360, height: int = 900, look: str = "light"
    ) -> Iterator[Page]:
        """Opens a file in a fresh state. The page must report no error and request no other file.

        Args:
            file: the page.
            ready: ``usable`` (verdict and table), ``plots`` or ``graph``.
            width: of the window, in pixels.
            height: of the window, in pixels.
            look: ``light`` or ``dark``, the colours that the system asks for.
        """
        page = self.watched.page
        self.leave()  # else the page before would be drawn anew for another size or look
        page.mouse.move(0, 0)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(media="null", color_scheme=look)
        self.watched.complaints.clear()
        self.watched.requests.clear()
        load(page, file, ready)
        yield page
        assert self.watched.complaints == []
        assert asked_others(self.watched, file) == []

    def leave(self) -> None:
        """Forgets what the page has stored, and closes it."""
        if self.watched.page.url != "about:blank":
            self.watched.page.evaluate("localStorage.clear()")
            self.watched.page.goto("about:blank")


def asked_others(watched: Watched, file: Path) -> list[str]:
    """Returns the requests of a page except for itself and the worker that it makes of its own text."""
    return [url for url in watched.requests if url != file.as_uri() and not url.startswith("blob:null/")]
