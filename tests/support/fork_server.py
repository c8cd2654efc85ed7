"""Commands in processes of their own, forked from one that has imported everything: a start costs a fiftieth.

``serve`` runs in a fresh interpreter, makes no session of ONNX Runtime, forks the processes that it is asked for, and
tells their exit status. The workers of pytest-xdist share it.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from tests.support.waiting import LIMIT, wait_until

_ROOT = Path(__file__).parents[2]
_SIZE = 1 << 24
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""A process with threads cannot be forked."""
_COMMAND = "from trt_bisect.cli import main; main()"
_PRELOADED = ("benchmarks.reliability.__main__", "tests.support.fake_builders")
_CLIENT = """#!{python} -IS
import json, os, socket, sys
there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
there.connect({address!r})
asked = dict(code={code!r}, arguments=sys.argv[1:], folder=os.getcwd(), environment=dict(os.environ))
socket.send_fds(there, [json.dumps(asked).encode()], [0, 1, 2])
there.recv(64)
sys.exit(int(there.recv(64)))
"""


def serve(address: str, owner: int) -> None:
    """Forks a process for each request, until the process ``owner`` ends."""
    from benchmarks.reliability.forked import import_everything
    from tests.support.one_thread import use_one_thread
    from trt_bisect.builder import parser
    from trt_bisect.calibration.histogram import AbsHistogram, mse_thresholds

    import_everything()
    use_one_thread()  # this and the next line as in tests/conftest.py
    os.fsync, parser.PARSERS = (lambda file: None), ()
    for name in _PRELOADED:
        importlib.import_module(name)
    mse_thresholds([AbsHistogram()])  # makes its table
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{address}.new")
    listener.listen(64)
    Path(f"{address}.new").rename(address)  # it is there when it listens
    running: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    watched = os.pidfd_open(owner)
    while True:
        ready, _, _ = select.select([watched, listener, *running], [], [])
        if watched in ready:
            shutil.rmtree(Path(address).parent)
            return
        for ended in running.keys() & set(ready):
            pid, asking = running.pop(ended)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with asking, suppress(OSError):  # nobody may wait for it any more
                asking.send(str(status).encode())
            os.close(ended)
        if listener in ready:
            asking, _ = listener.accept()
            message, files, _, _ = socket.recv_fds(asking, 1 << 20, 3)
            pid = os.fork()
            if pid == 0:
                listener.close()
                asking.close()
                _become(json.loads(message), files)
            running[os.pidfd_open(pid)] = (pid, asking)
            asking.send(str(pid).encode())
            for file in files:
                os.close(file)


def _become(asked: dict, files: list[int]) -> NoReturn:
    """Runs ``python -c CODE ARGUMENTS`` in this process."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="backslashreplace")  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    tempfile.tempdir = None
    sys.argv = ["-c", *asked["arguments"]]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    code = 1
    try:
        exec(compile(asked["code"], "<string>", "exec"), vars(main))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)  # C++ would wait for threads of the server


class ForkedProcess:
    """A process that the server has started, much as ``subprocess.Popen``; it leads a session of its own."""

    def __init__(self, address: str, code: str, arguments: tuple, folder: Path | None, environment: dict | None):
        self._there = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._there.connect(address)
        self._printed = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        asked = {"code": code, "arguments": [str(one) for one in arguments], "folder": str(folder or Path.cwd())}
        asked["environment"] = dict(os.environ if environment is None else environment)
        with Path(os.devnull).open() as nothing:
            files = [nothing.fileno(), *(file.fileno() for file in self._printed)]
            socket.send_fds(self._there, [json.dumps(asked).encode()], files)
        self.pid = int(self._there.recv(64))
        self.returncode: int | None = None

    def poll(self, seconds: float | None = 0.0) -> int | None:
        if self.returncode is None:
            self._there.settimeout(seconds)
            with suppress(BlockingIOError, TimeoutError):
                self.returncode = int(self._there.recv(64))
        return self.returncode

    def wait(self) -> int:
        """Returns the exit status, negative for a signal."""
        code = self.poll(LIMIT)
        assert code is not None, "it never ended"
        return code

    def printed(self) -> tuple[str, str]:
        """Returns the output so far."""
        out, err = (os.pread(file.fileno(), _SIZE, 0).decode() for file in self._printed)  # its own place stays
        return out, err

    def communicate(self) -> tuple[str, str]:
        """Waits for the end and returns the output."""
        self.wait()
        return self.printed()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends the process, and all that it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """The server in a folder, which whoever needs it first starts, and the processes that were started by it.

    It ends with the process ``owner``.
    """

    def __init__(self, folder: Path, owner: int) -> None:
        folder.mkdir(exist_ok=True)
        self.address = str(folder / "socket")
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not Path(self.address).exists():
                self._begin(owner)

    def _begin(self, owner: int) -> None:
        code = f"from tests.support.fork_server import serve; serve({self.address!r}, {owner})"
        path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, **_ONE_THREAD, "PYTHONPATH": path}
        nowhere = subprocess.DEVNULL
        server = subprocess.Popen([sys.executable, "-c", code], stdin=nowhere, stdout=nowhere, env=environment)
        wait_until(lambda: Path(self.address).exists() or server.poll() is not None)
        assert server.poll() is None

    def start(
        self, *arguments: object, code: str = _COMMAND, folder: Path | None = None, environment: dict | None = None
    ) -> ForkedProcess:
        """Starts ``trt-bisect`` with arguments, or ``python -c`` with other code."""
        return ForkedProcess(self.address, code, arguments, folder, environment)

    def run(self, *arguments: object, **options: object) -> subprocess.CompletedProcess:
        """Runs a command to its end, as ``subprocess.run`` with captured text."""
        process = self.start(*arguments, **options)
        out, err = process.communicate()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def write_command(self, path: Path) -> None:
        """Writes an executable that is ``trt-bisect`` for shells."""
        path.write_text(_CLIENT.format(python=sys.executable, address=self.address, code=_COMMAND))
        path.chmod(0o755)
