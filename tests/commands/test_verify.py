"""``verify`` on stand-ins for engines: ONNX Runtime on edited files, and NumPy between its nodes."""

import json

import numpy as np
import onnx
import pytest
from PIL import Image

import trt_bisect
from benchmarks.verify import standin
from benchmarks.verify.cases import CASES, Subject, healthy, subject, with_wrong_kernel
from tests.support.quantized import plain_session
from trt_bisect.commands.verify.verify import NEXT
from trt_bisect.errors import BadInput
from trt_bisect.report.verification import Verification

QUICK = [
    ("batch", "lenet", ()),
    ("output-order", "two-heads", ()),
    ("tf32", "transformer", ()),
    ("fp16", "transformer", ()),
    ("bf16", "lenet", ()),
    ("layers-high", "lenet", ("ip2",)),
    ("layers-low", "lenet", ("ip2",)),
    ("scales", "lenet", ()),
    ("per-tensor-weights", "lenet", ()),
    ("pairs-ignored", "lenet", ()),
    ("followers-low", "transformer", ()),
    ("clip-fused", "lenet", ("relu1",)),
]
"""Cause, network, and the layers to blame."""


@pytest.fixture(scope="module")
def lenet(tmp_path_factory) -> Subject:
    return subject("lenet", tmp_path_factory.mktemp("lenet"))


def outputs_of_lenet(lenet, change=lambda x: x):
    return standin.outputs_of(lenet.model, [{"data": change(row["data"])} for row in lenet.samples])


def verified(lenet, outputs, **more):
    return trt_bisect.verify(lenet.network, inputs=lenet.inputs, outputs=outputs, **more)


@pytest.mark.parametrize(("cause", "name", "layers"), QUICK)
def test_the_cause_of_a_stand_in_is_named(cause, name, layers, tmp_path):
    make = next(make for kind, network, make in CASES if (kind, network) == (cause, name))
    given = make(subject(name, tmp_path))
    result = trt_bisect.verify(**given)
    assert (result.answer, result.cause, result.layers) == ("differs", cause, layers)
    assert result.exit_code == 1
    assert result.distance > result.floor
    assert result.next[0].startswith("NEXT: ")


def test_of_values_that_are_not_finite_no_distance_is_told(lenet):
    outputs = outputs_of_lenet(lenet)
    outputs[0]["prob"] = np.full_like(outputs[0]["prob"], np.nan)
    result = verified(lenet, lenet.saved("not finite", outputs))
    assert (result.answer, result.distance, result.similarity) == ("differs", None, None)
    assert "values missing or not finite" in result.lines[0]
    assert any("NaN or infinite values in 'prob'" in note for note in result.notes)


def test_healthy_engines_of_both_files_are_their_files(lenet):
    for name, given in healthy(lenet):
        result = trt_bisect.verify(**given)
        assert (result.answer, result.cause, result.exit_code) == ("same", None, 0), name
        assert result.distance <= result.floor < 1e-3
        assert result.similarity == pytest.approx(1.0, abs=1e-6)


def test_every_cause_has_a_next_step():
    assert {cause for cause, _, _ in CASES} == set(NEXT)


def test_a_difference_of_hardly_more_than_noise_cannot_be_told(lenet):
    outputs, signs = outputs_of_lenet(lenet), np.where(np.arange(10) % 2, 1.0, -1.0)  # no kernel's scale

    def noisy(size):
        rows = [{"prob": (row["prob"] * (1 + size * signs)).astype(np.float32)} for row in outputs]
        return verified(lenet, lenet.saved(f"noisy{size}", rows))

    far = noisy(1e-3)
    assert far.answer == "differs"
    result = noisy(1e-3 * 1.25 * far.floor / far.distance)
    assert (result.answer, result.cause, result.exit_code) == ("unknown", None, 3)
    assert any("--tensors" in line for line in result.next)


