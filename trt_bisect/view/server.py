"""The server of ``view``: a web application behind a token, and its socket and certificate."""

from __future__ import annotations

import atexit
import errno
import hashlib
import ipaddress
import os
import secrets
import shlex
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trt_bisect.errors import BadInput, first_line, install, own_fault
from trt_bisect.report.html import render_tables
from trt_bisect.report.model import Report
from trt_bisect.report.parts import REPORT, SO_FAR
from trt_bisect.runs.progress_file import PROGRESS
from trt_bisect.view.index import (
    DEEPEST,
    LIVE,
    Gone,
    RunFolder,
    Runs,
    State,
    Throttled,
    etag_of,
    folders_under,
    is_run_folder,
    render_index,
    render_rows,
)

if TYPE_CHECKING:
    from cryptography import x509


_CERTIFICATE, _KEY = "view.crt", "view.key"
_DAYS = 365
_DAYS_LEFT = 7  # a kept certificate with fewer days left is replaced


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both in PEM, maybe in one file, and its SHA-256 as browsers show it."""

    path: Path
    key: Path
    fingerprint: str


def given_certificate(path: Path, key: Path | None) -> Certificate:
    """Returns the user's certificate; without ``key``, the file has the key too.

    Raises BadInput if it cannot be used with the key, or the key has a passphrase.
    """

    def no_passphrase() -> str:
        raise ValueError("the key has a passphrase")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key, password=no_passphrase)
        return Certificate(path, key or path, _fingerprint(path))
    except (OSError, ValueError) as error:
        beside = f" with the key '{key}'" if key else ""
        raise BadInput(
            f"The certificate '{path}'{beside} cannot be used: {first_line(error)}",
            "Give --certificate and --key in PEM, the key without a passphrase, or --tls alone for a self-signed one.",
        ) from error


def own_certificate(host: str, folder: Path | None = None) -> Certificate:
    """Returns a self-signed certificate for ``host``, this machine's name and loopback: the last one, if it is valid
    for a week or more, else a new one.

    The certificate is kept in ``folder``, by default in the user's configuration; if that is not writable, in a
    temporary folder. Raises BadInput if the package ``cryptography`` is not installed.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        problem = "--tls needs the package 'cryptography' to make a certificate."
        raise BadInput(problem, f"{install('view')}, or give --certificate and --key.") from error
    names = sorted({host, socket.gethostname(), "localhost", "127.0.0.1", "::1"} - {"", "0.0.0.0", "::"})
    names = [name for name in names if name.isascii()]
    home = folder or Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "trt-bisect"
    if not _is_usable(home, names):
        try:
            _make(home, names)
        except OSError:
            home = Path(tempfile.mkdtemp(prefix="trt-bisect-"))
            atexit.register(shutil.rmtree, home, ignore_errors=True)
            _make(home, names)
    return Certificate(home / _CERTIFICATE, home / _KEY, _fingerprint(home / _CERTIFICATE))


def _fingerprint(path: Path) -> str:
    text = path.read_text(encoding="ascii", errors="replace")
    first = f"{ssl.PEM_HEADER}{text.partition(ssl.PEM_HEADER)[2].partition(ssl.PEM_FOOTER)[0]}{ssl.PEM_FOOTER}"
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest().hex(":").upper()


def _is_usable(home: Path, names: list[str]) -> bool:
    from cryptography import x509

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(home / _CERTIFICATE, home / _KEY)
        certificate = x509.load_pem_x509_certificate((home / _CERTIFICATE).read_bytes())
        covered = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        remaining = certificate.not_valid_after_utc - datetime.now(timezone.utc)
        return {str(name.value) for name in covered} >= set(names) and remaining > timedelta(days=_DAYS_LEFT)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False


