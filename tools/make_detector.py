"""Train the detector of ``samples/detector`` on drawn shapes and write its files.

The network is a small YOLO v8: convolution, batch normalization and SiLU, a residual block at each stride, a neck from
top to bottom, and a head whose last Concat joins boxes and class scores in one output [1, 4 + classes, anchors]. Boxes
are in pixels (centre x, centre y, width, height), scores come after a Sigmoid. Layers have the names that Ultralytics
gives them, ``/model.0/conv/Conv``. The head predicts distances to the four sides, without DFL. An image holds one or
two coloured shapes that do not overlap, on a noisy ground with a few grey lines that are nothing.

Nothing is planted. As with published detectors nearly all scores are near 0, and the entropy calibrator clips the few
that are not::

    pip install torch onnx onnxruntime
    python tools/make_detector.py --output samples/detector

Needs numpy, onnx, onnxruntime and torch (2.13.0 made the files in the repository), no data, and three to four minutes
of one processor. The seeds are fixed: the same torch on the same kind of CPU gives the same files.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional

Array = npt.NDArray[np.float32]

SEED = 20240301
SIZE = 128  # pixels, of both sides of an image
SHAPES = ("ellipse", "rectangle", "triangle", "diamond", "cross")
COLOURS = ("red", "green", "blue")
CLASSES = tuple(f"{colour} {kind}{shape}" for colour in COLOURS for kind in ("", "hollow ") for shape in SHAPES)
MOST_SHAPES, SMALLEST, LARGEST = 2, 18, 64  # of an image; pixels of a side
GRAIN = 4  # pixels of a side of a grain of noise; fine grains would not compress
STRIDES = (8, 16, 32)
STEPS, BATCH, RATE = 1600, 16, 4e-3
CALIBRATION, TEST = 60, 20
INPUT = "images"
ROWS, COLUMNS = np.mgrid[:SIZE, :SIZE].astype(np.float32) + np.float32(0.5)


@dataclass(frozen=True)
class Drawn:
    """Images and their labels.

    Attributes:
        images: float32 [n, 3, SIZE, SIZE], from 0 to 1.
        boxes: float32 [n, MOST_SHAPES, 4], centre x, centre y, width and height in pixels; width 0 where there is none.
        classes: int64 [n, MOST_SHAPES], places in ``CLASSES``.
    """

    images: Array
    boxes: Array
    classes: npt.NDArray[np.int64]


def draw(random: np.random.Generator, count: int) -> Drawn:
    """Draw ``count`` images of shapes that do not overlap."""
    images = np.empty((count, 3, SIZE, SIZE), np.float32)
    boxes = np.zeros((count, MOST_SHAPES, 4), np.float32)
    classes = random.integers(0, len(CLASSES), (count, MOST_SHAPES))
    for image, places, kinds in zip(images, boxes, classes, strict=True):
        image[:] = random.uniform(0.1, 0.9) + random.uniform(-0.1, 0.1, (3, 1, 1))
        for _ in range(random.integers(0, 4)):
            angle, (x, y) = random.uniform(0, np.pi), random.uniform(0, SIZE, 2)
            line = np.abs(np.cos(angle) * (COLUMNS - x) + np.sin(angle) * (ROWS - y)) < 1.5
            image[:] = np.where(line, random.uniform(0, 1), image)
        for place in range(random.integers(1, MOST_SHAPES + 1)):
            box = free_place(random, places[:place])
            if box is not None:
                places[place] = box
                name, shape = CLASSES[kinds[place]].split(" ", 1)
                colour = random.uniform(0.0, 0.3, (3, 1, 1))
                colour[COLOURS.index(name)] += 0.6
                image[:] = np.where(inside(box, shape), colour, image)
        grains = random.uniform(0.01, 0.06) * random.standard_normal((3, SIZE // GRAIN, SIZE // GRAIN))
        image += grains.repeat(GRAIN, 1).repeat(GRAIN, 2)
    return Drawn((np.rint(images.clip(0, 1) * 255) / 255).astype(np.float32), boxes, classes)


def free_place(random: np.random.Generator, taken: Array) -> Array | None:
    """Choose a box [4] that overlaps none of ``taken`` [n, 4]; None if 20 tries find no room."""
    for _ in range(20):
        size = np.exp(random.uniform(np.log(SMALLEST), np.log(LARGEST), 1)) * random.uniform(0.8, 1.25, 2)
        size = size.clip(SMALLEST, LARGEST)
        centre = random.uniform(size / 2, SIZE - size / 2)
        apart = np.abs(taken[:, :2] - centre) >= (taken[:, 2:] + size) / 2
        if apart.any(1).all():
            return np.concatenate([centre, size]).astype(np.float32)
    return None


def inside(box: Array, name: str) -> npt.NDArray[np.bool_]:
    """Return the pixels [SIZE, SIZE] of the named shape, solid or hollow, that fills a box."""
    if name.startswith("hollow "):
        whole = name.removeprefix("hollow ")
        return inside(box, whole) & ~inside(box * np.array([1, 1, 0.6, 0.6], np.float32), whole)
    x, y = (COLUMNS - box[0]) / (box[2] / 2), (ROWS - box[1]) / (box[3] / 2)  # -1 to 1 within the box
    right, down = np.abs(x), np.abs(y)
    bounds = {
        "ellipse": x * x + y * y <= 1,
        "rectangle": np.maximum(right, down) <= 1,
        "triangle": (right <= (y + 1) / 2) & (y <= 1),
        "diamond": right + down <= 1,
        "cross": (np.minimum(right, down) <= 0.3) & (np.maximum(right, down) <= 1),
    }
    return bounds[name]


class Conv(nn.Module):
    """Convolution, batch normalization, SiLU."""

    def __init__(self, inside: int, outside: int, size: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
        self.bn = nn.BatchNorm2d(outside)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """Take [n, inside, h, w], return [n, outside, h / stride, w / stride]."""
        activated: Tensor = self.act(self.bn(self.conv(x)))
        return activated


class Bottleneck(nn.Module):
    """Two convolutions and what came in, added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cv1 = Conv(width, width // 2)
        self.cv2 = Conv(width // 2, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        added: Tensor = x + self.cv2(self.cv1(x))
        return added


class Detect(nn.Module):
    """The head: at each stride a branch for the boxes and one for the scores, decoded and joined."""

    anchors: Tensor
    strides: Tensor

    def __init__(self, widths: tuple[int, ...], hidden: int = 32) -> None:
        super().__init__()
        count = len(CLASSES)
        self.cv2 = nn.ModuleList(nn.Sequential(Conv(w, hidden), nn.Conv2d(hidden, 4, 1)) for w in widths)
        self.cv3 = nn.ModuleList(nn.Sequential(Conv(w, hidden), nn.Conv2d(hidden, count, 1)) for w in widths)
        points, strides = [], []
        for stride, boxes, scores in zip(STRIDES, self.cv2, self.cv3, strict=True):
            nn.init.constant_(boxes[-1].bias, 1.0)
            nn.init.constant_(scores[-1].bias, float(np.log(0.01 / 0.99)))  # a score of 0.01, as in RetinaNet
            ticks = np.arange(SIZE // stride) + 0.5
            points.append(np.stack([axis.reshape(-1) for axis in np.meshgrid(ticks, ticks)]))
            strides.append(np.full((1, len(ticks) ** 2), stride))
        self.register_buffer("anchors", torch.tensor(np.concatenate(points, 1), dtype=torch.float32)[None])
        self.register_buffer("strides", torch.tensor(np.concatenate(strides, 1), dtype=torch.float32))

    def forward(self, features: list[Tensor]) -> Tensor:
        """Take the features of each stride, return [n, 4 + classes, anchors]."""
        maps = [
            torch.cat((boxes(x), scores(x)), 1).flatten(2)
            for x, boxes, scores in zip(features, self.cv2, self.cv3, strict=True)
        ]
        sides, logits = torch.cat(maps, 2).split((4, len(CLASSES)), 1)
        left_top, right_bottom = sides.split((2, 2), 1)
        first, last = self.anchors - left_top, self.anchors + right_bottom
        boxes = torch.cat(((first + last) / 2, last - first), 1) * self.strides
        return torch.cat((boxes, logits.sigmoid()), 1)


class Detector(nn.Module):
    """Backbone, neck and head; ``model`` is a list as in Ultralytics, whose places give the layers their names."""

    def __init__(self) -> None:
        super().__init__()
        a, b, c, d = 12, 24, 48, 64
        backbone = [Conv(3, a, 3, 2), Conv(a, b, 3, 2), Bottleneck(b), Conv(b, c, 3, 2), Bottleneck(c)]
        deeper = [Conv(c, d, 3, 2), Bottleneck(d), Conv(d, d, 3, 2), Bottleneck(d)]
        neck = [nn.Upsample(scale_factor=2.0), Conv(d + d, c), nn.Upsample(scale_factor=2.0), Conv(c + c, c)]
        self.model = nn.ModuleList([*backbone, *deeper, *neck, Detect((c, c, d))])

    def forward(self, images: Tensor) -> Tensor:
        """Take images [n, 3, SIZE, SIZE] from 0 to 1, return [n, 4 + classes, anchors]."""
        kept: dict[int, Tensor] = {}
        x = images
        for place in range(9):
            kept[place] = x = self.model[place](x)
        middle = self.model[10](torch.cat((self.model[9](kept[8]), kept[6]), 1))
        fine = self.model[12](torch.cat((self.model[11](middle), kept[4]), 1))
        found: Tensor = self.model[13]([fine, middle, kept[8]])
        return found


def corners(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Turn boxes [..., 4] into their left top and right bottom corners, [..., 2] each."""
    return boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2


def overlaps(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalised IoU (Rezatofighi 2019) of boxes a and b, [..., 4] each: [...]."""
    (a_first, a_last), (b_first, b_last) = corners(a), corners(b)
    shared = (torch.minimum(a_last, b_last) - torch.maximum(a_first, b_first)).clamp(min=0).prod(-1)
    union = a[..., 2:].clamp(min=0).prod(-1) + b[..., 2:].prod(-1) - shared + 1e-6
    hull = (torch.maximum(a_last, b_last) - torch.minimum(a_first, b_first)).clamp(min=0).prod(-1) + 1e-6
    return shared / union, shared / union - (hull - union) / hull


def loss_of(found: Tensor, boxes: Tensor, classes: Tensor, head: Detect, best: int = 3) -> Tensor:
    """Return the loss of a batch's output [n, 4 + classes, anchors] against ``boxes`` and ``classes``.

    Anchors are assigned as in TOOD (Feng 2021), which YOLO v8 follows: of the anchors inside a shape's box, those with
    the highest score**0.5 * IoU**6 are its own, ``best`` of them. Their target score is that figure, scaled so that the
    largest is the best IoU.

    The class loss is the quality focal loss (Li 2020, GFL), as in NanoDet; it and GIoU have the weights of that paper.
    """
    places, scores = found[:, :4].transpose(1, 2), found[:, 4:].transpose(1, 2)
    first, last = (corner[:, :, None] for corner in corners(boxes))
    points = (head.anchors[0] * head.strides).T
    within = ((points > first) & (points < last)).all(-1)  # [n, shapes, anchors]; at most one shape an anchor
    iou, generalised = overlaps(places[:, None], boxes[:, :, None])
    with torch.no_grad():
        own = scores.transpose(1, 2).gather(1, classes[:, :, None].expand(-1, -1, scores.shape[1]))
        figure = own.clamp(min=1e-9).sqrt() * iou.clamp(min=1e-3) ** 6 * within
        chosen = (figure >= figure.topk(best, -1).values[..., -1:]) & within
        highest = (iou * chosen).amax(-1, keepdim=True)
        target = figure * chosen / figure.amax(-1, keepdim=True).clamp(min=1e-30) * highest
        marks = functional.one_hot(classes, len(CLASSES)).float()
        wanted = (target[..., None] * marks[:, :, None]).sum(1)
        total = target.sum().clamp(min=1)
    away = (scores - wanted) ** 2
    by_class = functional.binary_cross_entropy(scores, wanted, weight=away.detach(), reduction="sum")
    return (by_class + 2.0 * ((1 - generalised) * target).sum()) / total


def train(random: np.random.Generator) -> Detector:
    """Train on freshly drawn images; returns the network ready for inference."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the order of additions, and so the weights, would depend on the number of threads
    torch.use_deterministic_algorithms(True)
    detector = Detector()
    head = detector.model[-1]
    optimizer = torch.optim.AdamW(detector.parameters(), lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS)
    shown = 0.0
    for step in range(1, STEPS + 1):
        drawn = draw(random, BATCH)
        found = detector(torch.from_numpy(drawn.images))
        loss = loss_of(found, torch.from_numpy(drawn.boxes), torch.from_numpy(drawn.classes), head)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(detector.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        shown += loss.item()
        if step % 100 == 0:
            print(f"step {step:4d}: loss {shown / 100:.4f}", flush=True)
            shown = 0.0
    return detector.eval()


def export(detector: Detector, path: Path) -> None:
    """Write the network as ONNX, opset 17, batch normalization folded into the convolutions."""
    example = torch.zeros(1, 3, SIZE, SIZE)
    torch.onnx.export(
        detector, (example,), path, input_names=[INPUT], output_names=["output0"], opset_version=17, dynamo=False
    )
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)


def share_found(path: Path, drawn: Drawn, least_score: float = 0.3, least_iou: float = 0.5) -> float:
    """Return the share of shapes that have a box of their class, with so much score and IoU, in ONNX Runtime."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    hits, total = 0, 0
    for image, boxes, classes in zip(drawn.images, drawn.boxes, drawn.classes, strict=True):
        output = torch.from_numpy(session.run(None, {INPUT: image[None]})[0][0].T)
        for box, kind in zip(torch.from_numpy(boxes), classes, strict=True):
            if box[2] > 0:
                iou, _ = overlaps(output[:, :4], box[None])
                hits += bool(((output[:, 4 + kind] >= least_score) & (iou >= least_iou)).any())
                total += 1
    return hits / total


def write_labels(path: Path, drawn: Drawn) -> None:
    """Write ``boxes`` [n, 4] and ``classes`` [n] of the shapes of each image, one image a line."""
    lines = []
    for boxes, classes in zip(drawn.boxes, drawn.classes, strict=True):
        there = boxes[:, 2] > 0
        rounded = [[round(float(value), 2) for value in box] for box in boxes[there]]
        lines.append(json.dumps({"boxes": rounded, "classes": classes[there].tolist()}))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main() -> None:
    """Draw, train, export, and print what share of the test images' shapes the network finds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("samples/detector"))
    arguments = parser.parse_args()

    training, calibration, test = (np.random.default_rng(seed) for seed in np.random.SeedSequence(SEED).spawn(3))
    arguments.output.mkdir(parents=True, exist_ok=True)
    seen, unseen = draw(calibration, CALIBRATION), draw(test, TEST)
    np.savez_compressed(arguments.output / "calibration.npz", **{INPUT: seen.images})  # type: ignore[arg-type]
    np.savez_compressed(arguments.output / "test.npz", **{INPUT: unseen.images})  # type: ignore[arg-type]
    write_labels(arguments.output / "test-labels.json", unseen)

    network = arguments.output / "detector.onnx"
    export(train(training), network)
    for name, drawn in {"calibration": seen, "test": unseen}.items():
        print(f"{name}: {len(drawn.images)} images, {share_found(network, drawn):.1%} of their shapes found")


if __name__ == "__main__":
    main()
