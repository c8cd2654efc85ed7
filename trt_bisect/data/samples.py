"""Makes feeds from samples, such as dictionaries, tuples with a label or pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trt_bisect.data.feeds import Feeds, TensorSpec
from trt_bisect.data.preprocessing import BGR, GRAY, NCHW, NHWC, OPENCV, RGB, Preprocessing
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.text import listed

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"})
_GREY = 114  # the padding of a letterbox, as in YOLO
_CHANNELS: Mapping[int | None, str] = {1: GRAY, 3: RGB}
# Pillow's modes of 16-bit grey
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_BROKEN_NAMED = 10
_OF_OLD = "preprocessing.toml"  # version 0.2's file of options next to the pictures


@dataclass(frozen=True)
class ImageInput:
    """Turns pictures into arrays for one input of a network.

    Attributes:
        asked: the user's options.
        layout: ``nchw`` or ``nhwc``.
        colors: ``rgb``, ``bgr`` or ``gray``.
        size: height and width; where None (a dynamic axis), pictures keep their own.
        batch: number of pictures in a sample.
    """

    spec: TensorSpec
    asked: Preprocessing
    layout: str
    colors: str
    size: tuple[int | None, int | None]
    batch: int

    def __str__(self) -> str:
        height, width = ("any" if edge is None else edge for edge in self.size)
        size = f"{height}x{width}"
        if self.asked.letterbox:
            size += " with a letterbox"
        steps = [size, self.colors.upper()]
        if self.spec.dtype == np.uint8:
            return ", ".join([*steps, self.layout.upper(), "pixels as they are"])
        divided = "0 to 255" if self.asked.divisor == 1 else f"divided by {self.asked.divisor:g}"
        steps += [self.layout.upper(), divided]
        for word, values in (("mean", self.asked.mean), ("std", self.asked.std)):
            if values:
                steps.append(f"{word} {','.join(f'{value:g}' for value in values)}")
        return ", ".join(steps)

    def array(self, image: Image) -> np.ndarray:
        """Returns a picture as an array for the input, without batch axis.

        16-bit grey pixels lose the lower 8 bits. Raises BadInput for other pixels of more than 8 bits.
        """
        from PIL import Image, ImageOps

        if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format == "PNG"):
            image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
        if image.mode.startswith(("I", "F")):
            problem = f"It has pixels of the kind '{image.mode}', more than 16 bits a channel, or fractions."
            raise BadInput(problem, "Give a function that reads it, as module:function.")
        upright = ImageOps.exif_transpose(image) or image
        if upright.mode == "P":
            upright = upright.convert("RGBA")
        pixels = np.asarray(self._resized(upright.convert("L" if self.colors == GRAY else "RGB")))
        pixels = pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
        pixels = pixels[..., ::-1] if self.colors == BGR else pixels
        if self.spec.dtype != np.uint8:
            mean, std = (np.asarray(values, np.float32) for values in (self.asked.mean or (0,), self.asked.std or (1,)))
            pixels = (pixels.astype(np.float32) / np.float32(self.asked.divisor) - mean) / std
        return np.ascontiguousarray(pixels if self.layout == NHWC else pixels.transpose(2, 0, 1))

    def _resized(self, image: Image) -> Image:
        from PIL import ImageOps
        from PIL.Image import Resampling, Transform

        width, height = image.size
        target = (self.size[1] or width, self.size[0] or height)
        if target == image.size:
            return image
        if self.asked.filter == OPENCV:
            places = (width / target[0], 0.0, 0.0, 0.0, height / target[1], 0.0)
            return image.transform(target, Transform.AFFINE, places, Resampling.BILINEAR)
        filter = Resampling[self.asked.filter.upper()]
        if not self.asked.letterbox:
            return image.resize(target, filter)
        grey = _GREY if image.mode == "L" else (_GREY,) * 3
        return ImageOps.pad(image, target, filter, color=grey)

    def names(self, files: Sequence[Path]) -> tuple[str, ...]:
        """Returns the name of each sample: its picture's path, or for a batch the first and the last picture's."""
        if self.batch == 1:
            return tuple(map(str, files))
        ends = zip(files[:: self.batch], files[self.batch - 1 :: self.batch], strict=False)
        return tuple(f"{first} to {last.name}" for first, last in ends)

    def samples(self, files: Sequence[Path]) -> Iterator[Feeds]:
        """Yields samples of pictures; leaves out pictures at the end that do not fill a batch.

        Raises BadInput for pictures that cannot be used, with their number and the first names, or if the pictures of
        a batch differ in size.
        """
        for start in range(0, len(files) - self.batch + 1, self.batch):
            try:
                rows = [self._read(file) for file in files[start : start + self.batch]]
            except BadInput as error:
                raise self._on_all(files[start:], error) from None
            if len({row.shape for row in rows}) > 1:
                problem = f"The network takes {self.batch} pictures at a time, and those of a batch differ in size."
                raise BadInput(problem, "Give the pictures one size with --resize 320x320 --letterbox.")
            yield {self.spec.name: np.stack(rows) if len(self.spec.shape) == 4 else rows[0]}

    def _on_all(self, files: Sequence[Path], first: BadInput) -> BadInput:
        broken = []
        for file in files:
            try:
                self._read(file)
            except BadInput:
                broken.append(str(file))
        if len(broken) < 2:
            return first
        names = listed(broken, _BROKEN_NAMED)
        return BadInput(f"{len(broken)} pictures cannot be used: {names}. {first.problem}", first.remedy)

    def _read(self, file: Path) -> np.ndarray:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(file) as image:
                return self.array(image)
        except BadInput as error:
            raise BadInput(f"The picture '{file}' cannot be used. {error.problem}", error.remedy) from None
        except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            problem = f"The picture '{file}' cannot be read: {first_line(error)}"
            raise BadInput(problem, "Remove it, or write it again.") from error


def image_input(spec: TensorSpec, asked: Preprocessing) -> ImageInput:
    """Returns the conversion of pictures to the input ``spec`` by the options ``asked``; raises BadInput if these or
    the input do not allow it.
    """
    if len(spec.shape) not in (3, 4):
        raise BadInput(f"The network's input {spec} takes no pictures.", "Give arrays, as .npz.")
    row = spec.shape[-3:]
    layout = NHWC if row[2] in _CHANNELS and row[0] not in _CHANNELS else NCHW
    channels, *edges = (row[2], row[0], row[1]) if layout == NHWC else row
    colors = asked.colors or _CHANNELS.get(channels, RGB)
    count = 1 if colors == GRAY else 3
    if channels not in (None, count):
        raise BadInput(
            f"The network's input {spec} takes no {colors} pictures in {layout.upper()}: it has {channels} channels.",
            "Give --colors gray for 1 channel, rgb or bgr for 3, or --shape if the number of channels is dynamic.",
        )
    options = {"--mean": asked.mean, "--std": asked.std, "--scale": None if asked.scale == 1.0 else asked.scale}
    scaling = [option for option, value in options.items() if value is not None]
    if spec.dtype == np.uint8 and scaling:
        raise BadInput(f"The network's input {spec} takes pixels as they are.", f"Leave out {' and '.join(scaling)}.")
    for option, values in (("--mean", asked.mean), ("--std", asked.std)):
        if values is not None and len(values) not in (1, count):
            remedy = f"Give one number, or one for each channel ({colors})."
            raise BadInput(f"{option} has {len(values)} numbers.", remedy)
    height, width = asked.resize or edges
    if any(edge not in (None, want) for edge, want in zip(edges, (height, width), strict=True)):
        raise BadInput(f"--resize {height}x{width} does not fit the network's input {spec}.", "Leave out --resize.")
    batch = (spec.shape[0] or 1) if len(spec.shape) == 4 else 1
    return ImageInput(spec, asked, layout, colors, (height, width), batch)


def image_files(folder: Path) -> list[Path]:
    """Returns the pictures in a folder and its subfolders, sorted by path."""
    files = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    return sorted(path for path in files if not path.name.startswith("."))


def picture_input(place: Path, files: list[Path], specs: tuple[TensorSpec, ...], asked: Preprocessing) -> ImageInput:
    """Returns the conversion of the pictures ``files`` to the network's only input; ``place`` is the user's path.

    Raises BadInput if the network has other inputs, the pictures fill no batch, or a ``preprocessing.toml`` would be
    ignored.
    """
    if len(specs) != 1:
        raise BadInput(
            f"'{place}' holds pictures, and the network has {len(specs)} inputs: " + ", ".join(map(str, specs)) + ".",
            "Give a function that returns all inputs, as module:function.",
        )
    old = (place if place.is_dir() else place.parent) / _OF_OLD
    if asked == Preprocessing() and old.is_file():
        problem = f"'{old}' holds picture options of an earlier version, which this version does not apply by itself."
        raise BadInput(problem, f"Give --config {old} to prepare the pictures with these options, or remove the file.")
    fed = image_input(specs[0], asked)
    if len(files) < fed.batch:
        raise BadInput(f"'{place}' holds {len(files)} pictures, the network takes {fed.batch} at a time.", "Give more.")
    return fed


def is_image(value: Any) -> bool:
    """Returns true for a Pillow image."""
    return all(hasattr(value, name) for name in ("mode", "size", "convert", "getbands"))


_CHANNELS_OF_PICTURES = (1, 3, 4)


def feeds_of(samples: Iterable[Any], specs: tuple[TensorSpec, ...], pictures: Preprocessing) -> Iterator[Any]:
    """Yields feeds from samples.

    A sample is a dictionary of arrays by input, an array, or a tuple or list of arrays in the order of the inputs;
    other keys and further items, such as a label, are ignored. Arrays are PyTorch's or any that NumPy reads, lists of
    numbers, or Pillow's images. A missing batch axis is added; a batch larger than the network's fixed batch is
    divided. Other samples are yielded unchanged.
    """
    for sample in samples:
        yield from _divided(_named(sample, specs, pictures), specs)


def _named(sample: Any, specs: tuple[TensorSpec, ...], pictures: Preprocessing) -> Any:
    if isinstance(sample, Mapping):
        by_name = {spec.name: spec for spec in specs}
        is_complete = set(by_name) <= set(sample)
        named = {}
        for name, value in sample.items():
            if name in by_name:
                named[name] = _array(value, by_name[name], pictures)
            elif not is_complete:
                named[name] = value
        return named
    parts = _parts(sample)
    if parts is None:
        is_single = len(specs) == 1 and (_is_array(sample) or is_image(sample) or isinstance(sample, list))
        return {specs[0].name: _array(sample, specs[0], pictures)} if is_single else sample
    first = parts[0]
    if isinstance(first, Mapping) or _parts(first) is not None:
        return _named(first, specs, pictures)
    if len(parts) < len(specs):
        return sample
    return {spec.name: _array(part, spec, pictures) for spec, part in zip(specs, parts, strict=False)}


def _parts(sample: Any) -> Sequence[Any] | None:
    # a list may be a tuple that PyTorch's data loader turned into a list
    if isinstance(sample, tuple) and sample:
        return sample
    is_list = isinstance(sample, list) and sample
    if is_list and (_is_array(sample[0]) or is_image(sample[0]) or isinstance(sample[0], Mapping)):
        return sample  # type: ignore[no-any-return]
    return None


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _array(value: Any, spec: TensorSpec, pictures: Preprocessing) -> np.ndarray:
    if not is_image(value):
        return with_batch_axis(as_array(value), spec)
    array = image_input(spec, pictures).array(value)
    return array[np.newaxis] if len(spec.shape) == 4 else array


def as_array(value: Any) -> np.ndarray:
    """Returns an array, a list or a tensor, even with a gradient or on a GPU, as a NumPy array."""
    for step in ("detach", "cpu"):
        value = getattr(value, step)() if hasattr(value, step) else value
    return np.asarray(value)


def with_batch_axis(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Returns ``array`` with a leading axis if only the batch axis is missing; else unchanged."""
    lacks_batch = array.ndim + 1 == len(spec.shape) and spec.shape[0] in (1, None)
    return array[np.newaxis] if lacks_batch else array


