"""A real server on a real socket, for tests."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from trt_bisect.view.server import Certificate, listen, make_server

TOKEN = "open sesame; ü"
QUERY = "?token=open%20sesame%3B%20%C3%BC"


@contextlib.contextmanager
def serving(folder: Path, certificate: Certificate | None = None, token: str = TOKEN) -> Iterator[str]:
    """Serves a folder on a free port; the address without path and token."""
    with listen("127.0.0.1", 0) as bound:
        server = make_server(folder, bound, token, certificate)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