def _make(home: Path, names: list[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "trt-bisect view")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content, mode in (
        (_KEY, secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600),
        (_CERTIFICATE, made.public_bytes(Encoding.PEM), 0o644),
    ):
        (home / name).unlink(missing_ok=True)
        with os.fdopen(os.open(home / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class TokenAuth:
    """Passes requests with the right token to an application; other requests get 403.

    The token comes in ``?token=`` or ``Authorization: token ...``. The answer sets a cookie that replaces the
    token later.

    Args:
        names: allowed host names of requests, without ports; any if empty.
        secure: the cookie is sent over TLS only.
    """

    def __init__(self, app: ASGIApp, token: str, *, names: frozenset[str] = frozenset(), secure: bool = False) -> None:
        self._app, self._token, self._names = app, token.encode(), names
        self._secret, self._cookie = secrets.token_urlsafe(), f"trt-bisect-{secrets.token_hex(4)}"
        self._secure = "; Secure" if secure else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers 403."""
        request = Request(scope)
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "token":
            token = request.query_params.get("token", "")
        has_cookie = _equal(request.cookies.get(self._cookie, ""), self._secret.encode())
        name = request.headers.get("host", "").lower()
        host, colon, port = name.rpartition(":")
        is_right_host = not self._names or (host if colon and port.isdecimal() else name) in self._names
        if not (has_cookie or _equal(token.strip(), self._token)) or not is_right_host:
            await Response(status_code=403, headers=_HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not has_cookie:
                    cookie = f"{self._cookie}={self._secret}; HttpOnly; SameSite=Strict; Path=/{self._secure}"
                    headers.append("set-cookie", cookie)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _equal(text: str, right: bytes) -> bool:
    return secrets.compare_digest(text.encode(errors="replace"), right)


FindState = Callable[[Request], State]
_NOT_FRAMED = {"content-security-policy": "frame-ancestors 'none'"}


def make_app(folder: Path) -> Starlette:
    """Returns the web application, open without a token, for a run folder or all run folders under a folder."""
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
    has_begun, own_state = Throttled(lambda: is_run_folder(runs.folder)), Throttled(RunFolder(runs.folder).state)

    def state(request: Request) -> State:
        run = runs.named(request.path_params["name"])
        if run is None:
            raise Gone
        return states.setdefault(run, Throttled(run.state))()

    async def index(_: Request) -> Response:
        if has_begun():
            return HTMLResponse(own_state().page, headers=_NOT_FRAMED)
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(render_index(runs, nonce), headers={"content-security-policy": policy})

    async def table(request: Request) -> Response:
        if has_begun():
            return Response(status_code=205)
        body = rows()
        return _unless_cached(request, etag_of(body), body, "text/html", {})

    pages = _result_route("/result/{path:path}", runs)
    _, live = _run_routes("/", lambda _: own_state())
    return [Route("/", index), Route("/rows", table), live, *_run_routes("/run/{name:path}/", state), pages]


def _result_route(path: str, runs: Runs) -> Route:
    async def result(request: Request) -> Response:
        page = runs.result(request.path_params["path"])
        if page is None:
            raise Gone
        return HTMLResponse(render_tables(page), headers=_NOT_FRAMED)

    return Route(path, result)


def _unless_cached(request: Request, etag: str, body: bytes, media_type: str, headers: dict[str, str]) -> Response:
    headers = {**headers, "etag": etag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


async def _nothing(_: Request, error: Exception) -> Response:
    return PlainTextResponse("There is nothing here.\n", getattr(error, "status_code", 404))


async def _fault(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"There is {own_fault(error)}\n", 500)


PORT = 8765
_NEXT_PORTS = 50
_NICE = 10


def check_folder(folder: Path) -> None:
    """Raises BadInput unless a folder is a run folder, has run folders under it, or is empty."""
    if folder.is_file():
        raise BadInput(f"'{folder}' is a file.", f"Give its folder: trt-bisect view {shlex.quote(str(folder.parent))}")
    if not folder.is_dir():
        raise BadInput(
            f"There is no folder '{folder}'.",
            "Give a run folder (--output of a run), or the folder above several run folders.",
        )
    try:
        entries = [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        problem = f"The folder '{folder}' cannot be read: {error.strerror}."
        raise BadInput(problem, "Give a folder that can be read.") from error
    if (folder / REPORT).is_file() and not any((folder / name).is_file() for name in (SO_FAR, PROGRESS)):
        Report.load(folder)
    if entries and not any(is_run_folder(folder / name) for name in ("", *folders_under(folder))):
        raise BadInput(
            f"'{folder}' is no run folder, and there is none up to {DEEPEST} levels below.",
            "Give the --output of a 'trt-bisect run' that has started, a folder above such folders, or an empty one.",
        )


def listen(host: str, port: int | None) -> socket.socket:
    """Returns a listening socket: on ``port``, on any free port for 0, on 8765 or the next free port for None.

    Raises BadInput if the host is not a name of this machine, or the port is taken or not allowed.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        remedy = "Give --host an address of this machine, such as 0.0.0.0."
        raise BadInput(f"There is no host '{host}'.", remedy) from error
    for tried in [port] if port is not None else range(PORT, PORT + _NEXT_PORTS):
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((address[0], tried, *address[2:]))
            bound.listen()
            return bound
        except OSError as error:
            bound.close()
            if error.errno != errno.EADDRINUSE:
                problem = f"'{host}' port {tried} cannot be listened on: {error.strerror or error}."
                raise BadInput(problem, "Give another --host or --port, from 1024 to 65535.") from error
    problem = f"Port {port if port is not None else f'{PORT} and the next {_NEXT_PORTS}'} of '{host}' is taken."
    raise BadInput(problem, "Give another --port, or 0 for any free port.")


def is_loopback(bound: socket.socket) -> bool:
    """Returns true if only this machine can reach the socket."""
    return _ip(bound).is_loopback


def _ip(bound: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0])


def address(bound: socket.socket, token: str, *, tls: bool) -> str:
    """Returns the URL for a browser on this machine; with the machine's name if the socket is on all networks."""
    host, port = _host_and_port(bound)
    host = socket.gethostname() if _ip(bound).is_unspecified else host
    return f"{'https' if tls else 'http'}://{host}:{port}/?token={quote(token, safe='')}"


def tunnel(bound: socket.socket) -> str:
    """Returns the argument of ``ssh -L`` with which the URL of ``address`` works on another machine."""
    host, port = _host_and_port(bound)
    return f"{port}:{host}:{port}" if host.startswith("127.") else f"{host}:{port}:{host}:{port}"


def _host_and_port(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return f"[{host}]" if ":" in host else host, port


def make_server(folder: Path, bound: socket.socket, token: str, certificate: Certificate | None) -> uvicorn.Server:
    """Returns the server of a folder, with TLS if ``certificate`` is given; start it by ``run(sockets=[bound])``."""
    # This blocks pages of other sites whose names resolve to this machine (DNS rebinding).
    names = LOOPBACK_NAMES if is_loopback(bound) else frozenset[str]()
    app = TokenAuth(make_app(folder), token, names=names, secure=certificate is not None)
    return uvicorn.Server(
        uvicorn.Config(
            app,
            ssl_certfile=None if certificate is None else certificate.path,
            ssl_keyfile=None if certificate is None else certificate.key,
            access_log=False,
            log_level="critical",
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )


def lower_priority() -> None:
    """Lowers the priority of this process."""
    with suppress(OSError, AttributeError):
        os.nice(_NICE)
