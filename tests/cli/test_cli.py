"""The command line as a user meets it: exit codes, messages, files, going on after a stop."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.cli.app import COMMANDS
from trt_bisect.report.parts import LayerRow

QUICK = ("--calibrator", "minmax", "--explain", "none", "--effort", "quick")


def report_in(folder):
    return json.loads((folder / "run/report.json").read_text())


def without_times(report):
    """Returns the parts that two reports of the same run must share: all but times, counts and the folder."""
    apart = ("seconds", "builds", "peak_bytes", "command", "next", "started")
    return {name: value for name, value in report.items() if name not in apart}


def trials_to_go_on_with(journal) -> int:
    """The number of trials in whole lines of a journal that have the fingerprint of its first line."""
    lines = journal.read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith(b"\n")]
    mine = [record for record in records if record["run"] == records[0]["run"]]
    return len({record["trial"]["plan"] for record in mine if "trial" in record})


@pytest.fixture(scope="module")
def planted_run(lenet, tmp_path_factory):
    """The folder of a finished run on the planted LeNet, which is not to be changed."""
    folder = tmp_path_factory.mktemp("planted") / "run"
    trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", output=folder)
    return folder


@pytest.fixture
def again(planted_run, lenet, tmp_path):
    """The command that makes that run, in ``tmp_path / "run"``, where it was finished before."""
    shutil.copytree(planted_run, tmp_path / "run")
    return ["run", lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "run"]


def test_the_planted_lenet_again_measures_nothing_twice(command, again, tmp_path):
    first, journal = report_in(tmp_path), tmp_path / "run/journal.jsonl"
    trials = journal.read_bytes()
    for name in ("report.json", "layers.csv"):
        (tmp_path / "run" / name).unlink()
    code, out, err = command(*again, "--all-layers")
    assert code == 1
    assert f"{trials_to_go_on_with(journal)} trials" in err
    assert journal.read_bytes().count(b"\n") == trials.count(b"\n")
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[0][:3] == ["FAILS:", "full", "INT8"]
    network = tmp_path / "run/recipe/network.qdq.onnx"
    following = next(place for place, line in enumerate(lines) if line[0] == "NEXT:")
    assert lines[following + 1] == ["trtexec", f"--onnx={network}", "--stronglyTyped", "--noTF32"]
    assert lines[lines.index("Culprit Op If put back in INT8 Cause Loss Alone".split()) + 1][0] == "ip2"
    [cause] = json.loads((tmp_path / "run/explanation.json").read_text())["causes"]
    assert " ".join(out.split()).count(cause["words"]) == 1, "the advice has the causes, not the parts above it too"
    report = report_in(tmp_path)
    assert without_times(report) == without_times(first)
    assert report["culprits"] == ["ip2"]
    assert report["similarity"]["int8"] < 0.99 <= report["similarity"]["recipe"]
    assert set(report["seconds"]) == {"calibrate", "build", "infer", "explain", "total"}
    header = (tmp_path / "run/layers.csv").read_text().splitlines()[0]
    assert header == ",".join([*LayerRow.__dataclass_fields__, "verdict"])


def test_layers(command, lenet):
    code, out, _ = command("layers", lenet / "lenet.onnx")
    assert code == 0
    assert "9 layers" in out
    assert "6 of them" in out
    for named in ("'data' float32[1, 1, 28, 28]", "'prob' float32[1, 10]"):
        assert named in out, "data are named after the inputs"
    code, out, _ = command("layers", lenet / "lenet.onnx", "--json")
    assert [row["name"] for row in json.loads(out) if row["quantizable"]] == "conv1 pool1 conv2 pool2 ip1 ip2".split()


def test_what_was_measured_survives_bad_input(command, again, tmp_path):
    before = (tmp_path / "run/journal.jsonl").read_bytes()
    assert command(*again, "--outputs", "nonsense")[0] == 2
    assert (tmp_path / "run/journal.jsonl").read_bytes() == before


def test_another_runs_trials_are_never_taken_and_the_report_says_what_differs(command, again, planted_run, tmp_path):
    first = (tmp_path / "run/journal.jsonl").read_text().splitlines()
    _, _, err = command(*again, "--trtexec", "--builderOptimizationLevel=2", "--explain", "none", "--effort", "quick")
    assert "Going on" not in err
    both = (tmp_path / "run/journal.jsonl").read_text().splitlines()
    assert both[: len(first)] == first
    before, after = ({json.loads(line)["run"] for line in some} for some in (first, both[len(first) :]))
    assert after
    assert not before & after
    plain, forced = (json.loads((folder / "report.json").read_text()) for folder in (planted_run, tmp_path / "run"))
    ordered = json.dumps(plain["made_of"], sort_keys=True)
    assert hashlib.sha256(ordered.encode()).hexdigest() == plain["fingerprint"]
    changed = {part for part, value in plain["made_of"].items() if forced["made_of"][part] != value}
    assert changed == {"optimization_level"}


def test_ctrl_c_where_nothing_is_kept_says_so(command, lenet, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trt_bisect.preparation.given_data.calibrate", stopped)
    arguments = ("--calibration", lenet / "calibration.npz", "--output", tmp_path / "own.cache")
    code, _, err = command("calibrate", lenet / "lenet.onnx", *arguments)
    assert code == 130
    assert "goes on" not in err.splitlines()[-1]
    assert not (tmp_path / "own.cache").exists()


def test_check_names_what_is_wrong(command, lenet, tmp_path):
    code, out, _ = command("check", lenet / "lenet.onnx")
    assert code == 0
    assert "0 errors" in out
    model = networks.chain(depth=2)
    model.graph.node[1].op_type = "Det"
    model.graph.node[1].name = "[red]odd[/red]"
    (tmp_path / "odd.onnx").write_bytes(model.SerializeToString())
    code, out, err = command("check", tmp_path / "odd.onnx", "-o", tmp_path / "out")
    assert code == 1
    assert err == ""
    assert "error: operator refused (1)" in out
    assert "[red]odd[/red]: operator Det" in out
    assert "1 error, 0 warnings, 0 notes" in out
    assert json.loads((tmp_path / "out/check.json").read_text())["findings"][0]["layers"] == ["[red]odd[/red]"]
    assert (tmp_path / "out/check.csv").read_text().count("\n") == 2
    _, out, _ = command("check", tmp_path / "odd.onnx", "--annotations", "github")
    (annotation,) = [line for line in out.splitlines() if line.startswith("::")]
    assert annotation.startswith("::error title=")
    assert "odd.onnx%3A operator refused::'[red]odd[/red]': operator Det" in annotation


def test_worst_prints_and_saves(command, lenet, tmp_path):
    search = ["worst", lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz", "--steps", "20"]
    code, out, _ = command(*search, "--keep", "2", "--dataset", lenet / "digits.npz", "-o", tmp_path / "w")
    assert code == 0
    assert "20 samples" in out
    for title in ("best", "median", "99% reach", "worst", "Sample", "█"):
        assert title in out
    record = json.loads((tmp_path / "w/worst.json").read_text())
    assert record["verdict"][:20] in out
    assert len(record["values"]) == 20
    run = ["run", lenet / "lenet_planted.onnx", "--calibration", lenet / "calibration.npz", "-o", tmp_path / "run"]
    code, _, _ = command(*run, "--input", tmp_path / "w/worst.npz", *QUICK)
    assert code == 1
    assert report_in(tmp_path)["inputs"]["judged"] == 2


def test_names_are_printed_as_they_are(command, tmp_path):
    model = networks.chain(depth=2)
    model.graph.node[0].name = "[red]conv[/red]"
    path = networks.save(model, tmp_path)
    np.savez(tmp_path / "data.npz", **networks.samples(model, 2))
    data = tmp_path / "data.npz"
    _, out, _ = command("run", path, "--calibration", data, "-o", tmp_path / "run", "--all-layers", *QUICK)
    assert "[red]conv[/red]" in out.replace("\n", "")


def printed_by(code):
    """Returns what Python prints for these statements, in a process of their own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_starting_is_quick():
    """``import trt_bisect`` and ``--help`` load neither ONNX Runtime nor pandas; speed itself is a benchmark's."""
    heavy = "('onnxruntime', 'pandas', 'onnx', 'numpy')"
    code = "import sys, trt_bisect; from trt_bisect.cli.app import application; application(); "
    code += f"print([m for m in {heavy} if m in sys.modules])"
    assert printed_by(code).strip() == "[]"


def test_a_command_imports_no_other_module_of_commands():
    code = "import sys; sys.argv = ['trt-bisect', 'engines', '-q']; from trt_bisect.cli import main\ntry: main()\n"
    code += "except SystemExit: print(sorted(m for m in sys.modules if m.startswith('trt_bisect.cli.')))"
    loaded = {module.rpartition(".")[2] for module in ast.literal_eval(printed_by(code).splitlines()[-1])}
    assert loaded & {*COMMANDS.values()} == {"network"}
