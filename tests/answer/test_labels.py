"""The accuracy on class folders, masks and texts: figures of NumPy, from what ONNX Runtime gives for the files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import helper
from PIL import Image

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch
from tests.support.quantized import plain_session
from trt_bisect.answer import accuracy as labels
from trt_bisect.answer.mean_precision import at_pixels, input_size
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import places_of

SIDE, BRIGHT = 32, 9.0
WISHES = {"engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "effort": "quick"}
KERNELS = {"segment": (1, 1), "text": (SIDE, 1), "classify": (SIDE, SIDE)}


def network(task, folder):
    """Three classes: the background, and those of the first and the second colour, of a pixel, a column or an image.

    The layer ``second`` reads a channel that starves the others of INT8's levels.
    """
    sketch = Sketch()
    x = sketch.node("Relu", [sketch.conv("x", "first", 3, 4)], "relu1")
    x = sketch.node("Relu", [sketch.conv(x, "second", 4, 4)], "relu2")
    height, width = KERNELS[task]
    weight = np.zeros((3, 4, height, width))
    weight[[1, 2], [0, 1]] = BRIGHT * (1 if task == "segment" else 4) / (height * width)
    given = [x, sketch.constant("head.weight", weight), sketch.constant("head.bias", [1.0, 0, 0])]
    x, shape = sketch.node("Conv", given, "head"), [1, 3, SIDE, SIDE]
    if task != "segment":
        shape = [1, 3, SIDE] if task == "text" else [1, 3]
        x = sketch.node("Reshape", [x, sketch.constant("shape", shape, np.int64)], "flat")
    if task == "text":
        x, shape = sketch.node("Transpose", [x], "turned", perm=[0, 2, 1]), [1, SIDE, 3]
    sketch.node("Softmax", [x], "y", axis=1 if task == "segment" else -1)
    model = sketch.model({"x": [1, 3, SIDE, SIDE]}, {"y_out": shape})
    networks.copying(model, first=np.eye(4, 3), second=np.diag([1.0, 1, 0, 0]))
    helper.set_model_props(model, {"character": "a\nb"})
    return networks.save(model, folder)


def write(pictures, folder):
    """PNG files of bright colours 1 and 2, by name, from arrays of classes ``[H, W]``."""
    for name, classes in pictures.items():
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 * (classes[..., None] == (1, 2, 3))).astype(np.uint8)).save(path)
    return folder


def outputs(model, folder):
    """The output of ONNX Runtime for each picture, by its name."""
    session = plain_session(model)
    found = {}
    for path in sorted(folder.rglob("*.png")):
        pixels = np.asarray(Image.open(path).resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float32) / 255
        found[path.stem] = session.run(None, {"x": pixels.transpose(2, 0, 1)[None]})[0][0]
    return found


def squares(random, names, size=SIDE):
    """Classes of images with a square of class 1 and one of class 2."""
    found = {}
    for name in names:
        image = np.zeros((size, size), np.int64)
        for label, (y, x) in enumerate(random.integers(0, 2, (2, 2)) * size // 2, 1):
            image[y : y + size // 2 - 4, x + 2 : x + size // 2] = label
        found[name] = image
    return found


def test_masks_are_judged_by_the_mean_intersection_over_union(tmp_path, random):
    """Every mask has a class too many and pixels that do not count; images and masks are larger than the input."""
    model = network("segment", tmp_path)
    right = squares(random, "abcd", 2 * SIDE)
    pictures = write(right, tmp_path / "pictures")
    masks = {name: np.where(np.arange(2 * SIDE) < 6, 255, image) for name, image in right.items()}
    masks["b"][:20, 40:] = 2
    (tmp_path / "masks").mkdir()
    for name, mask in masks.items():
        Image.fromarray(mask.astype(np.uint8)).save(tmp_path / "masks" / f"{name}.png")
    seen = {name: np.repeat(np.repeat(y.argmax(0), 2, 0), 2, 1) for name, y in outputs(model, pictures).items()}
    counts = {name: mask < 255 for name, mask in masks.items()}
    wanted, found = (np.concatenate([each[n][counts[n]] for n in "abcd"]) for each in (masks, seen))
    ious = [((wanted == k) & (found == k)).sum() / ((wanted == k) | (found == k)).sum() for k in range(3)]
    report = trt_bisect.run(
        model, pictures, inputs=pictures, dataset=pictures, labels=tmp_path / "masks", task="segment", drop="1%",
        **WISHES
    )  # fmt: skip
    assert report.accuracy.fp32 == pytest.approx(np.mean(ious))
    assert report.accuracy.also["fp32"]["pixels"] == pytest.approx(np.mean(wanted == found))
    assert report.culprits == ("second",)
    assert report.accuracy.int8 < 0.5 < report.accuracy.recipe
    assert report.accuracy.recipe >= report.accuracy.least == pytest.approx(0.99 * np.mean(ious))


def test_a_mask_of_0_and_255_has_one_object(tmp_path, random):
    model = network("segment", tmp_path)
    right = {name: np.minimum(image, 1) for name, image in squares(random, "ab").items()}
    pictures = write(right, tmp_path / "pictures")
    (tmp_path / "masks").mkdir()
    for name, image in right.items():
        Image.fromarray(image.astype(np.uint8) * 255).save(tmp_path / "masks" / f"{name}.png")
    wishes = {"dataset": pictures, "labels": tmp_path / "masks", **WISHES}
    report = trt_bisect.run(model, pictures, inputs=pictures, **wishes)
    assert report.accuracy.fp32 == 1.0
    for name, image in right.items():
        Image.fromarray(np.full(image.shape, 255, np.uint8)).save(tmp_path / "masks" / f"{name}.png")
    with pytest.raises(BadInput, match="No pixel of the masks"):
        trt_bisect.run(model, pictures, inputs=pictures, **wishes)


@pytest.mark.parametrize(
    ("pixels", "classes", "expected"),
    [
        ([50, 50], 2, 1 / 3 + 0.01),  # drawn at random: a quarter is the same, three quarters are the union
        ([90, 10], 2, 0.45),  # the first one everywhere
        ([70], 4, 0.25),
        ([70], None, 0.0),
    ],
)
def test_the_chance_of_masks_is_what_their_shares_alone_tell(pixels, classes, expected):
    assert labels.chance_of_masks(np.array(pixels), classes) == pytest.approx(expected)


@pytest.mark.parametrize(("letterbox", "image"), [(False, (40, 24)), (True, (40, 24)), (True, (10, 31))])
def test_each_pixel_of_an_image_has_the_class_of_the_place_where_pillow_puts_it(letterbox, image):
    """Every pixel of the image is painted in turn, and sought in the input."""
    from PIL import ImageOps

    size = (64, 48)
    cells = np.arange(48 * 64).reshape(48, 64)
    found = at_pixels(cells, image[::-1], size, letterbox=letterbox)
    for x, y in np.random.default_rng(0).integers(0, image, (20, 2)).tolist():
        picture = np.zeros(image[::-1], np.uint8)
        picture[y, x] = 255
        shown = Image.fromarray(picture)
        placed = ImageOps.pad(shown, size, Image.Resampling.NEAREST) if letterbox else shown.resize(size, 0)
        assert found[y, x] in cells[np.asarray(placed) == 255]


TEXTS = {"one": "abab", "two": "ba", "six": "aab"}


def lines():
    """Columns of classes that read as ``TEXTS`` by CTC, with blanks between equal letters."""
    found = {}
    for name, text in TEXTS.items():
        row = np.zeros(SIDE, np.int64)
        row[np.arange(len(text)) * 4 + 2] = row[np.arange(len(text)) * 4 + 3] = ["ab".index(c) + 1 for c in text]
        found[name] = np.tile(row, (SIDE, 1))
    return found


@pytest.mark.parametrize("named", [True, False])
def test_texts_are_judged_by_their_characters(tmp_path, named):
    """One of nine right characters is another one, in one of three lines."""
    model, pictures = network("text", tmp_path), write(lines(), tmp_path / "pictures")
    wrong = {**TEXTS, "six": "abb"}
    order = sorted(TEXTS) if not named else list(TEXTS)
    path = tmp_path / "right.txt"
    path.write_text("".join(f"{n}.png\t{wrong[n]}\n" if named else f"{wrong[n]}\n" for n in order), encoding="utf-8")
    report = trt_bisect.run(
        model, pictures, inputs=pictures, dataset=pictures, labels=path, task="text", drop="1%", **WISHES
    )
    assert report.accuracy.fp32 == pytest.approx(1 - 1 / 9)
    assert report.accuracy.also["fp32"]["exact"] == pytest.approx(2 / 3)
    assert report.accuracy.int8 == pytest.approx(0.0), "nothing is read"
    assert (report.culprits, report.accuracy.recipe) == (("second",), report.accuracy.fp32)


def test_a_text_for_a_network_without_characters_is_refused(tmp_path):
    import onnx

    model, pictures = network("text", tmp_path), write(lines(), tmp_path / "pictures")
    loaded = onnx.load(model)
    helper.set_model_props(loaded, {"character": "a\nb\nc"})
    (tmp_path / "right.txt").write_text("\n".join("abc"), encoding="utf-8")
    with pytest.raises(BadInput, match="which characters its classes are"):
        trt_bisect.run(
            loaded, pictures, inputs=pictures, dataset=pictures, labels=tmp_path / "right.txt", task="text", **WISHES
        )


def coloured(random, names):
    """Images with a square of one class each, in a folder of the class or of another one."""
    return {f"{folder}/{k}": np.full((SIDE, SIDE), label) for k, (folder, label) in enumerate(names)}


@pytest.mark.parametrize(("folders", "task"), [(("n01", "n02", "n10"), "classify"), (("2", "0", "1"), None)])
def test_class_folders_are_numbered_in_their_order_or_by_their_names(tmp_path, random, folders, task):
    """Folder k of the sorted ones is class k, and a number is its class; one of six images is of another class."""
    model = network("classify", tmp_path)
    numbers = {name: int(name) if name.isdecimal() else k for k, name in enumerate(sorted(folders))}
    by_number = {number: name for name, number in numbers.items()}
    images = coloured(random, [(by_number[k % 3], k % 3) for k in range(5)] + [(by_number[1], 2)])
    pictures = write(images, tmp_path / "val")
    found = {name: y.argmax() for name, y in outputs(model, pictures).items()}
    assert found == {str(k): k % 3 for k in range(6)}
    given = {"inputs": pictures, "dataset": pictures, "labels": pictures, "task": task, "drop": "1%"}
    report = trt_bisect.run(model, pictures, **given, **WISHES)
    assert report.accuracy.fp32 == pytest.approx(5 / 6)
    assert report.culprits == ("second",)
    part = trt_bisect.run(model, pictures, dataset=pictures / by_number[1], labels=pictures, **WISHES)
    assert part.accuracy.fp32 == pytest.approx(2 / 3), "images of a folder in it"


@pytest.mark.parametrize(
    "form", ["{0}.png,{1}", "{0}\t{1}", "{0}.png {1}", "val/{0}.jpg, {1}", 'image,label\n"{0}.png";{1}']
)
def test_labels_with_names_are_matched_by_name(tmp_path, form):
    """They stand in the order of classes, not of pictures; by order two of six would be right."""
    right = {"a": 0, "b": 1, "c": 2, "d": 2, "e": 1, "f": 0}
    pictures = write({name: np.full((SIDE, SIDE), k) for name, k in right.items()}, tmp_path / "val")
    head, _, line = form.rpartition("\n")
    rows = [line.format(name, right[name]) for name in "fabedc"]
    path = tmp_path / "labels.csv"
    path.write_text("\n".join([*head.splitlines(), *rows, ""]), encoding="utf-8")
    samples = open_dataset(pictures, (TensorSpec("x", np.dtype(np.float32), (1, 3, SIDE, SIDE)),))
    found, notes = labels.labels_in_order(path, samples, pictures)
    assert (found.tolist(), notes) == ([*right.values()], [])


def test_labels_without_names_count_in_the_order_of_the_pictures_and_this_is_said(tmp_path, random):
    model = network("classify", tmp_path)
    pictures = write({name: np.full((SIDE, SIDE), k) for k, name in enumerate(("01", "02", "10"))}, tmp_path / "val")
    report = trt_bisect.run(model, pictures, dataset=pictures, labels=[0, 1, 2], **WISHES)
    assert report.accuracy.fp32 == 1.0
    assert any("in the order '01.png', '02.png', '10.png'" in note.text for note in report.notes)
    (tmp_path / "val" / "02.png").rename(tmp_path / "val" / "2.png")
    with pytest.raises(BadInput, match=r"by name '10\.png' comes before '2\.png', by number after it"):
        trt_bisect.run(model, pictures, dataset=pictures, labels=[0, 1, 2], **WISHES)


@pytest.mark.parametrize(
    ("names", "dataset", "words"),
    [
        (("x.png", "y.png"), "val", "2 of 2 pictures have no label, such as '.*a.png'; the labels name 2 files"),
        (("a.png", "z.png"), "val", "1 of 2 pictures have no label, such as '.*b.png'"),
        (("a.png", "a.jpg"), "val", "2 labels are named 'a'"),
        (("a.png", "b.png"), "arrays.npz", "the samples of .*arrays.npz have none"),
    ],
)
def test_labels_of_other_names_are_refused(tmp_path, random, names, dataset, words):
    model = network("classify", tmp_path)
    write({name: np.full((SIDE, SIDE), 1) for name in "ab"}, tmp_path / "val")
    np.savez(tmp_path / "arrays.npz", x=np.ones((2, 3, SIDE, SIDE), np.float32))
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"{name} 1\n" for name in names), encoding="utf-8")
    with pytest.raises(BadInput, match=words):
        trt_bisect.run(model, tmp_path / "arrays.npz", dataset=tmp_path / dataset, labels=path, **WISHES)


def test_files_of_the_same_name_are_told_apart_by_their_folders():
    files = ["val/cat/1.png", "val/dog/1.png", "val/dog/2.png"]
    assert places_of(files, ["dog/1", "2.jpg", "cat/1"], "label") == {0: 2, 1: 0, 2: 1}
    assert places_of(files, ["2"], "label") == {2: 0}
    for names in (["1"], ["bird/1", "fox/1"], ["cat/1", "other/cat/1", "dog/1"]):
        with pytest.raises(BadInput, match="not clear which label"):
            places_of(files, names, "label")


@pytest.mark.parametrize(
    ("folders", "dataset", "words"),
    [
        (("n01", "n02"), "val", "2 class folders, up to 'n02', and the network 3 classes"),
        (("0", "7"), "val", "up to '7', and the network 3 classes"),
        (("n01", "n02", "n03"), "other", "is in no class folder"),
    ],
)
def test_folders_that_are_not_those_of_the_classes_are_refused(tmp_path, random, folders, dataset, words):
    model = network("classify", tmp_path)
    pictures = write(coloured(random, [(name, 1) for name in folders]), tmp_path / "val")
    write({"a": np.full((SIDE, SIDE), 1)}, tmp_path / "other")
    with pytest.raises(BadInput, match=words):
        trt_bisect.run(model, pictures, dataset=tmp_path / dataset, labels=pictures, **WISHES)


@pytest.mark.parametrize(
    ("task", "content", "kind"),
    [
        ("segment", "a.txt", "boxes"),
        ("detect", "a.png", "masks"),
        ("classify", "boxes.json", "boxes"),
        ("detect", "a/", "class folders"),
        ("embed", "labels.npy", "classes"),
    ],
)
def test_labels_of_another_kind_than_the_task_are_refused(tmp_path, task, content, kind):
    path = tmp_path / content
    if content.endswith("/"):
        path.mkdir()
    else:
        path.touch()
    given = path if path.suffix in (".json", ".npy") else tmp_path
    with pytest.raises(BadInput, match=f"task {task} is not judged by --labels with {kind}"):
        labels.kind_of(given, task)
    assert labels.kind_of(given, None) == kind


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_a_file_without_texts_is_refused(tmp_path, content):
    path = tmp_path / "right.txt"
    path.write_bytes(content)
    with pytest.raises(BadInput):
        labels.read_texts(path)


def test_masks_that_cannot_be_read_and_images_without_one_are_refused(tmp_path, random):
    model = network("segment", tmp_path)
    pictures = write(squares(random, "ab"), tmp_path / "pictures")
    masks = tmp_path / "masks"
    masks.mkdir()
    for content, words in ((b"no picture", "cannot be read"), (None, "pixels of the kind 'RGB'")):
        if content is None:
            Image.new("RGB", (SIDE, SIDE)).save(masks / "a.png")
        else:
            (masks / "a.png").write_bytes(content)
        with pytest.raises(BadInput, match=words):
            trt_bisect.run(model, pictures, dataset=pictures, labels=masks, **WISHES)
    Image.new("L", (SIDE, SIDE)).save(masks / "a.png")
    with pytest.raises(BadInput, match=r"no mask for .*b\.png"):
        trt_bisect.run(model, pictures, dataset=pictures, labels=masks, **WISHES)
    assert math.prod(input_size({"x": np.zeros((1, 3, 4, 6))})) == 24
