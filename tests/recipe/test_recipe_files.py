"""The recipe's files, read by the tools they are for as far as those are here."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect import similarity

PROPERTIES = {"names": "{0: 'cat', 1: 'dog'}", "stride": "32"}
"""As Ultralytics exports them, and reads them beside an engine."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    """A residual network with one culprit, its report and its run folder."""
    folder = tmp_path_factory.mktemp("exports")
    model = networks.residual()
    networks.plant_between(model, "block1.conv1", "block1.conv2")
    onnx.helper.set_model_props(model, PROPERTIES)
    wishes = {"engine": "onnxruntime", "calibrator": "minmax", "metric": "sqnr", "precision": "fp32"}
    path, data = networks.given(model, folder)
    report = trt_bisect.run(path, data, **wishes, explain="none", output=folder / "run")
    assert report.culprits == ("block1.conv2",)
    return folder / "run", report


@pytest.mark.slow
def test_the_qdq_network_gives_the_similarity_reported(recipe):
    """Run by ONNX Runtime alone, beside the network in the user's file."""
    folder, report = recipe
    samples = networks.samples(networks.residual())["x"]
    path = folder / "recipe/network.qdq.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    ours, original = map(plain_session, (path, report.model))
    outputs = [[session.run(None, {"x": x[None]})[0] for session in (original, ours)] for x in samples]
    assert min(similarity(*both, "sqnr") for both in outputs) == pytest.approx(report.similarity.recipe, abs=0.05)
    culprit = next(node for node in onnx.load(path).graph.node if node.name == "block1.conv2")
    assert culprit.input[0] == "block1.relu1_out"


@pytest.mark.slow
def test_the_qdq_network_keeps_its_dynamic_axes_and_builds_in_tensorrt_rtx(recipe):
    trt = pytest.importorskip("tensorrt_rtx_bindings")
    path = recipe[0] / "recipe/network.qdq.onnx"
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse(path.read_bytes())
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("x", *[(n, 3, 16, 16) for n in (1, 1, 4)])
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config).nbytes > 0


@pytest.mark.parametrize("name", ["network.qdq.onnx", "network.onnx"])
def test_the_properties_of_the_file_are_those_of_the_recipe_s_files(recipe, name):
    written = onnx.load(recipe[0] / "recipe" / name)
    assert {each.key: each.value for each in written.metadata_props} == PROPERTIES


class Killed(BaseException):
    """Stands for ``kill -9``: nothing catches it."""


def test_a_recipe_that_is_replaced_is_whole_and_named_at_every_moment(recipe, tmp_path, monkeypatch):
    """Or has no plan. The process ends before each of its calls that change the folder, one after the other."""
    _, report = recipe
    old = report.files
    model = onnx.ModelProto()
    model.CopyFrom(old.network.model)
    model.doc_string = "new"
    plan = {**json.loads(old.texts["plan.json"]), "new": True}
    new = replace(old, texts={"plan.json": json.dumps(plan)}, network=replace(old.network, model=model), measured=None)
    folder, name = tmp_path / "recipe", tmp_path / "name"
    original, left, ends = {call: getattr(Path, call) for call in ("replace", "unlink")}, [0], 0

    def counted(call):
        def changed(self, *arguments, **options):
            left[0] -= self.is_relative_to(folder)
            if left[0] < 0:
                raise Killed
            return original[call](self, *arguments, **options)

        return changed

    for call in original:
        monkeypatch.setattr(Path, call, counted(call))
    for steps in range(99):
        left[0] = 99
        old.write(folder, lambda: name.write_text("old"))
        files = {path.name for path in folder.iterdir()}
        left[0] = steps
        try:
            new.write(folder, lambda: name.write_text("new"))
        except Killed:
            ends += 1
        left[0] = 99
        if not (folder / "plan.json").exists():
            continue
        which = "new" if "new" in json.loads((folder / "plan.json").read_text()) else "old"
        assert name.read_text() == which
        assert onnx.load(folder / "network.qdq.onnx").doc_string == ("new" if which == "new" else "")
        there = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        assert there == ({"plan.json", "network.qdq.onnx"} if which == "new" else files)
        if ends == steps:
            break
    assert which == "new"
    assert ends >= len(files)
