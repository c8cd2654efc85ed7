"""The detector sample: full INT8 by entropy loses its detections, the recipe of the demo keeps them.

Detections are judged in plain ONNX Runtime, on images that no run saw.
"""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import trt_bisect
from tests.support.editions import edition
from tests.support.networks import attached, model_of
from tests.support.quantized import plain_session
from trt_bisect.calibration.collect import magnitudes
from trt_bisect.calibration.histogram import entropy_threshold
from trt_bisect.model.qdq import GraphTarget, PlanWriter

ROOT = Path(__file__).parents[2]
DETECTOR = ROOT / "samples" / "detector"
SCORES = "/model.13/Sigmoid_output_0"
LIMIT = 3_000_000
"""Bytes of the folder."""


LEAST_SCORE, LEAST_IOU = 0.3, 0.5


def suppressor(most=100):
    """A session of the operator NonMaxSuppression: boxes [1, n, 4] and scores [1, classes, n] to places [k, 3]."""
    limits = {"most": (TensorProto.INT64, most), "iou": (TensorProto.FLOAT, LEAST_IOU)}
    limits["score"] = (TensorProto.FLOAT, LEAST_SCORE)
    constants = [helper.make_tensor(name, kind, [1], [value]) for name, (kind, value) in limits.items()]
    boxes = {"boxes": [1, None, 4], "scores": [1, None, None]}
    node = helper.make_node("NonMaxSuppression", [*boxes, *limits], ["places"], center_point_box=1)
    model = model_of([node], boxes, {"places": [None, 3]}, constants)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def detections(output, session):
    """The boxes [k, 4] and classes [k] in an output [1, 4 + classes, anchors]; ``session`` is from ``suppressor``."""
    boxes, scores = np.ascontiguousarray(output[:, :4].transpose(0, 2, 1)), np.ascontiguousarray(output[:, 4:])
    (places,) = session.run(None, {"boxes": boxes, "scores": scores})
    return boxes[0, places[:, 2]], places[:, 1]


def labels_found(boxes, classes, labels):
    """Returns the number of an image's labels that have a detection of their class with an IoU of 0.5 or more."""
    return sum(
        bool(((ious(boxes, np.array(box)) >= LEAST_IOU) & (classes == kind)).any())
        for box, kind in zip(labels["boxes"], labels["classes"], strict=True)
    )


def ious(boxes, box):
    """IoU of boxes [k, 4] (centre x, centre y, width, height) with one: [k]."""
    first = np.maximum(boxes[:, :2] - boxes[:, 2:] / 2, box[:2] - box[2:] / 2)
    last = np.minimum(boxes[:, :2] + boxes[:, 2:] / 2, box[:2] + box[2:] / 2)
    shared = np.maximum(last - first, 0).prod(axis=1)
    return shared / (boxes[:, 2:].prod(axis=1) + box[2:].prod() - shared)


@pytest.fixture(scope="module")
def images():
    return np.load(DETECTOR / "test.npz")["images"]


@pytest.fixture(scope="module")
def labels():
    return json.loads((DETECTOR / "test-labels.json").read_text())


@pytest.fixture(scope="module")
def network():
    return trt_bisect.load_network(DETECTOR / "detector.onnx")


@pytest.fixture(scope="module")
def calibration_file(tmp_path_factory):
    """The images that calibrate, or one of 24 of them."""
    with np.load(DETECTOR / "calibration.npz") as data:
        chosen = {name: data[name][:: edition(24, 1)] for name in data.files}
    path = tmp_path_factory.mktemp("calibration") / "calibration.npz"
    np.savez(path, **chosen)
    return path


def outputs_of(path, images):
    session = plain_session(path)
    return [session.run(None, {"images": image[np.newaxis]})[0] for image in images]


@pytest.fixture(scope="module")
def in_fp32(images):
    return outputs_of(DETECTOR / "detector.onnx", images)


@pytest.fixture(scope="module")
def rounded(network, images, calibration_file, tmp_path_factory):
    """Writes a Q/DQ file in which the named layers stay high; returns its outputs."""
    calibration = trt_bisect.open_dataset(str(calibration_file), network.inputs)
    writer = PlanWriter(network, trt_bisect.calibrate(network, calibration).scales, GraphTarget.TENSORRT)
    path = tmp_path_factory.mktemp("detector") / "network.qdq.onnx"

    def outputs(*high):
        kept = [layer.index for layer in network.layers if layer.name in high]
        assert len(kept) == len(high)
        written = writer.write(trt_bisect.all_but(len(network.layers), kept))
        onnx.save(attached(written.model, written.weights), str(path))
        return outputs_of(path, images)

    return outputs


