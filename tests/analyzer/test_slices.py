"""Outputs of unlike magnitudes are cut into groups, and no other output is."""

import numpy as np
import pytest

from tests.support.by_hand import sigmoid, softmax
from trt_bisect.analyzer.judge import Comparer, make_rule
from trt_bisect.analyzer.metrics import BUILT_IN
from trt_bisect.analyzer.slices import Slices, find_slices, output_of
from trt_bisect.evaluator.trial import MEASURED, Trial

ANCHORS = 400


def boxes(random):
    """x, y, w, h in pixels of a picture of 640 by 640, ``[1, 4, anchors]``."""
    return np.concatenate([random.uniform(0, 640, (1, 2, ANCHORS)), random.uniform(4, 400, (1, 2, ANCHORS))], 1)


def scores(random, count, best=0.97):
    """Sigmoids far below 1 but for a few anchors; only some classes are ever predicted."""
    made = sigmoid(random.normal(-12, 2, (1, count, ANCHORS)))
    for anchor in range(5):
        made[0, anchor % min(count, 3), 7 * anchor] = best
    return made


def rows_last(array):
    return np.moveaxis(array, 1, 2)


def yolo8(random):
    return np.concatenate([boxes(random), scores(random, 80)], 1)


def yolo5(random):
    return rows_last(np.concatenate([boxes(random), scores(random, 81)], 1))


def rotated(random):
    """Boxes, scores of 15 classes and an angle."""
    return np.concatenate([boxes(random), scores(random, 15), random.uniform(-0.8, 2.3, (1, 1, ANCHORS))], 1)


def with_masks(random):
    return np.concatenate([boxes(random), scores(random, 80), random.normal(0, 1, (1, 32, ANCHORS))], 1)


def pose(random):
    """Boxes, one score, and 17 points of x, y and visibility."""
    points = random.uniform(0, 640, (1, 17, 3, ANCHORS))
    points[:, :, 2] = sigmoid(random.normal(0, 2, (1, 17, ANCHORS)))
    return np.concatenate([boxes(random), scores(random, 1), points.reshape(1, 51, ANCHORS)], 1)


def after_nms(random):
    """300 rows of box, score and class, 40 of them filled."""
    made = np.zeros((1, 300, 6))
    made[0, :40] = np.concatenate(
        [random.uniform(0, 640, (40, 4)), random.uniform(0.1, 0.97, (40, 1)), random.integers(0, 80, (40, 1))], 1
    )
    made[0, 0, 5] = 79
    return made


CUT = {
    "yolo8": (yolo8, ["y[:, 0:4]", "y[:, 4:84]"]),
    "yolo5": (yolo5, ["y[:, :, 0:4]", "y[:, :, 4:85]"]),
    "rotated": (rotated, ["y[:, 0:4]", "y[:, 4:19]", "y[:, 19:20]"]),
    "masks": (with_masks, ["y[:, 0:4]", "y[:, 4:84]", "y[:, 84:116]"]),
    "pose": (pose, ["y[:, 0:4+5:7+8:10+15 more]", "y[:, 4:5+7:8+10:11+15 more]"]),
    "nms": (after_nms, ["y[:, :, 0:4]", "y[:, :, 4:5]", "y[:, :, 5:6]"]),
}


def cut(random, make, inputs=1):
    reference = [{"y": np.asarray(make(random), np.float32)} for _ in range(inputs)]
    return find_slices(reference, ["y"]), reference


@pytest.mark.parametrize("inputs", [1, 4])
@pytest.mark.parametrize("kind", CUT)
def test_heads_of_detectors_are_cut_where_their_quantities_change(kind, inputs, random):
    make, names = CUT[kind]
    found, reference = cut(random, make, inputs)
    assert list(found.names(["y"])) == names
    assert output_of(names[0]) == "y"
    parts = found.with_groups(reference[0])
    del parts["y"]
    assert sum(part.size for part in parts.values()) == reference[0]["y"].size
    values, all_values = np.concatenate([part.ravel() for part in parts.values()]), reference[0]["y"].ravel()
    assert np.sort(values) == pytest.approx(np.sort(all_values))


def heatmap(random):
    """One bump a joint, float noise around it."""
    y, x = np.mgrid[:48, :32]
    bumps = [np.exp(-((y - random.uniform(30, 40)) ** 2 + (x - 16) ** 2) / 8) for _ in range(17)]
    return np.stack(bumps)[None] + random.normal(0, 0.003, (1, 17, 48, 32))


def one_hot(random):
    """Logits of 10 classes, of which only 3 are ever predicted."""
    return 40 * np.eye(10)[[random.integers(3)]] + random.normal(0, 0.3, (1, 10))


