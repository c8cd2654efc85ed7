"""The scales of a cache for a network that was changed after the cache was made.

The caches hold the largest magnitudes of every tensor of the old network, from ONNX Runtime. The scale that a tensor
must get is that of the old tensor with the same values.
"""

from __future__ import annotations

import struct

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.support.editions import edition
from tests.support.networks import Sketch, copied
from tests.support.quantized import plain_tensors
from trt_bisect.calibration.cache import (
    MISSING,
    CalibrationCache,
    format_cache,
    parse_cache,
    ranges_of_cache,
    scales_for,
)
from trt_bisect.errors import BadInput
from trt_bisect.model.network import load_network

BLOCKS = 5
KEPT = ["x", *(f"relu{k}_out" for k in range(BLOCKS)), *(f"up_conv{k}_out" for k in range(BLOCKS))]
"""The tensors that keep their names and values."""


def old_network(blocks: int = BLOCKS) -> onnx.ModelProto:
    """Each block a convolution, its BatchNormalization, another convolution and a Relu; names tell of operators."""
    sketch, x = Sketch(4), "x"
    for k in range(blocks):
        x = sketch.conv(x, f"conv{k}", 3 if k == 0 else 8, 8)
        norm = [sketch.constant(f"bn{k}.{name}", sketch.random.uniform(low, high, 8)) for name, low, high in NORM]
        x = sketch.conv(sketch.node("BatchNormalization", [x, *norm], f"batch_norm{k}"), f"up_conv{k}", 8, 8)
        x = sketch.node("Relu", [x], f"relu{k}")
    sketch.pooled_classes(x, 8)
    return sketch.model([1, 3, 12, 12], [1, 10])


NORM = (("scale", 2.0, 3.0), ("shift", -1.0, 1.0), ("mean", -1.0, 1.0), ("var", 0.5, 2.0))


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """As onnxsim does it: a convolution takes its BatchNormalization in, and keeps its own name."""
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    made = {out: node for node in model.graph.node for out in node.output}
    changed = copied(model)
    del changed.graph.node[:], changed.graph.initializer[:]
    renamed = {}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            scale, shift, mean, var = (constants[name].astype(np.float64) for name in node.input[1:])
            conv, factor = made[node.input[0]], scale / np.sqrt(var + 1e-5)
            constants[conv.input[1]] = constants[conv.input[1]] * factor[:, None, None, None]
            constants[conv.input[2]] = (constants[conv.input[2]] - mean) * factor + shift
            renamed[node.output[0]] = node.input[0]
            continue
        added = copied(node)
        added.input[0] = renamed.get(node.input[0], node.input[0])
        changed.graph.node.append(added)
    tensors = (numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items())
    changed.graph.initializer.extend(tensors)
    return changed


def with_names(model: onnx.ModelProto, name) -> onnx.ModelProto:
    """A copy of a model with other names of tensors between its input and its output."""
    changed = copied(model)
    made = [node.output[0] for node in model.graph.node if node.output[0] != "y"]
    names = {tensor: name(k, tensor) for k, tensor in enumerate(made)}
    for node in changed.graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(tensor, tensor) for tensor in tensors]
    return changed


def maxima(model: onnx.ModelProto, seed: int) -> dict[str, np.float32]:
    """By tensor, in the order of execution, the scale that its largest magnitude gives."""
    x = np.random.default_rng(seed).normal(size=(1, 3, 12, 12)).astype(np.float32)
    every = {"x": x, **plain_tensors(model, [node.output[0] for node in model.graph.node], [{"x": x}])}
    return {name: np.float32(np.abs(values).max()) / np.float32(127) for name, values in every.items()}


def by_tensor(found):
    return {each.tensor: (np.float32(each.scale), each.way) for each in found.found}


def test_a_convolution_that_took_a_batch_normalization_in_has_the_scale_of_the_batch_normalization():
    old = old_network()
    cache = CalibrationCache("TRT-8601-MinMaxCalibration", maxima(old, 0))
    found = scales_for(load_network(folded(old)), cache)
    scales = by_tensor(found)
    for k in range(BLOCKS):
        assert scales[f"conv{k}_out"] == (cache.scales[f"batch_norm{k}_out"], "folded")
    assert {name: scales[name] for name in KEPT} == {name: (cache.scales[name], "name") for name in KEPT}
    assert not found.unsure


def nameless(_, tensor):
    """Names that tell of no operator."""
    return tensor.translate(str.maketrans("abcdefghijklmnopqrstuvwxyz", "nopqrstuvwxyzabcdefghijklm"))


