"""Tasks: agreement of classes, masks, vectors and texts with FP32, with values worked out by hand or in another way."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from tests.support.by_hand import softmax
from tests.support.heads import asked
from trt_bisect.analyzer.doubts import BY_CHANCE, CLIPPED, OBJECTS_INVENTED, OBJECTS_LOST, SHORT, VANISHED, doubts
from trt_bisect.analyzer.judge import Comparer, make_rule
from trt_bisect.analyzer.metrics import AGREEMENT, BUILT_IN
from trt_bisect.analyzer.tasks.find import edit_distance, suggestion
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.trial import MEASURED, OutputFigures, Trial


def figures(task, reference, output, **how):
    """The figures of a task on outputs called y, or on dictionaries of outputs."""
    before, after = ([y if isinstance(y, dict) else {"y": y} for y in each] for each in (reference, output))
    return asked(task, *before, **how).judge(before)(dict(enumerate(after)))


def judged(task, reference, output):
    """The rule of a task, and the trial of outputs called y, one input each."""
    outputs = [[{"y": y[None]} for y in each] for each in (reference, output)]
    found = asked(task, *outputs[0])
    rule = replace(make_rule(AGREEMENT, None, outputs=(found.entry,)), reads=found.reads)
    return rule, Trial("", MEASURED, Comparer(outputs[0], task=found)(outputs[1]))


def test_the_class_agrees_in_three_of_four_rows_over_two_inputs():
    scores = np.array([[5.0, 1, 0, 0, 0, 0, 0], [0, 5, 1, 0, 0, 0, 0]])
    output = scores.copy()
    output[1, 2] = 6
    last = scores.copy()
    last[0] = [0, 6, 5, 4, 3, 2, 1]
    found = figures("classify", [scores, scores, scores], [output, scores, last])
    assert found.values["agreement"] == pytest.approx(4 / 6)
    assert found.inputs["agreement"] == pytest.approx((0.5, 1, 0.5))
    assert found.values["top1"] == found.values["agreement"]
    assert found.values["top5"] == pytest.approx(5 / 6), "class 0 is the seventh of the last input's first row"


def test_the_class_axis_can_be_named(random):
    logits = random.normal(size=(1, 3, 4))
    output = logits + random.normal(size=logits.shape)
    for axis in (1, 2):
        expected = np.mean(logits.argmax(axis) == output.argmax(axis))
        assert figures("classify", [logits], [output], class_axis=axis).values["agreement"] == pytest.approx(expected)


def test_a_value_that_is_not_finite_is_no_agreement(random):
    logits = random.normal(size=(2, 5))
    broken = logits.copy()
    broken[1, 2] = np.nan
    found = figures("classify", [logits, logits], [logits, broken])
    assert not found.finite
    rule = make_rule(AGREEMENT, None)
    assert rule.loss(Trial("", "not finite", {"task classify": found})) == np.inf


def test_pixels_and_miou_of_score_maps(random):
    """Expected by a count over every pixel and class."""
    logits, output = random.normal(size=(2, 2, 1, 4, 6, 7))
    output = logits + 0.7 * output
    found = figures("segment", list(logits), list(output))
    wanted, got = logits.argmax(2).ravel(), output.argmax(2).ravel()
    ious = [np.sum((wanted == k) & (got == k)) / np.sum((wanted == k) | (got == k)) for k in range(4)]
    assert found.values["agreement"] == pytest.approx(np.mean(wanted == got))
    assert found.values["miou"] == pytest.approx(np.mean(ious))
    assert found.inputs["agreement"] == pytest.approx(
        [np.mean(a.argmax(1) == b.argmax(1)) for a, b in zip(logits, output, strict=True)]
    )


@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 1, 4, 8), np.float32), ((1, 4, 8), np.float32), ((1, 4, 8), np.int64)]
)
def test_masks_of_one_channel_and_labels(shape, dtype):
    """32 pixels, 8 of the object, of which the output loses 2 and adds 4."""
    mask = np.zeros(32)
    mask[:8] = 0.9
    output = np.zeros(32)
    output[2:12] = 0.9
    if dtype is np.int64:
        mask, output = np.ceil(mask), np.ceil(output)
    arrays = [values.reshape(shape).astype(dtype) for values in (mask, output)]
    found = figures("segment", arrays[:1], arrays[1:])
    assert found.values["agreement"] == pytest.approx(26 / 32)
    assert found.values["miou"] == pytest.approx((6 / 12 + 20 / 26) / 2)


def pictures_with_an_object(form):
    """Twenty pictures of 40 x 40 pixels, each with an object of 12 pixels, and 2 pixels that are too few for one."""
    labels = np.zeros((20, 1, 40, 40), np.int64)
    labels[:, :, 10:13, 10:14] = 1
    labels[:, :, 30, 30:32] = 2
    if form == "labels":
        return labels
    if form == "one channel":
        return np.where(labels == 1, 0.9, 0.05)
    if form == "unsure":
        return np.where(labels == 1, 0.6, 0.05)
    return np.where(np.arange(3)[:, None, None] == labels, 5.0, 0.0)


@pytest.mark.parametrize(
    ("form", "lost", "kinds"),
    [
        ("scores", 20, [VANISHED]),
        ("labels", 20, [VANISHED]),
        ("one channel", 20, [SHORT, VANISHED]),
        ("unsure", 20, [SHORT, BY_CHANCE]),
        ("scores", 3, [OBJECTS_LOST]),
        ("one channel", 3, [OBJECTS_LOST]),
        ("scores", 1, []),
    ],
)
def test_objects_of_which_no_pixel_is_left_are_doubts_though_99_percent_of_the_pixels_agree(form, lost, kinds):
    """Each picture has two objects: the one of 12 pixels, and all around it."""
    reference = pictures_with_an_object(form)
    output = reference.copy()
    background = reference[0].reshape(-1, 40, 40)[:, 0, 0]
    output[:lost, ..., 10:13, 10:14] = background[:, None, None]
    rule, trial = judged("segment", reference, output)
    assert rule.similarity(trial) == pytest.approx(1 - 12 * lost / (20 * 1600))
    assert [doubt.kind for doubt in doubts(rule, trial)] == kinds
    values = trial.outputs["task segment"].values
    assert (values["objects"], values["lost_objects"]) == ((20, 0) if form == "unsure" else (40, lost))


@pytest.mark.parametrize(("form", "invented", "kinds"), [("scores", 3, 1), ("labels", 2, 1), ("scores", 1, 0)])
def test_objects_where_fp32_has_no_pixel_of_the_class_are_doubts_though_99_percent_of_the_pixels_agree(
    form, invented, kinds
):
    """Two pixels of the class in FP32's image, as the last pictures have, make the object an enlarged one."""
    reference = pictures_with_an_object(form)
    background = reference[0].reshape(-1, 40, 40)[:, 0, 0]
    with_class = reference[0].reshape(-1, 40, 40)[:, 30, 30].copy()
    reference[:invented, ..., 30, 30:32] = background[:, None]
    output = reference.copy()
    output[: invented + 4, ..., 20:23, 20:24] = with_class[:, None, None]
    rule, trial = judged("segment", reference, output)
    assert rule.similarity(trial) == pytest.approx(1 - 12 * (invented + 4) / (20 * 1600))
    assert [doubt.kind for doubt in doubts(rule, trial)] == [OBJECTS_INVENTED] * kinds
    assert trial.outputs["task segment"].values["invented_objects"] == invented


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda scores: np.where(scores.argmax(-1, keepdims=True) == 1, scores[:, ::-1], scores), VANISHED),
        (lambda scores: 0.5 * scores, SHORT),
        (lambda scores: np.minimum(scores, 0.78 * scores.max()), CLIPPED),
    ],
)
def test_what_is_doubted_without_a_task_is_doubted_with_it(random, spoil, kind):
    """Three of 510 rows are of class 1: the classes of 507 agree, which passes."""
    scores = np.stack([random.uniform(3, 9, 510), np.zeros(510)], axis=-1)
    scores[::170] = [0, 9]
    rule, trial = judged("classify", scores, spoil(scores))
    for each in (rule, make_rule(BUILT_IN["mse"], 1e9, outputs=("y",))):
        assert [doubt.kind for doubt in doubts(each, trial)] == [kind]


