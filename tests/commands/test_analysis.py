"""One object for a session of diagnosis: its methods give what the functions give, and nothing is made twice."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.commands import analysis
from trt_bisect.errors import BadInput
from trt_bisect.preparation import given_data

OPTIONS = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    model = networks.planted(networks.chain(3), ("conv0", "conv1"))
    return networks.save(model, tmp_path_factory.mktemp("planted")), networks.samples(model, 6)


def test_each_method_is_the_function_with_what_is_known(planted, tmp_path, monkeypatch):
    path, samples = planted
    calls = []
    monkeypatch.setattr(
        analysis, "load_network", lambda *given: calls.append("read") or trt_bisect.load_network(*given)
    )
    monkeypatch.setattr(analysis, "ranges_of", lambda *given: calls.append("ranges") or given_data.ranges_of(*given))
    qa = trt_bisect.Analysis(path, samples, output=tmp_path, keep=2, **OPTIONS)
    found, shown, ops = qa.worst(), qa.compare(), qa.sensitivity()
    known = {key: value for key, value in OPTIONS.items() if key != "explain"}
    assert found.places == trt_bisect.worst(path, samples, keep=2, **known).places
    assert [feeds["x"].tobytes() for feeds in qa.bad_case] == [samples["x"][k].tobytes() for k in found.places]
    by_hand = {"x": samples["x"][list(found.places)]}
    compared = trt_bisect.compare(path, samples, by_hand, calibrator="minmax")
    assert [row.figures for row in shown.tensors] == [row.figures for row in compared.tensors]
    less = {key: value for key, value in known.items() if key != "threshold"}
    alone = trt_bisect.sensitivity(path, samples, by_hand, **less)
    assert [(op.op_name, op.loss) for op in ops.ops] == [(op.op_name, op.loss) for op in alone.ops]
    assert qa.top(1) == ("conv1",)
    report, checked, profiled = qa.run(high=qa.top(1)), qa.check(), qa.profile()
    assert report.similarity == trt_bisect.run(path, samples, **OPTIONS, high="conv1").similarity
    assert checked.findings == trt_bisect.check(path).findings
    assert len(profiled.tensors) == len(trt_bisect.profile(path, samples).tensors)
    assert calls == ["read", "ranges"]
    for name in ("worst", "compare", "sensitivity", "run", "check", "profile"):
        assert trt_bisect.load(tmp_path / name).table() is not None
        assert f"  {name}: " in repr(qa)
    assert len(repr(qa).splitlines()) == 7


def test_a_keyword_that_no_method_has_is_refused(planted):
    with pytest.raises(TypeError, match="'beauty'"):
        trt_bisect.Analysis(*planted, beauty=1)
    low = trt_bisect.Analysis(*planted, low="fp16", engine="onnxruntime")
    assert low.ranges is None
    assert low.sensitivity().low == "fp16"


def sqnrs(first, second, samples):
    """By sample the SQNR in dB of a file's only output against that of another one, by ONNX Runtime and NumPy."""
    values = []
    for sample in samples:
        pair = []
        for path in (first, second):
            session = plain_session(path, optimised=False)
            pair.append(session.run(None, {session.get_inputs()[0].name: sample[None]})[0].astype(np.float64))
        values.append(10 * np.log10(np.sum(pair[0] ** 2) / np.sum((pair[0] - pair[1]) ** 2)))
    return values


EXPORTS = Path(__file__).parents[1] / "files" / "quantized"
FLOAT, QUANTIZED = EXPORTS / "fp32.onnx", EXPORTS / "brevitas-layers.onnx"
PICTURES = {"x": networks.normal(5, 5, 3, 16, 16)}
IN_DB = {"metric": "sqnr", "threshold": 20.0, "explain": "none", "keep": 2, "engine": "onnxruntime"}


