"""Builds sdist and wheel, checks both with twine, installs the wheel into an empty environment and runs it on a sample.

    python tools/package.py DIST [--linked]

With ``--linked`` nothing is downloaded: the packages that the wheel requires, and only these, are linked from the
environment that runs this file.
"""

from __future__ import annotations

import argparse
import email
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from audit import required_by

ROOT = Path(__file__).parents[1]
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "trt_bisect")


def build(dist: Path) -> Path:
    """Writes sdist and wheel into ``dist``, from a copy without what earlier builds left; returns the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, Path(folder, name))
        call("build", "--no-isolation", "--skip-dependency-check", "--outdir", str(dist), folder)
    call("twine", "check", "--strict", *(str(file) for file in sorted(dist.glob("trt_bisect-*"))))
    return max(dist.glob("*.whl"), key=lambda file: file.stat().st_mtime_ns)


def call(module: str, *arguments: str) -> None:
    """Runs a module of this Python; ends with what it printed where it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{module} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def required_of(wheel: Path) -> set[str]:
    """Returns the installed packages that a wheel requires, and those that these require."""
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(file))
    return required_by(metadata.get_all("Requires-Dist") or ())


def link(packages: set[str], site_packages: Path) -> None:
    """Links the files of installed packages into the ``site-packages`` of another environment."""
    for package in packages:
        for file in importlib.metadata.distribution(package).files or ():
            there, top = Path(file.locate()), site_packages / file.parts[0]
            if file.parts[0] in ("..", "__pycache__") or top.exists():
                continue
            for _ in file.parts[1:]:
                there = there.parent
            top.symlink_to(there)


def clean_environment() -> dict[str, str]:
    """Returns the environment without Python's variables: with a PYTHONPATH pip finds the package installed already."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def install(wheel: Path, folder: Path, linked: bool) -> Path:
    """Makes an environment with the wheel and what it requires; returns its folder of commands."""
    venv.create(folder, with_pip=not linked)
    python = folder / "bin" / "python"
    if not linked:
        subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=clean_environment())
        return python.parent
    (packages_folder,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    pip += ["--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, str(wheel)], check=True, env=clean_environment())
    link(required_of(wheel), packages_folder)
    return python.parent


def try_out(commands: Path, folder: Path) -> None:
    """Runs ``trt-bisect demo``, and then the command that it shows, ``trt-bisect run``, which reads what is measured.

    Raises:
        SystemExit: the exit code, the culprit or a file is not the expected one.
    """
    program, shown = commands / "trt-bisect", folder / "demo"
    demo = _ended([program, "demo", "--json", "--output", shown], folder, 0)
    culprits = json.loads(demo)["culprits"]
    output = shown / "run"
    for name in ("report.html", "report.json"):
        (output / name).unlink()
    run = [program, "run", shown / "lenet_planted.onnx", "--calibration", shown / "calibration.npz"]
    _ended([*run, "--output", output], folder, 1)
    culprits += [row["name"] for row in json.loads((output / "report.json").read_text())["layers"] if row["culprit"]]
    if culprits != ["ip2", "ip2"]:
        sys.exit(f"The culprits are {culprits} instead of 'ip2' twice.")
    missing = [name for name in ("report.html", "recipe/network.qdq.onnx") if not (output / name).is_file()]
    if missing:
        sys.exit(f"The run did not write {', '.join(missing)}.")


def _ended(command: Sequence[object], folder: Path, code: int) -> str:
    """Runs a command; returns what it printed. Ends where its exit code is not ``code``."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"{words[1]} ended with {done.returncode} instead of {code}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Builds, installs and runs; prints the files that were built."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path, help="the folder for sdist and wheel")
    parser.add_argument("--linked", action="store_true", help="download nothing: link the packages of this environment")
    arguments = parser.parse_args()
    wheel = build(arguments.dist.resolve())
    with tempfile.TemporaryDirectory() as folder:
        try_out(install(wheel, Path(folder, "environment"), arguments.linked), Path(folder))
    print("\n".join(str(file) for file in sorted(arguments.dist.iterdir())))


if __name__ == "__main__":
    main()
