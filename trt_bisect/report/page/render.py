"""The page: Jinja2's template with data, scripts and styles inside, so that it needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

PAGE = "report.html"
ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("page.js", "plotly.js")
"""In the order in which they run: what can be read is there before Plotly is."""
_WORKER = "layout.js"


def render_page(data: Mapping[str, Any], live: str = "") -> str:
    """The page as HTML.

    Args:
        data: what ``page_data`` gives.
        live: a relative address that the page asks for newer data; empty for a page that asks nobody.
    """
    scripts = [asset(name) for name in _SCRIPTS]
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            report=data["report"],
            headline=data["headline"],
            policy=_policy(scripts, live),
            live=live,
            style=Markup(asset("page.css")),
            licences=asset("LICENSES.txt"),
            data=json_in_html(data),
            worker=Markup(asset(_WORKER)),
            scripts=[Markup(script) for script in scripts],
        )
    )


def json_in_html(value: Any) -> Markup:
    """``value`` as JSON that cannot end the script element it stands in, nor begin a comment there."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def asset(name: str) -> str:
    """The text of a bundled file; ``make assets`` makes them."""
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def environment() -> Environment:
    """Jinja2 with everything escaped that is not said to be safe."""
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _policy(scripts: list[str], live: str) -> str:
    """A content security policy under which these scripts run, no others, and nothing goes out."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {hashes}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            "worker-src blob:",
            *(["connect-src 'self'"] if live else []),
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