def _divided(sample: Any, specs: tuple[TensorSpec, ...]) -> Iterator[Any]:
    is_whole = isinstance(sample, Mapping) and all(isinstance(sample.get(spec.name), np.ndarray) for spec in specs)
    counts = {_batches(sample[spec.name], spec) for spec in specs} if is_whole else {1}
    count = counts.pop()
    if counts or count == 1:
        yield sample
        return
    parts = {spec.name: np.split(sample[spec.name], count) for spec in specs}
    for index in range(count):
        yield {name: rows[index] for name, rows in parts.items()}


def _batches(array: np.ndarray, spec: TensorSpec) -> int:
    fixed = spec.shape[0] if spec.shape else None
    fits = fixed and array.ndim == len(spec.shape) and len(array) and len(array) % fixed == 0
    return len(array) // fixed if fits and fixed else 1


def shape_remedy(shape: tuple[int, ...], spec: TensorSpec) -> str:
    """Returns advice on an array of a wrong shape: the input's shape and, if clear, how to get it."""
    takes = f"The network takes {spec}."
    missing = _missing_axis(shape, spec.shape) if len(shape) == len(spec.shape) - 1 else None
    if missing is not None:
        return f"{takes} An axis is missing: numpy.expand_dims(array, {missing})."
    if len(shape) != len(spec.shape):
        row = spec.shape[1:]
        may_reshape = None not in row and math.prod(shape[1:]) == math.prod(size or 0 for size in row)
        reshape = f" Give each sample its axes: array.reshape(-1, {', '.join(map(str, row))})."
        return takes + reshape if may_reshape else takes
    order = _transpose(shape, spec.shape)
    if order is not None:
        known = {"0231": " from NCHW to NHWC", "0312": " from NHWC to NCHW"}
        names = known.get("".join(map(str, order)), "")
        return f"{takes} Transpose the data{names}: array.transpose({', '.join(map(str, order))})."
    dynamic = [axis for axis, size in enumerate(spec.shape) if size is None]
    return f"{takes} A '?' may have any size; all others must be equal." if dynamic else takes


