"""The cases of the benchmark: engines that differ from their file in one way, and engines that are their file."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from ml_dtypes import bfloat16
from onnx import numpy_helper
from PIL import Image

from benchmarks.answer.published import NETWORKS, make_networks
from benchmarks.measure import ROOT
from benchmarks.verify import standin
from benchmarks.verify.standin import PRODUCTS, NodeByNode, Tensors, outputs_of

SAMPLES = ROOT / "samples"
COUNT = 4
"""The samples of a case."""


Given = dict[str, Any]
"""The arguments of ``verify``: the file, the inputs, an engine's outputs, and more."""


@dataclass
class Subject:
    """A network with its samples.

    Attributes:
        batch: the rows of a sample.
    """

    name: str
    network: Path
    data: Path
    folder: Path
    batch: int = 1

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The file."""
        return onnx.load(str(self.network))

    @cached_property
    def samples(self) -> list[Tensors]:
        """Its first samples."""
        kinds = {value.name: value.type.tensor_type for value in self.model.graph.input}
        rows: list[Tensors] = [{} for _ in range(COUNT)]
        with np.load(self.data) as data:
            for name in kinds.keys() & data.keys():
                array = data[name].astype(onnx.helper.tensor_dtype_to_np_dtype(kinds[name].elem_type))
                is_stacked = array.ndim > len(kinds[name].shape.dim)
                for k, row in enumerate(rows):
                    row[name] = array[k] if is_stacked else array[k * self.batch : (k + 1) * self.batch]
        return rows

    @property
    def place(self) -> Path:
        """The folder of its files."""
        place = self.folder / self.name
        place.mkdir(parents=True, exist_ok=True)
        return place

    @cached_property
    def inputs(self) -> Path:
        """A folder with a file for each sample."""
        return self.saved("inputs", self.samples)

    def saved(self, name: str, rows: list[Tensors]) -> Path:
        """Writes an ``.npz`` for each sample into a folder, and returns it."""
        folder = self.place / name
        folder.mkdir(exist_ok=True)
        for k, row in enumerate(rows):
            np.savez(folder / f"{k}.npz", **row)  # type: ignore[arg-type]
        return folder

    def given(self, outputs: list[Tensors], **more: Any) -> Given:
        """The arguments of ``verify`` for an engine of the float file, if ``more`` has no other."""
        return {"model": self.network, "inputs": self.inputs, "outputs": self.saved("outputs", outputs), **more}

    @cached_property
    def scales(self) -> dict[str, float]:
        """The scale of each tensor, by its largest magnitude."""
        return standin.ranges(self.model, self.samples)

    @cached_property
    def pairs(self) -> onnx.ModelProto:
        """The file with Q/DQ pairs."""
        return standin.quantized(self.model, self.scales)

    @property
    def with_pairs(self) -> Path:
        """The path of the file with Q/DQ pairs."""
        path = self.place / "pairs.onnx"
        if not path.exists():
            onnx.save(self.pairs, path)
        return path

    def products(self) -> list[str]:
        """The names of its products."""
        return [node.name for node in self.model.graph.node if node.op_type in PRODUCTS and node.name]


Make = Callable[[Subject], Given]


def _on_feeds(change: Callable[[np.ndarray], np.ndarray]) -> Make:
    """An engine that gets other inputs."""

    def make(subject: Subject) -> Given:
        changed = []
        for row in subject.samples:
            floats = {name: change(x).astype(x.dtype) for name, x in row.items() if x.dtype.kind == "f"}
            changed.append({**row, **floats})
        return subject.given(outputs_of(subject.model, changed))

    return make


def _on_outputs(change: Callable[[list[Tensors]], list[Tensors]]) -> Make:
    """An engine whose outputs are read otherwise."""
    return lambda subject: subject.given(change(outputs_of(subject.model, subject.samples)))


def _by_nodes(engine: Callable[..., NodeByNode], **options: Any) -> Make:
    """An engine that runs the float file node by node."""
    return lambda subject: subject.given(engine(subject.model, **options).run(subject.samples))


def _other_file(change: Callable[[Subject], onnx.ModelProto]) -> Make:
    """An engine of the Q/DQ file that runs another file."""
    return lambda subject: subject.given(outputs_of(change(subject), subject.samples), model=subject.with_pairs)


def _planned(
    low: Callable[[list[str]], list[str]], ran: Callable[[list[str]], list[str]] = list, *, holds: bool = False
) -> Make:
    """An engine of a float file, a plan and a cache; it runs other layers in INT8, or rounds more tensors.

    Args:
        low: of the names of the products, those in INT8 by the plan.
        ran: those that the engine ran in INT8: all.
        holds: the engine rounds what lies between these.
    """

    def make(subject: Subject) -> Given:
        names = subject.products()
        plan = subject.place / "plan.json"
        plan.write_text(json.dumps({"layers": {"*": "fp32", **dict.fromkeys(low(names), "int8")}}))
        held = []
        if holds:
            held = [name for name in standin.between(subject.model, ran(names)) if name in subject.scales]
        engine = standin.quantized(subject.model, subject.scales, ran(names), held=held)
        outputs = outputs_of(engine, subject.samples)
        return subject.given(outputs, plan=plan, calibration=_cache(subject, subject.scales))

    return make


def _cache(subject: Subject, scales: Mapping[str, float]) -> Path:
    """Writes a calibration cache as TensorRT does."""
    lines = [f"{name}: {np.float32(scale).tobytes()[::-1].hex()}" for name, scale in scales.items()]
    path = subject.place / "scales.cache"
    path.write_text("TRT-8601-EntropyCalibration2\n" + "\n".join(lines) + "\n")
    return path


def _stale_cache(percentile: float) -> Make:
    """An engine of a Q/DQ file with the scales of a cache, which ``verify`` gets too."""

    def make(subject: Subject) -> Given:
        scales = standin.ranges(subject.model, subject.samples, percentile)
        outputs = outputs_of(standin.quantized(subject.model, scales), subject.samples)
        return subject.given(outputs, model=subject.with_pairs, calibration=_cache(subject, scales))

    return make


def _pictures(draw: Callable[[Image.Image, tuple[int, int]], Image.Image]) -> Make:
    """Pictures that the engine's program resizes in another way; ``verify`` gets the pictures."""

    def make(subject: Subject) -> Given:
        (name,) = [value.name for value in subject.model.graph.input]
        folder = subject.place / "pictures"
        folder.mkdir(exist_ok=True)
        samples = list[Tensors]()
        for k, row in enumerate(subject.samples):
            x = row[name][0]
            is_last = x.shape[-1] == 3
            pixels = x if is_last else x.transpose(1, 2, 0)
            height, width, _ = pixels.shape
            low, high = float(pixels.min()), float(pixels.max())
            picture = Image.fromarray(((pixels - low) / (high - low) * 255).astype(np.uint8))
            large = picture.resize((int(width * 2.3), int(height * 1.7)), Image.Resampling.BICUBIC)
            large.save(folder / f"{k}.png")
            drawn = np.asarray(draw(large, (width, height)), np.float32) / np.float32(255)
            samples.append({name: (drawn if is_last else drawn.transpose(2, 0, 1))[np.newaxis]})
        return subject.given(outputs_of(subject.model, samples), inputs=folder, resize=f"{height}x{width}")

    return make