def share_found(outputs, labels):
    """The share of labels with a detection, and the number of detections for each label."""
    session, hits, count = suppressor(), 0, 0
    for output, image_labels in zip(outputs, labels, strict=True):
        boxes, classes = detections(output, session)
        hits += labels_found(boxes, classes, image_labels)
        count += len(boxes)
    total = sum(len(each["boxes"]) for each in labels)
    return hits / total, count / total


def test_fp32_finds_the_labels_of_images_that_it_never_saw(in_fp32, images, labels):
    assert len(images) == len(labels) == 20
    found, count = share_found(in_fp32, labels)
    assert found >= 0.95
    assert count <= 1.1, "detections that no label has"
    calibration = np.load(DETECTOR / "calibration.npz")["images"]
    assert not any((calibration == image).all(axis=(1, 2, 3)).any() for image in images)


def test_the_final_concat_joins_boxes_and_scores_in_one_output(network, in_fp32):
    last = network.layers[-1]
    assert (last.op_type, last.outputs[0]) == ("Concat", "output0")
    assert SCORES in last.inputs
    boxes, scores = (np.stack([output[0, part] for output in in_fp32]) for part in (slice(4), slice(4, None)))
    assert boxes.max() > 100 * scores.max()


def test_full_int8_loses_the_detections_and_the_last_concat_in_fp32_brings_them_back(network, rounded, labels):
    found, count = share_found(rounded(), labels)
    assert found <= 0.1
    assert count <= 0.1
    found, count = share_found(rounded(network.layers[-1].name), labels)
    assert found >= 0.95
    assert count <= 1.1


def test_entropy_clips_the_scores_whatever_images_calibrate(network, random):
    """The threshold stays far below the 0.3 that a detection needs: the sample is not on a tipping point."""
    images = np.load(DETECTOR / "calibration.npz")["images"]
    for _ in range(2):
        chosen = random.choice(len(images), 20, replace=False)
        seen = magnitudes(network, [{"images": images[place][np.newaxis]} for place in chosen])
        scores = seen.histograms[SCORES]
        assert scores.absmax > 0.6
        assert entropy_threshold(scores) < 0.2


@pytest.mark.slow
def test_the_demo_names_the_concat_and_its_recipe_keeps_the_detections(
    images, labels, calibration_file, tmp_path, monkeypatch, command
):
    demo = (ROOT / "Makefile").read_text().replace("\\\n", "")
    (asked,) = re.findall(r"trt-bisect (run samples/detector/.*?);", demo)
    words = shlex.split(asked)
    for option, value in (("--output", tmp_path / "run"), ("--calibration", calibration_file)):
        words[words.index(option) + 1] = str(value)
    monkeypatch.chdir(ROOT)
    code, out, _ = command(*words)
    assert code == 1
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["culprits"] == ["/model.13/Concat_8"]
    assert "activation: saturation" in out
    explanation = json.loads((tmp_path / "run" / "explanation.json").read_text())
    tried = explanation["tried"]
    assert [cause["words"].startswith("entropy clips ") for cause in explanation["causes"]] == [True]
    (minmax,) = [each for each in tried if each["what"].startswith("minmax") and not each["culprits"]]
    assert (minmax["similarity"], minmax["meets"]) == (pytest.approx(1.0, abs=5e-7), True)
    found, count = share_found(outputs_of(tmp_path / "run" / "recipe" / "network.qdq.onnx", images), labels)
    assert found >= 0.95
    assert count <= 1.1


def best_class(output):
    """The output with the largest score of each box alone, as ``--task detect`` reads it."""
    scores = output[:, 4:]
    return np.concatenate([output[:, :4], np.where(scores == scores.max(axis=1, keepdims=True), scores, 0)], axis=1)


@pytest.mark.slow
def test_the_calibrator_chosen_keeps_the_detections_of_images_held_out(tmp_path):
    """Several calibrators keep all detections of the images given; not all of them keep those of the others."""
    path = DETECTOR / "detector.onnx"
    images, session = np.load(DETECTOR / "calibration.npz")["images"][:: edition(3, 1)], suppressor()
    how = {"engine": "onnxruntime", "explain": "none", "curve": "culprits"}
    report = trt_bisect.run(path, {"images": images}, task="detect", output=tmp_path / "run", **how)
    assert (report.exit_code, report.culprits, report.answer.held_out.holds) == (0, (), len(images) // 5)
    both = (outputs_of(file, images) for file in (path, tmp_path / "run/recipe/network.qdq.onnx"))
    for pair in zip(*both, strict=True):
        (boxes, classes), found = (detections(best_class(output), session) for output in pair)
        assert len(boxes) == len(found[0]) == labels_found(*found, {"boxes": boxes, "classes": classes})


def test_the_folder_is_small():
    assert sum(file.stat().st_size for file in DETECTOR.iterdir()) < LIMIT
