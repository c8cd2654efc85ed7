"""Exports small networks with the tools that users export with: ``python make_heads.py FOLDER [NAME ...]``.

For each export ``FOLDER/NAME/network.onnx``, ``given.npz`` (the pictures), ``right.npz`` (what the exporting tool itself
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
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

SIDE, SCORE, IOU = 160, 0.3, 0.5
Found = dict[str, np.ndarray]
"""Of a picture: ``boxes``, ``scores``, ``classes`` and ``more``; or ``map``, ``text`` or ``vectors``."""
Read = Callable[[dict[str, torch.Tensor], torch.Tensor], Found]


def pictures(side: int, count: int = 10) -> torch.Tensor:
    """Coloured rectangles on noise, 0 to 1, in steps of 1/255."""
    random = np.random.default_rng(1)
    made = random.uniform(0, 0.3, (count, 3, side, side))
    for picture in made:
        for _ in range(5):
            height, width = random.integers(side // 6, side // 2, 2)
            y, x = random.integers(0, side - height), random.integers(0, side - width)
            picture[random.integers(0, 3), y : y + height, x : x + width] += random.uniform(0.3, 0.7)
    return torch.from_numpy(np.round(np.clip(made, 0, 1) * 255) / 255).float()


def settle(network: nn.Module, given: torch.Tensor) -> None:
    """Fits the normalisations to the pictures."""
    for each in network.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.momentum = None
            each.reset_running_stats()
            nn.init.uniform_(each.weight, 0.5, 1.5)
            nn.init.normal_(each.bias, 0, 0.3)
    network.train()
    with torch.no_grad():
        network(*given if isinstance(given, list) else [given])
    network.eval()


def spread(network: nn.Module, layer: nn.Module, given: Any, deviation: float, bias: Any = None) -> None:
    """Scales a last layer to this standard deviation of its outputs, and sets its bias."""
    seen: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    with torch.no_grad():
        network(given)
    hook.remove()
    if not seen:
        return
    axis = -1 if isinstance(layer, nn.Linear) else 1
    values = torch.cat([each.movedim(axis, -1).flatten(0, -2) for each in seen]) - layer.bias.detach()
    layer.weight.data *= deviation / values.std()
    layer.bias.data -= layer.bias.data + values.mean(0) * deviation / values.std()
    if bias is not None:
        layer.bias.data += torch.as_tensor(bias, dtype=torch.float32)


def found(boxes: Any, scores: Any, classes: Any, more: Any = None) -> Found:
    named = {"boxes": boxes, "scores": scores, "classes": classes} | ({} if more is None else {"more": more})
    return {name: np.asarray(each.detach() if isinstance(each, torch.Tensor) else each) for name, each in named.items()}


class Case:
    """An export: its file or module, and how the tool reads what it gives."""

    def __init__(self, task: str, network: Any, given: torch.Tensor, read: Read, head: str = "") -> None:
        self.task, self.network, self.given, self.read, self.head = task, network, given, read, head

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "network.onnx"
        if isinstance(self.network, nn.Module):
            torch.onnx.export(self.network, (self.given[:1],), path, dynamo=False, opset_version=17, verbose=False)
        else:
            shutil.move(self.network, path)
        session = onnxruntime.InferenceSession(path)
        (name,), names = [[each.name for each in some] for some in (session.get_inputs(), session.get_outputs())]
        right: Found = {}
        for k, picture in enumerate(self.given[:2].split(1)):
            outputs = session.run(None, {name: picture.numpy()})
            read = self.read(dict(zip(names, map(torch.from_numpy, outputs), strict=True)), picture)
            right |= {f"{k}.{what}": each for what, each in read.items()}
        np.savez(folder / "given.npz", **{name: self.given.numpy()})
        np.savez(folder / "right.npz", **right)
        facts = {"task": self.task, "head": self.head, "score": SCORE, "iou": IOU}
        (folder / "case.json").write_text(json.dumps(facts))


# Ultralytics.


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

    plan = yaml_model_load(yaml)
    plan["scales"] = {"n": [0.33, 0.125, 1024]}
    if "kpt_shape" in plan:
        plan["kpt_shape"] = [5, 3]
    make, given = RTDETR if "rtdetr" in yaml else YOLO, pictures(SIDE)
    model = make(yaml)
    network = type(model.model)(plan, nc=3, verbose=False)
    network.args, network.task, network.names = model.model.args, model.task, {k: str(k) for k in range(3)}
    settle(network, given)
    bins = getattr(network.model[-1], "reg_max", 1)
    sides = 3.0 if bins == 1 else -0.5 * (torch.arange(bins).repeat(4) - 2.0) ** 2
    network.eval()
    for name, layer in network.model[-1].named_modules():
        part = name.split(".")[0].removeprefix("one2one_")
        if (
            isinstance(layer, nn.Conv2d)
            and layer.bias is not None
            and name.startswith(("cv", "one2one"))
            and name.count(".") == 2
        ):
            beside = 1.5 if bins > 1 and model.task != "pose" else 0.7
            wide, bias = {"cv2": (0.5, sides), "cv3": (2.0, -4.5)}.get(part, (beside, 0.0))
            spread(network, layer, given, wide, bias)
        elif isinstance(layer, nn.Linear) and "score_head" in name:
            spread(network, layer, given, 2.0, -3.0)
    model.model, upright = network, ops.process_mask
    ops.process_mask = lambda *given, upsample: upright(*given)
    if raw:
        network.end2end = False
        reader: Any = copy.deepcopy(model)
        network.model[-1] = Raw(network.model[-1], raw == "joined")
        network.model[-1].eval()
        exported: Any = network
    else:
        exported = model.export(format="onnx", imgsz=SIDE, opset=17, nms=False if ends else None, verbose=False)
        kept = Path(exported).with_name("kept.onnx")
        shutil.copyfile(exported, kept)
        reader = make(kept) if make is RTDETR else YOLO(kept, task=model.task)

    def read(_: Any, picture: torch.Tensor) -> Found:
        (result,) = reader.predict(picture, conf=SCORE, iou=IOU, imgsz=SIDE, verbose=False)
        if model.task == "obb":
            return found(result.obb.xyxy, result.obb.conf, result.obb.cls, result.obb.data[:, :5])
        if model.task in ("semantic", "depth"):
            return {"map": np.asarray(getattr(result, "semantic_mask" if model.task == "semantic" else "depth").data)}
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
        network.model[-1].forward = lambda maps: [layer(each) for layer, each in zip(network.model[-1].m, maps)]

    def read(_: Any, picture: torch.Tensor) -> Found:
        (rows,) = non_max_suppression(decoded(picture)[0], SCORE, IOU)
        return found(rows[:, :4], rows[:, 4], rows[:, 5])

    return Case("detect", network, given, read, head)


# Transformers.


class Picked(nn.Module):
    """A network of transformers with some of its outputs."""

    def __init__(self, network: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.network(given)
        return tuple(getattr(outputs, name) for name in self.names)


def transformers(name: str) -> Case:
    import transformers as hub

    labels, given, task = {k: str(k) for k in range(3)}, pictures(70 if name == "DepthAnything" else SIDE), "detect"
    small = {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    stages = {"out_features": ["stage2", "stage3", "stage4"]}
    attention = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    attention |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32}
    if name == "DETR":
        plan = hub.DetrConfig(
            use_timm_backbone=False, backbone=None, backbone_config=hub.ResNetConfig(**small, out_features=["stage4"]),
            use_pretrained_backbone=False, num_queries=20, id2label=labels, **attention,
        )  # fmt: skip
        network, names = hub.DetrForObjectDetection(plan), ("logits", "pred_boxes")
        lasts, read = [(network.class_labels_classifier, [0, 0, 0, 1.0])], hub.DetrImageProcessor()
    elif name == "RT-DETR":
        plan = hub.RTDetrConfig(
            backbone_config=hub.RTDetrResNetConfig(**small, **stages), encoder_hidden_dim=32, num_queries=20,
            encoder_in_channels=[24, 32, 48], decoder_in_channels=[32, 32, 32], id2label=labels, **attention,
        )  # fmt: skip
        network, names = hub.RTDetrForObjectDetection(plan), ("logits", "pred_boxes")
        lasts, read = [(each, -1.5) for each in network.model.decoder.class_embed], hub.RTDetrImageProcessor()
    elif name == "MaskFormer":
        plan = hub.MaskFormerConfig(
            backbone_config=hub.SwinConfig(embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=5,
                                           out_features=["stage1", "stage2", "stage3", "stage4"]),
            decoder_config=hub.DetrConfig(use_timm_backbone=False, backbone=None, num_queries=12, **attention,
                                          backbone_config=hub.ResNetConfig(**small, out_features=["stage4"])),
            fpn_feature_size=32, mask_feature_size=32, id2label=labels,
        )  # fmt: skip
        network = hub.MaskFormerForInstanceSegmentation(plan)
        names, task = ("class_queries_logits", "masks_queries_logits"), "segment"
        lasts, read = [(network.class_predictor, 0.0)], hub.MaskFormerImageProcessor()
    elif name == "SegFormer":
        plan = hub.SegformerConfig(
            depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 1, 2, 2], id2label=labels,
            decoder_hidden_size=32,
        )  # fmt: skip
        network, names, task = hub.SegformerForSemanticSegmentation(plan), ("logits",), "segment"
        lasts, read = [(network.decode_head.classifier, 0.0)], hub.SegformerImageProcessor()
    elif name == "DepthAnything":
        stages = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
        vit = {"image_size": 70, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
        plan = hub.DepthAnythingConfig(
            backbone_config=hub.Dinov2Config(**vit, **stages), reassemble_hidden_size=32, fusion_hidden_size=16,
            neck_hidden_sizes=[8, 12, 16, 16], head_hidden_size=8,
        )  # fmt: skip
        network, names, task = hub.DepthAnythingForDepthEstimation(plan), ("predicted_depth",), "depth"
        lasts, read = [(network.head.conv3, 4.0)], hub.DPTImageProcessor()
    else:
        plan = hub.PPOCRV5MobileRecConfig(
            backbone_config=hub.PPLCNetV3Config(scale=0.25, divisor=8, out_features=["stage2", "stage3", "stage4", "stage5"]),
            hidden_size=16, head_out_channels=40, num_attention_heads=2,
        )  # fmt: skip
        given = pictures(SIDE)[:, :, :96].repeat(1, 1, 1, 2) * 2 - 1
        network, names, task = hub.PPOCRV5MobileRecForTextRecognition(plan), ("last_hidden_state",), "text"
        letters = "-" + "".join(map(chr, range(97, 136)))
        read = hub.PPOCRV5ServerRecImageProcessor(character_list=list(letters))
        lasts = [(network.head.head, [2.0] + [0.0] * 39)]
    for each in network.parameters() if name == "DETR" else ():
        if each.dim() > 1:
            nn.init.xavier_uniform_(each, gain=2.0)
    settle(network.eval(), given)
    for layer, bias in lasts:
        spread(network, layer, given, 2.0, bias)

    def result(outputs: dict[str, torch.Tensor], _: torch.Tensor) -> Found:
        shown = SimpleNamespace(**dict(zip(names, outputs.values(), strict=True)))
        if task == "detect":
            (image,) = read.post_process_object_detection(shown, threshold=SCORE, target_sizes=[(SIDE, SIDE)])
            return found(image["boxes"], image["scores"], image["labels"])
        if task == "segment":
            return {"map": read.post_process_semantic_segmentation(shown)[0].numpy()}
        if task == "depth":
            return {"map": read.post_process_depth_estimation(shown)[0]["predicted_depth"].numpy()}
        return {"text": np.array([letters.index(one) for one in read.post_process_text_recognition(shown)[0]["text"]])}

    return Case(task, Picked(network, names).eval(), given, result)


# Torchvision and timm.


class First(nn.Module):
    """The detections of torchvision's network in the first picture."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.network([given[0]])[0].values())


