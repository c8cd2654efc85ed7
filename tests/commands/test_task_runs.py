"""A detector whose boxes hide the loss of its detections: judged by its numbers, and by its detections."""

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch
from tests.support.quantized import plain_run, plain_session
from tests.support.records import texts
from tests.support.squares import JUDGED, SQUARES, detector, images
from trt_bisect.errors import BadInput

HOW = {**JUDGED, "effort": "quick"}


@pytest.fixture
def given(tmp_path, random):
    model, data = networks.save(detector(), tmp_path), images(random)
    found = [plain_run(model, {"x": x})[0][0, 4:] for x in data]
    assert [(scores > 0.3).sum() for scores in found] == list(SQUARES)
    return model, [{"x": x} for x in data]


def test_the_cosine_passes_and_the_detections_are_gone(given, tmp_path):
    """Without the task only the part that varies with the input tells it."""
    model, data = given
    plain = trt_bisect.run(model, data, inputs=data, output=tmp_path / "run", **HOW)
    assert (plain.exit_code, plain.culprits) == (1, ("second",))
    assert sum("--task detect" in line for line in texts(plain.lines)) == 1
    found = trt_bisect.run(model, data, inputs=data, task="detect", output=tmp_path / "run", **HOW)
    assert (found.exit_code, found.culprits) == (1, ("second",))
    assert (found.metric, found.threshold, found.similarity.recipe) == ("agreement", 0.99, 1.0)
    counts = {plan: figures["task detect"] for plan, figures in found.outputs.items()}
    assert (counts["int8"]["kept"], counts["int8"]["lost"]) == (0, sum(SQUARES))
    assert (counts["recipe"]["kept"], counts["recipe"]["lost"], counts["recipe"]["invented"]) == (sum(SQUARES), 0, 0)
    cosine = found.outputs.int8["output0_out"]["cosine"]
    assert cosine == plain.outputs.int8["output0_out"]["cosine"] > 0.99
    assert found.by_input.int8.misses == len(SQUARES)
    assert found.fingerprint != plain.fingerprint


def test_a_thorough_search_finds_the_one_layer_and_measures_the_front_by_the_task(given):
    model, data = given
    found = trt_bisect.run(model, data, inputs=data, task="detect", front=True, **{**HOW, "effort": "thorough"})
    assert found.recipe.high == ("second",)
    assert found.similarity.recipe == 1.0
    named = {name: point.figure for point in found.front for name in point.names}
    assert (named["all INT8"], named["recipe"], named["all high"]) == (found.similarity.int8, 1.0, 1.0)


def test_images_on_which_both_find_nothing_count_neither_as_held_nor_as_missed(given, random):
    model, data = given
    empty = [{"x": x} for x in images(random, (0, 0))]
    found = trt_bisect.run(model, data, inputs=[*empty, *data], task="detect", **HOW)
    assert (found.culprits, found.recipe.meets) == (("second",), True)
    assert (found.answer.given.inputs, found.answer.given.holds) == (len(SQUARES), len(SQUARES))
    assert found.answer.given.worst == 1.0
    assert {found.by_input.int8.inputs, found.by_input.recipe.inputs, found.inputs.judged} == {len(SQUARES)}
    assert f"rests on {len(SQUARES)} inputs" in found.answer.confidence[0].text
    assert "FP32 finds nothing on 2 more" in found.answer.confidence[0].text
    assert {row.inputs for row in found.answer.calibrators if row.chosen} == {len(SQUARES)}
    assert set(found.answer.settings.values()) == {1.0}


def test_the_worst_input_is_that_of_the_least_agreement_and_then_of_the_least_cosine(given, random):
    """Nothing is lost on an image without squares; of those on which all is lost, most squares cost most cosine."""
    model, data = given
    empty = {"x": images(random, (0,))[0]}
    found = trt_bisect.worst(
        model, data, [empty, *data], task="detect", engine="onnxruntime", calibrator="minmax", keep=5
    )
    assert found.values == (1.0, 0, 0, 0, 0)
    assert found.places[0] == 3, "three squares"
    assert found.places[-1] == 0


def inventing_detector(tmp_path):
    """Candidates of a YOLO v8: 6 boxes where input 3 is large, and 3 that only INT8 finds, on every picture.

    Input 1 subtracts 0.9 from the scores of the 3. INT8's step is 7.9 (input 0 is 1,000), so that it becomes 0.
    """
    candidates, random = 60, np.random.default_rng(0)
    scores, boxes = np.zeros((3, candidates)), random.uniform(50, 600, (4, candidates))
    boxes[:2, :9], boxes[2:, :9] = 80 + 60 * np.arange(9), 50
    boxes[2:, 9:] = random.uniform(20, 60, (2, candidates - 9))
    scores[0, 6:9] = 0.9
    weight = np.zeros((4, 7, candidates))
    weight[1, 4, 6:9], weight[2, :2], weight[3, 4, :6] = -0.3, 0.001, 0.0008
    sketch = Sketch()
    flat = sketch.constant("weight", weight.reshape(4, -1))
    bias = sketch.constant("bias", np.concatenate([boxes, scores]).ravel())
    head = sketch.node("Gemm", ["x", flat, bias], "head")
    sketch.node("Reshape", [head, sketch.constant("shape", [-1, 7, candidates], np.int64)], "output0")
    return networks.save(sketch.model({"x": [1, 4]}, {"output0_out": [1, 7, candidates]}), tmp_path)


