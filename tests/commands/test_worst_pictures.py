"""The pictures of the worst images: of the network's input, with what each plan finds, as it is compared."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from tests.support.raw_heads import as_pairs, raw
from trt_bisect.analyzer.tasks.find import find_task, letters_of, spelled
from trt_bisect.analyzer.tasks.task import AskedTask
from trt_bisect.commands.run.pictures import class_names, data_uri, frames_of, pictures_of
from trt_bisect.report.explanation import Picture

SIDE = 64


def decoded(uri: str) -> np.ndarray:
    """The pixels of a PNG in a data URI, by Pillow."""
    from PIL import Image

    head, text = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def drawn(task: str, *plans, feeds=None, letters=(), **asked) -> list[Picture]:
    """The pictures of a task, from the outputs of FP32, INT8 and the recipe."""
    names = dict(zip(("fp32", "int8", "recipe"), plans, strict=False))
    found = find_task(AskedTask(task, **asked), [plans[0]])
    scaling = None if found.scaling is None else found.scaling([plans[0]])
    return pictures_of("a.png", feeds or image(), names, found, scaling, letters)


def image(count=1):
    return {"x": np.random.default_rng(1).normal(size=(count, 3, SIDE, SIDE)).astype(np.float32)}


def candidates(boxes, scores, more=None, many=400, unit=1.0):
    """A YOLO v8 output: boxes (cx, cy, w, h) with scores ``[n, C]``, among background."""
    random, boxes = np.random.default_rng(2), np.asarray(boxes, float)
    every = np.column_stack([random.uniform(8, 56, (many, 2)), random.uniform(4, 20, (many, 2))])
    shares = random.uniform(0, 0.05, (many, np.shape(scores)[1]))
    every[: len(boxes)], shares[: len(boxes)] = boxes, scores
    columns = [every * unit, shares] if more is None else [every * unit, shares, more]
    return {"output0": np.concatenate(columns, axis=1).T[None].astype(np.float32)}


@pytest.mark.parametrize(("order", "channels"), [("first", 3), ("first", 1), ("last", 3), ("last", 1)])
def test_the_input_is_a_picture_whose_least_value_is_black(order, channels):
    values = np.random.default_rng(0).normal(size=(2, channels, 6, 9))
    values[0, 0, 2, 3], values[0, 0, 4, 5] = -9, 11
    given = values if order == "first" else values.transpose(0, 2, 3, 1)
    one, other = frames_of({"mask": np.zeros((2, 5)), "x": given.astype(np.float32)})
    assert one.shape == other.shape == (6, 9, 3)
    assert (one[2, 3, 0], one[4, 5, 0]) == (0, 255)
    assert one[1, 1, 0] == pytest.approx(255 * (values[0, 0, 1, 1] + 9) / 20, abs=0.51)
    assert channels == 3 or (one[..., 0] == one[..., 2]).all()


@pytest.mark.parametrize("shape", [(1, 2, 8, 8), (1, 3, 8), (1, 3, 1, 1), (4, 16), (1, 3, 8, 8, 8)])
def test_other_inputs_are_no_pictures(shape):
    assert frames_of({"x": np.ones(shape, np.float32)}) == []
    assert frames_of({"x": np.full((1, 3, 8, 8), True)}) == []


def test_a_large_picture_is_averaged_to_320_pixels_and_a_mask_keeps_its_values(random):
    pixels = random.integers(0, 256, (640, 320, 3)).astype(np.uint8)
    small = decoded(data_uri(pixels)).astype(float)
    assert small.shape == (320, 160, 3)
    assert np.abs(small - pixels.reshape(320, 2, 160, 2, 3).mean(axis=(1, 3))).max() <= 1
    assert set(np.unique(decoded(data_uri(pixels // 255 * 255, smooth=False)))) <= {0, 255}


def test_boxes_are_kept_lost_and_invented_where_they_stand():
    """FP32 finds A and B; INT8 has A, and C instead of B."""
    a, b, c = (20, 20, 10, 8), (40, 44, 12, 12), (50, 12, 8, 8)
    before = candidates([a, b, c], [[0.9, 0], [0, 0.8], [0, 0]])
    after = candidates([a, b, c], [[0.7, 0], [0, 0.1], [0, 0.6]])
    (picture,) = drawn("detect", before, after, before)
    assert (picture.name, picture.width, picture.height) == ("a.png", SIDE, SIDE)
    fp32, int8, recipe = picture.drawings
    assert [(mark.kind, mark.text) for mark in fp32.marks] == [("", "0 0.90"), ("", "1 0.80")]
    assert fp32.marks[0].outline == ((15, 16), (25, 16), (25, 24), (15, 24))
    assert {(mark.kind, mark.text) for mark in int8.marks} == {
        ("kept", "0 0.70"),
        ("lost", "1 0.80"),
        ("invented", "1 0.60"),
    }
    assert int8.counts == {"kept": 1, "lost": 1, "invented": 1}
    assert (int8.agreement, recipe.agreement, fp32.agreement) == (pytest.approx(1 / 3), 1.0, None)
    assert next(mark for mark in int8.marks if mark.kind == "lost").outline[2] == (46, 50)


def test_boxes_in_shares_of_the_image_are_drawn_in_its_pixels():
    boxes = np.array([[20, 20, 10, 8]])
    before = candidates(boxes, [[0.9, 0]], unit=1 / SIDE)
    (picture,) = drawn("detect", before, before)
    assert picture.drawings[0].marks[0].outline == ((15, 16), (25, 16), (25, 24), (15, 24))
    wide = {"x": np.arange(3.0 * SIDE // 2 * SIDE, dtype=np.float32).reshape(1, 3, SIDE // 2, SIDE)}
    (picture,) = drawn("detect", before, before, feeds=wide)
    assert (picture.width, picture.height) == (SIDE, SIDE // 2)
    assert picture.drawings[0].marks[0].outline == ((15, 8), (25, 8), (25, 12), (15, 12))


def test_boxes_of_raw_maps_are_drawn_in_pixels_of_the_input():
    """The finest map has 20 x 20 cells: of 8 x 16 pixels in an input of 160 x 320."""
    distances, found, boxes = raw(np.random.default_rng(4))
    outputs = as_pairs(distances, found)
    feeds = {"x": np.arange(3.0 * 320 * 160, dtype=np.float32).reshape(1, 3, 320, 160)}
    (picture,) = drawn("detect", outputs, outputs, feeds=feeds)
    for mark, ((x1, y1, x2, y2), label, score) in zip(picture.drawings[0].marks, boxes, strict=True):
        assert mark.text == f"{label} {score:.2f}"
        assert np.array(mark.outline) == pytest.approx(
            np.array([(x1, 2 * y1), (x2, 2 * y1), (x2, 2 * y2), (x1, 2 * y2)]), abs=0.051
        )


def test_a_plan_with_nan_finds_nothing():
    before = candidates([(20, 20, 10, 8)], [[0.9, 0]])
    (picture,) = drawn("detect", before, {"output0": np.full_like(before["output0"], np.nan)})
    assert picture.drawings[1].text == "NaN or infinite values"
    assert (picture.drawings[1].marks, picture.drawings[1].agreement) == ((), None)


def test_keypoints_that_are_seen_are_points(random):
    points = random.uniform(10, 50, (400, 5, 2))
    seen = random.uniform(0.6, 1, (400, 5, 1))
    points[0], seen[0, :, 0] = [[16, 18], [17, 19], [20, 20], [22, 21], [23, 22]], (0.9, 0.1, 0.9, 0.2, 0.9)
    poses = np.concatenate([points, seen], axis=-1).reshape(400, -1)
    before = candidates([(20, 20, 10, 8)], [[0.9]], poses)
    (picture,) = drawn("pose", before, before)
    assert picture.drawings[1].marks[0].points == ((16, 18), (20, 20), (23, 22))


def test_an_oriented_box_is_turned(random):
    """A box of 20 x 10 turned by a quarter stands 10 wide and 20 high."""
    angles = random.uniform(-1.5, 1.5, (400, 1))
    angles[0] = np.pi / 2
    before = candidates([(30, 24, 20, 10)], [[0.9, 0]], angles)
    (picture,) = drawn("obb", before, before)
    corners = np.array(picture.drawings[0].marks[0].outline)
    assert {tuple(corner) for corner in corners.tolist()} == {(25, 14), (35, 14), (35, 34), (25, 34)}


def test_the_mask_of_an_invented_instance_is_red(random):
    prototypes = random.normal(0, 1, (1, 4, 16, 16)).astype(np.float32)
    prototypes[0, 0] = 9.0
    weights = random.normal(0, 1, (400, 4))
    weights[:2] = (1, 0, 0, 0)
    boxes = [(16, 16, 16, 16), (48, 48, 16, 16)]
    before = {**candidates(boxes, [[0.9, 0], [0, 0]], weights), "output1": prototypes}
    after = {**candidates(boxes, [[0.9, 0], [0, 0.8]], weights), "output1": prototypes}
    (picture,) = drawn("instances", before, after)
    fp32, int8 = (decoded(drawing.overlay) for drawing in picture.drawings)
    shown = np.zeros((16, 16), bool)
    shown[2:6, 2:6] = True
    assert (fp32[..., 3] > 0).tolist() == shown.tolist()
    assert int8[3, 3].tolist() == fp32[3, 3].tolist()
    assert int8[12, 12].tolist() == [200, 30, 24, 150]


def test_pixels_of_another_class_than_fp32_s_are_red():
    before = np.zeros((1, SIDE, SIDE), np.int64)
    before[0, :20, :20] = 3
    after = before.copy()
    after[0, :5, :5] = 0
    (picture,) = drawn("segment", {"y": before}, {"y": after})
    fp32, int8 = (decoded(drawing.overlay) for drawing in picture.drawings)
    assert (fp32[..., 3] > 0).sum() == 400
    assert (int8 == (200, 30, 24, 255)).all(axis=-1).sum() == 25
    assert (int8[5:20, 5:20] == fp32[10, 10]).all()


def test_depths_are_grey_from_fp32_s_least_to_its_largest():
    before = np.linspace(1, 3, SIDE * SIDE).reshape(1, 1, SIDE, SIDE)
    (picture,) = drawn("depth", {"y": before}, {"y": before + 1})
    fp32, int8 = (decoded(drawing.overlay)[..., 0].astype(int) for drawing in picture.drawings)
    assert (fp32[0, 0], fp32[-1, -1], int8[-1, -1]) == (0, 255, 255)
    assert abs(int8[0, 0] - 128) <= 1


def scores(*classes, count=5):
    return np.eye(count)[list(classes)][None].astype(np.float32) * 0.9 + 0.02


def test_texts_are_spelled_by_the_characters_of_the_file():
    letters = letters_of("a\nb\nc", 5, 0)
    assert letters == ("", "a", "b", "c", " ")
    assert letters_of("a\nb\nc\nd\n", 5, 4) == ("a", "b", "c", "d", "")
    assert letters_of("", 5, 0) == letters_of("a\nb", 5, 0) == ()
    assert (spelled((1, 4, 3), letters), spelled((1, 4, 3), ())) == ("a c", "1 4 3")
    before, after = ({"y": scores(*classes)} for classes in ((0, 1, 0, 2, 0, 0, 0, 0, 0), (0, 1, 0, 3, 0, 0, 0, 0, 0)))
    (picture,) = drawn("text", before, after, letters=letters)
    assert [drawing.text for drawing in picture.drawings] == ["ab", "ac"]
    assert picture.drawings[1].agreement == 0.5


def test_each_image_of_a_batch_has_a_picture_of_its_own():
    before, after = ({"y": np.array(rows, np.float32)} for rows in ([[0.8, 0.2]] * 2, [[0.8, 0.2], [0.3, 0.7]]))
    one, other = drawn("classify", before, after, feeds=image(2))
    assert (one.name, other.name) == ("a.png, image 0", "a.png, image 1")
    assert [drawing.text for drawing in other.drawings] == ["class 0", "class 1"]
    assert drawn("classify", before, after, feeds=image(3)) == []


def test_boxes_have_the_names_of_classes_in_the_files_metadata():
    boxes = candidates([[20, 20, 10, 10], [45, 45, 12, 12]], [[0.9, 0.0, 0.0], [0.0, 0.0, 0.8]])
    names = class_names({"names": "{0: 'person', 1: 'car'}"})
    (picture,) = drawn("detect", boxes, letters=names)
    assert {mark.text for mark in picture.drawings[0].marks} == {"person 0.90", "2 0.80"}


@pytest.mark.parametrize("text", ["", "names", "[1]", "{1: 'a'}", "{0: print()}", "3"])
def test_other_properties_name_no_classes(text):
    assert class_names({"names": text}) in ((), ("1",))
    assert class_names({}) == ()
