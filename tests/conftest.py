from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from playwright.sync_api import Browser
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

    from tests.support.browser import Tab, Tabs
    from tests.support.fork_server import ForkServer

os.environ.pop("COLUMNS", None)  # pytest-xdist sets it
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # many processes are started: each would compile the package anew
os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})  # before NumPy is imported

import numpy as np

from tests.support.editions import edition
from tests.support.one_thread import use_one_thread
from trt_bisect.builder import parser
from trt_bisect.support import machine, memory

use_one_thread()  # threads that spin beside other tests cost minutes
installed_parsers, parser.PARSERS = parser.PARSERS, ()  # a second for each run; ``own_parser`` asks it
sys.dont_write_bytecode = False
os.fsync = lambda file: None  # a test cannot cut the power; the disk costs as long as the arithmetic
gc.set_threshold(50_000, 20, 50)
if hasattr(ctypes.CDLL(None), "mallopt"):  # to give memory back and take it anew costs a tenth of a run
    for option, value in ((-1, 1 << 30), (-2, 16 << 20), (-3, 32 << 20), (-8, 1)):  # trim, pad, mmap, arenas
        ctypes.CDLL(None).mallopt(option, value)
    memory.ctypes = SimpleNamespace(CDLL=lambda _: None)  # processes of their own, whose peaks are measured, do trim
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background starts with Ctrl-C ignored
settings.register_profile("untimed", deadline=None, max_examples=edition(25, 100))
settings.load_profile("untimed")

_MARKED_BY = {"ray_nodes": "ray", "browser": "browser"}
"""Fixtures, and the mark of each test that uses them."""
_TOGETHER = re.compile(
    "(?P<ray>tests/cluster/)"
    r"|(?P<browser>tests/(?:report/test_(?:front_page|page_|tables?_)|view/test_view_browser|project/test_site))"
)
"""Files of which one worker takes all: those that share a Ray cluster, and a Chromium with the scripts it compiled."""


@pytest.fixture
def random() -> np.random.Generator:
    """A generator that gives each test the same numbers, in whatever order the tests run."""
    return np.random.default_rng(3)


@pytest.fixture
def own_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this test ask TensorRT's own parser; skipped where none is installed."""
    pytest.importorskip("tensorrt_rtx_bindings")
    monkeypatch.setattr(parser, "PARSERS", installed_parsers)


def pytest_xdist_auto_num_workers() -> int:
    """The workers of ``-n auto``: one more than there are processors, as the tests with Ray mostly wait."""
    return machine.cores() + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Gives a worker whole files, so that what a module shares is made once, and one worker all of ``_TOGETHER``.

    The marks of ``--dist loadgroup`` would do: but pytest-xdist 3.8 puts them into ``Item._nodeid``, which pytest 9.2
    no longer reads, so that they have no effect.
    """
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            found = _TOGETHER.match(nodeid)
            return str(found.lastgroup) if found else super()._split_scope(nodeid)

    return Together(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks tests by their fixtures. On several workers the modules with the longest kinds begin first."""
    for item in items:
        for fixture, mark in _MARKED_BY.items():
            if fixture in item.fixturenames:
                item.add_marker(mark)
    if hasattr(config, "workerinput"):
        first: dict[Path, int] = {}
        for item in items:
            first[item.path] = min(_rank(item), first.get(item.path, _rank(item)))
        items.sort(key=lambda item: first[item.path])  # whole modules: else their fixtures would be made twice


def pytest_collection_finish() -> None:
    """Spares the garbage collector the modules and the collected tests, which stay to the end."""
    gc.freeze()


def _rank(item: pytest.Item) -> int:
    """The place of a test's kind in the order of a run on several workers."""
    kinds = ("ray", "browser", "slow", "subprocess")
    return next((place for place, kind in enumerate(kinds) if item.get_closest_marker(kind)), len(kinds))


SAMPLES = Path(__file__).parent.parent / "samples"


