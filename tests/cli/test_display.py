"""``--json`` on every command, ``-q``, ``-v``, ``-h``, ``COLUMNS``, ``NO_COLOR``, ``demo`` and ``python -m``."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import rich.console
from rich.console import Console

from tests.support.editions import edition
from trt_bisect import format_cache, load_network, run
from trt_bisect.cli import app as commands, runs as demo
from trt_bisect.cli.runs import SAMPLE
from trt_bisect.support import progress

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trt_bisect(command, monkeypatch, tmp_path):
    """Runs the command in this process and in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    return command


@pytest.fixture(scope="module")
def run_folder(lenet, tmp_path_factory):
    folder, how = tmp_path_factory.mktemp("done") / "run", {"calibrator": "minmax", "explain": "none"}
    run(lenet / "lenet.onnx", lenet / "calibration.npz", output=folder, engine="onnxruntime", **how)
    return folder


@pytest.mark.subprocess
@pytest.mark.parametrize("encoding", edition(["ascii"], ["latin-1", "ascii", "cp437"]))
def test_a_stdout_that_is_not_utf_8_carries_what_it_can(trt_bisect, run_folder, tmp_path, encoding):
    """The history has block characters; the name of the network is Greek, and JSON keeps it."""
    trt_bisect("history", tmp_path, "--add", run_folder, "--label", "\u03bb")
    code = "import sys; from trt_bisect.cli import main\nfor more in ([], ['--json']):\n"
    code += f"    sys.argv = ['trt-bisect', 'history', {str(tmp_path)!r}, *more]\n"
    code += "    try: main()\n    except SystemExit as end: assert not end.code\n    print('\\f')\n"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    table, document, _ = shown.stdout.decode(encoding).split("\f")
    assert shown.stderr == b""
    assert "100%" in table or "99.9" in table
    assert json.loads(document)[0]["label"] == "\u03bb"


@pytest.fixture(scope="module")
def arguments(lenet, run_folder):
    """A command line for each command, and a key of its JSON document; None where that is a list."""
    folder, network, data = run_folder.parent, lenet / "lenet.onnx", lenet / "calibration.npz"
    ranges = ["--calibration", data, "--calibrator", "minmax"]
    digit, few, outputs, cache = (folder / name for name in ("digit.npz", "few.npz", "outputs.npz", "lenet.cache"))
    with np.load(data) as arrays:
        digits = arrays["data"]
    np.savez(digit, data=digits[:1])
    np.savez(few, data=digits[:3])
    session = onnxruntime.InferenceSession(str(network), providers=["CPUExecutionProvider"])
    np.savez(outputs, prob=session.run(["prob"], {"data": digits[:1]})[0])
    cache.write_text(format_cache(dict.fromkeys(load_network(network).activations, np.float32(0.01))))
    code, suite = folder / "reading.py", folder / "suite.toml"
    code.write_text("def read(nets, sample):\n    return nets['net']({'data': sample['data'][None]})\n")
    suite.write_text(
        f'[[network]]\nname = "lenet"\nmodel = "{network}"\ncalibration = "{data}"\nexplain = "none"\n'
        'calibrator = "minmax"\nrepeats = 1\n'
    )
    quick = ["--explain", "none", "--calibrator", "minmax"]
    return {
        "run": ([network, *ranges, "--explain", "none", "--history", "none"], "culprits"),
        "pipeline": ([f"{code}:read", "--network", f"net={network}", "--input", few, *quick], "networks"),
        "sensitivity": ([network, *ranges], "full"),
        "worst": ([network, "--dataset", data, *ranges], "values"),
        "compare": ([network, *ranges], "tensors"),
        "profile": ([network, *ranges], "tensors"),
        "calibrate": ([network, *ranges], "scales"),
        "check": ([network], "findings"),
        "migrate": ([network, "--cache", cache, "--output", folder / "migrated"], "choices"),
        "verify": ([network, "--input", digit, "--outputs", outputs], "answer"),
        "layers": ([network], None),
        "engines": ([], None),
        "history": ([run_folder], None),
        "clean": ([run_folder], "found"),
        "regress": ([suite], "networks"),  # as ``--config`` in test_ci_samples
    }


OF_ALL = ("run", "pipeline", "sensitivity", "worst", "compare", "profile", "calibrate", "check", "migrate", "verify",
          "layers", "engines", "history", "clean", "regress")  # fmt: skip


def test_every_command_is_here():
    """``view`` prints its address and serves; ``test_package`` reads the document of ``demo``."""
    assert set(OF_ALL) | {"view", "demo"} == set(commands.COMMANDS)


@pytest.mark.parametrize("name", OF_ALL)
def test_one_json_document_and_nothing_else(name, trt_bisect, arguments):
    asked, key = arguments[name]
    code, out, _ = trt_bisect(name, *asked, "--json")
    assert code in (0, 1)
    document = json.loads(out)
    assert isinstance(document, list) if key is None else key in document
    assert document


@pytest.mark.parametrize("name", ["run", "sensitivity", "worst", "compare"])
def test_bad_input_leaves_no_empty_folder_and_takes_no_folder_away(trt_bisect, lenet, tmp_path, name):
    output = tmp_path / "made"
    arguments = [name, lenet / "lenet.onnx", "--calibration", tmp_path / "missing.npz", "-o", output]
    assert trt_bisect(*arguments)[0] == 2
    assert not output.exists()
    output.mkdir()
    assert trt_bisect(*arguments)[0] == 2
    assert output.is_dir()


