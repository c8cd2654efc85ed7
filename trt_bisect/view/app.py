"""The web application: the page of a run with its live data, and the list of runs."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from trt_bisect.errors import own_fault
from trt_bisect.report.page.render import render_tables
from trt_bisect.view.index import Runs, is_run_folder, render_index, render_rows
from trt_bisect.view.run_folder import LIVE, Gone, RunFolder, State, Throttled

FindState = Callable[[Request], State]
_NOT_FRAMED = {"content-security-policy": "frame-ancestors 'none'"}
"""The header of pages that have a policy of their own: nobody else's page may show them."""


def make_app(folder: Path) -> Starlette:
    """Returns the application for a run folder, or for the run folders under a folder.

    It checks no token; ``TokenAuth`` does. A run's state is made on the event loop, once for all viewers.
    """
    if is_run_folder(folder):
        state = Throttled(RunFolder(folder).state)
        routes = [*_run_routes("/", lambda _: state()), _result_route("/{path}", Runs(folder))]
    else:
        routes = _index_routes(Runs(folder))
    app = Starlette(routes=routes, exception_handlers={404: _nothing, 405: _nothing, Gone: _nothing, Exception: _fault})
    app.router.redirect_slashes = False
    return app


def _run_routes(path: str, find: FindState) -> list[Route]:
    async def page(request: Request) -> Response:
        return HTMLResponse(find(request).page, headers=_NOT_FRAMED)

    async def live(request: Request) -> Response:
        state = find(request)
        zips = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"content-encoding": "gzip"} if zips else {}
        return _unless_cached(request, state.etag, state.zipped if zips else state.body, "application/json", headers)

    return [Route(path, page), Route(f"{path}{LIVE}", live)]


def _index_routes(runs: Runs) -> list[Route]:
    states: dict[RunFolder, Throttled[State]] = {}
    rows = Throttled(lambda: render_rows(runs).encode())

    def state(request: Request) -> State:
        run = runs.named(request.path_params["name"])
        if run is None:
            raise Gone
        return states.setdefault(run, Throttled(run.state))()

    async def index(_: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(render_index(runs, nonce), headers={"content-security-policy": policy})

    async def table(request: Request) -> Response:
        body = rows()
        return _unless_cached(request, f'"{hashlib.sha256(body).hexdigest()[:32]}"', body, "text/html", {})

    pages = _result_route("/result/{path:path}", runs)
    return [Route("/", index), Route("/rows", table), *_run_routes("/run/{name:path}/", state), pages]


def _result_route(path: str, runs: Runs) -> Route:
    async def result(request: Request) -> Response:
        page = runs.result(request.path_params["path"])
        if page is None:
            raise Gone
        return HTMLResponse(render_tables(page), headers=_NOT_FRAMED)

    return Route(path, result)


def _unless_cached(request: Request, etag: str, body: bytes, media_type: str, headers: dict[str, str]) -> Response:
    """Returns the body, or 304 without a body if the request's ``If-None-Match`` is ``etag``."""
    headers = {**headers, "etag": etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


async def _nothing(_: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return PlainTextResponse("There is nothing here.\n", status)


async def _fault(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"There is {own_fault(error)}\n", 500)
