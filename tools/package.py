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
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCES = ("LICENSE", "README.md", "pyproject.toml", "trt_bisect")
SAMPLE = ROOT / "samples" / "lenet"


def build(dist: Path) -> Path:
    """Writes sdist and wheel into ``dist``, from a copy without what earlier builds left; returns the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(folder, name))
        call("build", "--no-isolation", "--outdir", str(dist), folder)
    call("twine", "check", "--strict", *(str(file) for file in sorted(dist.glob("trt_bisect-*"))))
    return max(dist.glob("*.whl"), key=lambda file: file.stat().st_mtime_ns)


def call(module: str, *arguments: str) -> None:
    """Runs a module of this Python; ends with what it printed where it fails."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{module} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def required(package: str, found: set[str]) -> set[str]:
    """Adds the installed packages that ``package`` requires without extras, and those that these require."""
    for text in importlib.metadata.requires(package) or ():
        requirement = Requirement(text)
        name = requirement.name.lower()
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            required(name, found)
    return found


def required_of(wheel: Path) -> set[str]:
    """Returns the installed packages that a wheel requires, and those that these require."""
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(file))
    found: set[str] = set()
    for text in metadata.get_all("Requires-Dist") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.add(requirement.name.lower())
            required(requirement.name, found)
    return found


def link(packages: set[str], place: Path) -> None:
    """Links the files of installed packages into the ``site-packages`` of another environment."""
    for package in packages:
        for file in importlib.metadata.distribution(package).files or ():
            there, top = Path(file.locate()), place / file.parts[0]
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
    (place,) = folder.glob("lib/python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, env=clean_environment())
    link(required_of(wheel), place)
    return python.parent


def try_out(commands: Path, folder: Path) -> None:
    """Runs ``trt-bisect run`` on the LeNet with a culprit, and ``trt-bisect demo``.

    Raises:
        SystemExit: the exit code, the culprit or a file is not the expected one.
    """
    output = folder / "run"
    command: list[str | Path] = [commands / "trt-bisect", "run", SAMPLE / "lenet_planted.onnx"]
    command += ["--calibration", SAMPLE / "calibration.npz", "--output", output]
    clean = clean_environment()
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if done.returncode != 1:
        sys.exit(f"trt-bisect run ended with {done.returncode} instead of 1:\n{done.stdout}{done.stderr}")
    culprits = [row["name"] for row in json.loads((output / "report.json").read_text())["layers"] if row["culprit"]]
    if culprits != ["ip2"]:
        sys.exit(f"The culprits are {culprits} instead of ['ip2'].")
    demo: list[str | Path] = [commands / "trt-bisect", "demo", "--json", "--output", folder / "demo"]
    shown = subprocess.run(demo, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if shown.returncode != 0 or json.loads(shown.stdout)["culprits"] != ["ip2"]:
        sys.exit(f"trt-bisect demo ended with {shown.returncode}:\n{shown.stdout}{shown.stderr}")
    missing = [name for name in ("report.html", "recipe/network.qdq.onnx") if not (output / name).is_file()]
    if missing:
        sys.exit(f"The run did not write {', '.join(missing)}.")


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
