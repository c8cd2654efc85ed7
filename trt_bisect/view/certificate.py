"""Certificates for ``--tls``: a self-signed one, kept for later calls, or the user's own."""

from __future__ import annotations

import atexit
import hashlib
import ipaddress
import os
import shutil
import socket
import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from trt_bisect.errors import BadInput, first_line, install

if TYPE_CHECKING:
    from cryptography import x509

_CERTIFICATE, _KEY = "view.crt", "view.key"
_DAYS = 365
_DAYS_LEFT = 7
"""A kept certificate with fewer days left is replaced."""


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, both in PEM; the key may be in the same file.

    Attributes:
        fingerprint: SHA-256 of the certificate, as browsers show it.
    """

    path: Path
    key: Path
    fingerprint: str


def given_certificate(path: Path, key: Path | None) -> Certificate:
    """Returns the user's certificate.

    Raises:
        BadInput: certificate or key cannot be read, they do not match, or the key has a passphrase.
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
    """Returns a self-signed certificate for ``host``, this machine's name and loopback: the kept one if it is valid.

    Args:
        host: the name or address that the server listens on.
        folder: to keep it in, by default the user's configuration; if that cannot be written, a temporary folder that
            is removed at exit.

    Raises:
        BadInput: the package ``cryptography`` is not installed.
    """
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise BadInput(
            "--tls needs the package 'cryptography' to make a certificate.",
            f"{install('view')}, or give --certificate and --key.",
        ) from error
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
    """Returns the digest of the first certificate of a chain."""
    text = path.read_text(encoding="ascii", errors="replace")
    first = f"{ssl.PEM_HEADER}{text.partition(ssl.PEM_HEADER)[2].partition(ssl.PEM_FOOTER)[0]}{ssl.PEM_FOOTER}"
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest().hex(":").upper()


def _is_usable(home: Path, names: list[str]) -> bool:
    """Returns true if a folder has a certificate that covers these names and has more than 7 days left."""
    from cryptography import x509

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(home / _CERTIFICATE, home / _KEY)
        certificate = x509.load_pem_x509_certificate((home / _CERTIFICATE).read_bytes())
        known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        left = certificate.not_valid_after_utc - datetime.now(timezone.utc)
        return {str(name.value) for name in known} >= set(names) and left > timedelta(days=_DAYS_LEFT)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False


def _make(home: Path, names: list[str]) -> None:
    """Writes a new certificate and its key into a folder; only the user can read the key."""
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
