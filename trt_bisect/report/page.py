"""The page of a run: its data, and the Jinja2 template that holds them, the scripts and the styles in one file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trt_bisect._version import __version__
from trt_bisect.precision import Precision
from trt_bisect.recipe.files import BUILD, FOLDER, PLAN, network_file, recipe_commands
from trt_bisect.recipe.trtexec import Build
from trt_bisect.report.explanation import EXPLANATION, PICTURES, Explanation, Pictures
from trt_bisect.report.model import TONES, LayerRow, Report
from trt_bisect.report.network_graph import NETWORK, Graph
from trt_bisect.report.result import PageColumn, TablePage, columns_by_rank
from trt_bisect.report.summary import fragile, headline
from trt_bisect.support.codec import encode, read
from trt_bisect.support.files import write_whole

_LARGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class PageData:
    """The content of a run's page.

    Attributes:
        report: the report of a finished run, or of one under way.
        headline: the verdict in a sentence.
        fragile: the reasons why the verdict on the recipe could be another one, a clause each.
        status: ``finished``, ``running`` or ``interrupted``.
        tones: the CSS classes of the verdicts: of the run, on ``int8`` and on ``recipe``.
        progress: the progress of a running run, ``stage``, ``done``, ``total``, ``seconds`` and ``left``.
        recipe: the value of ``recipe_texts``.
        commands: by file of the recipe, the command that uses it.
        columns: the columns of the table of layers that their class describes.
    """

    report: Report
    graph: Graph | None
    explanation: Explanation | None
    headline: str
    fragile: tuple[str, ...]
    status: str
    tones: Mapping[str, str]
    progress: Mapping[str, Any] | None
    recipe: Mapping[str, Any]
    command: str
    commands: Mapping[str, str]
    columns: tuple[PageColumn, ...]
    pictures: Pictures | None = None


def page_data(
    report: Report,
    graph: Graph | None = None,
    explanation: Explanation | None = None,
    recipe: Mapping[str, Any] | None = None,
    *,
    status: str = "finished",
    progress: Mapping[str, Any] | None = None,
    folder: str = "",
    pictures: Pictures | None = None,
) -> PageData:
    """Returns the data of a page; ``folder`` is the run folder, as the commands on the recipe's files name it.

    A graph or an explanation of another network is left out: an earlier run may have left it in the folder.
    """
    names = [row.name for row in report.layers]
    return PageData(
        report,
        graph if graph is not None and [layer.name for layer in graph.layers] == names else None,
        explanation if explanation is not None and set(names).issuperset(explanation.layers) else None,
        headline=headline(report, status),
        fragile=fragile(report),
        status=status,
        tones={
            "verdict": TONES[report.verdict] if status == "finished" else "",
            **{plan: TONES[verdict] for plan, verdict in report.verdicts.items()},
        },
        progress=progress,
        recipe=recipe or {},
        command=report.command,
        commands=_commands(recipe or {}, folder, report.low),
        columns=columns_by_rank(LayerRow, report.names),
        pictures=pictures,
    )


def _commands(recipe: Mapping[str, Any], folder: str, low: str) -> dict[str, str]:
    """Returns by file of the recipe the complete command that uses it; none where the plan does not tell its build."""
    try:
        plan = json.loads(recipe.get(PLAN, ""))
    except (TypeError, ValueError, RecursionError):
        return {}
    build = Build.from_json(plan.get(BUILD)) if isinstance(plan, dict) else None
    if build is None:
        return {}
    commands = recipe_commands(f"{folder}/{FOLDER}" if folder else FOLDER, build, network_file(Precision(low)))
    return {name: command for name, command in commands.items() if name in recipe}


def recipe_texts(folder: Path) -> dict[str, str | dict[str, int]]:
    """Returns the files of a recipe by name: the text, or ``{"bytes": size}`` for a binary or long file."""
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    files = [path for path in paths if path.is_file() and not path.is_symlink() and not path.name.startswith(".")]
    return {path.name: _text(path) for path in files}


def _text(path: Path) -> str | dict[str, int]:
    size = path.stat().st_size
    with suppress(ValueError):
        if size <= _LARGEST_TEXT and path.suffix != ".onnx":
            return path.read_text(encoding="utf-8")
    return {"bytes": size}


PAGE = "report.html"
ASSETS = Path(__file__).parent / "assets"
_LAST = "plotly.js"
"""The script that runs last: the text of the page appears before Plotly is loaded."""
_WORKER = "layout.js"
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="3" fill="#0a5cb8"/>'
    '<path d="M2 4h5l2 7h5" fill="none" stroke="#fff" stroke-width="2"/>'
    '<path d="M8 4l3 3-3 3-3-3z" fill="#ff6b5e"/></svg>'
)


def render_page(data: PageData, live: str = "") -> str:
    """Returns the page of a run as HTML; ``live`` is the relative address of newer data, empty if there is none."""
    report = data.report
    return _rendered(
        "page.html.j2",
        "page.js",
        data,
        live,
        report=report,
        model=report.model,
        low=report.low.upper(),
        version=report.versions.get("trt_bisect", ""),
        headline=data.headline,
        selected="Selected layer",
        worker=Markup(asset(_WORKER)),
    )


def render_tables(page: TablePage) -> str:
    """Returns a page of tables as HTML."""
    return _rendered(
        "tables.html.j2",
        "tables.js",
        page,
        page=page,
        model=Path(page.model).name,
        low=page.low.upper(),
        version=__version__,
        selected="Selected row",
    )


def _rendered(template: str, script: str, data: PageData | TablePage, live: str = "", **texts: Any) -> str:
    scripts = (_script(script), _script(_LAST))
    return (
        environment()
        .get_template(template)
        .render(
            icon=icon(),
            policy=_policy([digest for _, digest in scripts], live),
            live=live,
            style=Markup(asset("page.css")),
            licences=asset("LICENSES.txt"),
            data=json_in_html(data),
            scripts=[text for text, _ in scripts],
            **texts,
        )
    )


def json_in_html(value: Any) -> Markup:
    """Returns ``value`` as JSON that cannot end the script element around it, or begin a comment in it."""
    text = encode(value).decode()
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def asset(name: str) -> str:
    """Returns the text of a bundled file; ``make assets`` makes these files."""
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def _script(name: str) -> tuple[Markup, str]:
    """Returns a script and its SHA-256 in base64."""
    text = asset(name)
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def icon() -> str:
    """Returns the page's icon as an address that holds it: a falling curve and its culprit."""
    return f"data:image/svg+xml,{quote(_ICON)}"


@cache
def environment(package: str = "trt_bisect.report") -> Environment:
    """Returns the Jinja2 environment of a package's templates; it escapes all text that is not marked as safe."""
    loader = PackageLoader(package)
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _policy(digests: list[str], live: str) -> str:
    """Returns a content security policy that allows the scripts with these digests only, and no other host."""
    hashes, connect = " ".join(f"'sha256-{digest}'" for digest in digests), "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; worker-src blob:; "
        f"{connect}base-uri 'none'; form-action 'none'"
    )


def write_page(report: Report, folder: Path) -> None:
    """Writes ``report.html`` with what the folder holds: network, explanation, recipe; raises BadInput if it cannot."""
    data = page_data(
        report,
        read(Graph, folder / NETWORK),
        read(Explanation, folder / EXPLANATION),
        recipe_texts(folder / FOLDER),
        folder=str(folder),
        pictures=read(Pictures, folder / PICTURES),
    )
    write_whole(folder / PAGE, render_page(data).encode())
