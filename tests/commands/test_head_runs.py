"""Networks whose boxes and scores hold while INT8 loses their keypoints, angles, masks and depths: one culprit each."""

import math

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.networks import Sketch
from tests.support.records import texts
from tests.support.squares import JUDGED, SIDE, SIZE, STRIDE, images
from trt_bisect.errors import BadInput

PLACES = 49
HOW = {**JUDGED, "effort": "quick"}
HEADS = ("pose", "obb", "instances")


def sketched(task):
    """Boxes on a grid, the score of each a mean over its square; what the task reads goes another way.

    That way copies the image twice. The convolution ``second`` reads a channel that starves the others of levels.
    """
    sketch = Sketch()
    score = mean(sketch, sketch.node("Relu", [sketch.conv("x", "scored", 2, 2)], "relu0"), "score", 20, -12)
    score = sketch.node("Sigmoid", [score], "sigmoid")
    x = sketch.node("Relu", [sketch.conv("x", "first", 2, 4)], "relu1")
    x = sketch.node("Relu", [sketch.conv(x, "second", 4, 2)], "relu2")
    if task == "depth":
        sketch.node("Add", [sketch.conv(x, "last", 2, 1, 1), sketch.constant("least", [0.5])], "output0")
        return sketch, {"output0_out": [1, 1, SIDE, SIDE]}
    found = sketch.node("ReduceSum", [mean(sketch, x, "more", 1, 0), sketch.constant("axis", [1], np.int64)], "sum")
    y, x = (grid.ravel() * STRIDE + SIZE / 2 for grid in np.mgrid[:7, :7])
    sizes = np.tile([[9.6], [9.6]] if task == "instances" else [[8], [4]], PLACES)
    parts = [sketch.constant("boxes", np.concatenate([[x, y], sizes])[None]), score]
    if task == "pose":
        moved = sketch.node("Mul", [found, sketch.constant("away", [40])], "moved")
        at = sketch.node("Add", [moved, sketch.constant("at", x[None, None])], "point")
        parts += [at, sketch.constant("rest", np.stack([y, np.full(PLACES, 0.9)])[None])]
    elif task == "obb":
        parts.append(sketch.node("Mul", [found, sketch.constant("quarter", [math.pi / 2])], "angle"))
    else:
        twice = sketch.node("Mul", [found, sketch.constant("two", [2])], "twice")
        parts.append(sketch.node("Sub", [twice, sketch.constant("one", [1])], "coefficient"))
        parts.append(sketch.constant("rest", np.full((1, 1, PLACES), -1)))
        ramp = np.stack([np.ones((8, 8)), np.zeros((8, 8))])[None]
        dark = sketch.node("Mul", ["x", sketch.constant("none", [0])], "dark")
        pooled = sketch.node("MaxPool", [dark], "pooled", kernel_shape=[4, 4], strides=[4, 4])
        sketch.node("Add", [pooled, sketch.constant("ramp", ramp)], "output1")
    sketch.node("Concat", parts, "output0", axis=1)
    width = {"pose": 9, "obb": 7, "instances": 8}[task]
    masks = {"output1_out": [1, 2, 8, 8]} if task == "instances" else {}
    return sketch, {"output0_out": [1, width, PLACES], **masks}


def mean(sketch, x, name, factor, bias):
    weight = np.zeros((2, 2, SIZE, SIZE))
    weight[[0, 1], [0, 1]] = factor / SIZE**2
    given = [x, sketch.constant(f"{name}.weight", weight), sketch.constant(f"{name}.bias", [bias, bias])]
    found = sketch.node("Conv", given, name, strides=[STRIDE] * 2)
    return sketch.node("Reshape", [found, sketch.constant(f"{name}.shape", [1, 2, -1], np.int64)], f"{name}_flat")


def network(task):
    sketch, outputs = sketched(task)
    copies = {"scored": np.eye(2), "first": np.eye(4, 2), "second": np.eye(2, 4)}
    copies |= {"last": np.full((1, 2), 4.0)} if task == "depth" else {}
    return networks.copying(sketch.model({"x": [1, 2, SIDE, SIDE]}, outputs), **copies)


@pytest.fixture
def squares(random):
    return [{"x": x} for x in images(random, apart=2)]


@pytest.mark.parametrize("task", HEADS)
def test_the_layer_that_loses_what_the_task_reads_is_named(tmp_path, squares, task):
    model = networks.save(network(task), tmp_path)
    found = trt_bisect.run(model, squares, inputs=squares, task=task, **HOW)
    assert (found.exit_code, found.culprits) == (1, ("second",))
    int8, recipe = (plan[f"task {task}"] for plan in (found.outputs.int8, found.outputs.recipe))
    assert (int8["kept"], int8["lost"]) == (0, 8)
    assert int8["invented"] == (0 if task == "instances" else 8), "a detection whose mask is empty is none"
    assert (recipe["kept"], recipe["lost"], recipe["invented"]) == (8, 0, 0)
    assert any(f"--task {task} reads 'output0_out' as rows of xywh,classes:2" in note for note in texts(found.notes))


def test_the_layer_that_loses_the_depths_is_named(tmp_path, squares):
    model = networks.save(network("depth"), tmp_path)
    found = trt_bisect.run(model, squares, inputs=squares, task="depth", **HOW)
    assert (found.exit_code, found.culprits) == (1, ("second",))
    assert found.outputs.int8["task depth"]["error"] > 0.1 > found.outputs.recipe["task depth"]["error"]


def test_the_columns_of_a_head_can_be_named_and_must_be_those_of_the_task(tmp_path, squares, command):
    model, data = networks.save(network("obb"), tmp_path), tmp_path / "x.npz"
    np.savez(data, x=np.stack([each["x"] for each in squares])[:, 0])
    asked = ["run", model, "--calibration", data, "--calibrator", "minmax", "--output", tmp_path / "run"]
    for wishes, words in (
        (("pose",), "--head xywh,classes:1,keypoints:17x3"),
        (("obb", "--head", "xywh,classes:2,masks:1"), "has no angle"),
        (("segment", "--head", "xywh,classes:2,angle"), "needs a task of detections"),
    ):
        code, _, problem = command(*asked, "--task", *wishes)
        assert code == 2
        assert words in " ".join(problem.split())
    named = trt_bisect.run(model, squares, inputs=squares, task="obb", head="xywh,classes:2,angle", **HOW)
    assert named.culprits == ("second",)
    with pytest.raises(BadInput):
        trt_bisect.run(model, squares, inputs=squares, task="obb", head="xywh,classes:3,angle", **HOW)
