"""Debian's Chromium, driven by Playwright; for the tests, the benchmark and the pictures."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = "TRT_BISECT_BROWSER"
"""The environment variable that, set to ``required``, makes a missing browser a failure instead of a skip."""
FRUGAL = ("--process-per-site", "--js-flags=--no-opt --no-maglev --no-flush-bytecode --max-lazy")
"""Arguments that spare Chromium work in tests: pages share a process, and no script is optimised for seconds of use."""
_LIMIT = 120_000.0
"""Milliseconds that an action in a page may take: a hundred times what the slowest takes on a quiet machine."""
_SIZE = {"width": 1360, "height": 900}
_FAILED = "for (const event of ['error', 'unhandledrejection']) addEventListener(event, () => { window.failed = true })"


def find_chromium() -> str | None:
    """Returns the path of a Chromium on this machine; None if there is none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium(*arguments: str) -> Iterator[Browser]:
    """Runs Chromium with arguments for it; as root without its sandbox, as it does not start otherwise."""
    given = [*arguments, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    expect.set_options(timeout=_LIMIT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=given)
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
        ready: ``usable`` (all text) or ``graph``.
        context: of Playwright's ``new_context``, such as ``viewport`` or ``color_scheme``.
    """
    watched = watch(browser.new_context(**{"viewport": _SIZE, **context}))
    load(watched, address, ready)
    return watched


def watch(context: BrowserContext) -> Watched:
    """Returns an empty page of a context."""
    page = context.new_page()
    page.set_default_timeout(_LIMIT)
    page.add_init_script(_FAILED)
    watched = Watched(page)
    page.on("console", lambda said: watched.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.requests.append(request.url))
    return watched


def load(watched: Watched, address: Path | str, ready: str) -> None:
    """Goes to a file or an address and waits for the mark ``ready``, or fails as soon as a script does."""
    page = watched.page
    page.goto(_address(address))
    page.wait_for_function("name => performance.getEntriesByName(name).length > 0 || window.failed", arg=ready)
    assert not page.evaluate("window.failed"), watched.complaints


def _address(address: Path | str) -> str:
    return address.resolve().as_uri() if isinstance(address, Path) else address


class Tab:
    """A page that opens one file after another. The scripts are compiled once, which halves the cost of opening."""

    def __init__(self, context: BrowserContext) -> None:
        self.watched = watch(context)
        self._kept: Path | None = None

    @contextmanager
    def shown(
        self, address: Path | str, *, ready: str = "graph", width: int = 1360, height: int = 900, look: str = "light"
    ) -> Iterator[Page]:
        """Opens a file or an address in a fresh state. The page must report no error, and a file request no other.

        Args:
            address: of the page.
            ready: ``usable`` (all text) or ``graph``.
            width: of the window, in pixels.
            height: of the window, in pixels.
            look: ``light`` or ``dark``, the colours that the system asks for.
        """
        self.leave()  # else the page before would be drawn anew for another size or look
        self.stand(width, height, look)
        load(self.watched, address, ready)
        yield self.watched.page
        self._check(address)

    @contextmanager
    def kept(self, file: Path) -> Iterator[Page]:
        """Shows a file as the test before left it, in the usual size and look; opens it where it is not open yet."""
        if self._kept != file:
            self.leave()
        self.stand(**_SIZE, look="light")
        if self._kept != file:
            load(self.watched, file, "graph")
        self._kept = None
        yield self.watched.page
        self._check(file)
        self._kept = file

    def leave(self) -> None:
        """Forgets what the page has stored, and closes it."""
        self._kept = None
        page = self.watched.page
        if page.url != "about:blank":
            page.evaluate("try { localStorage.clear() } catch { /* Chromium's own page of an error has none. */ }")
            page.goto("about:blank")
        page.context.clear_cookies()
        self.watched.complaints.clear()
        self.watched.requests.clear()

    def stand(self, width: int, height: int, look: str) -> None:
        """Brings the tab to the front, with a window of this size and the colours that the system asks for."""
        page = self.watched.page
        page.bring_to_front()  # one behind another is drawn once a second
        page.mouse.move(0, 0)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(media="null", color_scheme=look)

    def _check(self, address: Path | str) -> None:
        assert self.watched.complaints == []
        if isinstance(address, Path):
            assert asked_others(self.watched, address) == []


class Tabs:
    """The tabs of a session, in one context, each made when it is first asked for."""

    def __init__(self) -> None:
        self._tabs: dict[str, Tab] = {}
        self._context: BrowserContext | None = None

    def named(self, browser: Browser, name: str) -> Tab:
        """Returns the tab of this name."""
        if self._context is None:
            self._context = browser.new_context(viewport=_SIZE, ignore_https_errors=True, reduced_motion="reduce")
        if name not in self._tabs:
            self._tabs[name] = Tab(self._context)
        return self._tabs[name]


def asked_others(watched: Watched, file: Path) -> list[str]:
    """Returns the requests of a page except for itself and the worker that it makes of its own text."""
    return [url for url in watched.requests if url != file.as_uri() and not url.startswith("blob:null/")]