@pytest.fixture(scope="session")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``samples/lenet`` with a twentieth of its calibration data and a quarter of its digits, which name the same.

    ``unsure.npz`` has the ten digits of the calibration data of which LeNet is least sure: with them a high threshold
    takes several layers.
    """
    from tests.support.recorded import shared

    def make(folder: Path) -> None:
        (folder / "lenet").mkdir()
        folder /= "lenet"
        for path in (SAMPLES / "lenet").iterdir():
            if path.suffix not in (".npz", ".npy"):
                (folder / path.name).symlink_to(path)
        for name, step in (("calibration", 20), ("digits", 4)):
            with np.load(SAMPLES / "lenet" / f"{name}.npz") as data:
                np.savez(folder / f"{name}.npz", **{each: data[each][::step] for each in data.files})
        with np.load(SAMPLES / "lenet" / "calibration.npz") as data:
            np.savez(folder / "unsure.npz", data=data["data"][[43, 46, 92, 132, 142, 143, 150, 159, 185, 186]])
        np.save(folder / "labels.npy", np.load(SAMPLES / "lenet" / "labels.npy")[::4])

    return shared(tmp_path_factory, "samples", make) / "lenet"


@pytest.fixture(scope="session")
def ocr() -> Path:
    return SAMPLES / "ocr"


@pytest.fixture(scope="session")
def recorded(lenet: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Returns the folder of one of ``tests.support.recorded.RUNS`` by its name; not to be changed."""
    from tests.support.recorded import recorded

    return partial(recorded, tmp_path_factory, lenet)


@pytest.fixture(scope="session")
def finished(recorded: Callable[[str], Path]) -> Path:
    """The folder of the run ``lenet``, in a parent with nothing else but its history; not to be changed."""
    return recorded("lenet") / "runs/lenet"


@pytest.fixture(scope="session")
def forks(request: pytest.FixtureRequest) -> ForkServer:
    """Starts ``trt-bisect`` in processes of their own, without the seconds that importing takes."""
    from tests.support.fork_server import ForkServer

    worker = getattr(request.config, "workerinput", None)
    run, owner = (worker["testrunuid"], os.getppid()) if worker else (uuid4().hex, os.getpid())
    return ForkServer(Path(f"/tmp/forks-{run}"), owner)  # the path of a socket must be short


@pytest.fixture(scope="session")
def chromium_of_session() -> Iterator[tuple[Browser, AbstractEventLoop]]:
    """A running Chromium, and Playwright's event loop. A test uses ``browser``."""
    from tests.support.browser import FRUGAL, REQUIRED, chromium, find_chromium

    if find_chromium() is None:
        reason = "there is no Chromium here; tools/get_browser.sh installs Debian's"
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with chromium(*FRUGAL) as running:
        yield running, asyncio.get_running_loop()


@pytest.fixture(scope="module")
def browser(chromium_of_session: tuple[Browser, AbstractEventLoop]) -> Iterator[Browser]:
    """A running Chromium.

    Playwright marks its event loop as running between calls too. Other modules may need a loop of their own, so the
    mark is taken away after each module with a browser.
    """
    running, loop = chromium_of_session
    asyncio._set_running_loop(loop)
    yield running
    asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def tabs() -> Tabs:
    """Pages of Chromium for all modules. In a page the scripts of our pages are compiled once."""
    from tests.support.browser import Tabs

    return Tabs()


HASTENED = """if (!window.hastened) {
  const wait = window.setTimeout;
  window.hastened = true;
  window.setTimeout = (work, delay, ...more) => wait(work, delay < 1000 ? delay : delay / 20, ...more);
}"""
"""Timers of seconds, after which a page asks its server again, take a twentieth of the time."""


@pytest.fixture(scope="module")
def web(browser: Browser, tabs: Tabs) -> Iterator[Tab]:
    """A page of Chromium in which tests open the addresses of their servers; it takes any certificate."""
    tab = tabs.named(browser, "addresses")
    tab.watched.page.add_init_script(HASTENED)
    yield tab
    tab.leave()


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs ``trt-bisect`` in this process: exit code, stdout, stderr."""
    from trt_bisect.cli import main

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["trt-bisect", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call
