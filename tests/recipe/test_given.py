"""The user's own file without the pairs of high layers: beside the file as the tool wrote it, and in ONNX Runtime."""

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

import trt_bisect
from tests.model.test_quantizer_files import A_FEW_FLIPS, FILES, KINDS, SAMPLES
from tests.support import networks
from tests.support.quantized import in_plan, plain_run, plain_tensors, quantized_by_onnxruntime
from trt_bisect.model.network import load_network
from trt_bisect.recipe.given import without_pairs

CULPRIT = "block1.conv2"
SYMMETRIC = {"activation_type": QuantType.QInt8, "extra_options": {"ActivationSymmetric": True}}
ASYMMETRIC = {"activation_type": QuantType.QUInt8}


PAIR = ("QuantizeLinear", "DequantizeLinear")


def same_but_for_pairs(before, after):
    """Asserts that two files differ in pairs alone; returns the nodes of the first that the second lacks.

    A Clip of the second with new constants may stand for a Relu that a pair replaced.
    """
    first, second = onnx.ModelProto.FromString(before.read_bytes()), onnx.ModelProto.FromString(after.read_bytes())
    makers = {name: node for node in first.graph.node for name in node.output}
    outputs, missing = {value.name for value in first.graph.output}, []
    clips = {
        node.output[0]: node for node in second.graph.node if node.op_type == "Clip" and node.output[0] not in makers
    }
    kept = iter([node for node in second.graph.node if node.output[0] not in clips] + [onnx.NodeProto()])
    node = next(kept)
    for old in first.graph.node:
        if old.output != node.output:
            missing.append(old)
            continue
        if node.op_type != old.op_type:
            assert node.op_type == "Identity"
            assert old.op_type == "DequantizeLinear"
            assert old.output[0] in outputs
            assert node.input[0] in before_pairs(old.output[0], makers)
        else:
            moved = [(name, new) for name, new in zip(old.input, node.input, strict=True) if name != new]
            moved = [(name, clips[new].input[0] if new in clips else new) for name, new in moved]
            assert all(new in before_pairs(name, makers) for name, new in moved)
            old.input[:] = node.input
            assert old == node
        node = next(kept)
    assert node == onnx.NodeProto()
    constants = {name for clip in clips.values() for name in clip.input[1:]}
    added = [tensor for tensor in second.graph.initializer if tensor.name in constants]
    assert len(added) == len(constants)
    for tensor in added:
        second.graph.initializer.remove(tensor)
    for model in (first, second):
        model.graph.ClearField("node")
    assert first == second
    return missing


def before_pairs(name, makers):
    """The tensors that the Q nodes before a tensor read."""
    read = set()
    while name in makers and makers[name].op_type in (*PAIR, "Identity"):
        is_read = makers[name].op_type == "QuantizeLinear"
        name = makers[name].input[0]
        read |= {name} if is_read else set()
    return read


def edited(network, path, high, folder):
    folder.mkdir()
    without_pairs(network, high)(folder)
    return folder / path.name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_tools_file_without_some_pairs_is_its_file_and_computes_the_plan(kind, tmp_path):
    path, network = FILES / f"{kind}.onnx", load_network(FILES / f"{kind}.onnx").as_in_file()
    every = [layer.name for layer in network.layers if layer.roundings]
    for number, high in enumerate((every[::2], every[1::2], every)):
        after = edited(network, path, high, tmp_path / str(number))
        missing = same_but_for_pairs(path, after)
        assert missing
        assert {node.op_type for node in missing} <= {*PAIR, "Identity"}
        onnx.checker.check_model(after)
        low = [network.layer_named(name).index for name in every if name not in high]
        for sample in SAMPLES:
            (found,) = plain_run(onnx.load(after), sample, optimised=False)
            (wanted,) = in_plan(network, network.free_plan(low), sample).values()
            assert np.linalg.norm(found - wanted) <= A_FEW_FLIPS / 10 * np.linalg.norm(wanted)


def planted(folder, **options):
    """A network with a culprit, the same quantized by ONNX Runtime, and the samples."""
    model = networks.residual(blocks=2)
    networks.plant_between(model, "block1.conv1", CULPRIT)
    path, quantized, samples = networks.save(model, folder), folder / "theirs.onnx", networks.samples(model)
    each = networks.feeds(samples["x"])
    quantized_by_onnxruntime(path, quantized, each, weight_type=QuantType.QInt8, per_channel=True, **options)
    return path, quantized, samples


@pytest.fixture(scope="module", params=["symmetric", "asymmetric"])
def judged(request, tmp_path_factory):
    """A file of ONNX Runtime's quantizer judged by the float file that it was made from."""
    folder = tmp_path_factory.mktemp(request.param)
    path, quantized, samples = planted(folder, **(SYMMETRIC if request.param == "symmetric" else ASYMMETRIC))
    how = {"engine": "onnxruntime", "precision": "fp32", "explain": "none", "effort": "quick"}
    report = trt_bisect.run(quantized, inputs=samples, reference=path, output=folder / "run", **how)
    return path, quantized, samples["x"], report, folder / "run/recipe"