def test_files_of_trtexec_by_the_command_line(lenet, tmp_path, command, monkeypatch):
    """As ``--loadInputs`` and ``--exportOutput`` have them; six digits a value."""
    monkeypatch.chdir(tmp_path)
    row = lenet.samples[0]
    row["data"].tofile("digit.bin")
    for name, change in (("good.json", lambda x: x), ("wrong.json", lambda x: x / 255)):
        (found,) = standin.outputs_of(lenet.model, [{"data": change(row["data"])}])
        values = ", ".join(f"{value:.6g}" for value in found["prob"].ravel())
        (tmp_path / name).write_text(f'[{{"name": "prob", "dimensions": "1x10", "values": [{values}]}}]')
    asked = ["verify", lenet.network, "--input", "data:digit.bin", "--outputs"]
    code, out, _ = command(*asked, "good.json")
    assert code == 0
    assert "The engine is its file." in out
    code, out, _ = command(*asked, "wrong.json", "--json")
    document = json.loads(out)
    assert (code, document["answer"], document["cause"]) == (1, "differs", "input-scale")
    assert "divided by 255" in document["text"]
    code, out, _ = command(*asked, "good.json", "--other-outputs", "wrong.json", "-o", "found")
    assert code == 1
    assert out.count("float noise") == 2
    loaded = Verification.load("found")
    assert loaded.other is not None
    assert (loaded.answer, loaded.other.cause) == ("same", "input-scale")


def layer_info(path, precisions):
    """Writes the inspector's JSON of an engine with a layer for each name."""
    layers = []
    for name, word in precisions.items():
        tensor = {"Name": "t", "Dimensions": [1, 8], "Format/Datatype": word}
        layers.append({"Name": name, "LayerType": "gemm", "Inputs": [tensor], "Outputs": [tensor],
                       "Metadata": f"[ONNX Layer: {name}]"})  # fmt: skip
    path.write_text(json.dumps({"Layers": layers, "Bindings": []}))
    return path


def test_layer_infos_name_the_layers_that_ran_in_fp16_and_those_that_differ(lenet, tmp_path):
    names = lenet.products()
    halves = dict.fromkeys(names, "Half") | {names[0]: "Float"}
    chosen = set(names[1:])

    def rounded(node, given):
        return [standin.in_type(np.float16)(x) for x in given] if node.name in chosen else given

    half = standin.NodeByNode(lenet.model, read=rounded).run(lenet.samples)
    result = verified(
        lenet,
        lenet.saved("float", outputs_of_lenet(lenet)),
        layers=layer_info(tmp_path / "float.json", dict.fromkeys(names, "Float")),
        other_outputs=lenet.saved("half", half),
        other_layers=layer_info(tmp_path / "half.json", halves),
    )
    assert result.answer == "same"
    assert result.other is not None
    assert (result.other.cause, result.other.layers) == ("fp16", tuple(names[1:]))
    assert [row.layer for row in result.different] == names[1:]
    assert result.exit_code == 1


def test_an_engine_in_fp32_that_was_asked_for_in_fp16_has_layers_high(lenet, tmp_path):
    outputs = lenet.saved("float", outputs_of_lenet(lenet))
    info = layer_info(tmp_path / "float.json", dict.fromkeys(lenet.products(), "Float"))
    result = verified(lenet, outputs, low="fp16", layers=info)
    assert (result.answer, result.cause) == ("differs", "layers-high")
    assert ":fp16" in result.next[0]


def test_fp16_between_int8_layers_is_no_fault_that_could_be_told(tmp_path):
    transformer = subject("transformer", tmp_path)
    outputs = transformer.saved("mixed", standin.in_floats(transformer.pairs).run(transformer.samples))
    result = trt_bisect.verify(transformer.with_pairs, inputs=transformer.inputs, outputs=outputs)
    assert (result.answer, result.cause, result.exit_code) == ("unknown", None, 3)
    assert result.distance > result.floor


def test_the_figures_of_suspicions_are_all_of_all_inputs(lenet):
    outputs = lenet.saved("wrong", outputs_of_lenet(lenet, lambda x: x / 3))
    result = verified(lenet, outputs)
    assert result.cause is None
    assert result.explained == max(row.explained for row in result.tried)
    rows = [row for row in result.tried if "computes" not in row.text]
    assert len(rows) > 3
    for row in rows:
        assert row.explained == pytest.approx(max(0.0, 1 - (row.left / result.distance) ** 2), abs=1e-6)


def test_a_wrong_kernel_that_inner_tensors_show_has_no_figure_of_an_emulation(lenet):
    place = 1
    given = with_wrong_kernel(place, np.negative, tensors=True)(lenet)
    result = trt_bisect.verify(**given)
    assert (result.answer, result.cause, result.layers) == ("differs", "kernel", (lenet.products()[place],))
    assert result.explained is None
    assert not any(row.kind == "kernel" for row in result.tried)


