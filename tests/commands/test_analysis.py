"""One object for a session of diagnosis: its methods give what the functions give, and nothing is made twice."""

import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.calibration import collect
from trt_bisect.commands import analysis

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
    monkeypatch.setattr(analysis, "ranges_of", lambda *given: calls.append("ranges") or collect.ranges_of(*given))
    qa = trt_bisect.Analysis(path, samples, output=tmp_path, keep=2, **OPTIONS)
    found = qa.worst()
    known = {key: value for key, value in OPTIONS.items() if key != "explain"}
    assert found.places == trt_bisect.worst(path, samples, keep=2, **known).places
    assert [feeds["x"].tobytes() for feeds in qa.bad_case] == [samples["x"][k].tobytes() for k in found.places]
    by_hand = {"x": samples["x"][list(found.places)]}
    compared = trt_bisect.compare(path, samples, by_hand, calibrator="minmax")
    assert [row.figures for row in qa.compare().tensors] == [row.figures for row in compared.tensors]
    less = {key: value for key, value in known.items() if key != "threshold"}
    alone = trt_bisect.sensitivity(path, samples, by_hand, **less)
    assert [(op.op_name, op.loss) for op in qa.sensitivity().ops] == [(op.op_name, op.loss) for op in alone.ops]
    assert qa.top(1) == ("conv1",)
    assert qa.run(high=qa.top(1)).similarity == trt_bisect.run(path, samples, **OPTIONS, high="conv1").similarity
    assert qa.check().findings == trt_bisect.check(path).findings
    assert len(qa.profile().tensors) == len(trt_bisect.profile(path, samples).tensors)
    assert calls == ["read", "ranges"]
    for name in ("worst", "compare", "sensitivity", "run", "check", "profile"):
        assert trt_bisect.load(tmp_path / name).table() is not None
        assert f"  {name}: " in repr(qa)
    assert len(repr(qa).splitlines()) == 7


def test_results_are_short_and_have_the_same_methods(planted, tmp_path):
    qa = trt_bisect.Analysis(*planted, **OPTIONS)
    for found in (qa.worst(), qa.compare(), qa.sensitivity(), qa.run(), qa.check(), qa.profile()):
        assert len(repr(found).splitlines()) <= 20
        assert "<" in found._repr_html_()
        assert len(found.table().columns) > 3
        found.save(tmp_path)
        assert type(found).load(tmp_path).table().equals(found.table())


def test_with_another_network_compare_compares_the_two(planted):
    path, samples = planted
    qa = trt_bisect.Analysis(path, samples, other=path, inputs=samples)
    assert {row.figures.cosine for row in qa.compare().tensors} == {1.0}


def test_a_keyword_that_no_method_has_is_refused(planted):
    with pytest.raises(TypeError, match="'beauty'"):
        trt_bisect.Analysis(*planted, beauty=1)
    low = trt_bisect.Analysis(*planted, low="fp16", engine="onnxruntime")
    assert low.ranges is None
    assert low.sensitivity().low == "fp16"