@pytest.mark.parametrize(("share", "kinds"), [(0.85, []), (0.78, [CLIPPED])])
def test_scores_that_are_cut_off_a_little_are_no_doubt_where_the_classes_agree(random, share, kinds):
    scores = np.stack([random.uniform(3, 9, 100), np.zeros(100)], axis=-1)
    scores[::2] = scores[::2, ::-1]
    cut = np.minimum(scores, share * scores.max())
    assert [doubt.kind for doubt in doubts(*judged("classify", scores, cut))] == kinds


@pytest.mark.parametrize(
    ("rare", "changed", "kappa"),
    [
        (0, 0, 0.0),
        (4, 2, (398 / 400 - (396 * 398 + 4 * 2) / 400**2) / (1 - (396 * 398 + 4 * 2) / 400**2)),
        (4, 3, (397 / 400 - (396 * 399 + 4 * 1) / 400**2) / (1 - (396 * 399 + 4 * 1) / 400**2)),
    ],
)
@pytest.mark.parametrize("task", ["classify", "segment"])
def test_an_agreement_that_chance_explains_is_a_doubt(task, rare, changed, kappa):
    """Of 400 rows or pixels FP32 gives ``rare`` the second class, unsurely, of which the plan loses ``changed``."""
    scores = np.tile([3.0, 0.0], (400, 1))
    scores[:rare] = [0.0, 0.5]
    output = scores.copy()
    output[:changed] = [0.5, 0.0]
    if task == "segment":
        scores, output = (array.T.reshape(1, 2, 20, 20) for array in (scores, output))
    rule, trial = judged(task, scores, output)
    assert trial.outputs[f"task {task}"].values["kappa"] == pytest.approx(kappa)
    assert [doubt.kind for doubt in doubts(rule, trial)] == [BY_CHANCE] * (kappa < 0.5)