def test_without_words_in_names_values_on_inputs_decide_and_nothing_is_guessed():
    old = with_names(old_network(), nameless)
    cache = CalibrationCache("TRT-8601-MinMaxCalibration", maxima(old, 0))
    new = folded(old)
    network = load_network(new)
    tensors = [nameless(0, f"conv{k}_out") for k in range(BLOCKS)]
    own = [nameless(0, f"batch_norm{k}_out") for k in range(BLOCKS)]
    blind = scales_for(network, cache)
    assert set(blind.unsure) == set(tensors)
    assert not set(tensors) & by_tensor(blind).keys()
    seen = scales_for(network, cache, [maxima(new, 1)])
    told = {tensor: scale for tensor, scale in by_tensor(seen).items() if tensor in tensors}
    rights = dict(zip(tensors, own, strict=True))
    assert told == {tensor: (cache.scales[rights[tensor]], "values") for tensor in told}
    assert len(told) >= 3
    assert told.keys() | seen.unsure.keys() == set(tensors)


def test_a_new_export_with_other_names_throughout_gets_its_scales_by_order_and_operator():
    old = old_network()
    cache = CalibrationCache("TRT-8601-EntropyCalibration2", maxima(old, 0))
    places = {}
    new = with_names(folded(old), lambda k, tensor: places.setdefault(f"val_{k}", tensor) and f"val_{k}")
    found = scales_for(load_network(new), cache)
    scales = by_tensor(found)
    for name, tensor in places.items():
        entry = tensor.replace("conv", "batch_norm") if tensor.startswith("conv") else tensor
        if name in scales:
            assert scales[name][0] == cache.scales[entry], (name, entry)
    by_order = {places[name] for name, (_, way) in scales.items() if way == "order"}
    assert by_order >= {f"relu{k}_out" for k in range(BLOCKS)}
    assert {places[name] for name in found.unsure} == {f"up_conv{k}_out" for k in range(BLOCKS)}


def test_numbers_of_another_export_are_no_names():
    old = with_names(old_network(), lambda k, _: str(100 + k))
    cache = CalibrationCache("TRT-7103-EntropyCalibration2", maxima(old, 0))
    kept = scales_for(load_network(folded(old)), cache)
    assert by_tensor(kept)["103"] == (cache.scales["103"], "name")
    again = with_names(folded(old_network()), lambda k, _: str(100 + k))
    assert set(by_tensor(scales_for(load_network(again), cache))) <= {"x", "y"}


def test_a_cache_without_order_leaves_layers_that_may_have_taken_something_in_without_a_scale():
    old = old_network()
    scales = maxima(old, 0)
    cache = CalibrationCache("TRT-101000-EntropyCalibration2", {name: scales[name] for name in sorted(scales)})
    found = by_tensor(scales_for(load_network(folded(old)), cache))
    assert found.keys() == {"x", "pool_out", "flatten_out", *(f"relu{k}_out" for k in range(BLOCKS))}
    assert all(np.float32(scale) == cache.scales[name] for name, (scale, _) in found.items())


def test_a_run_takes_the_scale_of_the_batch_normalization_too(tmp_path):
    old = old_network()
    scales = maxima(old, 0)
    (tmp_path / "it.cache").write_text(format_cache(scales))
    ranges = ranges_of_cache(tmp_path / "it.cache", load_network(folded(old)))
    for k in range(BLOCKS):
        assert ranges.scales[f"conv{k}_out"] == scales[f"batch_norm{k}_out"]
    assert ranges.origin == f"cache it.cache, {BLOCKS} scales found otherwise than by name"


def test_a_scale_far_from_the_values_on_inputs_is_told():
    old = old_network()
    seen = maxima(old, 1)
    cache = CalibrationCache("TRT-8601-EntropyCalibration2", {**maxima(old, 0), "relu2_out": seen["relu2_out"] * 40})
    assert scales_for(load_network(old), cache, [seen]).far == ("relu2_out",)


