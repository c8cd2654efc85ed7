"""Exports small networks with the tools that users export with: ``python make_heads.py FOLDER [NAME ...]``.

Each export is ``FOLDER/NAME/network.onnx``, ``given.npz`` (the pictures), ``right.npz`` (what the exporting tool itself
reads in the first two: arrays ``K.what``, in pixels) and ``case.json``. The weights are random: normalisations fit the
pictures, and last layers are scaled, so that a few cells of a picture score above the threshold.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch
from torch import nn

SIDE, SCORE, IOU = 160, 0.3, 0.5
Found = dict[str, np.ndarray]
"""Of a picture: ``boxes``, ``scores``, ``classes`` and ``more``; or ``map``, ``text`` or ``vector``."""


class Case(NamedTuple):
    """An export: its file or module, and how the tool reads its outputs, by name, for a picture."""

    task: str
    network: Any
    given: torch.Tensor
    read: Callable[[dict[str, torch.Tensor], torch.Tensor], Found]
    head: str = ""


def pictures(side: int) -> torch.Tensor:
    """Coloured rectangles on noise, 0 to 1, in steps of 1/255."""
    random = np.random.default_rng(1)
    made = random.uniform(0, 0.3, (10, 3, side, side))
    for picture in made:
        for _ in range(5):
            height, width = random.integers(side // 6, side // 2, 2)
            y, x = random.integers(0, side - height), random.integers(0, side - width)
            picture[random.integers(0, 3), y : y + height, x : x + width] += random.uniform(0.3, 0.7)
    return torch.from_numpy(np.round(np.clip(made, 0, 1) * 255) / 255).float()


def settle(network: nn.Module, *given: Any) -> None:
    """Fits the normalisations to the pictures."""
    for each in network.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.momentum = None
            each.reset_running_stats()
            nn.init.uniform_(each.weight, 0.5, 1.5)
            nn.init.normal_(each.bias, 0, 0.3)
    with torch.no_grad():
        network.train()(*given)
    network.eval()


def spread(network: nn.Module, layer: nn.Module, given: Any, deviation: float, bias: Any = 0.0) -> None:
    """Scales a last layer to this standard deviation of its outputs, and sets their mean."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    with torch.no_grad():
        network(given)
    hook.remove()
    if seen:
        axis = -1 if isinstance(layer, nn.Linear) else 1
        values = torch.cat([each.movedim(axis, -1).flatten(0, -2) for each in seen]) - layer.bias.detach()
        layer.weight.data *= deviation / values.std()
        layer.bias.data = torch.as_tensor(bias) - values.mean(0) * deviation / values.std()


def found(boxes: Any, scores: Any, classes: Any, more: Any = None) -> Found:
    named = {"boxes": boxes, "scores": scores, "classes": classes, "more": more}
    return {name: torch.as_tensor(each).detach().numpy() for name, each in named.items() if each is not None}


