"""Rehearses the way to a GPU machine without one: travel, unpacking and imports, with the time of each.

    python tools/gpu_check/rehearse.py .gpu

``.gpu`` is the folder that ``pack.sh`` left. The calls are those that ``calls.py`` prints. Each one runs as on the
other machine: in a folder with nothing but a copy of the working tree and what it carries, with no variable of this
shell. ``unpack.sh`` unpacks to /tmp/trt, here as there. Every check is started up to the first call of the driver.
Exit code 0: all of it works; 1: something does not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic

from calls import (
    ENVIRONMENT,
    FLAVOURS,
    LIMIT_MIB,
    LONGEST,
    MIB,
    ROOT,
    Call,
    bytes_of,
    calls_of,
    fit,
    tree_bytes,
    tree_files,
)

MODULES = (
    *("numpy", "onnx", "onnxruntime", "onnx_graphsurgeon", "pandas", "polygraphy", "rich", "cyclopts"),
    "trt_bisect",
)
BINDINGS = {"trt86": "tensorrt", "rtx": "tensorrt_rtx_bindings"}
NO_DRIVER = "libcuda.so.1"


def main() -> int:
    """Runs the steps; a step that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(prog="rehearse", description="Rehearses the way to a GPU machine without one.")
    parser.add_argument("pack", type=Path, help="the folder that pack.sh left, such as .gpu")
    parser.add_argument("--flavour", choices=FLAVOURS, default="trt86", help="that pack.sh was asked for")
    asked = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    results = [
        step("parts", lambda: fit(asked.pack, tree_bytes())),
        step("manifest", lambda: manifest(asked.pack)),
    ]
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        for number, call in enumerate(calls_of(asked.pack, asked.flavour, rehearse=True), 1):
            place = Path(folder) / str(number)
            results.append(step(f"call {number}", partial(made, call, asked.pack, place)))
            if Path(ENVIRONMENT).exists() and number == len(list(asked.pack.glob("p[0-9]*"))):
                results += [step(f"import {name}", partial(imports, name)) for name in MODULES]
                results.append(step("import the bindings", lambda: imports(BINDINGS[asked.flavour])))
                results.append(step("import pycuda.driver", lambda: imports("pycuda.driver", NO_DRIVER)))
    return int(not all(results))


def step(name: str, work: Callable[[], str]) -> bool:
    """Runs a step, prints a line with its time and what it said, and returns true if it worked."""
    began = monotonic()
    try:
        said, works = work(), True
    except (OSError, ValueError) as error:
        said, works = str(error), False
    lines = said.strip().splitlines() or [""]
    print(f"{name:26} {'ok' if works else 'FAILS':6} {monotonic() - began:7.1f} s  {lines[0]}", flush=True)
    for line in lines[1:]:
        print(f"    {line}")
    return works


def manifest(pack: Path) -> str:
    """Returns how many parts are as their MANIFEST says; raises ValueError if one is not."""
    wanted = {name: digest for digest, name in map(str.split, (pack / "bin" / "MANIFEST").read_text().splitlines())}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in pack.glob("p[0-9]*/part-*")}
    if wanted != found:
        wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise ValueError(f"not as in MANIFEST: {', '.join(wrong)}")
    return f"{len(found)} parts are whole"


def made(call: Call, pack: Path, place: Path) -> str:
    """Makes a call as the device tool does, and returns its size, its command and what it printed.

    Args:
        call: the call.
        pack: the folder of the parts.
        place: a folder that does not exist yet.

    Raises:
        ValueError: it is too large or too long, it fails, or it leaves no JSON where it should.
    """
    tree, out = place / "tree", place / "out"
    for name in tree_files():
        copy = tree / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy)
    for name in call.carry:
        shutil.copytree(pack.parent / name, tree / name)
    out.mkdir()
    size = bytes_of(tree) / MIB
    about = f"{size:.1f} of {LIMIT_MIB} MiB, {len(call.command)} of {LONGEST} characters"
    if size > LIMIT_MIB or len(call.command) > LONGEST:
        raise ValueError(f"too large: {about}")
    began = monotonic()
    said = shell(call.command, tree, out, call.timeout_s)
    about = f"{about}, {monotonic() - began:.1f} s in the command"
    shutil.rmtree(tree)
    return "\n".join([about, f"$ {call.command}", *said.splitlines(), *map(_record, sorted(out.glob("*.json")))])


def _record(path: Path) -> str:
    checks = json.loads(path.read_text())["checks"]
    return f"$OUT/{path.name}: {len(checks)} checks, {path.stat().st_size} bytes"


def shell(command: str, folder: Path, out: Path, seconds: float = 600.0) -> str:
    """Returns what a command printed, without this shell's variables.

    Raises:
        ValueError: it fails, with its last lines, or takes too long.
    """
    variables = ["env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    run = [*variables, f"OUT={out}", "bash", "-c", command]
    try:
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"not done after {seconds:.0f} s: {command}") from error
    if done.returncode:
        last = (done.stdout + done.stderr).splitlines()[-12:]
        raise ValueError("\n".join([f"exit code {done.returncode}", f"$ {command}", *last]))
    return done.stdout


def imports(name: str, may_lack: str = "") -> str:
    """Returns a module's version and place; without ``may_lack``, which only the other machine has, a sentence."""
    script = f"import sys, {name}; m = sys.modules['{name}']; print(getattr(m, '__version__', ''), m.__file__)"
    command = f'. {ENVIRONMENT} && PYTHONPATH="$PYTHONPATH:{ROOT}" python -W ignore -c "{script}"'
    try:
        return shell(command, ROOT, ROOT).replace(str(ROOT), ".")
    except ValueError as error:
        if may_lack and may_lack in str(error):
            return f"all but {may_lack}, which the GPU machine has"
        raise


if __name__ == "__main__":
    sys.exit(main())
