"""``trt-bisect view``: runs in a browser, also while they go on."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trt_bisect.cli.config import with_config
from trt_bisect.cli.display import Display
from trt_bisect.errors import BadInput, install

if TYPE_CHECKING:
    from socket import socket

    from trt_bisect.view.certificate import Certificate


@with_config
def view_command(
    display: Display,
    folder: Annotated[
        Path, typer.Argument(help="A run folder, or the folder above several.", show_default="this folder")
    ] = Path(),
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for every network.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0 for any. [default: 8765, or the next free one]", show_default=False),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TRT_BISECT_TOKEN", help="Who has it may look. [default: a new one each time]", show_default=False
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, with a certificate that is made and kept.")] = False,
    certificate: Annotated[
        Path | None, typer.Option(help="Encrypt with this certificate, in PEM.", show_default=False)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Its key, if it stands in another file.", show_default=False)] = None,
) -> None:
    """Serve the page of a run while it goes on, or of several with their history. Ctrl-C ends it; runs are left alone.

    Only who has the token sees anything. Files are read, and nothing is written into the run folders.
    """
    try:
        from trt_bisect.view.certificate import given_certificate, own_certificate
        from trt_bisect.view.server import check_folder, listen, lower_priority, make_server
    except ImportError as error:
        raise BadInput(f"The package '{error.name}' is not installed.", install("view")) from error

    if token is not None and not token.strip():
        raise BadInput("An empty token protects nothing.", "Give --token some text, or leave it out for a new one.")
    if key is not None and certificate is None:
        raise BadInput("There is a --key and no --certificate.", "Give both, or --tls alone.")
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
    if display.as_json:
        display.print_json(
            {"folder": str(folder), "address": where, "fingerprint": None if pair is None else pair.fingerprint}
        )
    display.say(f"'{folder}' is shown at\n\n    {where}\n")
    if pair is not None:
        display.say(f"SHA-256 fingerprint of the certificate: {pair.fingerprint}")
    if is_loopback(bound):
        display.say(f"From elsewhere: ssh -N -L {tunnel(bound)} USER@THIS_MACHINE, then the same address there.")
    elif pair is None:
        display.say("Others on the network can read along: --tls encrypts.")
    display.say("Ctrl-C ends it.")