class Raw(nn.Module):
    """A head of Ultralytics without its decoding: the maps of each scale apart, or joined along the channels."""

    def __init__(self, head: nn.Module, joined: bool) -> None:
        super().__init__()
        self.head, self.joined, self.f, self.i, self.type = head, joined, head.f, head.i, head.type

    def forward(self, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        parts = [self.head.cv2, self.head.cv3, *([self.head.cv4] if hasattr(self.head, "cv4") else [])]
        if hasattr(self.head, "cv4_kpts"):
            parts[2] = [nn.Sequential(*both) for both in zip(self.head.cv4, self.head.cv4_kpts, strict=True)]
        scales = [[part[k](each) for part in parts] for k, each in enumerate(features)]
        maps = [torch.cat(each, 1) for each in scales] if self.joined else [one for each in scales for one in each]
        return maps + ([self.head.proto(features[0])] if hasattr(self.head, "proto") else [])


def ultralytics(yaml: str, *, ends: bool = False, raw: str = "", head: str = "") -> Case:
    """``ends`` is Ultralytics' export without NonMaxSuppression; ``raw`` "apart" or "joined" exports no decoding."""
    from ultralytics import RTDETR, YOLO
    from ultralytics.nn.tasks import yaml_model_load
    from ultralytics.utils import ops

    plan = yaml_model_load(yaml) | {"scales": {"n": [0.33, 0.125, 1024]}}
    if "kpt_shape" in plan:
        plan["kpt_shape"] = [5, 3]
    make, given = RTDETR if "rtdetr" in yaml else YOLO, pictures(SIDE)
    model = make(yaml)
    network = type(model.model)(plan, nc=3, verbose=False)
    network.args, network.task, network.names = model.model.args, model.task, {k: str(k) for k in range(3)}
    settle(network, given)
    bins = getattr(network.model[-1], "reg_max", 1)
    sides = 3.0 if bins == 1 else -0.5 * (torch.arange(bins).repeat(4) - 2.0) ** 2
    beside = 1.5 if bins > 1 and model.task != "pose" else 0.7
    for name, layer in network.model[-1].named_modules():
        part, is_last = name.split(".")[0].removeprefix("one2one_"), name.count(".") == 2
        if part.startswith("cv") and isinstance(layer, nn.Conv2d) and layer.bias is not None and is_last:
            wide, bias = {"cv2": (0.5, sides), "cv3": (2.0, -4.5)}.get(part, (beside, 0.0))
            spread(network, layer, given, wide, bias)
        elif isinstance(layer, nn.Linear) and "score_head" in name:
            spread(network, layer, given, 2.0, -3.0)
    model.model, upright = network, ops.process_mask
    ops.process_mask = lambda *given, **_: upright(*given)
    if raw:
        network.end2end = False
        reader: Any = copy.deepcopy(model)
        network.model[-1] = Raw(network.model[-1], raw == "joined").eval()
        exported: Any = network
    else:
        exported = model.export(format="onnx", imgsz=SIDE, opset=17, nms=False if ends else None, verbose=False)
        kept = shutil.copyfile(exported, Path(exported).with_name("kept.onnx"))
        reader = make(kept) if make is RTDETR else YOLO(kept, task=model.task)

    def read(_: Any, picture: torch.Tensor) -> Found:
        (result,) = reader.predict(picture, conf=SCORE, iou=IOU, imgsz=SIDE, verbose=False)
        if model.task == "obb":
            return found(result.obb.xyxy, result.obb.conf, result.obb.cls, result.obb.data[:, :5])
        if model.task in ("semantic", "depth"):
            return {"map": np.asarray(getattr(result, {"semantic": "semantic_mask"}.get(model.task, "depth")).data)}
        more = result.keypoints or result.masks
        return found(result.boxes.xyxy, result.boxes.conf, result.boxes.cls, more.data if more else None)

    task = {"segment": "instances", "semantic": "segment"}.get(model.task, model.task)
    return Case(task, exported, given, read, head)


def yolov5(*, raw: bool, head: str = "") -> Case:
    import yolov5
    from yolov5.models.yolo import DetectionModel
    from yolov5.utils.general import non_max_suppression

    given = pictures(SIDE)
    network = DetectionModel(Path(yolov5.__file__).parent / "models/yolov5n.yaml", nc=3)
    settle(network, given)
    for layer in network.model[-1].m:
        spread(network, layer, given, 1.0, torch.tensor([0.0, 0, 0, 0, -1, 0, 0, 0]).repeat(3))
    decoded = copy.deepcopy(network)
    network.model[-1].export = decoded.model[-1].export = True
    if raw:
        convolutions = network.model[-1].m
        network.model[-1].forward = lambda maps: [each(own) for each, own in zip(convolutions, maps, strict=True)]

    def read(_: Any, picture: torch.Tensor) -> Found:
        (rows,) = non_max_suppression(decoded(picture)[0], SCORE, IOU)
        return found(rows[:, :4], rows[:, 4], rows[:, 5])

    return Case("detect", network, given, read, head)


class Picked(nn.Module):
    """A network with some of its outputs; that of torchvision with those for the first picture."""

    def __init__(self, network: nn.Module, names: Sequence[str] = ()) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.network(given if self.names else [given[0]])
        return tuple(getattr(outputs, name) for name in self.names) or tuple(outputs[0].values())


LETTERS = ["-", *map(chr, range(97, 136))]
HUB: dict[str, tuple[str, Any]] = {
    "DETR": ("detect DetrForObjectDetection Detr class_labels_classifier logits pred_boxes", [0.0, 0, 0, 1]),
    "RT-DETR": ("detect RTDetrForObjectDetection RTDetr decoder.class_embed. logits pred_boxes", -1.5),
    "MaskFormer": (
        "segment MaskFormerForInstanceSegmentation MaskFormer class_predictor class_queries_logits "
        "masks_queries_logits",
        0.0,
    ),
    "SegFormer": ("segment SegformerForSemanticSegmentation Segformer decode_head.classifier logits", 0.0),
    "DepthAnything": ("depth DepthAnythingForDepthEstimation DPT head.conv3 predicted_depth", 4.0),
    "PP-OCRv5": (
        "text PPOCRV5MobileRecForTextRecognition PPOCRV5ServerRec head.head last_hidden_state",
        [2.0] + [0.0] * 39,
    ),
}
"""The task, the class, that of its reader, the last layer and outputs of a network; the mean of that layer."""


def plans(hub: Any) -> dict[str, Callable[[], Any]]:
    """The configuration of each network of ``HUB``."""
    small = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1] * 4, "layer_type": "basic"}
    stages = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
    layers = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")} | {"encoder_layers": 1, "d_model": 32}
    layers |= {"decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_labels": 3}
    resnet = {"backbone_config": hub.ResNetConfig(**small, out_features=["stage4"]), "backbone": None}
    detr = partial(hub.DetrConfig, use_timm_backbone=False, num_queries=20, **resnet, **layers)
    lcnet = hub.PPLCNetV3Config(scale=0.25, divisor=8, out_features=["stage2", "stage3", "stage4", "stage5"])
    heads = [1, 1, 2, 2]
    vit = {"image_size": 70, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
    return {
        "DETR": detr,
        "RT-DETR": lambda: hub.RTDetrConfig(
            backbone_config=hub.RTDetrResNetConfig(**small, out_features=["stage2", "stage3", "stage4"]),
            encoder_in_channels=[24, 32, 48], decoder_in_channels=[32] * 3, encoder_hidden_dim=32,
            num_queries=20, **layers,
        ),
        "MaskFormer": lambda: hub.MaskFormerConfig(
            backbone_config=hub.SwinConfig(embed_dim=16, depths=[1] * 4, num_heads=heads, window_size=5, **stages),
            decoder_config=detr(), fpn_feature_size=32, mask_feature_size=32, num_labels=3,
        ),
        "SegFormer": lambda: hub.SegformerConfig(
            depths=[1] * 4, hidden_sizes=[8, 16, 24, 32], num_attention_heads=heads, num_labels=3,
            decoder_hidden_size=32,
        ),
        "DepthAnything": lambda: hub.DepthAnythingConfig(
            backbone_config=hub.Dinov2Config(**vit, **stages, reshape_hidden_states=False), head_hidden_size=8,
            reassemble_hidden_size=32, fusion_hidden_size=16, neck_hidden_sizes=[8, 12, 16, 16],
        ),
        "PP-OCRv5": lambda: hub.PPOCRV5MobileRecConfig(
            backbone_config=lcnet, hidden_size=16, head_out_channels=len(LETTERS), num_attention_heads=2
        ),
    }  # fmt: skip


def transformers(name: str) -> Case:
    import transformers as hub

    words, mean = HUB[name]
    task, kind, prefix, last, *names = words.split()
    network = getattr(hub, kind)(plans(hub)[name]())
    given = pictures(70 if task == "depth" else SIDE)
    given = given[:, :, :96].repeat(1, 1, 1, 2) * 2 - 1 if task == "text" else given
    reader = getattr(hub, f"{prefix}ImageProcessor")(**({"character_list": LETTERS} if task == "text" else {}))
    for each in network.parameters() if name == "DETR" else ():
        _ = each.dim() > 1 and nn.init.xavier_uniform_(each, gain=2.0)
    settle(network.eval(), given)
    for layer in [layer for place, layer in network.named_modules() if last in place]:
        spread(network, layer, given, 2.0, mean)

    def read(outputs: dict[str, torch.Tensor], _: torch.Tensor) -> Found:
        shown = SimpleNamespace(**dict(zip(names, outputs.values(), strict=True)))
        if task == "detect":
            (image,) = reader.post_process_object_detection(shown, threshold=SCORE, target_sizes=[(SIDE, SIDE)])
            return found(image["boxes"], image["scores"], image["labels"])
        if task == "segment":
            return {"map": reader.post_process_semantic_segmentation(shown)[0].numpy()}
        if task == "depth":
            return {"map": reader.post_process_depth_estimation(shown)[0]["predicted_depth"].numpy()}
        (line,) = reader.post_process_text_recognition(shown)
        return {"text": np.array([LETTERS.index(letter) for letter in line["text"]])}

    return Case(task, Picked(network, names).eval(), given, read, "blank-first" if task == "text" else "")


def torchvision(name: str) -> Case:
    from torchvision.models import detection as hub
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    given = pictures(320 if name == "ssd" else SIDE)
    if name == "ssd":
        network = hub.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
    else:
        backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d)
        points = {"num_keypoints": 5} if "Keypoint" in name else {}
        network = getattr(hub, name)(backbone, min_size=SIDE, max_size=SIDE, num_classes=4, **points)
    target = {"boxes": torch.tensor([[20.0, 20, 90, 90]]), "labels": torch.tensor([1])}
    target |= {"masks": torch.ones(1, SIDE, SIDE), "keypoints": torch.full((1, 5, 3), 50.0)}
    settle(network, list(given), [target] * len(given))
    if name == "RetinaNet":
        spread(network, network.head.classification_head.cls_logits, list(given), 2.0, -4.0)
    elif name != "ssd":
        spread(network, network.roi_heads.box_predictor.cls_score, list(given), 2.0, torch.tensor([2.0, 0, 0, 0]))
    task, more = {"MaskRCNN": ("instances", "masks"), "KeypointRCNN": ("pose", "keypoints")}.get(name, ("detect", ""))

    def read(_: Any, picture: torch.Tensor) -> Found:
        (image,) = network(list(picture))
        sure = {what: each[image["scores"] >= SCORE] for what, each in image.items()}
        return found(sure["boxes"], sure["scores"], sure["labels"], sure.get(more))

    return Case(task, Picked(network).eval(), given, read)