def _missing_axis(shape: tuple[int, ...], target: tuple[int | None, ...]) -> int | None:
    any_batch = (None, *target[1:])
    places = (axis for axis, size in enumerate(target) if size in (1, None))
    return next((k for k in places if shape_fits(shape, any_batch[:k] + any_batch[k + 1 :])), None)


def _transpose(shape: tuple[int, ...], target: tuple[int | None, ...]) -> tuple[int, ...] | None:
    fitting = [order for order in permutations(range(len(shape))) if shape_fits([shape[k] for k in order], target)]
    for usual, channel in (((0, 3, 1, 2), 3), ((0, 2, 3, 1), 1)):
        if usual in fitting and shape[channel] in _CHANNELS_OF_PICTURES:
            return usual
    return fitting[0] if len(fitting) == 1 else None


def shape_fits(shape: Sequence[int], target: tuple[int | None, ...]) -> bool:
    """Returns true if a shape fits an input's; a dynamic axis (None) takes any size."""
    return len(shape) == len(target) and all(want in (None, have) for have, want in zip(shape, target, strict=True))


def dtype_remedy(dtype: np.dtype[Any], spec: TensorSpec) -> str:
    """Returns advice on an array of a wrong dtype: the input's dtype, and the cast to it."""
    takes = f"The network takes {spec}."
    if dtype == np.uint8 and spec.dtype.kind == "f":
        return (
            f"{takes} Cast the pixels as in training: array.astype(np.float32) / 255 for a network that expects "
            "0 to 1, without the division for one that expects 0 to 255."
        )
    if dtype.kind in "iub" and spec.dtype.kind == "f":
        return f"{takes} Cast it: array.astype(np.{spec.dtype})."
    if dtype.kind == "f" and spec.dtype.kind in "iu":
        return f"{takes} Are these token ids or pixels? Cast them: array.astype(np.{spec.dtype})."
    return takes