def torchvision(name: str) -> Case:
    from torchvision.models import detection as hub
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    given, size = pictures(SIDE), {"min_size": SIDE, "max_size": SIDE, "num_classes": 4}
    if name == "ssd":
        network = hub.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)
        given, last = pictures(320), []
    else:
        backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, norm_layer=nn.BatchNorm2d)
        network = getattr(hub, name)(backbone, **size, **({"num_keypoints": 5} if "Keypoint" in name else {}))
        heads = network.head.classification_head if name == "RetinaNet" else network.roi_heads.box_predictor
        last = [heads.cls_logits if name == "RetinaNet" else heads.cls_score]
    targets = [{"boxes": torch.tensor([[20.0, 20, 90, 90]]), "labels": torch.tensor([1])} for _ in given]
    for each in targets:
        each |= {"masks": torch.ones(1, SIDE, SIDE), "keypoints": torch.full((1, 5, 3), 50.0)}
    settle(network, [list(given), targets])
    for layer in last:
        spread(network, layer, list(given), 2.0, [2.0, 0, 0, 0] if layer.weight.shape[0] == 4 else -4.0)
    kind = {"MaskRCNN": ("instances", "masks"), "KeypointRCNN": ("pose", "keypoints")}.get(name, ("detect", ""))

    def read(_: Any, picture: torch.Tensor) -> Found:
        (image,) = network(list(picture))
        sure = {what: each[image["scores"] >= SCORE] for what, each in image.items()}
        return found(sure["boxes"], sure["scores"], sure["labels"], sure[kind[1]] if kind[1] else None)

    return Case(kind[0], First(network).eval(), given, read)


