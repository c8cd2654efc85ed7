"""Runs everything that only a GPU can prove, and writes one JSON and one table.

    python tools/gpu_check --json gpu_check.json
    python tools/gpu_check --merge first.json second.json --json gpu_check.json

It needs this checkout, a Python with the project's dependencies, and TensorRT or TensorRT-RTX; PyCUDA and a GPU for
most of it. Each check has a process and a time limit of its own. The JSON is written anew after every check. With
``--rehearse`` every check is started without a GPU too, and must come to the first call that needs the driver. Exit
code 0: nothing failed, though checks may have needed a GPU that is not here; 1: something did; 2: no engine is
installed.
"""

from __future__ import annotations

import itertools
import json as to_json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT), str(ROOT / "tests")]
os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # every check is a process and would load every kernel

import basic_checks  # noqa: E402
import fault_checks  # noqa: E402
import plan_checks  # noqa: E402
import subjects  # noqa: E402
import time_checks  # noqa: E402
from bench import (  # noqa: E402
    CRASHED,
    FAILED,
    NEEDS_GPU,
    NO_TIME,
    NOT_HERE,
    PASSED,
    REACHED,
    TIMED_OUT,
    Check,
    Experiment,
    write_json,
)

from benchmarks.measure import command_line  # noqa: E402
from trt_bisect._version import __version__, versions  # noqa: E402
from trt_bisect.builder.engines import typing_of  # noqa: E402
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT, import_tensorrt  # noqa: E402
from trt_bisect.errors import EngineUnavailable  # noqa: E402
from trt_bisect.support.machine import find_gpu  # noqa: E402

CHECKS = (
    Check("start", "the engine starts on this GPU", basic_checks.start, 60, needs_gpu=False),
    Check("build", "every plan of LeNet becomes an engine", basic_checks.build, 90, needs_gpu=False),
    Check("fp32", "FP32 is ONNX Runtime's, TF32 is off", basic_checks.fp32, 60),
    Check("int8", "full INT8 of LeNet, and what each layer computes in", basic_checks.int8, 60),
    Check("clamp", "INT8 activations round to even and end at -128 and 127", basic_checks.clamp, 60),
    Check("denormal", "scales that are denormal in FP16, on an FP16 base", basic_checks.denormal, 60),
    Check("planted", "the planted LeNet: table, culprit, what ran, fidelity, latency", plan_checks.planted, 90),
    Check("residual", "the same of a ResNet-like network", plan_checks.residual, 150),
    Check("depthwise", "the same of a MobileNet-like network", plan_checks.depthwise, 150),
    Check("half", "the same of the ResNet-like network on an FP16 base", plan_checks.half, 150),
    Check("lenet", "the same of LeNet", plan_checks.lenet, 90),
    Check("calibrator", "TensorRT's calibrator and a calibration cache", plan_checks.calibrator, 60, typings=("weak",)),
    Check("migrated", "an engine of a cache, and its migrated network", plan_checks.migrated, 60, typings=("weak",)),
    Check("qdq", "explicit Q/DQ with the INT8 flag", basic_checks.explicit_qdq, 60, typings=("weak",)),
    Check("fused", "engine layers are mapped to network layers", basic_checks.fused, 60),
    Check("shown", "the tensors of fused engines beside the emulation", basic_checks.shown, 60),
    Check("timing-cache", "the second build against the first", basic_checks.timing_cache, 90),
    Check("noise", "the floor under agreement: float noise in the emulation", basic_checks.noise, 60, needs_gpu=False),
    Check("memory", "GPU memory after 60 builds", fault_checks.memory, 150),
    Check("isolation", "a crash, a hang, no memory cost one trial", fault_checks.isolation, 150, needs_gpu=False),
    Check("full-gpu", "no GPU memory left for a build", fault_checks.full_gpu, 60),
    Check("ocr", "a published network: few engines decide", plan_checks.ocr, 240),
    Check("times", "each engine layer's time, of the networks in GPU_CHECK_NETWORKS", time_checks.times, 400),
)
_BEST_FIRST = (PASSED, FAILED, CRASHED, TIMED_OUT, REACHED, NEEDS_GPU, NOT_HERE, NO_TIME)
_REACHED = 77
"""The exit code of a check that came to a call of the driver, where there is none."""
_NO_DRIVER = "No NVIDIA GPU answers"
BY_NAME = {check.name: check for check in CHECKS}