def timm() -> Case:
    import timm as hub

    given, network = pictures(64), hub.create_model("mobilenetv3_small_050", pretrained=False, num_classes=0)
    settle(network, given)
    return Case("embed", network, given, lambda _, picture: {"vector": network(picture).detach().numpy()})


PLAIN = (("yolov8", "pose"), ("yolo11", "obb"), ("yolo11", "seg"), ("yolo26", "sem"), ("yolo26", "depth"))
CASES: dict[str, Callable[[], Case]] = {
    "yolo11": partial(ultralytics, "yolo11n.yaml"),
    **{f"{name}-{kind}": partial(ultralytics, f"{name}n-{kind}.yaml") for name, kind in PLAIN},
    "yolo26": partial(ultralytics, "yolo26n.yaml", ends=True),
    **{f"yolo26-{kind}": partial(ultralytics, f"yolo26n-{kind}.yaml", ends=True) for kind in ("pose", "obb", "seg")},
    "yolov8-raw": partial(ultralytics, "yolov8n.yaml", raw="apart"),
    "yolov8-pose-raw": partial(ultralytics, "yolov8n-pose.yaml", raw="joined", head="dfl:16,classes:3,keypoints:5x3"),
    "yolo11-obb-raw": partial(ultralytics, "yolo11n-obb.yaml", raw="apart", head="dfl:16,classes:3,angle"),
    "yolo11-seg-raw": partial(ultralytics, "yolo11n-seg.yaml", raw="apart"),
    "yolo26-raw": partial(ultralytics, "yolo26n.yaml", raw="joined", head="dfl:1,classes:3"),
    "yolo26-obb-raw": partial(ultralytics, "yolo26n-obb.yaml", raw="apart", head="dfl:1,classes:3,angle"),
    "yolo26-pose-raw": partial(ultralytics, "yolo26n-pose.yaml", raw="apart", head="dfl:1,classes:3,keypoints:5x3"),
    "rtdetr-ultralytics": partial(ultralytics, "yolov8n-rtdetr.yaml"),
    "yolov5": partial(yolov5, raw=False),
    "yolov5-raw": partial(yolov5, raw=True, head="yolov5"),
    **{name: partial(transformers, name) for name in HUB},
    **{name: partial(torchvision, name) for name in ("RetinaNet", "ssd", "FasterRCNN", "MaskRCNN", "KeypointRCNN")},
    "embedding": timm,
}


def write(case: Case, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "network.onnx"
    if isinstance(case.network, nn.Module):
        torch.onnx.export(case.network, (case.given[:1],), path, dynamo=False, opset_version=17)
    else:
        shutil.move(case.network, path)
    session = onnxruntime.InferenceSession(path)
    (name,), names = ([each.name for each in some] for some in (session.get_inputs(), session.get_outputs()))
    right: dict[str, Any] = {}
    for k, picture in enumerate(case.given[:2].split(1)):
        outputs = map(torch.from_numpy, session.run(None, {name: picture.numpy()}))
        read = case.read(dict(zip(names, outputs, strict=True)), picture)
        right |= {f"{k}.{what}": each for what, each in read.items()}
    np.savez(folder / "given.npz", **{name: case.given.numpy()})
    np.savez(folder / "right.npz", **right)
    facts = {"task": case.task, "head": case.head, "score": SCORE, "iou": IOU}
    (folder / "case.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    torch.set_num_threads(2)
    os.chdir(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        torch.manual_seed(0)
        write(CASES[name](), Path(name))
        print(name, flush=True)
