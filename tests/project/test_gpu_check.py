"""``tools/gpu_check``: how a check ends, what is recorded, and the calls that carry it to a GPU."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import bench
import calls
import measures
import numpy as np
import plan_checks
import pytest
import rehearse

from tests.support.editions import edition
from tests.support.gpu_tool import TOOL, failed
from trt_bisect.builder.gpu import find_gpu
from trt_bisect.errors import EngineUnavailable


def has_gpu():
    try:
        return bool(find_gpu())
    except EngineUnavailable:
        return False


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.skipif(has_gpu(), reason="there is a GPU")
def test_without_a_gpu_it_runs_what_needs_none(tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings")
    expected = {"build": "passed", "planted": "needs a GPU", "qdq": "not here"}
    expected |= edition({}, {"start": "passed", "noise": "passed"})
    path = tmp_path / "gpu_check.json"
    options = [option for name in expected for option in ("--only", name)]
    done = subprocess.run(
        [sys.executable, str(TOOL), "--json", str(path), "--engine", "tensorrt-rtx", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(path.read_text())
    assert record["complete"] is True
    assert record["machine"]["gpu"] == ""
    outcomes = {check["name"]: check["outcome"] for check in record["checks"]}
    assert outcomes == expected
    (engines,) = (check["figures"]["engines"] for check in record["checks"] if check["name"] == "build")
    assert [engine["k"] for engine in engines] == [-1, 0, 1, 2, 3, 5, 7]
    assert done.stdout.splitlines()[0].split()[:3] == ["tensorrt-rtx", next(iter(outcomes)), "passed"]


def test_an_engine_that_is_not_installed_is_no_failure(gpu_check, monkeypatch):
    def not_installed(engine):
        raise EngineUnavailable("tensorrt is not installed.", "pip install tensorrt")

    monkeypatch.setattr(gpu_check, "import_tensorrt", not_installed)
    made = gpu_check._run_apart(gpu_check.BY_NAME["start"], "tensorrt", has_gpu=True, left=100)
    assert made["outcome"] == "not here"
    assert "not installed" in made["message"]


SCRIPTS = {
    "crashed": "import os, signal; print('before', flush=True); os.kill(os.getpid(), signal.SIGSEGV)",
    "timed out": "import time; print('before', flush=True); time.sleep(60)",
    "passed": "print('before')",
}


@pytest.mark.parametrize("outcome", SCRIPTS)
def test_however_a_check_ends_its_words_and_records_are_kept(gpu_check, monkeypatch, tmp_path, outcome):
    script = tmp_path / "check.py"
    script.write_text(
        "import pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--folder') + 1])\n"
        """(folder / "results.json").write_text('{"expectations": [], "figures": {"seen": 1}}')\n""" + SCRIPTS[outcome]
    )
    monkeypatch.setattr(gpu_check, "__file__", str(script))
    seconds = 4.0 if outcome == "timed out" else 60.0
    check = bench.Check("start", "", lambda bench: None, seconds, needs_gpu=False)
    monkeypatch.setattr(gpu_check, "_why_not", lambda engine: "")
    monkeypatch.setattr(gpu_check, "choose_typing", lambda engine: "weak")
    made = gpu_check._run_apart(check, "tensorrt", has_gpu=True, left=100)
    assert made["outcome"] == outcome
    assert "before" in made["message"]
    assert made["figures"] == {"seen": 1}


def test_an_expectation_that_does_not_hold_fails_the_check(gpu_check, monkeypatch, tmp_path):
    recorded = {"expectations": [{"what": "near", "holds": False, "said": "0.5"}], "figures": {}}
    monkeypatch.setattr(gpu_check, "_why_not", lambda engine: "")
    monkeypatch.setattr(gpu_check, "choose_typing", lambda engine: "weak")
    monkeypatch.setattr(gpu_check, "_ended", lambda *_: ("passed", ""))
    monkeypatch.setattr(gpu_check, "_recorded", lambda folder: recorded)
    made = gpu_check._run_apart(gpu_check.BY_NAME["start"], "tensorrt", has_gpu=True, left=100)
    assert made["outcome"] == "failed"
    assert "not: near (0.5)" in gpu_check._line(made)


def test_checks_for_which_no_time_is_left_are_told(gpu_check, monkeypatch):
    monkeypatch.setattr(gpu_check, "_why_not", lambda engine: "")
    monkeypatch.setattr(gpu_check, "choose_typing", lambda engine: "weak")
    made = gpu_check._run_apart(gpu_check.BY_NAME["ocr"], "tensorrt", has_gpu=True, left=0.2)
    assert made["outcome"] == "no time left"


def test_records_are_json_whatever_they_hold():
    odd = {"nan": float("nan"), 3: (np.float32(0.5), np.arange(2)), "path": Path("x"), "none": None}
    assert bench.plain(odd) == {"nan": "nan", "3": [0.5, [0, 1]], "path": "x", "none": None}


def test_distances():
    one, other = {"y": np.array([3.0, 4.0])}, {"y": np.array([4.0, 3.0])}
    assert measures.cosine(one, other) == pytest.approx(0.96)
    assert measures.relative_difference(one, other) == pytest.approx(2**0.5 / 5)


@pytest.mark.parametrize("name", ["planted", "depthwise", *edition((), ("lenet", "residual"))])
def test_side_by_side_with_itself_nothing_differs(make_bench, monkeypatch, name):
    """The emulation stands in for the engine: every expectation holds, every distance is 0."""
    run = plan_checks._run
    calls = []

    def run_apart(made, subject, engine):
        calls.append(engine)
        return run(made, subject, engine)

    made = make_bench("onnxruntime")
    monkeypatch.setattr(plan_checks, "_run", run_apart)
    getattr(plan_checks, name)(made)
    assert failed(made) == []
    assert calls == ["onnxruntime", "onnxruntime"]
    fidelity = made.figures["fidelity"]
    assert fidelity["plans"] > 5
    assert all(value == 0 for key, value in fidelity.items() if key != "plans")
    assert json.loads(made.results.read_text())["figures"].keys() == made.figures.keys()
    assert all(trial["told of"] > 5 for trial in made.figures["trials"])


def test_branch_names_the_planted_culprit(make_bench):
    made = make_bench()
    plan_checks.branch(made)
    assert failed(made) == []
    assert made.figures["culprits"] == ["block2.conv2"]


def test_the_distance_of_emulation_and_engine():
    def trial(cosine, sqnr):
        return {"outputs": {"y": {"values": {"cosine": cosine, "sqnr": sqnr}}}}

    emulated = {"a": trial(0.99, 20.0), "b": trial(0.9, 10.0), "c": trial(1.0, 140.0), "d": {"outputs": {}}}
    measured = {"a": trial(0.989, 19.5), "b": trial(0.92, 11.0), "c": trial(1.0, 120.0), "e": trial(0.5, 1.0)}
    fidelity = plan_checks._fidelity(emulated, measured)
    assert fidelity["plans"] == 3
    assert fidelity["largest difference in cosine"] == pytest.approx(0.02)
    assert fidelity["median difference in cosine"] == pytest.approx(0.001)
    assert fidelity["largest difference of 1 - cosine, as a ratio"] == pytest.approx(0.2)
    assert fidelity["median difference of 1 - cosine, as a ratio"] == pytest.approx(0.15)
    assert fidelity["largest difference in SQNR, dB"] == pytest.approx(1.0)


@pytest.fixture
def pack(tmp_path):
    """A folder as pack.sh leaves it, of two parts."""
    folder = tmp_path / ".gpu"
    lines = []
    for number, content in enumerate((b"one" * 1000, b"two" * 2000)):
        part = folder / f"p{number:02}" / f"part-{number:02}"
        part.parent.mkdir(parents=True)
        part.write_bytes(content)
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {part.name}")
    (folder / "bin").mkdir()
    (folder / "bin" / "zstd").write_bytes(b"z" * 500)
    for manifest in (folder / "MANIFEST", folder / "bin" / "MANIFEST"):
        manifest.write_text("\n".join(lines) + "\n")
    return folder


def test_parts_that_are_too_large_for_a_call_are_split_anew(pack):
    """The tree takes 61.5 of 64 MiB: with the MiB that is kept free, parts of one MiB are left."""
    assert calls.fit(pack, 1 << 20) == "2 parts, the largest 0.0 MiB"
    large = np.random.default_rng(0).integers(0, 256, (5 << 20) // 2, np.uint8).tobytes()
    (pack / "p01" / "part-01").write_bytes(large)
    said = calls.fit(pack, int(61.5 * calls.MIB))
    assert re.findall(r"[\d.]+", said) == ["2", "2.5", "3", "1"]
    parts = sorted(pack.glob("p*/part-*"))
    assert [f"{part.parent.name}/{part.name}" for part in parts] == [f"p0{n}/part-0{n}" for n in range(3)]
    assert b"".join(part.read_bytes() for part in parts) == b"one" * 1000 + large
    assert rehearse.manifest(pack).startswith("3 parts")
    assert (pack / "MANIFEST").read_text() == (pack / "bin" / "MANIFEST").read_text()
    with pytest.raises(ValueError, match="tree alone"):
        calls.fit(pack, 64 << 20)
    with pytest.raises(ValueError, match="no parts"):
        calls.fit(pack / "bin", 0)
    assert calls.tree_bytes() > 1 << 20


@pytest.mark.parametrize("flavour", ["trt86", "rtx"])
def test_the_calls_carry_every_part_once_and_run_every_check_once(pack, gpu_check, flavour):
    made = calls.calls_of(pack, flavour)
    assert [call.carry for call in made] == [(".gpu/bin", ".gpu/p00"), (".gpu/bin", ".gpu/p01"), (), ()]
    assert made[0].command == "rm -rf /tmp/trt /tmp/gpu-parts && bash .gpu/bin/unpack.sh"
    assert made[1].command.startswith("bash .gpu/bin/unpack.sh && . /tmp/trt/env && ")
    asked = [word for call in made for flag, word in itertools.pairwise(call.command.split()) if flag == "--only"]
    assert sorted(asked) == sorted(gpu_check.BY_NAME)
    assert {"start", "build", "planted", "lenet"} <= set(calls.STAGES["first"])
    for call, stage in zip(made[1:], calls.STAGES, strict=True):
        assert f'--json "$OUT/{stage}.json"' in call.command
        assert f"--engine {calls.FLAVOURS[flavour]} " in call.command
    assert all(len(call.command) < 2000 and call.timeout_s <= 600 for call in made)
    assert sum(gpu_check.BY_NAME[check].seconds for check in calls.STAGES["first"]) < calls.SECONDS < 600


def test_a_call_is_rehearsed_in_a_bare_folder(pack, tmp_path, monkeypatch):
    """It has the tree and what it carries, ``$OUT``, and nothing of this shell."""
    monkeypatch.setenv("LEAKED", "yes")
    command = 'echo "[$LEAKED]"; ls -a; ls .gpu; [ ! -e .git ] && echo \'{"checks": [1, 2]}\' > "$OUT/first.json"'
    said = rehearse.made(calls.Call((".gpu/bin",), command), pack, tmp_path / "place").splitlines()
    assert "[]" in said
    assert {"pyproject.toml", "tools", ".gpu", "bin"} <= set(said)
    assert "p00" not in said
    assert said[-1].startswith("$OUT/first.json: 2 checks")
    with pytest.raises(ValueError, match="exit code 3"):
        rehearse.made(calls.Call((), "echo wrong; exit 3"), pack, tmp_path / "failing")
    with pytest.raises(ValueError, match="2100 of 2000 characters"):
        rehearse.made(calls.Call((), "#" * 2100), pack, tmp_path / "long")


def test_the_rehearsal_notices_a_part_that_is_not_whole(pack):
    assert rehearse.manifest(pack).startswith("2 parts")
    (pack / "p01" / "part-01").write_bytes(b"cut")
    with pytest.raises(ValueError, match="part-01"):
        rehearse.manifest(pack)


def test_the_rehearsal_imports_in_the_environment_that_was_unpacked(tmp_path, monkeypatch):
    environment = tmp_path / "env"
    environment.write_text(f'python() {{ {sys.executable} "$@"; }}\n')
    monkeypatch.setattr(rehearse, "ENVIRONMENT", str(environment))
    assert rehearse.imports("numpy").split() == [np.__version__, np.__file__.replace(str(rehearse.ROOT), ".")]
    with pytest.raises(ValueError, match="no_such_module"):
        rehearse.imports("no_such_module")
    assert "no_such_module" in rehearse.imports("no_such_module", may_lack="no_such_module")


def test_a_step_that_fails_is_told_and_the_next_one_runs(capsys):
    def fails():
        raise ValueError("what went wrong\nmore")

    assert not rehearse.step("first", fails)
    assert rehearse.step("second", lambda: "fine")
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed if not line.startswith(" ")] == [["first", "FAILS"], ["second", "ok"]]
    assert printed[1].strip() == "more"


@pytest.mark.parametrize(("rehearsing", "outcome"), [(True, 77), (False, 1)])
def test_a_check_that_comes_to_the_driver_is_told_apart(gpu_check, tmp_path, rehearsing, outcome, capsys):
    def run(_bench):
        raise EngineUnavailable("No NVIDIA GPU answers: libcuda.so.1: no such file", "Get one.")

    check = bench.Check("start", "", run, 60)
    assert gpu_check._run_here(check, tmp_path, "tensorrt", rehearse=rehearsing) == outcome


def test_a_check_that_breaks_before_the_driver_has_crashed(gpu_check, tmp_path, capsys):
    def run(_bench):
        raise EngineUnavailable("PyCUDA, which runs TensorRT's engines, does not import.", "Install it.")

    assert gpu_check._run_here(bench.Check("start", "", run, 60), tmp_path, "tensorrt", rehearse=True) == 1
