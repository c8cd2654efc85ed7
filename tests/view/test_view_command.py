"""``trt-bisect view`` as a command: certificates, ports, bad use, Ctrl-C."""

import hashlib
import os
import re
import signal
import socket
import ssl
import stat
import sys
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives import serialization as text

from tests.support.view_server import QUERY, serving
from tests.support.waiting import wait_until
from trt_bisect.errors import BadInput
from trt_bisect.report.parts import REPORT
from trt_bisect.view import server
from trt_bisect.view.server import address, check_folder, given_certificate, listen, own_certificate, tunnel


def test_a_self_signed_certificate_is_made_kept_and_shown(finished, tmp_path):
    made = own_certificate("127.0.0.1", tmp_path / "config")
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.key.parent.stat().st_mode) == 0o700
    assert own_certificate("127.0.0.1", tmp_path / "config") == made
    with serving(finished, made) as base:
        place = urlsplit(base)
        served = ssl.get_server_certificate((place.hostname, place.port))
        assert hashlib.sha256(ssl.PEM_cert_to_DER_cert(served)).hexdigest() == made.fingerprint.replace(":", "").lower()
        trusting = ssl.create_default_context(cafile=made.path)
        with httpx.Client(base_url=base, verify=trusting) as web:
            assert web.get("/").status_code == 403
            answer = web.get(f"/{QUERY}")
            assert answer.status_code == 200
            assert "Secure" in answer.headers["set-cookie"]
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{base.replace('https', 'http')}/{QUERY}")


def test_a_certificate_that_will_not_do_or_is_about_to_end_is_made_anew(tmp_path, monkeypatch):
    first = own_certificate("127.0.0.1", tmp_path)
    elsewhere = own_certificate("192.0.2.7", tmp_path)
    assert elsewhere.fingerprint != first.fingerprint
    elsewhere.key.write_text("no key")
    assert own_certificate("192.0.2.7", tmp_path).fingerprint != elsewhere.fingerprint
    monkeypatch.setattr(server, "_DAYS", 3)
    short = own_certificate("localhost", tmp_path / "short")
    assert own_certificate("localhost", tmp_path / "short").fingerprint != short.fingerprint


def test_where_the_configuration_cannot_be_written_it_lies_in_a_folder_of_its_own(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = own_certificate("localhost", tmp_path / "file" / "config")
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.key.parent.stat().st_mode) == 0o700


def test_the_users_own_certificate(tmp_path):
    made = own_certificate("localhost", tmp_path)
    assert given_certificate(made.path, made.key).fingerprint == made.fingerprint
    both = tmp_path / "both.pem"
    both.write_bytes(made.path.read_bytes() + made.key.read_bytes())
    assert given_certificate(both, None).fingerprint == made.fingerprint
    other = own_certificate("localhost", tmp_path / "other")
    for path, key in ((made.path, None), (made.path, other.key), (tmp_path / "none", made.key), (made.key, made.key)):
        with pytest.raises(BadInput):
            given_certificate(path, key)


def test_a_key_with_a_passphrase_is_refused_and_asks_nothing(tmp_path):
    made = own_certificate("localhost", tmp_path)
    key = text.load_pem_private_key(made.key.read_bytes(), None)
    locked = key.private_bytes(text.Encoding.PEM, text.PrivateFormat.PKCS8, text.BestAvailableEncryption(b"secret"))
    made.key.write_bytes(locked)
    with pytest.raises(BadInput, match="passphrase"):
        given_certificate(made.path, made.key)


# The command


def test_a_port_that_is_taken_is_refused_where_it_was_asked_for_and_passed_over_where_not(monkeypatch):
    with listen("127.0.0.1", 0) as first:
        taken = first.getsockname()[1]
        with pytest.raises(BadInput, match=str(taken)):
            listen("127.0.0.1", taken)
        monkeypatch.setattr(server, "PORT", taken)
        with listen("127.0.0.1", None) as second:
            assert taken < second.getsockname()[1] <= taken + 50


def test_the_tunnel_ends_where_the_address_is():
    for host, given in (("127.0.0.1", "{0}:127.0.0.1:{0}"), ("::1", "[::1]:{0}:[::1]:{0}")):
        with listen(host, 0) as bound:
            assert tunnel(bound) == given.format(bound.getsockname()[1])


def test_the_address_quotes_the_token():
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address(bound, "a b&c/ü", tls=True) == f"https://127.0.0.1:{port}/?token=a%20b%26c%2F%C3%BC"
    with listen("0.0.0.0", 0) as bound:
        assert address(bound, "t", tls=False).startswith(f"http://{socket.gethostname()}:")


BAD = {
    "no folder": (["view", "{tmp}/none"], "none"),
    "a file": (["view", "{tmp}/file"], "file"),
    "no run folder": (["view", "{tmp}"], "no run folder"),
    "empty token": (["view", "{run}", "--token", " "], "--token"),
    "key alone": (["view", "{run}", "--key", "{tmp}/file"], "--certificate"),
    "unreadable certificate": (["view", "{run}", "--certificate", "{tmp}/file"], "certificate"),
    "no such certificate": (["view", "{run}", "--certificate", "{tmp}/none.pem"], "none.pem"),
    "unknown host": (["view", "{run}", "--host", "no.such.host.invalid"], "no.such.host.invalid"),
    "foreign host": (["view", "{run}", "--host", "192.0.2.1"], "192.0.2.1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_use_is_exit_2_and_two_lines(command, case, finished, tmp_path):
    (tmp_path / "file").write_text("nothing")
    arguments, said = BAD[case]
    code, out, err = command(*(argument.format(tmp=tmp_path, run=finished) for argument in arguments))
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) <= 2


def test_an_empty_folder_is_no_bad_use(tmp_path):
    """Hidden files, such as a .gitignore, make it no less empty."""
    (tmp_path / ".gitignore").write_text("*")
    check_folder(tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(BadInput, match="no run folder"):
        check_folder(tmp_path)
    run = tmp_path / "2026-11-28T013000Z/runs/net"  # as in the folder of a suite's nights
    run.mkdir(parents=True)
    (run / REPORT).touch()
    check_folder(tmp_path)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_named(command, finished, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith(("trt_bisect.view", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = command("view", finished)
    assert code == 2
    assert "pip install 'cryptography>=42' 'starlette>=0.40' 'uvicorn>=0.30'" in err


@pytest.mark.subprocess
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_without_a_word(forks, finished, stop, tmp_path):
    environment = {**os.environ, "TRT_BISECT_TOKEN": "from the environment", "XDG_CONFIG_HOME": str(tmp_path)}
    process = forks.start("view", finished, "--port", "0", "--tls", environment=environment)
    wait_until(lambda: "Ctrl-C" in process.printed()[0] or process.poll() is not None)
    said, _ = process.printed()
    assert "Ctrl-C" in said
    port = re.search(r"https://127\.0\.0\.1:(\d+)/\?token=from%20the%20environment\n", said)[1]
    assert f"ssh -N -L {port}:127.0.0.1:{port}" in said
    served = ssl.get_server_certificate(("127.0.0.1", int(port)))
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(served)).digest()
    assert digest.hex(":").upper() in said
    assert os.getpriority(os.PRIO_PROCESS, process.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    process.send_signal(stop)
    assert process.communicate() == (said, "")
    assert process.returncode == 0
