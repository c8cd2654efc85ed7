"""The server of ``trt-bisect view``: who is let in, and what nobody gets."""

import http.client
import shutil
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.view_server import QUERY, TOKEN, serving
from trt_bisect.view.index import Runs

PATHS = ["/", "/data.json", "/rows", "/run/lenet/", "/run/lenet/data.json"]
PATHS += ["/nothing", "/favicon.ico", "/../../etc/passwd"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shown", [
    {}, *({"params": {"token": token}} for token in ("", "wrong", TOKEN[:-1])),
    *({"headers": {"Authorization": words}} for words in ("token wrong", "Basic b3BlbjpzZXNhbWU=")),
    {"headers": {"Cookie": "trt-bisect-00000000=guess"}},
])  # fmt: skip
def test_without_the_right_token_there_is_403_and_nothing_else(client, finished, path, shown):
    for folder in (finished, finished.parent):
        web = client(folder)
        answers = [web.request(method, path, **shown) for method in ("GET", "HEAD", "POST", "OPTIONS")]
        assert {answer.status_code for answer in answers} == {403}
        assert {answer.content for answer in answers} == {b""}
        assert len({tuple(answer.headers.items()) for answer in answers}) == 1
        assert not {"server", "date", "location", "set-cookie", "www-authenticate", "allow"} & set(answers[0].headers)


@pytest.mark.parametrize("path", PATHS)
def test_with_the_right_token_there_is_what_there_is(client, finished, path):
    known = path in ("/", "/rows") or "lenet" in path
    assert client(finished.parent).get(f"{path}{QUERY}").status_code == (200 if known else 404)


def test_the_token_as_a_header_or_a_query_and_then_the_cookie(client, finished):
    web = client(finished)
    assert web.get("/", headers={"Authorization": "token wrong"}).status_code == 403
    with serving(finished, token="plain") as base:
        assert httpx.get(base, headers={"Authorization": "Token plain"}).status_code == 200
    first = web.get("/", params={"token": TOKEN})
    assert first.status_code == 200
    kept = first.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=Strict" in kept
    assert "Secure" not in kept
    assert TOKEN not in kept
    again = web.get("/data.json")
    assert again.status_code == 200
    assert "set-cookie" not in again.headers
    with serving(finished) as other:
        assert httpx.get(f"{other}/data.json", headers={"Cookie": kept.split(";")[0]}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "localhost:x"])
def test_a_foreign_host_name_is_refused_on_loopback(viewer, finished, host):
    assert viewer(finished).get("/", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9", "127.0.0.1:1234", "[::1]:8765", "[::1]"])
def test_loopback_by_any_name_and_port_is_let_in(viewer, finished, host):
    assert viewer(finished).get("/", headers={"Host": host}).status_code == 200


def test_headers_that_keep_it_here(viewer, finished):
    for folder in (finished, finished.parent):
        for path in ("/", "/data.json", "/nothing"):
            headers = viewer(folder).get(path).headers
            assert headers["cache-control"] == "no-store"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_only_reading_is_possible(viewer, finished):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert viewer(finished).request(method, "/").status_code == 405


OUTSIDE = ["/run/..", "/run/../", "/run/%2e%2e/", "/run/%2e%2e%2flenet/", "/run/lenet/../../", "/run//", "/run/lenet"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_way_leads_out_of_the_parent(finished, path):
    with serving(finished.parent) as base:
        place = urlsplit(base)
        connection = http.client.HTTPConnection(place.hostname, place.port)
        connection.request("GET", f"{path}{QUERY}")  # as it stands: other clients tidy the path up
        assert connection.getresponse().status == 404
        connection.close()


def test_links_are_not_followed(viewer, finished, tmp_path):
    (tmp_path / "link").symlink_to(finished)
    shutil.copytree(finished, tmp_path / "real")
    assert [entry.name for entry in Runs(tmp_path).rows()] == ["real"]
    assert viewer(tmp_path).get("/run/link/").status_code == 404
    (tmp_path / "secret").write_text("never told")
    (tmp_path / "real" / "recipe" / "plan.json").unlink()
    (tmp_path / "real" / "recipe" / "plan.json").symlink_to(tmp_path / "secret")
    told = viewer(tmp_path).get("/run/real/data.json").json()["recipe"]
    assert "plan.json" not in told
    assert "README.md" in told


def test_it_writes_nothing_into_the_run_folder(viewer, run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    run.chmod(0o500)
    for folder in (run, run.parent):
        web = viewer(folder)
        for path in PATHS:
            web.get(path)
    run.chmod(0o700)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
