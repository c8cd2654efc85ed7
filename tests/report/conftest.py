"""A run whose page the browser tests look at, and pages of Chromium that are opened once for many tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import pages
from trt_bisect import Report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.support.browser import Tab


@pytest.fixture(scope="session")
def strange_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with skip connections, strange names and one culprit; the only file of its folder."""
    return pages.strange_network(tmp_path_factory.mktemp("strange"))[0]


@pytest.fixture(scope="session")
def strange_run(strange_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on ``strange_model``; not to be changed."""
    folder = tmp_path_factory.mktemp("run")
    pages.run_on(strange_model, folder, samples=2)
    return folder


@pytest.fixture(scope="session")
def report(strange_run: Path) -> Report:
    """The report of ``strange_run``."""
    return pages.read(strange_run)


@pytest.fixture(scope="session")
def tabs(chromium_of_session: tuple[Browser, object]) -> tuple[Tab, Tab]:
    """Two pages of Chromium for all modules. In a page the scripts of our pages are compiled once."""
    from tests.support.browser import Tab

    return Tab(chromium_of_session[0]), Tab(chromium_of_session[0])


@pytest.fixture(scope="module")
def tab(browser: Browser, tabs: tuple[Tab, Tab]) -> Iterator[Tab]:
    """A page of Chromium in which tests open one file after another."""
    yield tabs[0]
    tabs[0].leave()


@pytest.fixture(scope="module")
def opened(browser: Browser, tabs: tuple[Tab, Tab], strange_run: Path) -> Iterator[Page]:
    """The page of ``strange_run`` with all layers in sight, for the tests of a module that leave it as it was."""
    from tests.support.page_parts import spread_out

    with tabs[1].shown(strange_run / "report.html") as page:
        spread_out(page)
        yield page
    tabs[1].leave()


@pytest.fixture
def fresh(tab: Tab, strange_run: Path) -> Iterator[Page]:
    """The page of ``strange_run`` with all layers in sight, opened anew for one test."""
    from tests.support.page_parts import spread_out

    with tab.shown(strange_run / "report.html") as page:
        spread_out(page)
        yield page