def timm() -> Case:
    import timm as hub

    given = pictures(64)
    network = hub.create_model("mobilenetv3_small_050", pretrained=False, num_classes=0)
    settle(network, given)
    vectors = nn.functional.normalize(network(given), dim=-1)
    return Case("embed", network, given, lambda _, picture: {"vector": nn.functional.normalize(network(picture)).detach().numpy()})


CASES: dict[str, Callable[[], Case]] = {
    "yolo11": partial(ultralytics, "yolo11n.yaml"),
    "yolov8-pose": partial(ultralytics, "yolov8n-pose.yaml"),
    "yolo11-obb": partial(ultralytics, "yolo11n-obb.yaml"),
    "yolo11-seg": partial(ultralytics, "yolo11n-seg.yaml"),
    "yolo26": partial(ultralytics, "yolo26n.yaml", ends=True),
    "yolo26-pose": partial(ultralytics, "yolo26n-pose.yaml", ends=True),
    "yolo26-obb": partial(ultralytics, "yolo26n-obb.yaml", ends=True),
    "yolo26-seg": partial(ultralytics, "yolo26n-seg.yaml", ends=True),
    "yolov8-raw": partial(ultralytics, "yolov8n.yaml", raw="apart"),
    "yolov8-pose-raw": partial(ultralytics, "yolov8n-pose.yaml", raw="joined", head="dfl:16,classes:3,keypoints:5x3"),
    "yolo11-obb-raw": partial(ultralytics, "yolo11n-obb.yaml", raw="apart", head="dfl:16,classes:3,angle"),
    "yolo11-seg-raw": partial(ultralytics, "yolo11n-seg.yaml", raw="apart"),
    "yolo26-raw": partial(ultralytics, "yolo26n.yaml", raw="joined", head="dfl:1,classes:3"),
    "yolo26-obb-raw": partial(ultralytics, "yolo26n-obb.yaml", raw="apart", head="dfl:1,classes:3,angle"),
    "yolo26-pose-raw": partial(ultralytics, "yolo26n-pose.yaml", raw="apart", head="dfl:1,classes:3,keypoints:5x3"),
    "rtdetr-ultralytics": partial(ultralytics, "yolov8n-rtdetr.yaml"),
    "yolo26-sem": partial(ultralytics, "yolo26n-sem.yaml"),
    "yolo26-depth": partial(ultralytics, "yolo26n-depth.yaml"),
    "yolov5": partial(yolov5, raw=False),
    "yolov5-raw": partial(yolov5, raw=True, head="yolov5"),
    "DETR": partial(transformers, "DETR"),
    "RT-DETR": partial(transformers, "RT-DETR"),
    **{name: partial(transformers, name) for name in ("MaskFormer", "SegFormer", "DepthAnything", "PP-OCRv5")},
    **{name: partial(torchvision, name) for name in ("RetinaNet", "ssd", "FasterRCNN", "MaskRCNN", "KeypointRCNN")},
    "embedding": timm,
}

if __name__ == "__main__":
    torch.set_num_threads(2)
    os.chdir(sys.argv[1])
    for name in sys.argv[2:] or CASES:
        torch.manual_seed(0)
        CASES[name]().write(Path(name))
        print(name, flush=True)
