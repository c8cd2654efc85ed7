"""Makes ``samples/transformer``: a small encoder with one loud channel, as trained transformers have, and its data.

    python tools/make_transformer.py --output samples/transformer

The weights are drawn, not trained. The loud channel is planted after the second norm of block 1: LayerNorm makes one
channel a thousand times larger, and the next layer takes it back. In FP32 nothing changes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.networks import encoder, plant, samples

MAKER, CULPRIT = "block1.norm2", "block1.up"
SAMPLES = 64


def main() -> None:
    """Writes ``encoder.onnx`` and ``calibration.npz``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder to write")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    model = encoder(blocks=2, width=48, heads=2, tokens=16)
    plant(model, MAKER, CULPRIT)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(folder / "encoder.onnx"))
    np.savez_compressed(folder / "calibration.npz", x=samples(model, SAMPLES).astype(np.float16))


if __name__ == "__main__":
    main()