def test_a_picture_is_suspected_apart_from_other_inputs(tmp_path):
    """As detectors have them that also read the picture's size."""
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (float[1, 3, 8, 8] image, float[1, 2] size) => (float[1, 2, 8, 8] y) <float[2, 3, 3, 3] w> {
            found = Conv <pads = [1, 1, 1, 1]> (image, w)
            sum = ReduceMean <axes = [1], keepdims = 0> (size)
            y = Mul (found, sum)
        }"""
    model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
    weights = random.standard_normal((2, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "two.onnx"
    onnx.save(model, str(path))
    got = {"image": random.random((1, 3, 8, 8), np.float32), "size": np.full((1, 2), 640, np.float32)}
    (found,) = standin.outputs_of(model, [{**got, "image": got["image"] * 255}])
    np.savez(tmp_path / "in.npz", **got)
    np.savez(tmp_path / "out.npz", **found)
    result = trt_bisect.verify(path, inputs=tmp_path / "in.npz", outputs=tmp_path / "out.npz")
    assert (result.cause, result.answer) == ("input-scale", "differs")
    assert "255" in result.text


def test_the_minimal_network_of_a_wrong_kernel_gives_what_the_layer_should_give(tmp_path):
    make = next(make for kind, network, make in CASES if (kind, network) == ("kernel", "transformer"))
    transformer = subject("transformer", tmp_path)
    given = make(transformer)
    result = trt_bisect.verify(**given, output=tmp_path / "result")
    assert (result.answer, result.cause, result.layers) == ("differs", "kernel", ("block0.scores",))
    folder = tmp_path / "result" / "kernel"
    session = plain_session(folder / "network.onnx")
    feeds = {}
    for place, value in enumerate(session.get_inputs()):
        feeds[value.name] = np.fromfile(folder / f"input{place}.bin", np.float32).reshape(value.shape)
        assert f"'{value.name}':input{place}.bin" in (folder / "README.md").read_text()
    (found,) = session.run(None, feeds)
    observed = onnx.ModelProto()
    observed.CopyFrom(transformer.model)
    observed.graph.output.append(onnx.ValueInfoProto(name="block0.scores_out"))
    wanted = standin.outputs_of(observed, transformer.samples[:1])[0]["block0.scores_out"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert any(str(folder) in line for line in result.next)


def test_what_cannot_be_used_is_named(lenet, tmp_path):
    good = lenet.saved("good", outputs_of_lenet(lenet))
    with pytest.raises(BadInput, match="'prob'"):
        verified(lenet, lenet.saved("other", [{"y": np.zeros(1)}] * 4))
    three = lenet.saved("three", outputs_of_lenet(lenet)[:3])
    with pytest.raises(BadInput, match="3 inferences"):
        verified(lenet, three)
    info = tmp_path / "names.json"
    info.write_text('{"Layers": ["ip2"]}')
    with pytest.raises(BadInput, match=r"names\.json"):
        verified(lenet, good, layers=info)


def test_two_causes_of_which_neither_suffices_are_named_together(tmp_path):
    """Pictures resized by another filter than asked for, and BGR; what is left is the bytes of the pictures."""
    detector = subject("detector", tmp_path)
    detector.samples = detector.samples[:2]
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    rows = []
    for k, row in enumerate(detector.samples):
        pixels = (row["images"][0].transpose(1, 2, 0) * 255).clip(0, 255).astype(np.uint8)
        picture = Image.fromarray(pixels).resize((200, 160))
        picture.save(pictures / f"{k}.png")
        drawn = np.asarray(picture.resize((128, 128), Image.Resampling.BICUBIC), np.float32) / 255
        rows.append({"images": np.ascontiguousarray(drawn.transpose(2, 0, 1)[np.newaxis, ::-1])})
    outputs = detector.saved("outputs", standin.outputs_of(detector.model, rows))
    result = trt_bisect.verify(detector.network, inputs=pictures, outputs=outputs, resize="128x128")
    assert (result.answer, result.cause) == ("differs", "channel-order")
    assert "BGR" in result.text
    assert "bicubic" in result.text
    assert result.tried[0].left <= result.floor