def test_quiet_prints_the_verdict_alone(trt_bisect, lenet):
    code, out, err = trt_bisect("run", lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz",
                                "--calibrator", "minmax", "--explain", "none", "--history", "none", "-q")  # fmt: skip
    assert code == 1
    assert err == ""
    words = [line.split(":")[0] for line in out.splitlines() if line.split(":")[0].isupper()]
    assert words == ["FAILS", "NEXT", "CULPRIT", "RECIPE", "TASK"]


def test_verbose_names_every_step_with_its_time(trt_bisect, lenet):
    _, _, err = trt_bisect("calibrate", lenet / "lenet.onnx", "--calibration", lenet / "calibration.npz", "-v")
    steps = [line.split(" s ", 1) for line in err.splitlines() if " s " in line]
    assert [text.strip() for _, text in steps] == ["Calibrating", *(f"sample {k}" for k in range(1, 11))]
    assert [float(seconds) for seconds, _ in steps] == sorted(float(seconds) for seconds, _ in steps)


@pytest.mark.parametrize("name", ["layers", "engines", "compare", "history"])
def test_no_table_is_wider_than_columns(name, trt_bisect, arguments, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = trt_bisect(name, *arguments[name][0])
    tables = [line for line in out.splitlines() if "  " in line.strip() or line.startswith(("┃", "│"))]
    assert tables
    assert max(map(len, tables)) <= 60


def test_the_demo_finds_its_culprit_and_says_where_to_look(trt_bisect, lenet, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SAMPLE", lenet)  # test_package.py runs it on the whole sample
    code, out, _ = trt_bisect("demo")
    assert code == 0
    assert json.loads((tmp_path / "trt-bisect-demo/run/report.json").read_text())["culprits"] == ["ip2"]
    named = [word for word in out.split() if word.startswith("trt-bisect-demo/run/")]
    assert named
    assert all((tmp_path / name.rstrip(".,")).exists() for name in named if "/recipe/" in name or name.endswith("html"))
    command = next(line for line in out.splitlines() if line.startswith("$ ")).split()[2:]
    assert trt_bisect(*command, "-q")[0] == 1  # the command that it shows does the same


def test_the_sample_of_the_demo_is_small_and_that_of_the_repository():
    for name in ("lenet_planted.onnx", "calibration.npz", "LICENSE-mnist"):
        assert (SAMPLE / name).read_bytes() == (ROOT / "samples/lenet" / name).read_bytes()
    assert sum(file.stat().st_size for file in SAMPLE.iterdir()) < 2_000_000


@pytest.mark.subprocess
def test_python_m_and_short_help_and_no_color():
    python = [sys.executable, "-m", "trt_bisect"]
    shown = subprocess.run([*python, "-h"], cwd=ROOT, capture_output=True, text=True, check=True,
                           env={"NO_COLOR": "1", "FORCE_COLOR": "1", "PATH": "/usr/bin"})  # fmt: skip
    plain = re.sub(r"\x1b\[[\d;]*m", "", shown.stdout)
    assert "demo" in plain
    assert "--install-completion" in plain
    assert not re.search(r"\x1b\[(\d+;)*3\d", shown.stdout)  # a colour


@pytest.fixture
def clock(monkeypatch):
    """The clock of the displays, at a time that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


def test_the_time_left_in_all_is_a_line_a_stage_and_at_most_one_a_minute(clock, capsys):
    """Without a terminal; half an hour told at the beginning is less each time."""
    shown = progress.RichProgress()
    shown.stage("Calibrating", 3)
    shown.left(1800.0)
    for second in range(1, 300):
        clock[0] = 1000.0 + second
        shown.left(1800.0 - second)
    shown.stage("Measuring", None)
    shown.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Calibrating", "nothing is known yet"
    assert lines[-1] == "Measuring, about 25 min left in all"
    between = [line.strip() for line in lines[1:-1]]
    assert between == [f"about {minutes} min left in all" for minutes in (29, 28, 27, 26)]


def test_a_bar_has_the_time_left_in_all_and_never_an_unknown_one(clock, monkeypatch):
    screen = io.StringIO()
    terminal = {"file": screen, "force_terminal": True, "width": 120}
    monkeypatch.setattr(rich.console, "Console", lambda **_: Console(**terminal))
    shown = progress.RichProgress()
    shown.stage("Searching", None)
    shown.step("a plan")
    shown.left(180.0)
    shown.step("another plan")
    clock[0] += 60.0
    shown.close()
    assert "about 2 min left in all" in screen.getvalue()
    assert "-:--" not in screen.getvalue()


def test_a_time_limit_bounds_the_time_left(clock):
    class Told(progress.Silent):
        def left(self, seconds):
            self.told = seconds

    told = Told()
    limited = progress.TimeLimited(told, 60.0)
    limited.left(600.0)
    assert told.told == 60.0
    clock[0] += 50.0
    limited.left(3.0)
    assert told.told == 3.0
    limited.left(600.0)
    assert told.told == 10.0
    limited.left(None)
    assert told.told is None
