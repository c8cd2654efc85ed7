"""Writes the networks of ``timed.csv`` as ONNX files: ``python make_timed.py FOLDER [PART OF A NAME...]``.

It runs in an environment of its own, with torch, torchvision, timm, ultralytics, rfdetr and fastervit. Weights are
random: an engine's time does not depend on them. ``FOLDER/NETWORK-SHAPE.onnx`` is left as it is if it is there.
"""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path
from typing import Any

OPSET = 17
_TIMM = {
    "vit_l14_clip": "vit_large_patch14_clip_224",
    "levit_256": "levit_256",
    "levit_384": "levit_384",
    "seresnet50": "seresnet50",
}
"""By name in ``timed.csv``, that in timm."""


def main(folder: Path, parts: list[str]) -> None:
    with (Path(__file__).parent / "timed.csv").open(newline="", encoding="utf-8") as file:
        wanted = dict.fromkeys((row["network"], row["shape"]) for row in csv.DictReader(file))
    folder.mkdir(parents=True, exist_ok=True)
    for network, shape in wanted:
        path = folder / f"{network}-{shape}.onnx"
        if path.exists() or not any(part in network for part in parts or [""]):
            continue
        print(path.name, flush=True)
        sizes = tuple(map(int, shape.split("x")))
        if network.startswith("yolo"):
            _export_yolo(network, sizes, path)
        else:
            _export(_module(network), sizes, path)


def _module(name: str) -> Any:
    if name in _TIMM:
        import timm

        return timm.create_model(_TIMM[name], pretrained=False, exportable=True)
    if name == "faster_vit_0":
        from fastervit import create_model

        return create_model("faster_vit_0_224", pretrained=False)
    if name == "rfdetr_nano":
        from rfdetr import RFDETRNano

        module = RFDETRNano(pretrain_weights=None, device="cpu").model.model
        module.export()
        return module
    import torchvision

    made = getattr(torchvision.models, name, None) or getattr(torchvision.models.segmentation, name)
    module = made(weights=None, weights_backbone=None) if "_resnet" in name else made(weights=None)
    # The source's VGG has 58.9 MB: it is timed without its classifier.
    return module.features if name.startswith("vgg") else module


def _export(module: Any, sizes: tuple[int, ...], path: Path) -> None:
    import torch

    pictures = torch.zeros(sizes)
    with torch.no_grad():
        torch.onnx.export(module.eval(), (pictures,), str(path), opset_version=OPSET, dynamo=False)


def _export_yolo(name: str, sizes: tuple[int, ...], path: Path) -> None:
    from ultralytics import YOLO

    batch, _, height, width = sizes
    model = YOLO(f"{name}.yaml")
    made = model.export(format="onnx", imgsz=(height, width), batch=batch, opset=OPSET, simplify=True)
    shutil.move(made, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