@pytest.mark.slow
def test_where_entries_are_missing_no_scale_is_given_by_order_alone():
    """No tensor of a renamed network gets the scale of another one; values on inputs tell some."""
    old = old_network(12)
    new = with_names(old, lambda k, _: f"val_{k}")
    network, right = load_network(new), maxima(new, 0)
    seen, by_values = maxima(new, 1), 0
    few = edition(KEPT[1::3], KEPT[1:])
    for lacking in few:
        entries = {name: scale for name, scale in maxima(old, 0).items() if name != lacking}
        blind = scales_for(network, CalibrationCache("TRT-8601-MinMaxCalibration", entries))
        assert all(np.float32(each.scale) == right[each.tensor] for each in blind.found)
        if lacking.startswith("relu"):  # a convolution may have the entry of its BatchNormalization instead
            assert "order" not in {each.way for each in blind.found}
            assert MISSING in blind.unsure.values()
            told = scales_for(network, CalibrationCache("TRT-8601-MinMaxCalibration", entries), [seen])
            assert all(np.float32(each.scale) == right[each.tensor] for each in told.found)
            by_values += len(told.found) - len(blind.found)
    assert by_values >= len([name for name in few if name.startswith("relu")])


def line(name, scale, digits=8, order=">"):
    """A line of a cache, of which only the first digits are left."""
    return f"{name}: {struct.pack(order + 'f', scale).hex()[:digits]}"


@pytest.mark.parametrize("digits", range(1, 8))
@pytest.mark.parametrize("at", [0, 3, -1])
def test_a_scale_cut_short_is_doubtful(digits, at):
    scales = {f"t{k}": np.float32(0.01 * (k + 1)) for k in range(6)}
    cut = [*scales][at]
    lines = [line(name, scale, digits if name == cut else 8) for name, scale in scales.items()]
    cache = parse_cache("\n".join(["TRT-8601-EntropyCalibration2", *lines]), "it")
    assert cache.doubtful.keys() == {cut}
    assert f"{digits} of 8" in cache.doubtful[cut]
    assert all(cache.scales[name] == scale for name, scale in scales.items() if name != cut)


def test_zeros_left_away_at_the_front_are_no_cut():
    """Zero is ``0``; in little-endian bits an ordinary scale may begin with zeros."""
    cache = parse_cache("TRT-8601-EntropyCalibration2\na: 0\nb: 3c008912", "it")
    assert (cache.scales["a"], dict(cache.doubtful)) == (0, {})
    bits = ("0102033d", "1202033d", "2202033e")
    lines = [f"t{k}: {word.lstrip('0')}" for k, word in enumerate(bits)]
    cache = parse_cache("\n".join(["TRT-8601-EntropyCalibration2", *lines]), "it")
    assert cache.little_endian
    assert not cache.doubtful
    assert [*cache.scales.values()] == [struct.unpack("<f", bytes.fromhex(word))[0] for word in bits]


@pytest.mark.parametrize(
    "text",
    [
        f"TRT-8601-EntropyCalibration2\n{line('a', 0.1)}\n{line('b', 0.2)}\n{line('a', 0.4)}",
        f"TRT-8601-EntropyCalibration2\n{line('b', 0.2)}\n{line('b', 0.2)}\n{line('a', 0.1)}\n{line('a', 0.1000001)}",
        "a 12.7\nb 25.4\na 12.8",
    ],
)
def test_two_entries_of_a_tensor_with_different_scales_are_doubtful(text):
    cache = parse_cache(text, "it")
    assert dict(cache.doubtful) == {"a": "the cache has 2 scales for it"}
    assert cache.scales["b"] == np.float32(0.2)


@pytest.mark.parametrize("name", ["relu2_out", "RELU2_OUT"])
def test_a_doubtful_entry_gives_no_tensor_a_scale(tmp_path, name):
    """It keeps its place in the order: the tensor does not get that of another one."""
    old = old_network()
    scales = {(name if tensor == "relu2_out" else tensor): scale for tensor, scale in maxima(old, 0).items()}
    (tmp_path / "it.cache").write_text(format_cache(scales) + line(name, 0.5))
    network = load_network(old)
    ranges = ranges_of_cache(tmp_path / "it.cache", network)
    assert "2 scales" in ranges.unusable["relu2_out"]
    assert "relu2_out" not in ranges.scales
    others = [tensor for tensor in network.activations if tensor != "relu2_out"]
    assert {tensor: ranges.scales[tensor] for tensor in others} == {tensor: scales[tensor] for tensor in others}


def test_the_table_of_onnxruntime_has_magnitudes():
    found = parse_cache("data 2.5\nblock 1/Conv_output_0 1e-3\n", "it")
    data, block = (np.float32(magnitude) / np.float32(127) for magnitude in (2.5, 1e-3))
    assert dict(found.scales) == {"data": data, "block 1/Conv_output_0": block}
    with pytest.raises(BadInput, match="does not begin"):
        parse_cache("data 2.5\nconv: 3c008912\n", "it")
