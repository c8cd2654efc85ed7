"""Every head under every task: read, read with outputs or columns left out that the note names, or refused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.support.by_hand import softmax
from tests.support.heads import MANY, asked, candidates, corners, dense, keypoints, ready
from tests.support.raw_heads import SIDES, as_logits, as_pairs, raw
from trt_bisect.analyzer.tasks.find import TASKS, suggestion
from trt_bisect.errors import BadInput

SIZE, CLASSES = 320, 3
READ, LEFT_OUT, REFUSED = "read", "left out", "refused"


def made(make, more=None, **how):
    """Returns a function that makes outputs with ``more`` columns."""

    def outputs(random):
        boxes, scores = candidates(random, CLASSES)
        return make(boxes, scores, *([] if more is None else [more(random, boxes).reshape(MANY, -1)]), **how)

    return outputs


def with_prototypes(random, make):
    outputs = made(make, coefficients)(random)
    return outputs | {"output1": random.normal(0, 1, (1, 8, SIZE // 4, SIZE // 4)).astype(np.float32)}


def lists(random, more=None):
    """As torchvision gives them: 40 detections, two of them below the score threshold."""
    boxes, _ = candidates(random, CLASSES)
    scores = np.linspace(0.9, 0.25, 40)
    found = {"boxes": corners(boxes[:40]), "labels": np.arange(40) % 3 + 1, "scores": scores}
    return found | ({} if more is None else {"more": more(random, boxes[:40])})


def whole_masks(random, boxes):
    return random.uniform(0, 1, (len(boxes), 1, SIZE + 30, SIZE + 30)) ** 8


def raw_maps(random, more=0, make=as_logits):
    """Maps of three scales, distances apart from scores; ``more`` channels in a third one."""
    distances, scores, _ = raw(random)
    maps = {f"more{side}": random.normal(0, 2, (1, more, side, side)) for side in SIDES if more}
    return make(distances, scores) | maps


def raw_and_more(random, columns=1):
    """Further channels of all cells are one output."""
    return raw_maps(random) | {"of all": random.normal(0, 2, (1, columns, 525))}


def detr(random, hidden=False):
    boxes, _ = candidates(random, CLASSES)
    logits = random.normal(-4, 1, (1, 100, CLASSES + 1))
    logits[..., -1] = 4
    logits[0, [0, 1, 2], [0, 1, 2]] = 9
    found = {"logits": logits, "pred_boxes": boxes[None, :100] / SIZE}
    return found | ({"last_hidden_state": random.normal(0, 1, (1, 100, 64))} if hidden else {})


def recognised(random):
    scores = random.normal(0, 1, (1, 40, 37))
    scores[..., 0] += 4
    scores[0, ::5, 3] += 9
    return {"y": softmax(scores)}


def points(random, boxes):
    return keypoints(random, boxes, 5)


def coefficients(random, boxes):
    return random.normal(0, 1, (len(boxes), 8))


def angles(random, boxes):
    return random.uniform(-0.7, 2.3, (len(boxes), 1))


HEADS = {
    "candidates": (made(dense), {"detect": READ}),
    "end to end": (made(ready), {"detect": READ}),
    "end to end, in sizes": (made(ready, turned=True), {"embed": READ}),
    "end to end, far right": (lambda r: {"y": made(ready)(r)["output0"] + [500, 0, 500, 0, 0, 0]}, {"detect": READ}),
    "poses": (made(dense, points), {"pose": READ}),
    "poses, end to end": (made(ready, points), {"pose": READ}),
    "oriented": (made(dense, angles), {"obb": READ}),
    "oriented, end to end": (made(ready, angles, turned=True), {"obb": READ}),
    "instances": (lambda r: with_prototypes(r, dense), {"instances": READ, "detect": LEFT_OUT}),
    "instances, end to end": (lambda r: with_prototypes(r, ready), {"instances": READ, "detect": LEFT_OUT}),
    "lists": (lists, {"detect": READ}),
    "lists and keypoints": (lambda r: lists(r, points), {"pose": READ, "detect": LEFT_OUT}),
    "lists and masks": (lambda r: lists(r, whole_masks), {"instances": READ, "detect": LEFT_OUT}),
    "raw": (raw_maps, {"detect": READ}),
    "raw and the sums of scores": (lambda r: raw_maps(r, make=as_pairs), {"detect": LEFT_OUT}),
    "raw and angles": (lambda r: raw_maps(r, 1), {}),
    "raw and angles of all cells": (raw_and_more, {}),
    "queries": (detr, {"detect": READ}),
    "queries and their states": (lambda r: detr(r, hidden=True), {"detect": LEFT_OUT}),
    "text": (recognised, {"text": READ, "classify": READ, "embed": READ}),
    "depth": (lambda r: {"y": r.uniform(0.5, 80, (1, 1, 40, 40))}, {"depth": READ, "classify": READ}),
    "classes of pixels": (lambda r: {"y": r.normal(0, 1, (1, 5, 40, 40))}, {"segment": READ, "classify": READ}),
    "queries of masks": (
        lambda r: {name: r.normal(0, 1, (1, 20, *size)) for name, size in (("classes", (4,)), ("masks", (40, 40)))},
        {"segment": READ},
    ),
    "vectors": (lambda r: {"y": r.normal(0, 1, (3, 64))}, {"embed": READ, "classify": READ}),
}


@cache
def two_of(head):
    """The outputs of a head on two inputs; not to be changed."""
    make, random = HEADS[head][0], np.random.default_rng(3)
    return [make(random), make(random)]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("head", HEADS)
def test_each_head_is_read_by_its_own_tasks_and_refused_by_the_others(head, task):
    outputs, wanted = two_of(head), HEADS[head][1]
    try:
        found = asked(task, *outputs)
        found.check(outputs)
        got = LEFT_OUT if "not judged" in found.note else READ
        assert all(name in found.reads or f"'{name}'" in found.note for name in outputs[0])
    except BadInput:
        got = REFUSED
    assert got == wanted.get(task, REFUSED)


@pytest.mark.parametrize(
    ("more", "task", "what"), [(1, "obb", "angle"), (15, "pose", "keypoints:5x3"), (8, "instances", "masks:8")]
)
def test_what_stands_beside_raw_maps_is_asked_for_by_the_words_that_read_it(random, more, task, what):
    way = f"--task {task} --head dfl:16,classes:3,{what}"
    outputs = raw_and_more(random, more)
    with pytest.raises(BadInput) as refused:
        asked("detect", outputs)
    assert "'of all'" in refused.value.problem
    assert way in refused.value.remedy
    assert way in suggestion([outputs])
    alone = asked("detect", outputs, head="dfl:16,classes:3")
    assert alone.note.endswith("not judged: 'of all'")


@pytest.mark.parametrize(
    "head", [head for head, (_, wanted) in HEADS.items() if set(wanted) & {"pose", "obb", "instances"}]
)
def test_the_task_that_is_suggested_judges_all_that_the_head_finds(head):
    wanted = next(iter(HEADS[head][1]))
    assert f"--task {wanted} " in suggestion(two_of(head))


@pytest.mark.parametrize("more", [points, None])
def test_a_task_that_cannot_read_a_head_names_the_one_that_can(random, more):
    """Poses as YOLO26 gives them, and detections."""
    outputs = [made(ready, more)(random)] * 2
    with pytest.raises(BadInput) as refused:
        asked("instances", *outputs)
    assert f"--task {'detect' if more is None else 'pose'} " in refused.value.remedy


def test_two_outputs_that_can_be_the_scores_are_not_guessed(random):
    """Logits of classes and of something else, all below 0: each could be read with a sigmoid."""
    boxes, _ = candidates(random, CLASSES)
    logits = {name: random.uniform(-9, -3, (1, MANY, CLASSES)) for name in ("one", "other")}
    outputs = {"boxes": corners(boxes)[None], "one": logits["one"]}
    assert asked("detect", outputs).reads == ("boxes", "one")
    with pytest.raises(BadInput, match="cannot read"):
        asked("detect", outputs | logits)
