"""Makes a matrix of quantizers by networks, and compares what trt-bisect reads with ONNX Runtime on the files.

    python -m benchmarks.quantizers [--only TOOL...] [--home FOLDER] [--json FILE] [--keep FOLDER]

Each tool is installed into an environment of its own under ``--home``. One that cannot be installed, or cannot quantize
a network, is a cell that says so. Exit code 1 where a network is neither equal nor refused.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.peers.run import HERE as PEERS
from benchmarks.peers.run import Skipped, install, run_command
from benchmarks.quantizers.compare import Samples, compare
from benchmarks.quantizers.maker import NETWORKS

HERE = Path(__file__).resolve().parent
REQUIREMENTS = {
    "onnxruntime": PEERS,
    "modelopt": HERE,
    "nncf": PEERS,
    "aimet": PEERS,
    "inc": PEERS,
    "pytorch": HERE,
    "brevitas": HERE,
}
EXPORTER = "pytorch"
KEPT = "silu"
KINDS = (
    ("modelopt", "FP16"),
    ("modelopt", "FP16-opset-21"),
    ("modelopt", "FP16-INT8-weights"),
    ("nncf", "mixed"),
    ("aimet", "default"),
    ("inc", "default"),
    ("pytorch", "pt2e-xnnpack-channel"),
    ("pytorch", "fake-quantizers"),
    ("brevitas", "layers"),
    ("brevitas", "graph"),
)
"""Tool and variant of each kind that is kept; what ONNX Runtime writes, the tests make themselves."""
TIMEOUT = 1800.0

Cells = dict[str, dict[str, Any]]
"""By network: the fields of ``Compared`` and its ``verdict``, or ``not made`` and why."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantizers", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=REQUIREMENTS, default=list(REQUIREMENTS), help="these tools only")
    parser.add_argument("--home", type=Path, default=_cache(), help="for environments and networks (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--keep", type=Path, help="write one small file of each kind there (tests/files/quantized)")
    asked = parser.parse_args()
    networks = (asked.home / "networks").resolve()
    networks.mkdir(parents=True, exist_ok=True)
    run_command(
        [str(install(EXPORTER, asked.home, HERE)), str(HERE / "export.py"), str(networks)], TIMEOUT, "the export"
    )
    with np.load(networks / "samples.npz") as file:
        samples = [{"x": sample[None]} for sample in file["x"]]
    rows: dict[str, Cells] = {}
    for tool in asked.only:
        print(f"{tool} ...", file=sys.stderr, flush=True)
        rows.update(measure(tool, asked.home, networks, samples))
    print(table(rows))
    if asked.keep is not None:
        keep(networks, asked.keep)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(any(cell["verdict"] == "DIFFERENT" for cells in rows.values() for cell in cells.values()))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trt-bisect" / "quantizers"


def measure(tool: str, home: Path, networks: Path, samples: Samples) -> dict[str, Cells]:
    """The rows of one tool: one a variant, or a single one that says why there is none."""
    try:
        python = install(tool, home, REQUIREMENTS[tool])
        run_command([str(python), str(HERE / f"make_{tool}.py"), str(networks)], TIMEOUT, "quantizing")
    except Skipped as why:
        return {tool: {name: {"verdict": "not made", "why": str(why)} for name in NETWORKS}}
    made = json.loads((networks / tool / "made.json").read_text())
    return {
        f"{tool} {variant}": {
            name: cell(networks / f"{name}.onnx", networks / tool / variant / f"{name}.onnx", error, samples)
            for name, error in errors.items()
        }
        for variant, errors in made.items()
    }


def cell(original: Path, quantized: Path, error: str | None, samples: Samples) -> dict[str, Any]:
    """One quantizer on one network."""
    if error is not None:
        return {"verdict": "not made", "why": error}
    found = compare(original, quantized, samples)
    return {"verdict": found.verdict, **asdict(found)}


def keep(networks: Path, folder: Path) -> None:
    """Copies the smallest network of each kind without what exporters note of their sources, and the FP32 one."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {f"{tool}-{variant}": networks / tool / variant / f"{KEPT}.onnx" for tool, variant in KINDS}
    for name, path in {"fp32": networks / f"{KEPT}.onnx", **kept}.items():
        if path.exists():
            model = onnx.load(path)
            graph = model.graph
            noted = (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer)
            for message in (model, graph, *noted):
                message.ClearField("doc_string")
                message.ClearField("metadata_props")
            onnx.save(model, folder / f"{name}.onnx")


def table(rows: dict[str, Cells]) -> str:
    """The matrix in Markdown, the reasons of cells that are not equal below it, and the largest differences."""
    reasons: dict[str, int] = {}
    lines = ["| quantizer | " + " | ".join(NETWORKS) + " |", "| --- |" + " --- |" * len(NETWORKS)]
    for row, cells in rows.items():
        lines.append(f"| {row} | " + " | ".join(_words(cells[name], reasons) for name in NETWORKS) + " |")
    lines += ["", *(f"{number}. {reason}" for reason, number in reasons.items())]
    taken = [cell for cells in rows.values() for cell in cells.values() if "int8" in cell and not cell["refused"]]
    for fp16 in (False, True):
        alike = [cell for cell in taken if cell["fp16"] is fp16 and cell["verdict"] == "equal"]
        if alike:
            int8, floats = (max(cell[key] for cell in alike) for key in ("int8", "fp32"))
            kind = "FP16" if fp16 else "FP32"
            lines += ["", f"{len(alike)} equal, in {kind}: INT8 at most {int8:.1e} off, the float network {floats:.1e}"]
    by_file = sum(cell["truth"] == "file" for cell in taken)
    lines += ["", f"{by_file} of {len(taken)} float networks compared with the file's own, its pairs passed by"]
    return "\n".join(lines)


def _words(cell: dict[str, Any], reasons: dict[str, int]) -> str:
    if cell["verdict"] == "equal":
        return "equal"
    figures = f"INT8 {cell['int8']:.1e}, float {cell['fp32']:.1e}" if "int8" in cell else ""
    why = cell.get("why") or cell.get("refused") or f"{figures}. {cell['noted']}".strip()
    number = reasons.setdefault(why, len(reasons) + 1)
    return f"{cell['verdict']} ({number})"


if __name__ == "__main__":
    main()
