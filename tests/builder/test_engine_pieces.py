"""Pieces as engines of any builder: what TensorRT does with ``branch``, and the confirmation on whole engines."""

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.records import record_of, report_from, texts
from trt_bisect.builder.base import MEASURED, BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.pieces import EnginePieces
from trt_bisect.calibration.collect import calibrate
from trt_bisect.errors import TrialFailed
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for, with_free_batch
from trt_bisect.model.pieces import cut
from trt_bisect.model.qdq import sub_network
from trt_bisect.precision import int8_set, prefix

NO_TACTIC = "out of tactics"
MAKERS = [networks.residual, networks.transformer]


class Foreign:
    """Another engine than ONNX Runtime, as far as anyone can see: it runs on ONNX Runtime and says it does not."""

    engine, typing, arithmetic = "foreign", "strong", MEASURED

    def __init__(self, network, scales, options=None, shapes=None, spoil=None):
        self._inner = OnnxRuntimeBuilder(network, scales, options or BuildOptions())
        self.versions = {"foreign": "1"}
        self._spoil = spoil

    def build(self, plan):
        if self._spoil is not None:
            self._spoil(plan)
        return self._inner.build(plan)

    def reference(self):
        return self._inner.reference()


@pytest.mark.parametrize("make", MAKERS)
def test_pieces_are_networks_that_make_up_the_whole(make, tmp_path):
    """Run one after another in FP32 they give the whole network's output."""
    model = make()
    network = load_network(networks.save(model, tmp_path))
    feeds = {"x": networks.samples(model, 1)["x"]}
    facts = facts_for(network, feeds)
    tensors = dict(feeds)
    for piece in cut(network, facts, 1):
        part = sub_network(network, piece, facts)
        assert [layer.name for layer in part.layers] == [network.layers[k].name for k in piece.layers]
        assert part.quantizable == tuple(k - piece.start for k in network.quantizable if k in piece.layers)
        with OnnxRuntimeBuilder(part, {}, BuildOptions()).reference() as engine:
            tensors.update(engine.infer({name: tensors[name] for name in piece.reads}))
    whole = OnnxRuntimeBuilder(network, {}, BuildOptions()).reference().infer(feeds)
    assert np.allclose(tensors["y"], whole["y"], rtol=1e-5, atol=1e-6)


def test_each_piece_is_built_once_in_each_precision(tmp_path):
    model = networks.chain()
    network = load_network(networks.save(model, tmp_path))
    feeds = {"x": networks.samples(model, 1)["x"]}
    scales = calibrate(network, [feeds], "minmax").scales
    facts, free = facts_for(network, feeds), with_free_batch(network, feeds)
    profiles = {}

    def make(part, profile):
        profiles.update(profile)
        return Foreign(part, scales)

    pieces = EnginePieces(network, free, facts, 16, make)
    parts = cut(network, facts, 1)
    layers = len(network.layers)
    for piece in parts:
        for plan in (prefix(layers, layers - 1), prefix(layers, -1)):
            pieces.rows(piece, plan)
            pieces.trunk(piece, plan)
    assert pieces.builds == 2 * len(parts)
    assert profiles["x"] == ((1, 3, 16, 16), (16, 3, 16, 16), (16, 3, 16, 16))


@pytest.fixture
def foreign(monkeypatch):
    """Runs on a foreign engine; ``spoil`` is called with every plan before it is built."""

    def call(model, folder, spoil=None, **options):
        monkeypatch.setattr("trt_bisect.preparation.preparation.choose_engine", lambda _: "foreign")
        monkeypatch.setattr("trt_bisect.preparation.experiment.typing_of", lambda *_, **__: "strong")
        monkeypatch.setattr(
            "trt_bisect.preparation.experiment.open_builder", lambda engine, typing, *given: Foreign(*given[:4], spoil)
        )
        judged = {"calibrator": "minmax", "metric": "sqnr", "threshold": 20.0, "explain": "none"}
        return trt_bisect.run(networks.save(model, folder), networks.samples(model), **judged, **options)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["full", "culprits"])
def test_culprits_found_in_pieces_are_confirmed_on_whole_engines(foreign, tmp_path, curve):
    model = networks.planted(networks.residual(), ("block1.conv1", "block1.conv2"))
    report = foreign(model, tmp_path, strategy="branch", curve=curve, output=tmp_path / "run")
    assert report.culprits == ("block1.conv2",)
    (row,) = [row for row in report.layers if row.culprit]
    assert row.whole["without"] > 20.0 > row.whole["with"]
    assert row.similarity == pytest.approx(row.whole["with"], rel=0.05)
    assert "confirmed" not in " ".join(texts(report.notes))
    assert report.similarity.recipe > 20.0
    assert "without:" in report.to_csv()
    assert report_from(record_of(report)).layers == report.layers
    again = foreign(model, tmp_path, strategy="branch", curve=curve, output=tmp_path / "run")
    assert again.layers == report.layers


def test_a_culprit_whose_curve_has_no_whole_engine_is_shown_by_the_engines_that_there_are(foreign, tmp_path):
    """The range of 'block1.conv2' spoils it. Of whole engines with it in INT8, that of full INT8 alone can be built."""
    model = networks.planted(networks.residual(), ("block1.conv1", "block1.conv2"))
    network = load_network(networks.save(model, tmp_path))
    culprit = next(layer.index for layer in network.layers if layer.name == "block1.conv2")

    def spoil(plan):
        if len(plan) == len(network.layers) and culprit in plan.int8 and len(plan.int8) < len(network.quantizable):
            raise TrialFailed("build failed", NO_TACTIC)

    report = foreign(model, tmp_path, spoil, strategy="branch")
    assert report.culprits == ("block1.conv2",)
    assert report.recipe.high == ("block1.conv2",)
    assert report.recipe.meets
    row = report.layers[culprit]
    assert (row.outcome, row.message, row.culprit) == ("build failed", NO_TACTIC, True)
    assert row.taken_back == pytest.approx(report.similarity.int8)
    assert row.taken_back < 20.0
    assert row.whole["without"] > 20.0
    assert row.whole["with"] is None


@pytest.mark.slow
def test_every_piece_of_lenet_builds_in_tensorrt_rtx(lenet):
    """Real engines with a dynamic batch, without a GPU; what they compute, only a GPU can show."""
    pytest.importorskip("tensorrt_rtx_bindings")
    from trt_bisect.builder.tensorrt_build import RTX
    from trt_bisect.builder.tensorrt_engine import TensorRTStrongBuilder

    network = load_network(lenet / "lenet.onnx")
    data = np.load(lenet / "calibration.npz")
    feeds = {name: array[:1] for name, array in data.items()}
    scales = calibrate(network, [feeds], "minmax").scales
    facts, free = facts_for(network, feeds), with_free_batch(network, feeds)
    layers = len(network.layers)
    plans = int8_set(layers, network.quantizable), prefix(layers, -1)
    names = []
    for piece in cut(network, facts, 1):
        part = sub_network(free.network, piece, facts)
        shapes = {name: _profile(facts.shapes[name], free.axes[name]) for name in piece.reads}
        builder = TensorRTStrongBuilder(part, scales, BuildOptions(), shapes, engine=RTX)
        for plan in plans:
            written = builder.serialize(type(plan)(plan.precisions[piece.start : piece.stop]))
            assert len(written.data) > 1000
        names += [layer.name for layer in part.layers]
    assert names == [layer.name for layer in network.layers]


def _profile(shape, axis):
    most = tuple(16 * size if place == axis else size for place, size in enumerate(shape))
    return shape, most, most
