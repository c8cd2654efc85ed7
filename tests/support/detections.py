"""Detections of a YOLO v8 output, by ONNX Runtime's NonMaxSuppression, and the labels they find."""

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from tests.support.networks import model_of

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