def main(
    *,
    json: Path | None = None,
    engine: tuple[Literal["tensorrt", "tensorrt-rtx"], ...] = (),
    only: tuple[str, ...] = (),
    seconds: float = 780.0,
    merge: tuple[Path, ...] = (),
    slow: float = 1.0,
    rehearse: bool = False,
    check: str = "",
    folder: Path | None = None,
) -> int:
    """Runs the checks asked for.

    Args:
        json: The file of the JSON.
        engine: May be repeated; all by default.
        only: A check; may be repeated.
        seconds: For all checks together.
        merge: Records of checks that ran side by side, into --json.
        slow: Times the limit of each check, on a busy machine.
        rehearse: Without a GPU, start every check, up to the first call of the driver.
        check: For this tool itself: the check to run in this process.
        folder: For this tool itself: its files.
    """
    if unknown := {*only} - {*BY_NAME}:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}.")
    if check and folder:
        return _run_here(BY_NAME[check], folder, engine[0], rehearse=rehearse)
    if merge and json:
        write_json(json, merged(merge))
        return 0
    engines = engine or [name for name in (TENSORRT, RTX) if not _why_not(name)]
    if not engines:
        print("gpu_check: neither tensorrt nor tensorrt-rtx is installed.", file=sys.stderr)
        return 2
    gpu = _gpu()
    record: dict[str, Any] = {
        "schema": 1,
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "typing": subjects.TYPING,
        "machine": {
            "gpu": gpu,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "versions": {"trt-bisect": __version__, **versions()},
        },
        "checks": [],
    }
    ends = monotonic() + seconds
    for name, each in itertools.product(engines, [BY_NAME[name] for name in only] or CHECKS):
        left = ends - monotonic()
        made = _run_apart(each, name, has_gpu=bool(gpu), left=left, slow=slow, rehearse=rehearse)
        record["checks"].append(made)
        print(_line(made), flush=True)
        if json:
            write_json(json, record)
    record["complete"] = True
    if json:
        write_json(json, record)
    return int(any(made["outcome"] in (FAILED, CRASHED, TIMED_OUT) for made in record["checks"]))


def merged(paths: Sequence[Path]) -> dict[str, Any]:
    """Returns the first record with the checks of all records, each as it ended best, in the order of ``CHECKS``."""
    records = [to_json.loads(path.read_text()) for path in paths]
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for made in (made for record in records for made in record["checks"]):
        key = made["engine"], made["name"]
        if key not in best or _BEST_FIRST.index(made["outcome"]) < _BEST_FIRST.index(best[key]["outcome"]):
            best[key] = {**made, "message": _relative(made.get("message", ""))}
    in_order = sorted(best, key=lambda key: (key[0], list(BY_NAME).index(key[1])))
    return {**records[0], "checks": [best[key] for key in in_order]}


def _relative(message: str) -> str:
    """A message with the paths of this checkout relative to it."""
    return message.replace(f"{ROOT}/", "")


def _gpu() -> str:
    try:
        return str(find_gpu())
    except EngineUnavailable:
        return ""


def _why_not(engine: str) -> str:
    try:
        import_tensorrt(engine)
    except EngineUnavailable as error:
        return str(error)
    return ""


def _run_apart(
    check: Check, engine: str, *, has_gpu: bool, left: float, slow: float = 1.0, rehearse: bool = False
) -> dict[str, Any]:
    """Runs a check in a process of its own and returns its record, however it ends."""
    made: dict[str, Any] = {"engine": engine, "name": check.name, "what": check.what, "seconds": 0.0}
    why_not = _why_not(engine)
    if why_not:
        return {**made, "outcome": NOT_HERE, "message": why_not}
    if typing_of(engine, subjects.TYPING) not in check.typings:
        return {**made, "outcome": NOT_HERE, "message": f"only with {' or '.join(check.typings)} typing"}
    if not has_gpu and not rehearse and (check.needs_gpu or engine == TENSORRT):
        return {**made, "outcome": NEEDS_GPU, "message": ""}
    limit = min(check.seconds * slow, left)
    if limit < 1:
        return {**made, "outcome": NO_TIME, "message": ""}
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        outcome, message = _ended(check, engine, folder, limit, *(["--rehearse"] if rehearse else []))
        recorded = _recorded(Path(folder))
    if outcome == PASSED and not all(expectation["holds"] for expectation in recorded["expectations"]):
        outcome = FAILED
    return {**made, "seconds": round(monotonic() - began, 2), "outcome": outcome, "message": message, **recorded}


def _ended(check: Check, engine: str, folder: str, limit: float, *more: str) -> tuple[str, str]:
    command = [sys.executable, __file__, "--check", check.name, "--engine", engine, "--folder", folder, *more]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        message = _relative("\n".join(output.read().decode(errors="replace").splitlines()[-25:]))
    if code is None:
        return TIMED_OUT, f"after {limit:.0f} s\n{message}".strip()
    if code == _REACHED:
        return REACHED, message
    return (PASSED, message) if code == 0 else (CRASHED, f"exit code {code}\n{message}".strip())


def _recorded(folder: Path) -> dict[str, Any]:
    path = folder / "results.json"
    return to_json.loads(path.read_text()) if path.is_file() else {"expectations": [], "figures": {}}


def _run_here(check: Check, folder: Path, engine: str, *, rehearse: bool = False) -> int:
    work = folder / "work"
    work.mkdir()
    try:
        check.run(Experiment(engine, work, folder / "results.json", gpu=bool(_gpu())))
    except EngineUnavailable as error:
        traceback.print_exc()
        return _REACHED if rehearse and _NO_DRIVER in str(error) else 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _line(made: Mapping[str, Any]) -> str:
    line = f"{made['engine']:12} {made['name']:13} {made['outcome']:12} {made['seconds']:6.1f} s  {made['what']}"
    wrong = [e for e in made.get("expectations", ()) if not e["holds"]]
    details = [f"not: {expectation['what']} ({expectation['said']})" for expectation in wrong]
    if made["outcome"] in (CRASHED, TIMED_OUT, NOT_HERE):
        details.append(made["message"])
    return "\n".join([line, *("    " + "\n    ".join(detail.splitlines()) for detail in details)])


if __name__ == "__main__":
    sys.exit(command_line(__doc__, main))
