"""``compare --recipe`` and ``--plan``: the compared INT8 side is the recipe's own network, as ONNX Runtime runs it."""

import json

import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.quantized import plain_tensors
from trt_bisect.errors import BadInput
from trt_bisect.recipe.files import QDQ_NETWORK
from trt_bisect.support import codec

BESIDE = [("recipe", True), ("plan", False), ("recipe", False), ("plan", True)]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A network, samples, and the folder of a run whose recipe leaves a layer high and has ranges of its own.

    The weight of ``conv2`` has one scale, the others have one a channel.
    """
    place, model = tmp_path_factory.mktemp("recipe"), networks.chain(3)
    networks.plant_between(model, "conv0", "conv1")
    path, samples = networks.given(model, place, 4)
    options = {"engine": "onnxruntime", "calibrator": "percentile=99", "explain": "none", "precision": "fp32"}
    options |= {"threshold": 0.98, "output": place / "run", "one_scale": ["conv2"]}
    report = trt_bisect.run(path, samples, samples, **options)
    assert report.files is not None
    return path, samples["x"], place / "run"


@pytest.fixture(scope="module")
def in_full(recipe):
    """The output of that network with all layers in INT8 and ranges of other data."""
    path, samples, _ = recipe
    return trt_bisect.compare(path, {"x": samples}, {"x": samples}).tensors[-1].int8


@pytest.mark.parametrize(("option", "calibrated"), edition(BESIDE[:2], BESIDE))
def test_the_low_side_is_the_recipes_network(recipe, in_full, option, calibrated):
    """Layers, scales of activations and scales of weights, whatever data is given beside them."""
    path, samples, run = recipe
    given = {"calibration": {"x": 3 * samples}} if calibrated else {}
    found = trt_bisect.compare(path, inputs={"x": samples}, **{option: run}, **given)
    layers = json.loads((run / "recipe/plan.json").read_text())["layers"]
    high = {name for name, kind in layers.items() if kind != "int8"}
    assert high == {row.origin.layer for row in found.weights if not row.quantized_dtype}
    rows = {row.origin.tensor: row for row in found.tensors if row.origin.index is not None}
    theirs = plain_tensors(run / "recipe" / QDQ_NETWORK, list(rows), networks.feeds(samples))
    for name, values in theirs.items():
        seen = rows[name].int8
        expected = (values.min(), values.max(), values.mean(), values.std())
        assert (seen.min, seen.max, seen.mean, seen.std) == pytest.approx(expected, rel=1e-5, abs=1e-6), name
    assert in_full != rows["y"].int8, "full INT8 with other ranges is another network"


def test_a_recipe_is_named_by_its_run_its_folder_or_its_file(recipe):
    path, samples, run = recipe
    places = (run, run / "recipe", run / "recipe" / "plan.json")
    found = [trt_bisect.compare(path, inputs={"x": samples}, recipe=place) for place in places]
    first, *others = [codec.encode(each.tensors) for each in found]
    assert others == [first, first]


def test_the_plan_names_weights_with_one_scale(recipe):
    """And a plan that names them fixes them, as --one-scale does."""
    path, samples, run = recipe
    plan = json.loads((run / "recipe/plan.json").read_text())
    qdq = onnx.load(str(run / "recipe" / QDQ_NETWORK)).graph
    shapes = {each.name: tuple(each.dims) for each in qdq.initializer}
    readers = {node.input[1]: node.name for node in qdq.node if len(node.input) > 1}
    one = {
        readers[node.output[0]]
        for node in qdq.node
        if node.op_type == "DequantizeLinear" and node.output[0] in readers and shapes[node.input[1]] in ((), (1,))
    }
    low = {name for name, kind in plan["layers"].items() if kind == "int8"}
    assert set(plan["one_scale"]) & low == one == {"conv2"}
    fixed = trt_bisect.compare(path, {"x": samples}, plan={"one_scale": plan["one_scale"]})
    asked = trt_bisect.compare(path, {"x": samples}, one_scale=plan["one_scale"])
    assert codec.encode(fixed.tensors) == codec.encode(asked.tensors)


def test_a_recipe_and_a_plan_and_a_list_that_is_none_are_refused(recipe):
    path, samples, run = recipe
    lists = [{"plan": {"one_scale": one_scale}} for one_scale in ("conv1", [1], {"conv1": 1})]
    for given in ({"recipe": run, "plan": run}, *lists):
        with pytest.raises(BadInput, match="recipe and plan" if "recipe" in given else "one_scale"):
            trt_bisect.compare(path, {"x": samples}, **given)


def test_a_plan_without_a_scale_for_every_low_layer_needs_data(recipe):
    """``profile`` shows the scales that the plan has."""
    path, samples, run = recipe
    plan = json.loads((run / "recipe/plan.json").read_text())
    nodes = onnx.load(str(path)).graph.node
    read = next(node.input[0] for node in nodes if plan["layers"].get(node.name) == "int8")
    scale = plan["scales"].pop(read)
    with pytest.raises(BadInput, match="no ranges"):
        trt_bisect.compare(path, inputs={"x": samples}, plan=plan)
    rows = trt_bisect.profile(path, plan={"scales": {read: scale}}).tensors
    assert {row.tensor: row.scale for row in rows if row.role == "input" and row.scale is not None} == {read: scale}
