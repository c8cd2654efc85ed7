"""The documentation site: ``mkdocs build --strict`` finds no broken link, and no page fetches anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.browser import Tabs

ROOT = Path(__file__).resolve().parents[2]
_FETCHED = re.compile(r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.subprocess
def test_every_page_is_built_and_fetches_nothing(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs")
        name = place.with_name("index.html") if place.name == "README.md" else place.with_suffix(".html")
        assert (site / name).is_file() == (place.name != "architecture.md"), place
    for page in site.rglob("*.html"):
        assert _FETCHED.findall(page.read_text(encoding="utf-8")) == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"""(?:@import\s|url\()["']?(?:https?:)?//""", style.read_text(encoding="utf-8")), style


@pytest.mark.subprocess
def test_every_link_opens_a_file_from_the_disk(site: Path) -> None:
    """The logo's among them: a browser shows a folder as a list of its files."""
    for page in set(site.rglob("*.html")) - {site / "404.html"}:  # which only a server shows
        for link in re.findall(r"""<a\b[^>]*?\bhref=["']([^"'#]+)""", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link):
                assert (page.parent / unquote(link.partition("?")[0])).is_file(), (page, link)


@pytest.mark.subprocess
def test_the_reference_has_every_public_name_with_its_text(site: Path) -> None:
    import trt_bisect

    text = (site / "reference/python.html").read_text(encoding="utf-8")
    for name in set(trt_bisect.__all__) - {"__version__"}:
        assert f'id="trt_bisect.{name}"' in text, name
    for words in ("a plan that restores it", "Reads an ONNX file of opset 9 or later"):
        assert words in text


@pytest.mark.subprocess
def test_the_search_works_from_the_disk(site: Path, browser: Browser, tabs: Tabs) -> None:
    tab = tabs.named(browser, "files")
    page, fetched = tab.watched.page, tab.watched.requests
    page.goto((site / "commands/run.html").as_uri() + "?q=DLA")
    page.locator(".md-search-result__item a[href*='jetson.html']").first.wait_for(state="attached")
    assert fetched
    assert [url for url in fetched if not url.startswith(("file:", "data:", "about:"))] == []
    tab.leave()
