"""Who is let in: those who have the token, by a name that belongs to this machine. All others are told nothing."""

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
    """Lets requests with the right token through to an application; the others get 403 and nothing else.

    The token is taken from ``?token=`` or ``Authorization: token ...``. After a page was opened with it, a cookie with
    another secret does as well.
    """

    def __init__(self, app: ASGIApp, token: str, *, names: frozenset[str] = frozenset(), secure: bool = False) -> None:
        """Gets ready.

        Args:
            app: what is guarded.
            token: the right one.
            names: the host names that a request may be for, without ports; any if empty. Where the server is bound to
                loopback, this keeps out pages of other sites whose names were made to point here (DNS rebinding).
            secure: the cookie is for TLS alone.
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
        shown = self._shows_token(request)
        if not (known or shown) or not self._is_for_us(request):
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

    def _shows_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "token":
            given = request.query_params.get("token", "")
        return _equal(given.strip(), self._token)

    def _is_for_us(self, request: Request) -> bool:
        name = request.headers.get("host", "").lower()
        host, colon, port = name.rpartition(":")
        return not self._names or (host if colon and port.isdecimal() else name) in self._names


def _equal(given: str, right: bytes) -> bool:
    """Compared in a time that does not tell how much of it is right."""
    return secrets.compare_digest(given.encode(errors="replace"), right)
