"""A server of the standard library on a free port, for tests that answer a page's requests themselves."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def answering(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answers requests on a free port with a handler; gives the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