@pytest.mark.slow
def test_the_recipe_has_the_users_file_whose_outputs_are_as_told(judged):
    """ONNX Runtime alone: the cosine of both files on the worst sample; a Clip is the Relu that the tool removed."""
    path, quantized, samples, report, recipe = judged
    assert CULPRIT in report.culprits
    given = recipe / "given/theirs.onnx"
    worst = 1.0
    for sample in samples:
        (found,), (exact,) = (plain_run(str(file), {"x": sample[None]}) for file in (given, path))
        found, exact = found.ravel().astype(np.float64), exact.ravel().astype(np.float64)
        worst = min(worst, float(found @ exact / np.linalg.norm(found) / np.linalg.norm(exact)))
    assert worst >= report.threshold
    row = "given/theirs.onnx` | the file given without the pairs of the layers that stay high"
    assert row in (recipe / "README.md").read_text()
    assert same_but_for_pairs(quantized, given)
    if report.notes[0].text.endswith("written as the recipe"):
        (note,) = [note.text for note in report.notes if "recipe's high layers" in note.text]
        measured = float(re.search(r"measures ([\d.]+)% \(cosine\)", note)[1])
        assert measured == pytest.approx(100 * worst, abs=0.006)
        assert "Clip" in {node.op_type for node in onnx.load(given).graph.node}
    else:
        assert worst == pytest.approx(report.similarity.recipe, abs=1e-6)


@pytest.mark.slow
def test_a_file_of_integer_operators_is_not_mended_and_no_figure_is_told_of_a_mended_one(tmp_path):
    path, quantized, samples = planted(tmp_path, quant_format=QuantFormat.QOperator, **ASYMMETRIC)
    how = {"engine": "onnxruntime", "explain": "none", "effort": "quick"}
    report = trt_bisect.run(quantized, inputs=samples, reference=path, output=tmp_path / "run", **how)
    assert report.recipe.high
    assert not (tmp_path / "run/recipe/given").exists()
    assert len([note for note in report.notes if note.kind == "file"]) == 1


CONVOLUTIONS = {
    "/0/0.0/Conv": "node_Conv_57",
    "/1/first/first.0/Conv": "node_Conv_59",
    "/1/second/second.0/Conv": "node_Conv_61",
    "/1/mix/mix.0/Conv": "node_conv2d_3",
}
"""By the node of Brevitas's file that of the float file whose weight is of the same module."""


def named_by(kind, reference):
    """A report on a tool's file, and the names of its convolutions in the reference."""
    samples = {"x": np.concatenate([sample["x"] for sample in SAMPLES])}
    how = {"engine": "onnxruntime", "threshold": 0.99999, "explain": "none"}
    report = trt_bisect.run(FILES / f"{kind}.onnx", inputs=samples, reference=reference, **how)
    return report, {row.name: row.reference for row in report.layers if row.op_type == "Conv"}


def test_layers_have_both_names():
    report, names = named_by("brevitas-layers", FILES / "fp32.onnx")
    assert names == CONVOLUTIONS
    (line,) = [line.text for line in report.lines if line.kind == "culprits"]
    assert report.culprits == ("/4/Gemm",)
    assert "In the reference: 'node_linear'." in line


def test_modules_that_the_tool_dropped_come_from_the_reference(tmp_path):
    """The float file is named as TorchScript names it, the tool's file is not."""
    model = onnx.load(FILES / "fp32.onnx")
    for node in model.graph.node:
        node.name = {name: path for path, name in CONVOLUTIONS.items()}.get(node.name, node.name)
    _, names = named_by("nncf-mixed", networks.save(model, tmp_path))
    modules = ["0.0", "1.first.0", "1.second.0", "1.mix.0"]
    assert names == dict(zip(CONVOLUTIONS.values(), modules, strict=True))


def test_external_data_come_with_the_file(tmp_path):
    path = tmp_path / "theirs.onnx"
    model = onnx.load(FILES / "nncf-mixed.onnx")
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    network = load_network(path)
    after = edited(network, path, [layer.name for layer in network.layers], tmp_path / "edited")
    assert same_but_for_pairs(path, after)
    assert after.with_name("weights.bin").read_bytes() == path.with_name("weights.bin").read_bytes()
    plain_run(str(after), SAMPLES[0])


def test_without_the_file_there_is_none(tmp_path):
    path = tmp_path / "theirs.onnx"
    path.write_bytes((FILES / "nncf-mixed.onnx").read_bytes())
    network = load_network(path)
    high = [layer.name for layer in network.layers if layer.roundings]
    assert without_pairs(network, high)
    path.unlink()
    assert without_pairs(network, high) is None


def edges(graph):
    """The inputs of nodes that a pair makes."""
    rounded = {name for node in graph.node if node.op_type == PAIR[1] for name in node.output}
    readers = [node for node in graph.node if node.op_type not in PAIR]
    return {(node.name, slot) for node in readers for slot, name in enumerate(node.input) if name in rounded}


@pytest.mark.slow
def test_a_placement_without_scales_is_calibrated_where_it_is(tmp_path):
    """ModelOpt 0.47's autotune placed the pairs, with a benchmark that counts pairs in place of TensorRT's times."""
    path, data = FILES / "modelopt-autotune.onnx", {"x": np.concatenate([sample["x"] for sample in SAMPLES])}
    how = {"engine": "onnxruntime", "calibrator": "minmax", "threshold": 0.9999995, "explain": "none"}
    report = trt_bisect.run(path, data, reference=FILES / "fp32.onnx", output=tmp_path, **how)
    assert report.recipe.high
    given, written = onnx.load(path).graph, onnx.load(tmp_path / "recipe/network.qdq.onnx").graph
    wanted = {(name, slot) for name, slot in edges(given) if name not in report.recipe.high}
    assert edges(written) == wanted
    assert ("node_Sigmoid_14", 0) in edges(given)
    values = plain_tensors(FILES / "fp32.onnx", ["getitem"], SAMPLES)["getitem"]
    makers = {name: node for node in written.node for name in node.output}
    read = {node.name: node.input for node in written.node}
    pair = makers[read["node_Sigmoid_14"][0]]
    (scale,) = [numpy_helper.to_array(each) for each in written.initializer if each.name == pair.input[1]]
    assert float(scale) == pytest.approx(np.abs(values).max() / 127, rel=1e-5)
