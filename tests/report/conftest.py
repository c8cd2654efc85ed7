"""A run whose page the browser tests look at, and pages of Chromium that are opened once for many tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import pages
from trt_bisect import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.support.browser import Tab, Tabs


@pytest.fixture(scope="session")
def strange_model(recorded: Callable[[str], Path]) -> Path:
    """The network of ``strange_run``."""
    return recorded("strange") / "strange.onnx"


@pytest.fixture(scope="session")
def strange_run(recorded: Callable[[str], Path]) -> Path:
    """The folder of the run ``strange``; not to be changed."""
    return recorded("strange") / "runs/strange"


@pytest.fixture(scope="session")
def report(strange_run: Path) -> Report:
    """The report of ``strange_run``."""
    return pages.read(strange_run)


@pytest.fixture(scope="module")
def tab(browser: Browser, tabs: Tabs) -> Iterator[Tab]:
    """A page of Chromium in which tests open one file after another."""
    tab = tabs.named(browser, "files")
    yield tab
    tab.leave()


@pytest.fixture
def opened(browser: Browser, tabs: Tabs, strange_run: Path, report: Report) -> Iterator[Page]:
    """The page of ``strange_run`` with all layers in sight and its culprit selected. All tests share it."""
    from tests.support.page_parts import put_back

    with tabs.named(browser, "kept").kept(strange_run / "report.html") as page:
        put_back(page, report.culprits[0])
        yield page
