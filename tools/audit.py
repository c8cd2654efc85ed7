"""Checks the licences of all packages that trt-bisect brings along, and the known weaknesses of its development tools.

python tools/audit.py licences [docs/licences.md]   offline; exit code 1 where a licence is not among those allowed
python tools/audit.py weaknesses                    asks PyPI by pip-audit; exit code 1 where one is known, 2 where
                                                    nothing could be asked, as without internet
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).parent.parent / "requirements-dev.lock"
BUNDLED = Path(__file__).parent.parent / "trt_bisect" / "report" / "assets" / "LICENSES.txt"
EXTRAS = ("cluster", "coco", "history", "notebook", "rtx", "tensorboard", "tensorrt", "view")
ALLOWED = ("0BSD", "Apache", "BSD", "CC0", "ISC", "MIT", "MPL", "Mozilla Public License", "PSF", "Zlib", "Unlicense")
"""Licences that oblige those who use trt-bisect to nothing but to keep the notices."""
NVIDIA = ("tensorrt", "nvidia", "cuda")
"""Beginnings of the names of packages under NVIDIA's own licence; they come with the extras that are named for it."""


def required_by(texts: Iterable[str], extras: tuple[str, ...] = ()) -> set[str]:
    """Returns the installed packages that requirements name, those of ``extras`` too, and what these require."""
    packages: set[str] = set()
    waiting = [(text, extras) for text in texts]
    while waiting:
        text, chosen = waiting.pop()
        requirement = Requirement(text)
        name, marker = plain_name(requirement.name), requirement.marker
        if name in packages or (marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *chosen))):
            continue
        with suppress(PackageNotFoundError):
            waiting += [(inner, tuple(requirement.extras)) for inner in distribution(name).requires or ()]
            packages.add(name)
    return packages


def brought_along() -> set[str]:
    """Returns the packages that trt-bisect with its extras requires, and what these require, if installed here."""
    return required_by(distribution("trt-bisect").requires or (), EXTRAS)


def plain_name(name: str) -> str:
    """A package's name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licences(packages: set[str]) -> list[dict[str, str]]:
    """``Name``, ``Version`` and ``License`` of each package, as pip-licenses tells them."""
    options = ["--from=mixed", "--with-system", "--format=json", "--packages", *sorted(packages)]
    done = subprocess.run([sys.executable, "-m", "piplicenses", *options], check=True, capture_output=True)
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows


def is_allowed(row: dict[str, str]) -> bool:
    """Returns True if every licence in the text is allowed; of ``A OR B`` one is enough."""
    if plain_name(row["Name"]).startswith(NVIDIA):
        return True
    parts = re.split(r"\s+AND\s+|;", row["License"])
    return all(any(beginning in choice for choice in part.split(" OR ") for beginning in ALLOWED) for part in parts)


def bundled() -> list[tuple[str, str]]:
    """Name and licence of each script that the page bundles, from the titles of its notices."""
    return re.findall(r"^(\S+) [\d.]+ \(([\w.-]+)\)$", BUNDLED.read_text(encoding="utf-8"), re.MULTILINE)


PAGE = """# Licences

trt-bisect itself is under Apache-2.0 (`LICENSE`). The licences of the samples stand beside them
(`samples/README.md`).

## Bundled with the package

The scripts of `report.html`. The full notices are in `trt_bisect/report/assets/LICENSES.txt`, in the
wheel and in every page.

| script | licence |
| --- | --- |
{scripts}

## Required packages

What `pip install .` with all its extras brings along, and under which licence, as the packages say
themselves. `make audit` writes this; a test fails where `tools/audit.py` does not allow one of them.

| package | licence |
| --- | --- |
{packages}
"""


def as_markdown(rows: list[dict[str, str]]) -> str:
    """The list for ``docs``; without versions, which the lock has."""
    scripts = "\n".join(f"| {name} | {licence} |" for name, licence in bundled())
    return PAGE.format(scripts=scripts, packages="\n".join(f"| {row['Name']} | {row['License']} |" for row in rows))


def check_licences(file: Path | None) -> int:
    """Prints the licences, writes them to ``file`` where one is given; 1 where one is not allowed."""
    rows = licences(brought_along())
    print(as_markdown(rows))
    if file is not None:
        file.write_text(as_markdown(rows))
    refused = [f"{row['Name']}: {row['License']}" for row in rows if not is_allowed(row)]
    for text in refused:
        print(f"not allowed: {text}", file=sys.stderr)
    return 1 if refused else 0


def check_weaknesses() -> int:
    """Asks PyPI for the known weaknesses of what the lock pins."""
    options = ["--requirement", str(LOCK), "--no-deps", "--disable-pip", "--format=json", "--progress-spinner=off"]
    done = subprocess.run([sys.executable, "-m", "pip_audit", *options], capture_output=True, text=True)
    try:
        answered = [row for row in json.loads(done.stdout)["dependencies"] if "vulns" in row]
    except ValueError:
        answered = []
    if not answered:
        print("audit: nothing could be looked up; pip-audit needs the internet.", file=sys.stderr)
        return 2
    weak = [(row, flaw) for row in answered for flaw in row["vulns"]]
    print(f"{len(answered)} packages looked up, {len(weak)} weaknesses known")
    for row, flaw in weak:
        print(f"{row['name']} {row['version']}: {flaw['id']}, mended in {flaw['fix_versions']}", file=sys.stderr)
    return 1 if weak else 0


if __name__ == "__main__":
    what, *more = sys.argv[1:] or ["licences"]
    sys.exit(check_weaknesses() if what == "weaknesses" else check_licences(Path(more[0]) if more else None))