def test_a_label_that_fp32_never_gives_is_an_error():
    labels, output = np.array([[[0, 1], [1, 0]]]), np.array([[[0, 7], [1, 0]]])
    found = figures("segment", [labels], [output])
    assert found.values["agreement"] == 0.75
    assert found.values["miou"] == pytest.approx((1 + 1 / 2 + 0) / 3)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def test_a_vector_agrees_if_the_two_fp32_vectors_closest_to_it_are_its_own_and_that_ones_neighbour(random):
    vectors = random.normal(size=(12, 1, 8))
    output = vectors + 0.7 * random.normal(size=vectors.shape)
    rows, found = unit(vectors[:, 0]), figures("embed", list(vectors), list(output))
    kept = []
    for k, vector in enumerate(unit(output[:, 0])):
        neighbour = max((j for j in range(12) if j != k), key=lambda j, k=k: rows[k] @ rows[j])
        closest = sorted(range(12), key=lambda j, vector=vector: -(vector @ rows[j]))[:2]
        kept.append(set(closest) == {k, neighbour})
    assert 0 < sum(kept) < 12
    assert found.inputs["agreement"] == tuple(map(float, kept))
    assert found.values["agreement"] == pytest.approx(np.mean(kept))
    cosines = [a @ b for a, b in zip(rows, unit(output[:, 0]), strict=True)]
    assert found.values["cosine"] == pytest.approx(min(cosines))
    assert found.values["mean_cosine"] == pytest.approx(np.mean(cosines))


def test_vectors_judged_one_input_at_a_time_have_the_figures_of_all_together(random):
    batches = [{"y": rows} for rows in random.normal(size=(5, 4, 6))]
    outputs = [{"y": one["y"] + 0.5 * random.normal(size=(4, 6))} for one in batches]
    compare = Comparer(batches, AGREEMENT, task=asked("embed", *batches))
    alone = [compare.at(place, one)["task embed"].values for place, one in enumerate(outputs)]
    together = compare(outputs)["task embed"]
    assert together.inputs["agreement"] == tuple(one["agreement"] for one in alone)
    assert len(set(together.inputs["agreement"])) > 1
    assert together.values["agreement"] == np.mean([one["agreement"] for one in alone])


@pytest.mark.parametrize("inputs", [3, 32])
@pytest.mark.parametrize("alike", [np.zeros(16), np.ones(16), "one of FP32's"])
def test_vectors_that_are_all_alike_miss(random, inputs, alike):
    """At most the two vectors that are each other's neighbour can find themselves in one vector."""
    vectors = list(random.normal(size=(inputs, 1, 16)))
    one = vectors[0] if isinstance(alike, str) else alike[None]
    found = figures("embed", vectors, [one] * inputs)
    assert found.values["items"] == inputs
    assert found.values["agreement"] <= 2 / inputs
    rule = make_rule(AGREEMENT, None)
    assert not rule.meets(Trial("", MEASURED, {"task embed": found}))
    assert figures("embed", vectors, vectors).values["agreement"] == 1.0


