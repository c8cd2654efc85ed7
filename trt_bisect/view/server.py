"""The server: its socket, its printed address, and uvicorn."""

from __future__ import annotations

import errno
import ipaddress
import os
import shlex
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import uvicorn

from trt_bisect.errors import BadInput
from trt_bisect.view.app import make_app
from trt_bisect.view.auth import LOOPBACK_NAMES, TokenAuth
from trt_bisect.view.certificate import Certificate
from trt_bisect.view.index import is_run_folder

PORT = 8765
_NEXT_PORTS = 50
_NICE = 10


def check_folder(folder: Path) -> None:
    """Checks that a folder is a run folder or has one directly under it.

    Raises:
        BadInput: it is neither, or it cannot be read.
    """
    if folder.is_file():
        raise BadInput(f"'{folder}' is a file.", f"Give its folder: trt-bisect view {shlex.quote(str(folder.parent))}")
    if not folder.is_dir():
        raise BadInput(
            f"There is no folder '{folder}'.",
            "Give a run folder (--output of a run), or the folder above several run folders.",
        )
    try:
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except OSError as error:
        raise BadInput(
            f"The folder '{folder}' cannot be read: {error.strerror}.", "Give a folder that can be read."
        ) from error
    if not is_run_folder(folder) and not any(map(is_run_folder, inside)):
        raise BadInput(
            f"'{folder}' is no run folder, and no run folder is directly below.",
            "Give the --output of a 'trt-bisect run' that has started, or the folder above such folders.",
        )


def listen(host: str, port: int | None) -> socket.socket:
    """Returns a listening socket: on ``port``, on any free port for 0, on 8765 or the next free port for None.

    Raises:
        BadInput: the host is not this machine's, or the port is taken or not allowed.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port or 0, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"There is no host '{host}'.", "Give --host an address of this machine, such as 0.0.0.0."
        ) from error
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
                raise BadInput(
                    f"'{host}' port {tried} cannot be listened on: {error.strerror or error}.",
                    "Give another --host or --port, from 1024 to 65535.",
                ) from error
    raise BadInput(
        f"Port {port if port is not None else f'{PORT} and the next {_NEXT_PORTS}'} of '{host}' is taken.",
        "Give another --port, or 0 for any free port.",
    )


def is_loopback(bound: socket.socket) -> bool:
    """Returns true if only this machine can reach a socket."""
    return _ip(bound).is_loopback


def _ip(bound: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0])


def address(bound: socket.socket, token: str, *, tls: bool) -> str:
    """Returns the address for a browser on this machine; with the machine's name if the socket is on all networks."""
    host, port = _host_and_port(bound)
    host = socket.gethostname() if _ip(bound).is_unspecified else host
    return f"{'https' if tls else 'http'}://{host}:{port}/?token={quote(token, safe='')}"


def tunnel(bound: socket.socket) -> str:
    """Returns the argument of ``ssh -L`` on another machine that makes the same address work there."""
    host, port = _host_and_port(bound)
    return f"{port}:{host}:{port}" if host.startswith("127.") else f"{host}:{port}:{host}:{port}"


def _host_and_port(bound: socket.socket) -> tuple[str, int]:
    host, port = bound.getsockname()[:2]
    return f"[{host}]" if ":" in host else host, port


def make_server(folder: Path, bound: socket.socket, token: str, certificate: Certificate | None) -> uvicorn.Server:
    """Returns the server of a folder; ``run(sockets=[bound])`` serves until it is stopped.

    Host names of requests are checked if only this machine can reach the socket. Any port is allowed, since a
    tunnel may use another one.
    """
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
    """Lowers the priority of this process, so that the run goes first."""
    with suppress(OSError, AttributeError):
        os.nice(_NICE)
