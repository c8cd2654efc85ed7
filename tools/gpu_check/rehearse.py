"""Rehearses the way to a GPU machine without one: what travels, what unpacks, what imports, and how long each takes.

    python tools/gpu_check/rehearse.py .gpu

``.gpu`` is the folder that ``pack.sh`` left. Its parts are checked against the limit and their MANIFEST, and unpacked
by its own ``unpack.sh``, in this machine's /tmp as on the other one. Then every module is imported in the environment
that it wrote, and ``tools/gpu_check --rehearse`` starts every check up to the first call of the driver. Exit code 0:
all of it works; 1: something does not.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
LIMIT_MIB = 64
"""What one call may carry: the working tree and the folders named with it."""
ENVIRONMENT = "/tmp/trt/env"
MODULES = ("numpy", "onnx", "onnxruntime", "onnx_graphsurgeon", "pandas", "polygraphy", "rich", "typer", "trt_bisect")
ENGINES = {"trt86": ("tensorrt", "tensorrt"), "rtx": ("tensorrt_rtx_bindings", "tensorrt-rtx")}
NO_DRIVER = "libcuda.so.1"


def main() -> int:
    """Runs the steps; a step that fails does not keep the others from running."""
    parser = argparse.ArgumentParser(prog="rehearse", description="Rehearses the way to a GPU machine without one.")
    parser.add_argument("pack", type=Path, help="the folder that pack.sh left, such as .gpu")
    parser.add_argument("--flavour", choices=ENGINES, default="trt86", help="that pack.sh was asked for")
    parser.add_argument("--seconds", type=float, default=900.0, help="for the checks together")
    asked = parser.parse_args()
    module, engine = ENGINES[asked.flavour]
    checks = f"python tools/gpu_check --rehearse --engine {engine} --seconds {asked.seconds:g}"
    steps: list[tuple[str, Callable[[], str]]] = [
        ("sizes", lambda: sizes(asked.pack, tree_bytes())),
        ("manifest", lambda: manifest(asked.pack)),
        ("unpack", lambda: shell(f"bash {asked.pack}/bin/unpack.sh")),
        *((f"import {name}", lambda name=name: imports(name)) for name in (*MODULES, module)),
        ("import pycuda.driver", lambda: imports("pycuda.driver", NO_DRIVER)),
        ("checks", lambda: in_environment(checks)),
    ]
    results = [step(name, work) for name, work in steps]
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


def sizes(pack: Path, tree: int) -> str:
    """Returns how large each call is that carries one part; raises ValueError if one is over the limit.

    Args:
        pack: the folder of the parts.
        tree: the bytes of the working tree, which travels with each.
    """
    parts = sorted(pack.glob("p[0-9]*"))
    if not parts:
        raise ValueError(f"{pack} holds no parts: run pack.sh")
    with_each = tree + bytes_of(pack / "bin")
    calls = {part.name: (with_each + bytes_of(part)) / MIB for part in parts}
    largest = max(calls.values())
    said = f"{len(parts)} calls, the largest {largest:.1f} of {LIMIT_MIB} MiB; the tree is {tree / MIB:.1f} MiB"
    if largest > LIMIT_MIB:
        room = int(LIMIT_MIB - with_each / MIB)
        advice = f"pack in parts of at most {room} MiB" if room > 0 else "the tree alone is too large"
        too_large = ", ".join(name for name, size in calls.items() if size > LIMIT_MIB)
        raise ValueError(f"{said}: too large: {too_large}; {advice}")
    return said


def bytes_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def tree_bytes() -> int:
    """Returns the bytes of the working tree: tracked files, and others that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return sum((ROOT / name).stat().st_size for name in names if name and (ROOT / name).is_file())


def manifest(pack: Path) -> str:
    """Returns how many parts are as their MANIFEST says; raises ValueError if one is not."""
    wanted = dict(reversed(line.split()) for line in (pack / "MANIFEST").read_text().splitlines())
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in pack.glob("p[0-9]*/part-*")}
    if wanted != found:
        wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise ValueError(f"not as in MANIFEST: {', '.join(wrong)}")
    return f"{len(found)} parts are whole"


def shell(command: str) -> str:
    """Returns what a command printed; raises ValueError with its last lines if it fails."""
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError("\n".join([f"exit code {done.returncode}", *(done.stdout + done.stderr).splitlines()[-12:]]))
    return done.stdout


def in_environment(command: str) -> str:
    """Returns what a command printed in the environment that unpack.sh wrote."""
    return shell(f". {ENVIRONMENT} && {command}")


def imports(name: str, may_lack: str = "") -> str:
    """Returns a module's version; that it lacks ``may_lack``, which only the other machine has, is no failure."""
    try:
        script = f"import sys, {name}; print(getattr(sys.modules['{name}'], '__version__', ''))"
        return in_environment(f'PYTHONPATH={ROOT}:$PYTHONPATH python -W ignore -c "{script}"')
    except ValueError as error:
        if may_lack and may_lack in str(error):
            return f"all but {may_lack}, which the GPU machine has"
        raise


if __name__ == "__main__":
    sys.exit(main())