def test_inputs_given_twice_agree_with_themselves(random):
    a, b, c = random.normal(size=(3, 1, 8))
    found = figures("embed", [a, b, a, c], [a, b, a, c])
    assert (found.values["agreement"], found.values["items"]) == (1, 4)
    assert figures("embed", [a, b, a, c], [b, b, a, c]).inputs["agreement"][0] == 0


def test_of_two_vectors_the_mean_cosine_is_judged_and_tokens_are_averaged():
    tokens = np.array([[[1.0, 0], [1, 2]]])
    output = np.array([[[1.0, 0], [1, 0]]])
    found = figures("embed", [tokens, tokens], [tokens, output])
    assert found.inputs["agreement"] == pytest.approx((1, np.sqrt(0.5))), "the averages are (1, 1) and (1, 0)"
    assert found.values["agreement"] == pytest.approx((1 + np.sqrt(0.5)) / 2)
    assert found.values["cosine"] == pytest.approx(np.sqrt(0.5))


def ctc(text, classes, blank, random, shape):
    logits = random.normal(size=(len(text), classes))
    logits[np.arange(len(text)), [blank if c == "-" else "abcdef".index(c) + (blank == 0) for c in text]] += 20
    return softmax(logits).reshape(shape)


@pytest.mark.parametrize("blank", [0, 6])
@pytest.mark.parametrize("shape", [(1, -1, 7), (-1, 1, 7)])
def test_text_read_by_greedy_ctc(random, blank, shape):
    """The decoding by groupby: bad cab -> bad ab, one edit of six; and one line that is the same."""
    wanted, got = "bb-a--dd--c-aa--b----", "bb-a--dd----aa--b----"
    assert "".join(c for c, _ in groupby(got) if c != "-") == "badab"
    lines = [ctc(text, 7, blank, random, shape) for text in (wanted, "-a--b-----", got, "a--b------")]
    found = figures("text", lines[:2], lines[2:])
    assert found.values["agreement"] == pytest.approx(1 - 1 / 8)
    assert found.inputs["agreement"] == pytest.approx((1 - 1 / 6, 1))
    assert (found.values["lines"], found.values["exact"], found.values["edits"]) == (2, 1, 1)


@pytest.mark.parametrize(("head", "line"), [("blank-first", (2, 1, 6)), ("blank-last", (0, 2, 0, 1, 0, 0))])
def test_a_blank_that_its_steps_do_not_tell_is_asked_for_and_named(random, head, line):
    """Class 0 ("-") is the best of four steps, class 6 ("f") of two: either can be the blank."""
    outputs = [{"y": ctc("-bb-aa-ff-", 7, 0, random, (1, -1, 7))}]
    with pytest.raises(BadInput) as refused:
        asked("text", *outputs)
    assert f"--head {head}" in refused.value.remedy
    assert asked("text", *outputs, head=head).shown(outputs[0]) == [line]
    with pytest.raises(BadInput):
        asked("text", *outputs, head="xywh")


def test_a_text_that_int8_invents_is_no_agreement(random):
    empty, line = (ctc(text, 7, 0, random, (1, -1, 7)) for text in ("------", "-ab---"))
    found = figures("text", [empty, line], [line, line])
    assert found.inputs["agreement"] == (0, 1)
    assert found.values["agreement"] == pytest.approx(2 / 4)


def test_edit_distance_is_that_of_all_alignments(random):
    """The length of the longest common subsequence gives the distance without replacements; here a full recursion."""

    def slow(one, other):
        if not one or not other:
            return len(one) + len(other)
        same = slow(one[1:], other[1:]) + (one[0] != other[0])
        return min(same, slow(one[1:], other) + 1, slow(one, other[1:]) + 1)

    for _ in range(20):
        one, other = (tuple(random.integers(0, 3, random.integers(0, 6))) for _ in range(2))
        assert edit_distance(one, other) == slow(one, other)