def test_what_int8_invents_on_pictures_without_objects_is_part_of_the_agreement(tmp_path):
    """Of 40 pictures 20 have 6 objects; INT8 invents 3 on each. Of all, 16 are searched: those with objects.

    By hand: 120 kept, 120 invented.
    """
    model = inventing_detector(tmp_path)
    x = np.zeros((40, 1, 4), np.float32)
    x[..., 0], x[..., 1], x[..., 2] = 1000, 3, np.linspace(0, 900, 40)[:, None]
    x[1::2, :, 3] = 1000
    found = plain_session(model).run(None, {"x": x[0]})[0], plain_session(model).run(None, {"x": x[1]})[0]
    assert [(scores[0, 4:].max(0) >= 0.3).sum() for scores in found] == [0, 6]
    data = [{"x": each} for each in x]
    wishes = {"task": "detect", "head": "xywh,classes:3", "validation": 0, **HOW}
    report = trt_bisect.run(model, data, dataset=data, **wishes)
    full = report.by_input.int8
    assert report.similarity.int8 == pytest.approx(0.5)
    assert (full.inputs, full.misses, full.invented) == (20, 20, 20)
    assert (report.by_input.recipe.inputs, report.by_input.recipe.invented) == (20, 0)
    assert (report.answer.given.inputs, report.answer.given.holds) == (20, 20)
    assert "rests on 20 inputs" in report.answer.confidence[0].text


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"metric": "sqnr"}, "metric sqnr"),
        ({"score_threshold": 1.0}, "finds nothing"),
        ({"task": "segment"}, r"'output0_out' \[1, 6, 49\]"),
        ({"task": "count"}, "task cannot be 'count'"),
    ],
)
def test_what_cannot_be_judged_is_refused(given, wishes, words):
    model, data = given
    with pytest.raises(BadInput, match=words):
        trt_bisect.run(model, data, inputs=data, **{"task": "detect", **HOW, **wishes})


def test_an_accuracy_and_a_task_cannot_decide_both(given):
    model, data = given
    with pytest.raises(BadInput, match="task and drop"):
        trt_bisect.run(model, data, dataset=data, task="detect", accuracy=lambda infer: 1.0, drop="1%")
    with pytest.raises(BadInput, match='task="detect" is not judged by labels with classes'):
        trt_bisect.run(model, data, dataset=data, task="detect", labels=[0], drop="1%")


def encoder():
    """Three dense layers, whose loss in INT8 changes few neighbours."""
    sketch = Sketch()
    x = sketch.node("Relu", [sketch.dense("x", "first", 16, 32)], "relu1")
    x = sketch.node("Relu", [sketch.dense(x, "second", 32, 32)], "relu2")
    sketch.dense(x, "third", 32, 16)
    return sketch.model({"x": [1, 16]}, {"third_bias_out": [1, 16]})


def outputs_of(path, data):
    session = plain_session(path, optimised=False)
    rows = np.concatenate([session.run(None, feeds)[0] for feeds in data]).astype(np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize(("threshold", "passes"), [(0.9, True), (0.99, False)])
def test_search_and_report_have_one_figure_of_vectors_that_of_their_files(tmp_path, random, threshold, passes):
    """Expected by NumPy from the outputs of the two files in ONNX Runtime: the closest two vectors stay the same."""
    model = networks.save(encoder(), tmp_path)
    rows = np.tile(random.normal(size=(12, 1, 16)), (3, 1, 1))
    rows[12:] += 0.05 * random.normal(size=rows[12:].shape)
    data = [{"x": x} for x in rows.astype(np.float32)]
    found = trt_bisect.run(
        model, data, inputs=data, task="embed", threshold=threshold, output=tmp_path / "run", validation=0, **HOW
    )
    assert (found.exit_code == 0) == passes
    vectors = outputs_of(model, data)
    recipe = outputs_of(tmp_path / "run" / "recipe" / "network.qdq.onnx", data)
    closest = [[set(np.argsort(-row)[:2]) for row in rows @ vectors.T] for rows in (vectors, recipe)]
    agreement = np.mean([one == other for one, other in zip(*closest, strict=True)])
    assert found.similarity.recipe == pytest.approx(agreement)
    assert found.answer.settings["scales as they are"] == pytest.approx(agreement)
    assert (found.similarity.int8 >= threshold) == passes
    assert 0 < found.by_input.int8.misses < len(data), "a pass is that of all inputs together"


def test_a_head_that_the_worst_input_does_not_tell_is_told_by_the_others(tmp_path, random):
    """Queries whose last class is the background: in the first input, the worst, all of them are objects."""
    sketch = Sketch()
    logits = sketch.node("MatMul", ["x", sketch.constant("w", np.eye(5))], "logits")
    away = sketch.constant("away", random.normal(size=(5, 4)))
    sketch.node("Sigmoid", [sketch.node("MatMul", [logits, away], "moved")], "pred_boxes")
    outputs = {"logits_out": [1, 20, 5], "pred_boxes_out": [1, 20, 4]}
    model = networks.save(sketch.model({"x": [1, 20, 5]}, outputs), tmp_path)
    data = random.normal(size=(6, 1, 20, 5))
    data[..., 4] += 6
    data[0, ..., :4] += 9
    feeds = [{"x": each.astype(np.float32)} for each in data]
    with pytest.raises(BadInput, match="in 3 ways"):
        trt_bisect.run(model, calibration=feeds, input=feeds[:1], task="detect", **HOW)
    found = trt_bisect.run(model, calibration=feeds, task="detect", **HOW)
    assert any("class 4 the background" in text for text in texts(found.notes))
