"""Shared by the quantizers' scripts, which run in environments of their own, with NumPy and the standard library.

``python make_TOOL.py FOLDER`` reads ``FOLDER/NETWORK.onnx`` and ``FOLDER/samples.npz``, and writes
``FOLDER/TOOL/VARIANT/NETWORK.onnx`` and ``FOLDER/TOOL/made.json``: for each variant and network the error, or null.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

NETWORKS = ("convolutions", "residual", "depthwise", "silu", "transformer", "lstm", "detector")

Make = Callable[[Path, Path, list[dict[str, np.ndarray]]], None]
"""Quantizes one network: the FP32 file, the file to write, the samples."""


def make_all(tool: str, variants: Mapping[str, Make]) -> None:
    """Makes every variant of every network; one that fails is noted and costs no other."""
    folder = Path(sys.argv[1]).resolve()
    with np.load(folder / "samples.npz") as file:
        samples = [{"x": sample[None]} for sample in file["x"]]
    made: dict[str, dict[str, str | None]] = {}
    for variant, make in variants.items():
        (folder / tool / variant).mkdir(parents=True, exist_ok=True)
        made[variant] = {}
        for network in NETWORKS:
            out = folder / tool / variant / f"{network}.onnx"
            out.unlink(missing_ok=True)
            try:
                make(folder / f"{network}.onnx", out, samples)
                made[variant][network] = None if out.exists() else "it wrote no file"
            except Exception as error:
                traceback.print_exc()
                made[variant][network] = _reason(error)
    (folder / tool / "made.json").write_text(json.dumps(made, indent=1))


def _reason(error: Exception) -> str:
    """An error's first sentence, without colours."""
    text = re.sub("\x1b\\[[0-9;]*m", "", f"{type(error).__name__}: {error}")
    return text.splitlines()[0].split(". ")[0][:200]
