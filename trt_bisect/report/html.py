"""Renders pages as HTML."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trt_bisect._version import __version__
from trt_bisect.support.codec import encode

if TYPE_CHECKING:
    from trt_bisect.report.page import PageData
    from trt_bisect.report.result import TablePage

ASSETS = Path(__file__).parent / "assets"
_PLOTLY = "plotly.js"
WORKER = "layout.js"
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0a5cb8"/>'
    '<path d="M2 4h5l2 7h5" fill="none" stroke="#fff" stroke-width="2"/>'
    '<path d="M8 4l3 3-3 3-3-3z" fill="#ff6b5e"/></svg>'
)


def render_tables(page: TablePage) -> str:
    """Returns a page of tables as HTML."""
    return rendered(
        "tables.html.j2",
        "tables.js",
        page,
        page=page,
        model=Path(page.model).name,
        low=page.low.upper(),
        version=__version__,
        selected="Selected row",
    )


def rendered(template: str, script: str, data: PageData | TablePage, live: str = "", **texts: Any) -> str:
    """Returns a page as HTML from a template with its ``texts``, a bundled script and data.

    ``live``: the address of newer data; empty for none.
    """
    (own, own_digest), (plotly, plotly_digest) = _script(script), _script(_PLOTLY)
    return (
        environment()
        .get_template(template)
        .render(
            icon=icon(),
            policy=_policy([own_digest, plotly_digest], live),
            live=live,
            style=Markup(asset("page.css")),
            licences=asset("LICENSES.txt"),
            data=json_in_html(data),
            script=own,
            plotly=plotly,
            **texts,
        )
    )


def json_in_html(value: Any) -> Markup:
    """Returns ``value`` as JSON that cannot end the script element around it."""
    text = encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def asset(name: str) -> str:
    """Returns the text of a bundled script, style or notice."""
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _script(name: str) -> tuple[Markup, str]:
    text = asset(name)
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def icon() -> str:
    """Returns the icon of all pages as a data URL."""
    return f"data:image/svg+xml,{quote(_ICON)}"


@cache
def environment(package: str = "trt_bisect.report") -> Environment:
    """Returns a package's Jinja2 environment, which escapes unsafe text."""
    loader = PackageLoader(package)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _policy(digests: list[str], live: str) -> str:
    hashes, connect = " ".join(f"'sha256-{digest}'" for digest in digests), "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; worker-src blob:; "
        f"{connect}base-uri 'none'; form-action 'none'"
    )
