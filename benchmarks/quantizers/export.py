"""Writes the FP32 networks as ONNX files, and the samples: ``python export.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from nets import NETWORKS, network, samples


def main() -> None:
    folder = Path(sys.argv[1])
    data = samples()
    np.savez(folder / "samples.npz", x=data)
    for name in NETWORKS:
        torch.onnx.export(
            network(name),
            (torch.from_numpy(data[:1]),),
            str(folder / f"{name}.onnx"),
            input_names=["x"],
            output_names=["y"],
            opset_version=18,
            dynamo=True,
            external_data=False,
        )


if __name__ == "__main__":
    main()
