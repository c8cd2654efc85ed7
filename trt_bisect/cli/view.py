"""``trt-bisect view``: runs in a browser, also while they go on."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trt_bisect.cli.display import Configured, Display
from trt_bisect.errors import BadInput, install
from trt_bisect.jobs.options.declare import panel
from trt_bisect.jobs.options.kinds import FILE, SWITCH, whole

if TYPE_CHECKING:
    from socket import socket

    from trt_bisect.view.certificate import Certificate


SERVER = panel("Server")
_TOKEN = "TRT_BISECT_TOKEN"


def view_command(
    folder: Annotated[Path, SERVER(FILE, without="the current folder")] = Path(),
    /,
    *,
    host: Annotated[str, SERVER()] = "127.0.0.1",
    port: Annotated[int | None, SERVER(whole(least=0, most=65535), without="8765, or the next free port")] = None,
    token: Annotated[str | None, SERVER(without="a new token each time")] = None,
    tls: Annotated[bool, SERVER(SWITCH)] = False,
    certificate: Annotated[Path | None, SERVER(FILE)] = None,
    key: Annotated[Path | None, SERVER(FILE)] = None,
    display: Display = Configured(),
) -> None:
    """Serve the page of a run while it goes on, or of several runs with their history, until Ctrl-C.

    The page requires the token in the printed address. The command writes nothing into the run folders.

    Args:
        folder: A run folder, or the folder above several run folders.
        host: Listen on this address; 0.0.0.0 for every network.
        port: Listen on this port; 0 for any free port.
        token: Require this token. The variable TRT_BISECT_TOKEN sets the token too.
        tls: Encrypt with a self-signed certificate, which the first use makes and keeps for a year.
        certificate: Encrypt with this certificate (PEM).
        key: Take the certificate's key from this file.
    """
    try:
        from trt_bisect.view.certificate import given_certificate, own_certificate
        from trt_bisect.view.server import check_folder, listen, lower_priority, make_server
    except ImportError as error:
        raise BadInput(f"The package '{error.name}' is not installed.", install("view")) from error

    token = os.environ.get(_TOKEN) if token is None else token
    if token is not None and not token.strip():
        raise BadInput("An empty token protects nothing.", "Give --token some text, or leave it out for a new one.")
    if key is not None and certificate is None:
        raise BadInput("--key needs --certificate.", "Give both, or --tls alone.")
    check_folder(folder)
    shown = token.strip() if token else secrets.token_urlsafe(24)
    pair = given_certificate(certificate, key) if certificate else own_certificate(host) if tls else None
    with listen(host, port) as bound:
        server = make_server(folder, bound, shown, pair)
        _say_where(display, folder, bound, shown, pair)
        lower_priority()
        try:
            server.run(sockets=[bound])
        except KeyboardInterrupt:
            return


def _say_where(display: Display, folder: Path, bound: socket, token: str, pair: Certificate | None) -> None:
    """Tells the address, the certificate's fingerprint, and how to reach the server from elsewhere."""
    from trt_bisect.view.server import address, is_loopback, tunnel

    where = address(bound, token, tls=pair is not None)
    if display.json:
        display.print_json(
            {"folder": str(folder), "address": where, "fingerprint": None if pair is None else pair.fingerprint}
        )
    display.say(f"'{folder}' is shown at\n\n    {where}\n")
    if pair is not None:
        display.say(f"SHA-256 fingerprint of the certificate: {pair.fingerprint}")
    if is_loopback(bound):
        display.say(f"From another machine: ssh -N -L {tunnel(bound)} USER@THIS_MACHINE, then the same address.")
    elif pair is None:
        display.say("Others on the network can read the traffic: --tls encrypts.")
    display.say("Ctrl-C stops the server.")
