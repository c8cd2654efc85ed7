"""Prints the calls that bring a pack to a GPU machine and run every check there, ready to paste one after the other.

    python tools/gpu_check/calls.py .gpu --flavour trt86

``.gpu`` is the folder that ``pack.sh`` left. Parts that are too large to travel with the working tree are split anew.
One line of JSON is one call of the device tool: what is carried, the command, the limit in seconds. Each call runs in
a fresh copy of the tree; ``unpack.sh`` keeps the parts in /tmp there. Every stage of checks writes its JSON to
``$OUT``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
LIMIT_MIB = 64
"""MiB that one call may carry: the working tree and the folders named with it."""
LONGEST = 2000
"""Characters of a command."""
ENVIRONMENT = "/tmp/trt/env"
UNPACKED = ("/tmp/trt", "/tmp/gpu-parts")
"""The folders of unpack.sh, which keeps the first pack that it unpacked."""
FLAVOURS = {"trt86": "tensorrt", "rtx": "tensorrt-rtx"}
STAGES: dict[str, tuple[str, ...]] = {
    "first": ("start", "build", "int8", "planted", "lenet"),
    "second": ("fp32", "clamp", "residual", "depthwise", "branch", "calibrator", "qdq", "fused"),
    "third": ("memory", "isolation", "full-gpu", "timing-cache", "noise", "ocr"),
}
"""The checks of each stage. The first one tells if the engine starts on this GPU, if every plan of LeNet is built and
run, in what its layers ran, and if the planted culprit is named."""
SECONDS = 460
"""For the checks of a stage: three stages and the transfers must fit into the 30 minutes of a session."""


@dataclass(frozen=True)
class Call:
    """One call of the device tool.

    Attributes:
        carry: ignored folders that travel with the tree.
        command: a bash command line, run in the root of the tree.
        timeout_s: the seconds that it may take.
    """

    carry: tuple[str, ...]
    command: str
    timeout_s: int = 500


def calls_of(pack: Path, flavour: str, *, rehearse: bool = False) -> list[Call]:
    """Returns the calls, first to last: a part each, then the stages; the first stage runs with the last part.

    The first call removes what another pack left.

    Args:
        pack: the folder of the parts, in the root of the tree.
        flavour: of the pack.
        rehearse: the checks end at the first call of the driver.
    """
    name, parts = pack.name, sorted(path.name for path in pack.glob("p[0-9]*"))
    stages = [_stage(stage, FLAVOURS[flavour], rehearse) for stage in STAGES]
    unpack = f"bash {name}/bin/unpack.sh"
    commands = [*[unpack] * (len(parts) - 1), f"{unpack} && {stages[0]}", *stages[1:]]
    commands[0] = f"rm -rf {' '.join(UNPACKED)} && {commands[0]}"
    carried = [*((f"{name}/bin", f"{name}/{part}") for part in parts), *[()] * (len(stages) - 1)]
    return [Call(carry, command) for carry, command in zip(carried, commands, strict=True)]


def _stage(stage: str, engine: str, rehearse: bool) -> str:
    only = " ".join(f"--only {check}" for check in STAGES[stage])
    more = " --rehearse" if rehearse else ""
    command = f'python tools/gpu_check --engine {engine} --seconds {SECONDS} --json "$OUT/{stage}.json" {only}{more}'
    return f'. {ENVIRONMENT} && set -o pipefail && {command} 2>&1 | tee "$OUT/{stage}.log"'


def tree_bytes() -> int:
    """Returns the bytes of the working tree: tracked files, and others that git does not ignore."""
    return sum((ROOT / name).stat().st_size for name in tree_files())


def tree_files() -> list[str]:
    """Returns the files of the working tree that travel."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name and (ROOT / name).is_file()]


def bytes_of(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def fit(pack: Path, tree: int) -> str:
    """Splits the parts of a pack anew if one of them is too large to travel with the tree; returns what was done.

    Args:
        pack: the folder of the parts.
        tree: the bytes of the working tree.

    Raises:
        ValueError: there are no parts, or the tree leaves no room.
    """
    parts = sorted(pack.glob("p[0-9]*/part-*"))
    if not parts:
        raise ValueError(f"{pack} holds no parts: run pack.sh")
    room = LIMIT_MIB - 1 - -(-(tree + bytes_of(pack / "bin")) // MIB)
    if room < 1:
        raise ValueError(f"the tree alone is too large: {tree / MIB:.1f} of {LIMIT_MIB} MiB")
    largest = max(part.stat().st_size for part in parts)
    if largest <= room * MIB:
        return f"{len(parts)} parts, the largest {largest / MIB:.1f} MiB"
    count = _split(pack, parts, room * MIB)
    return f"{len(parts)} parts of up to {largest / MIB:.1f} MiB were split anew: {count} of up to {room} MiB"


def _split(pack: Path, parts: list[Path], size: int) -> int:
    """Replaces the parts by parts of ``size`` bytes, with a MANIFEST of theirs; returns their number."""
    whole = pack / "whole"
    with whole.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
            part.unlink()
            part.parent.rmdir()
    lines: list[str] = []
    with whole.open("rb") as file:
        while piece := file.read(size):
            number = f"{len(lines):02d}"
            folder = pack / f"p{number}"
            folder.mkdir()
            (folder / f"part-{number}").write_bytes(piece)
            lines.append(f"{hashlib.sha256(piece).hexdigest()}  part-{number}\n")
    whole.unlink()
    for manifest in (pack / "MANIFEST", pack / "bin" / "MANIFEST"):
        manifest.write_text("".join(lines))
    return len(lines)


def main() -> int:
    """Prints the calls."""
    parser = argparse.ArgumentParser(
        prog="calls", description="Prints the calls that run every check on a GPU machine."
    )
    parser.add_argument("pack", type=Path, help="the folder that pack.sh left, such as .gpu")
    parser.add_argument("--flavour", choices=FLAVOURS, default="trt86", help="that pack.sh was asked for")
    asked = parser.parse_args()
    try:
        print(fit(asked.pack, tree_bytes()), file=sys.stderr)
    except ValueError as error:
        print(f"calls: {error}", file=sys.stderr)
        return 2
    for call in calls_of(asked.pack, asked.flavour):
        print(json.dumps(asdict(call)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