def opencv(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resizes as OpenCV's INTER_LINEAR does: two taps at pixel centres, without smoothing."""
    pixels = np.asarray(picture, np.float32)
    for axis, wanted in ((0, size[1]), (1, size[0])):
        have = pixels.shape[axis]
        at = (np.arange(wanted) + 0.5) * have / wanted - 0.5
        first = np.clip(np.floor(at).astype(int), 0, have - 1)
        second = np.clip(first + 1, 0, have - 1)
        part = np.clip(at - first, 0, 1).reshape([-1 if k == axis else 1 for k in range(3)])
        pixels = np.take(pixels, first, axis) * (1 - part) + np.take(pixels, second, axis) * part
    return Image.fromarray(np.rint(pixels).clip(0, 255).astype(np.uint8))


def letterbox(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Keeps the aspect ratio, in the middle of a grey picture."""
    ratio = min(size[0] / picture.width, size[1] / picture.height)
    small = picture.resize((round(picture.width * ratio), round(picture.height * ratio)), Image.Resampling.BILINEAR)
    whole = Image.new("RGB", size, (114, 114, 114))
    whole.paste(small, ((size[0] - small.width) // 2, (size[1] - small.height) // 2))
    return whole


def resized(how: Image.Resampling) -> Callable[[Image.Image, tuple[int, int]], Image.Image]:
    """Returns what resizes by a filter of Pillow."""
    return lambda picture, size: picture.resize(size, how)


def with_wrong_kernel(place: int, wrong: Callable[[np.ndarray], np.ndarray], *, tensors: bool = False) -> Make:
    """An engine of the float file with a wrong kernel; with ``tensors`` it shows its inner tensors."""

    def make(subject: Subject) -> Given:
        name = subject.products()[place]
        engine = standin.with_wrong(subject.model, name, wrong)
        outputs, inner = list[Tensors](), list[Tensors]()
        made = {output for node in subject.model.graph.node for output in node.output}
        for sample in subject.samples:
            outputs += engine.run([sample])
            inner.append({key: x for key, x in engine.tensors.items() if key in made and x.dtype == np.float32})
        more = {"tensors": subject.saved("tensors", inner)} if tensors else {}
        return subject.given(outputs, **more)

    return make


def activations(subject: Subject) -> list[str]:
    """The activations that a product reads."""
    read = {name for node in subject.model.graph.node if node.op_type in PRODUCTS for name in node.input}
    return [n.name for n in subject.model.graph.node if n.op_type in ("Relu", "Clip") and n.output[0] in read]


def _exchanged(found: list[Tensors]) -> list[Tensors]:
    """The two outputs of equal size under each other's names."""
    rows = []
    for row in found:
        (first, one), (second, other) = row.items()
        rows.append({first: other.reshape(one.shape), second: one.reshape(other.shape)})
    return rows


def _axes(order: tuple[int, ...]) -> Callable[[list[Tensors]], list[Tensors]]:
    def moved(found: list[Tensors]) -> list[Tensors]:
        return [{name: x.transpose(order).reshape(x.shape) for name, x in row.items()} for row in found]

    return moved


def _nhwc(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 2, 3, 1).reshape(x.shape)


def _bgr(x: np.ndarray) -> np.ndarray:
    return x[:, ::-1] if x.shape[1] == 3 else x[..., ::-1]


def _mean_std(x: np.ndarray) -> np.ndarray:
    """ImageNet's mean and deviation, on the axis of the channels."""
    shape = (1, 3, 1, 1) if x.shape[1] == 3 else (1, 1, 1, 3)
    return np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).reshape(2, *shape)


def _imagenet(x: np.ndarray) -> np.ndarray:
    mean, std = _mean_std(x)
    return (x - mean) / std


def _raw(x: np.ndarray) -> np.ndarray:
    mean, std = _mean_std(x)
    return x * std + mean


_FOUR = ("transformer", "detector", "ocr", "page-classifier")


CASES: list[tuple[str, str, Make]] = [
    ("input-scale", "ocr", _on_feeds(lambda x: x / 255)),
    ("input-scale", "page-classifier", _on_feeds(lambda x: x * 255)),
    ("input-scale", "lenet", _on_feeds(lambda x: x * 255)),
    ("input-scale", "akiki-vad", _on_feeds(np.zeros_like)),
    ("input-mean-std", "ocr", _on_feeds(_raw)),
    ("input-mean-std", "detector", _on_feeds(_imagenet)),
    ("input-mean-std", "page-classifier", _on_feeds(lambda x: _raw(x) * 255)),
    ("input-mean-std", "line-classifier", _on_feeds(lambda x: (x - 0.5) / 0.5)),
    *(("channel-order", name, _on_feeds(_bgr)) for name in ("line-classifier", "photo-classifier", *_FOUR[1::2])),
    *(("layout", name, _on_feeds(_nhwc)) for name in ("line-classifier", *_FOUR[1:])),
    ("resize", "detector", _pictures(opencv)),
    ("resize", "ocr", _pictures(letterbox)),
    ("resize", "page-classifier", _pictures(resized(Image.Resampling.NEAREST))),
    ("resize", "line-classifier", _pictures(resized(Image.Resampling.BICUBIC))),
    ("batch", "lenet", _on_outputs(lambda found: [found[k - 1] for k in range(len(found))])),
    ("batch", "ocr", _on_outputs(lambda found: [found[0]] * len(found))),
    ("batch", "transformer-4", _on_feeds(lambda x: x[::-1])),
    ("batch", "page-classifier-2", _on_feeds(lambda x: np.concatenate([x[:1], 0 * x[1:]]))),
    ("output-order", "two-heads", _on_outputs(_exchanged)),
    ("output-order", "two-masks", _on_outputs(_exchanged)),
    ("output-order", "detector", _on_outputs(_axes((0, 2, 1)))),
    ("output-order", "transformer", _on_outputs(_axes((0, 2, 1)))),
    *(("tf32", name, _by_nodes(standin.in_tf32)) for name in _FOUR),
    *(("fp16", name, _by_nodes(standin.in_floats)) for name in _FOUR),
    *(("bf16", name, _by_nodes(standin.in_floats, dtype=bfloat16)) for name in (*_FOUR[:3], "lenet")),
    ("layers-high", "lenet", _other_file(lambda s: standin.in_float32(s.pairs, s.products()[-1:]))),
    ("layers-high", "transformer", _other_file(lambda s: standin.in_float32(s.pairs, s.products()[:1]))),
    ("layers-high", "detector", _other_file(lambda s: standin.in_float32(s.pairs, s.products()[:1]))),
    ("layers-high", "page-classifier", _other_file(lambda s: standin.in_float32(s.pairs, s.products()[-1:]))),
    ("layers-low", "lenet", _planned(lambda names: names[:-1])),
    ("layers-low", "transformer", _planned(lambda names: names[1:])),
    ("layers-low", "detector", _planned(lambda names: names[1:])),
    ("layers-low", "akiki-vad", _planned(lambda names: names[:3], lambda names: names[:4])),
    ("scales", "transformer", _other_file(lambda s: standin.rescaled(s.pairs, lambda _: 2.0))),
    ("scales", "detector", _other_file(lambda s: standin.rescaled(s.pairs, lambda _: 2.0))),
    ("scales", "lenet", _stale_cache(99.0)),
    ("scales", "page-classifier", _stale_cache(99.9)),
    *(("per-tensor-weights", name, _other_file(lambda s: standin.quantized(s.model, s.scales, per_tensor=True)))
      for name in ("lenet", "transformer", "akiki-vad", "silero-vad")),
    *(("pairs-ignored", name, _other_file(lambda s: s.model)) for name in ("lenet", "transformer", "detector", "ocr")),
    *(("followers-low", name, _planned(list, holds=True))
      for name in ("transformer", "detector", "page-classifier", "silero-vad")),
    ("clip-fused", "lenet", _other_file(lambda s: standin.without(s.pairs, activations(s)))),
    ("clip-fused", "ocr", _other_file(lambda s: standin.without(s.pairs, activations(s)[:1]))),
    ("clip-fused", "silero-vad", _other_file(lambda s: standin.without(s.pairs, activations(s)[1:2]))),
    ("clip-fused", "line-classifier", _other_file(lambda s: standin.without(s.pairs, activations(s)[:1]))),
    ("kernel", "lenet", with_wrong_kernel(1, lambda y: y + 0.5 * np.abs(y))),
    ("kernel", "detector", with_wrong_kernel(9, lambda y: 0 * y)),
    ("kernel", "ocr", with_wrong_kernel(20, lambda y: y + 0.3 * np.abs(y), tensors=True)),
    ("kernel", "transformer", with_wrong_kernel(4, lambda y: np.roll(y, 1, -1), tensors=True)),
]  # fmt: skip
"""The cause, the network, and what makes the engine."""


def healthy(subject: Subject) -> Iterator[tuple[str, Given]]:
    """Yields engines that are their file, the float file and that with pairs: other kernels and numbers of threads."""
    file, with_pairs = subject.network, subject.with_pairs
    for name, ran, path, options in (
        ("float, optimised", file, file, {"threads": 2}),
        ("float, as it is", file, file, {"optimised": False}),
        ("INT8 kernels", with_pairs, with_pairs, {"integers": True}),
        ("floats between", with_pairs, with_pairs, {"optimised": False, "threads": 2}),
        ("float, noise", _with_noise(subject.model), file, {}),
    ):
        yield name, subject.given(outputs_of(ran, subject.samples, **options), model=path)


def _with_noise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a file with relative noise of 1e-6 on its weights."""
    changed, random = copy.deepcopy(model), np.random.default_rng(5)
    for tensor in changed.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim > 1:
            noisy = values * (1 + 1e-6 * random.standard_normal(values.shape))
            tensor.CopyFrom(numpy_helper.from_array(noisy.astype(np.float32), tensor.name))
    return changed


def subject(name: str, folder: Path) -> Subject:
    """Returns a network of the benchmark by its name."""
    plain, _, batch = name.rpartition("-") if name[-1].isdigit() else (name, "", "1")
    own = {
        "lenet": ("lenet/lenet.onnx", "lenet/digits.npz"),
        "detector": ("detector/detector.onnx", "detector/test.npz"),
        "ocr": ("ocr/network.onnx", "ocr/inputs.npz"),
        "transformer": ("transformer/encoder.onnx", "transformer/calibration.npz"),
    }
    if plain in own:
        network, data = (SAMPLES / part for part in own[plain])
    elif plain in ("two-heads", "two-masks"):
        network, data = _with_two(plain, folder)
    else:
        make_networks()
        network, data = NETWORKS / plain / "network.onnx", NETWORKS / plain / "given.npz"
    return Subject(name, network, data, folder, int(batch))


def _with_two(name: str, folder: Path) -> tuple[Path, Path]:
    """The transformer, or the detector, with a second output: the tanh of its own."""
    base = subject({"two-heads": "transformer", "two-masks": "detector"}[name], folder)
    graph = base.model.graph
    second = copy.deepcopy(graph.output[0])
    second.name = "second"
    graph.node.append(onnx.helper.make_node("Tanh", [graph.output[0].name], ["second"], name="second"))
    graph.output.append(second)
    path = folder / f"{name}.onnx"
    onnx.save(base.model, path)
    return path, base.data


HEALTHY = ("lenet", "detector", "ocr", "transformer", "akiki-vad", "silero-vad", "line-classifier", "page-classifier")
"""Five engines of each are their file."""