@pytest.mark.parametrize("way", ["reference", "other"])
def test_every_method_compares_a_quantized_network_with_the_float_one(way):
    """Once as the reference of the quantized network, once as the network beside which the quantized one stands."""
    wanted = sqnrs(FLOAT, QUANTIZED, PICTURES["x"])
    worst_first = sorted(range(5), key=lambda place: wanted[place])
    if way == "reference":
        session = plain_session(QUANTIZED)
        samples = {session.get_inputs()[0].name: PICTURES["x"]}
        qa = trt_bisect.Analysis(QUANTIZED, reference=FLOAT, dataset=samples, **IN_DB)
    else:
        qa = trt_bisect.Analysis(FLOAT, other=QUANTIZED, dataset=PICTURES, **IN_DB)
    found = qa.worst()
    assert found.values == pytest.approx(wanted, abs=0.05)
    assert list(found.places) == worst_first[:2]
    two = trt_bisect.compare(FLOAT, other=QUANTIZED, inputs={"x": PICTURES["x"][list(found.places)]})
    assert [row.figures for row in qa.compare().tensors] == [row.figures for row in two.tensors]
    own = trt_bisect.load_network(QUANTIZED).layers
    alone = qa.sensitivity()
    assert {op.op_name for op in alone.ops} <= {layer.name for layer in own}
    assert qa.run().similarity.int8 == pytest.approx(min(wanted), abs=0.05)
    assert qa.profile().samples == 5
    assert qa.check().findings == trt_bisect.check(QUANTIZED).findings


def test_compare_shows_a_plan_of_a_float_network_against_its_reference(planted, tmp_path):
    """The reference is the network with twice the weights of its last layer: its outputs are twice as large."""
    path, samples = planted
    doubled = onnx.load(path)
    for name in doubled.graph.node[-1].input[1:]:
        networks.scale_constant(doubled, name, lambda values: 2 * values)
    reference = networks.save(doubled, tmp_path, "doubled.onnx")
    plain = trt_bisect.compare(path, samples, samples, calibrator="minmax")
    qa = trt_bisect.Analysis(path, samples, inputs=samples, reference=reference, calibrator="minmax")
    found = qa.compare()
    y, own = ({row.origin.tensor: row for row in each.tensors}["y"] for each in (found, plain))
    assert y.fp32.max == pytest.approx(2 * own.fp32.max, rel=1e-5)
    assert y.int8 == own.int8
    assert y.figures.cosine == pytest.approx(own.figures.cosine, abs=1e-6)
    assert {row.figures.cosine for row in found.tensors} != {1.0}
    (weight,) = [row for row in found.weights if row.origin.tensor == "fc.weight"]
    (own_weight,) = [row for row in plain.weights if row.origin.tensor == "fc.weight"]
    assert (weight.fp32.max, weight.int8) == (pytest.approx(2 * own_weight.fp32.max), own_weight.int8)


def test_saved_outputs_are_the_reference_of_the_inputs(planted, tmp_path):
    """Three times FP32's outputs: the cosines of ``worst`` are those against FP32."""
    path, samples = planted
    session = plain_session(path)
    for place, x in enumerate(samples["x"]):
        np.savez(tmp_path / f"{place}.npz", y=3 * session.run(None, {"x": x[None]})[0])
    qa = trt_bisect.Analysis(path, samples, inputs=samples, reference=tmp_path, calibrator="minmax")
    own = trt_bisect.worst(path, samples, calibrator="minmax")
    assert qa.worst().values == pytest.approx(own.values, abs=1e-5)


def test_two_references_and_options_of_one_network_are_refused(planted):
    path, samples = planted
    with pytest.raises(BadInput, match="reference"):
        trt_bisect.Analysis(path, other=path, reference=path)
    with pytest.raises(BadInput, match="high"):
        trt_bisect.Analysis(path, other=path, dataset=samples, high=["conv0"]).worst()
    with pytest.raises(BadInput, match="data set"):
        trt_bisect.worst(path, other=path)
