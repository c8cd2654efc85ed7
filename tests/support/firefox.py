"""Firefox without a window, driven by Marionette: the protocol of Mozilla's own tests, JSON over a socket.

Each message is ``length:json``. A command is ``[0, id, name, parameters]``, its answer ``[1, id, error, result]``:
https://firefox-source-docs.mozilla.org/testing/marionette/Protocol.html
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import LIMIT, wait_until


def find_firefox() -> str | None:
    """Returns the path of a Firefox on this machine; None if there is none."""
    return next((path for name in ("firefox-esr", "firefox") if (path := shutil.which(name))), None)


class Firefox:
    """A session with a running Firefox."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self._stream = self._socket.makefile("rb")
        self._number = 0
        self._read()
        self.call("WebDriver:NewSession", {"capabilities": {"alwaysMatch": {"acceptInsecureCerts": False}}})

    def call(self, name: str, parameters: dict[str, Any]) -> Any:
        """Returns the result of a command; raises RuntimeError with Firefox's message if it fails."""
        self._number += 1
        text = json.dumps([0, self._number, name, parameters]).encode()
        self._socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self._read()
        if error:
            raise RuntimeError(f"{name}: {error['message']}")
        return result.get("value") if isinstance(result, dict) else result

    def open(self, page: Path, *, width: int, height: int) -> None:
        """Opens a file in a window of this size, and waits until its graph is drawn."""
        self.call("WebDriver:SetWindowRect", {"width": width, "height": height})
        self.call("WebDriver:Navigate", {"url": page.resolve().as_uri()})
        wait_until(lambda: self.run("return performance.getEntriesByName('graph').length > 0"))

    def run(self, script: str) -> Any:
        """Runs a script in the page and returns its result; waits for a promise."""
        return self.call("WebDriver:ExecuteScript", {"script": script, "args": [], "sandbox": None})

    def close(self) -> None:
        """Ends the session."""
        self._stream.close()
        self._socket.close()

    def _read(self) -> Any:
        length = b""
        while not length.endswith(b":"):
            length += self._stream.read(1) or _closed()
        return json.loads(self._stream.read(int(length[:-1])))


def _closed() -> bytes:
    raise RuntimeError("Firefox closed the connection")


@contextmanager
def firefox() -> Iterator[Firefox]:
    """Runs Firefox with a profile of its own."""
    with tempfile.TemporaryDirectory() as profile:
        (Path(profile) / "user.js").write_text(
            'user_pref("marionette.port", 0);\nuser_pref("datareporting.policy.dataSubmissionEnabled", false);\n'
        )
        command = [str(find_firefox()), "--headless", "--marionette", "--no-remote", "--profile", profile]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                told = Path(profile) / "MarionetteActivePort"
                wait_until(lambda: told.exists() and told.read_text().strip().isdigit())
                session = Firefox(int(told.read_text()))
                yield session
                session.close()
            finally:
                process.terminate()
