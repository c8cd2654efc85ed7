"""Access control: a request needs the token and a host name of this machine; others get 403 and no content."""

from __future__ import annotations

import secrets

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
    """Passes requests with the right token to an application; other requests get 403 and no content.

    The token comes in ``?token=`` or ``Authorization: token ...``. The answer sets a cookie with another secret, which
    later requests may have instead of the token.
    """

    def __init__(self, app: ASGIApp, token: str, *, names: frozenset[str] = frozenset(), secure: bool = False) -> None:
        """Makes the secret and the name of the cookie.

        Args:
            app: the application to protect.
            token: the right one.
            names: the allowed host names of requests, without ports; any if empty. With a server bound to loopback,
                this blocks pages of other sites whose names resolve to this machine (DNS rebinding).
            secure: the cookie is sent over TLS only.
        """
        self._app = app
        self._token = token.encode()
        self._names = names
        self._secret = secrets.token_urlsafe()
        self._cookie = f"trt-bisect-{secrets.token_hex(4)}"
        self._secure = "; Secure" if secure else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        request = Request(scope)
        known = _equal(request.cookies.get(self._cookie, ""), self._secret.encode())
        if not (known or self._has_token(request)) or not self._has_right_host(request):
            await Response(status_code=403, headers=_HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if not known:
                    kept = f"{self._cookie}={self._secret}; HttpOnly; SameSite=Strict; Path=/{self._secure}"
                    headers.append("set-cookie", kept)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "token":
            given = request.query_params.get("token", "")
        return _equal(given.strip(), self._token)

    def _has_right_host(self, request: Request) -> bool:
        name = request.headers.get("host", "").lower()
        host, colon, port = name.rpartition(":")
        return not self._names or (host if colon and port.isdecimal() else name) in self._names


def _equal(given: str, right: bytes) -> bool:
    """Compares in constant time."""
    return secrets.compare_digest(given.encode(errors="replace"), right)