def test_the_agreement_of_all_inputs_decides_and_the_similarity_stays_in_the_figures(random):
    logits = [{"y": random.normal(size=(1, 10))} for _ in range(200)]
    output = [{"y": -each["y"]} if k == 7 else each for k, each in enumerate(logits)]
    task = asked("classify", *logits)
    found = Comparer(logits, AGREEMENT, task=task)(output)
    trial = Trial.from_json(json.loads(json.dumps(Trial("", MEASURED, found).to_json())))
    rule = make_rule(AGREEMENT, None, outputs=[task.entry])
    assert rule.similarity(trial) == pytest.approx(199 / 200)
    assert rule.meets(trial)
    facts = rule.by_input(trial)
    assert (facts.misses, facts.worst, facts.together) == (1, 7, True)
    assert trial.outputs["y"].values["cosine"] == pytest.approx(-1)
    assert not make_rule(BUILT_IN["cosine"], None, outputs=["y"]).meets(trial)


@pytest.mark.parametrize(
    ("agreement", "worst", "mean", "fifth"),
    [((0.9, 0.0, 0.6), 2, 0.75, 0.6 + 0.05 * 0.3), ((None, 0.0, None), 1, 0.0, 0.0)],
)
def test_an_input_on_which_fp32_finds_nothing_counts_in_no_figure_while_others_do(agreement, worst, mean, fifth):
    found = [0.0 if share == 0.0 else 8.0 for share in agreement]
    figures = OutputFigures({"agreement": 0.0}, inputs={"agreement": agreement, "found": tuple(found)})
    by_input = make_rule(AGREEMENT, None).by_input(Trial("", MEASURED, {"task detect": figures}))
    assert (by_input.worst, by_input.invented) == (worst, 1)
    assert (by_input.mean, by_input.fifth) == pytest.approx((mean, fifth))


@pytest.mark.parametrize("task", ["detect", "segment", "text"])
def test_outputs_that_are_not_of_the_task_are_refused_by_name_and_shape(task):
    with pytest.raises(BadInput) as refused:
        asked(task, {"other": np.zeros((1, 10))})
    assert "'other' [1, 10]" in refused.value.problem


def test_what_outputs_look_like(random):
    vectors = random.normal(size=(2, 32))
    masks = np.zeros((1, 1, 8, 8))
    masks[..., 2:4, 2:4] = 1
    looks = {
        "classify": softmax(random.normal(size=(2, 10))),
        "text": ctc("-a--b----", 12, 0, random, (1, -1, 12)),
        "segment": masks,
        "embed": vectors / np.linalg.norm(vectors, axis=-1, keepdims=True),
        "": random.normal(size=(2, 10)),
    }
    for task, y in looks.items():
        said = suggestion([{"y": y}])
        assert (f"--task {task} " in said) if task else not said


def test_sigmoids_of_many_columns_are_no_detections(random):
    """As basic-pitch's notes, 88 keys in 172 steps: shares of which no two columns reach over an image."""
    keys = random.uniform(0.07, 0.25, (1, 172, 88))
    assert not suggestion([{"y": keys}])
    keys[..., :2] = random.uniform(0, 1, (1, 172, 2))
    assert "--task detect " in suggestion([{"y": keys}])


def test_masks_of_queries_are_classes_of_pixels_and_not_classes_themselves(random):
    """As MaskFormer: a pixel's score of a class is the sum over queries of its share and the mask's; by hand.

    Query 0 is class 1 (share 0.8), query 1 is class 0 (0.6), query 2 is nothing. The second query's mask is the surest.
    """
    shares = np.array([[0.1, 0.8, 0.1], [0.6, 0.1, 0.3], [0.05, 0.05, 0.9]])
    masks = np.array([[[0.5, 0.9]], [[0.9, 0.2]], [[0.95, 0.95]]]).repeat(2, axis=1)
    outputs = {
        "class_queries_logits": np.log(shares)[None] + random.normal(),
        "masks_queries_logits": np.log(masks / (1 - masks))[None],
    }
    first = 0.5 * 0.1 + 0.9 * 0.6 + 0.95 * 0.05, 0.5 * 0.8 + 0.9 * 0.1 + 0.95 * 0.05
    second = 0.9 * 0.1 + 0.2 * 0.6 + 0.95 * 0.05, 0.9 * 0.8 + 0.2 * 0.1 + 0.95 * 0.05
    assert (np.argmax(first), np.argmax(second)) == (0, 1)
    task = asked("segment", outputs)
    assert task.shown(outputs)[0].tolist() == [[0, 1], [0, 1]]
    assert "queries" in task.note
    lost = {**outputs, "class_queries_logits": outputs["class_queries_logits"][:, :, [1, 0, 2]]}
    found = task.judge([outputs])({0: lost}).values
    assert (found["agreement"], found["items"]) == (0.0, 4)