WHOLE = {
    "probabilities": lambda random: softmax(random.normal(0, 8, (1, 1000)), 1),
    "logits": lambda random: random.normal(0, 3, (1, 1000)),
    "one-hot logits": one_hot,
    "embedding": lambda random: random.normal(0, 0.05, (1, 384)),
    "token vectors": lambda random: random.normal(0, 1, (1, 32, 384)) * random.lognormal(0, 0.5, 384),
    "text": lambda random: softmax(random.normal(0, 8, (40, 1, 37)), 2),
    "text logits": lambda random: random.normal(-4, 5, (40, 1, 97)),
    "log probabilities": lambda random: np.log(softmax(random.normal(0, 8, (1, 40, 97)), 2)),
    "segmentation": lambda random: random.normal(0, 5, (1, 21, 32, 32)),
    "segmentation probabilities": lambda random: softmax(random.normal(0, 12, (1, 21, 32, 32)), 1),
    "features": lambda random: np.maximum(random.normal(-2, 3, (1, 256, 7, 7)), 0),
    "heatmaps": heatmap,
    "ssd scores": lambda random: softmax(random.normal(0, 8, (1, 800, 21)), 2),
    "zeros": lambda _: np.zeros((1, 8, 100)),
    "heavy-tailed noise": lambda random: random.standard_cauchy((1, 64, 200)),
    "anchors": lambda random: random.normal(0, 1, (1, 3, 20, 20, 85)),
    "no detections": lambda random: np.concatenate([boxes(random), scores(random, 80, best=0.01)], 1),
    "labels": lambda random: random.integers(0, 1000, (1, 50, 4)).astype(np.int64),
}


@pytest.mark.parametrize("inputs", [1, 26])
@pytest.mark.parametrize("kind", WHOLE)
def test_outputs_of_one_quantity_stay_whole(kind, inputs, random):
    found, _ = cut(random, WHOLE[kind], inputs)
    assert found.names(["y"]) == ("y",)
    assert found.notes() == []


def test_not_apart_the_output_is_judged_whole_and_its_groups_are_compared_beside_it(random):
    reference = [{"y": np.asarray(yolo8(random), np.float32)}]
    found = find_slices(reference, ["y"], apart=False)
    assert found.names(["y"]) == ("y",)
    assert list(found.with_groups(reference[0])) == ["y", "y[:, 0:4]", "y[:, 4:84]"]


def test_a_note_says_how_an_output_is_judged(random):
    found, reference = cut(random, yolo8)
    largest = np.abs(reference[0]["y"])[0].max(axis=1)
    low, high = largest[4:].max(), largest[:4].max()
    (note,) = found.notes()
    assert "'y'" in note
    assert f"[:, 0:4] up to {high:.3g}, [:, 4:84] up to {low:.3g}" in note


def test_a_lost_small_group_decides_and_inputs_without_detections_do_not_count(random):
    reference = [{"y": yolo8(random).astype(np.float32)} for _ in range(3)]
    reference[1]["y"][:, 4:] = np.minimum(reference[1]["y"][:, 4:], 0.01)
    output = [{"y": found["y"].copy()} for found in reference]
    output[1]["y"][:, 4:] = 0
    slices = find_slices(reference, ["y"])
    compare = Comparer(reference, slices=slices)
    rule = make_rule(BUILT_IN["cosine"], None, outputs=slices.names(["y"]))
    assert rule.meets(Trial("", MEASURED, compare(output)))
    assert compare(output)["y[:, 4:84]"].inputs["cosine"][1] is None
    output[2]["y"][:, 4:] = 0
    trial = Trial("", MEASURED, compare(output))
    assert Comparer(reference)(output)["y"].values["cosine"] > 0.9999
    assert rule.loss(trial) == 1.0
    assert rule.by_input(trial).misses == 1


def test_on_an_input_without_detections_alone_the_boxes_decide(random):
    """The data has detections, this one input has none: the cosine of the boxes by NumPy is the similarity."""
    slices = find_slices([{"y": yolo8(random)}], ["y"])
    empty = np.concatenate([boxes(random), scores(random, 80, best=0.01)], 1)
    moved = empty + random.normal(0, 5, empty.shape)
    rule = make_rule(BUILT_IN["cosine"], 0.99, outputs=slices.names(["y"]))
    found = Comparer([{"y": empty}], BUILT_IN["cosine"], slices=slices)([{"y": moved}])
    own, other = (each[:, :4].ravel() for each in (empty, moved))
    cosine = own @ other / np.linalg.norm(own) / np.linalg.norm(other)
    assert rule.similarity(Trial("", MEASURED, found)) == pytest.approx(cosine, abs=1e-9)


def shapes(slices, output):
    return [part.shape for part in slices.with_groups({"y": output}).values()]


def test_an_output_of_another_shape_is_cut_where_it_has_places(random):
    slices = cut(random, yolo8)[0]
    assert shapes(slices, np.zeros((1, 40, 7))) == [(1, 40, 7), (1, 4, 7), (1, 36, 7)]
    assert shapes(slices, np.zeros(5)) == [(5,), (5,), (5,)]
    assert shapes(Slices(), np.zeros(5)) == [(5,)]
