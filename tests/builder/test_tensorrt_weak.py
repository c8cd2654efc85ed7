"""The weak builder's flags, profile, calibrator and timing cache, on a stand-in for TensorRT 8.6."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from tests.support.fake_tensorrt import FLOAT, SHAPES, DataType, FakeLayer, make_network, parsed
from trt_bisect.answer.result import target_version
from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.tensorrt_build import TensorRT, timings_of
from trt_bisect.builder.tensorrt_engine import TensorRTStrongBuilder
from trt_bisect.builder.tensorrt_weak import TensorRTWeakBuilder
from trt_bisect.errors import BadInput, EngineUnavailable, TrialFailed
from trt_bisect.model.network import load_network
from trt_bisect.precision import Precision, int8_set, prefix


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return make_network(tmp_path_factory.mktemp("weak"))


class FakeConfig:
    """``IBuilderConfig``, remembering what was set."""

    def __init__(self):
        self.flags, self.limits, self.profiles, self.sources = {"TF32"}, {}, [], None
        self.profiling_verbosity = None
        self.builder_optimization_level = 3
        self.set_flag, self.clear_flag = self.flags.add, self.flags.discard
        self.set_memory_pool_limit, self.add_optimization_profile = self.limits.__setitem__, self.profiles.append

    def set_tactic_sources(self, bits):
        self.sources = bits

    def create_timing_cache(self, kept):
        return None if kept == b"spoilt" else TimingCache(kept)

    def set_timing_cache(self, cache, ignore_mismatch):
        self.cache = cache
        return True

    def get_timing_cache(self):
        return self.cache


class TimingCache:
    """Its timings are words; ``other device`` cannot be combined, as with TensorRT."""

    def __init__(self, data):
        self.data = data

    def combine(self, other, ignore_mismatch):
        if b"other device" in other.data:
            return False
        self.data += b"|" + other.data
        return True

    def serialize(self):
        return self.data + b"+built"


def names(*members):
    by_name = {name: name for name in members}
    return SimpleNamespace(__members__=by_name, **by_name)


class FakeTensorRT:
    """TensorRT 8.6 as a module and a builder; every config and network that it made is kept."""

    def __init__(self, version="8.6.0", fails=False):
        self.configs, self.networks, self.files, self.fails = [], [], [], fails
        self.logger, self.num_DLA_cores = SimpleNamespace(records=[]), 2
        self.module = SimpleNamespace(
            __version__=version,
            DataType=DataType,
            IConstantLayer=FakeLayer,
            BuilderFlag=names("TF32", "INT8", "FP16", "OBEY_PRECISION_CONSTRAINTS", "GPU_FALLBACK"),
            DeviceType=names("GPU", "DLA"),
            ProfilingVerbosity=names("DETAILED"),
            MemoryPoolType=names("WORKSPACE"),
            TacticSource=SimpleNamespace(__members__={"CUBLAS": 0, "CUDNN": 2, "JIT_CONVOLUTIONS": 4}),
            NetworkDefinitionCreationFlag=SimpleNamespace(__members__={"EXPLICIT_BATCH": 0}),
            OnnxParser=self._parser,
        )

    def _parser(self, network, logger):
        def parse(path):
            self.files.append(path)
            self.operators = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
            return True

        return SimpleNamespace(parse_from_file=parse, num_errors=0)

    def create_network(self, flags):
        assert flags == 1, "explicit batch"
        self.networks.append(parsed())
        return self.networks[-1]

    def create_builder_config(self):
        self.configs.append(FakeConfig())
        return self.configs[-1]

    def create_optimization_profile(self):
        shapes = {}
        return SimpleNamespace(shapes=shapes, set_shape=lambda name, *three: shapes.update({name: three}))

    def build_serialized_network(self, network, config):
        self.timings_during_build = getattr(config, "cache", None)
        return None if self.fails else b"engine"


@pytest.fixture
def weak(network, monkeypatch):
    """Makes a builder, a weak one if nothing else is said, and its TensorRT."""

    def make(options=None, rt=None, network=network, kind=TensorRTWeakBuilder, **more):
        rt = rt or FakeTensorRT()
        started = TensorRT("tensorrt", rt.module, rt.logger, rt)
        monkeypatch.setattr(tensorrt_build, "start_tensorrt", lambda engine, plugins: started)
        scales = {name: np.float32(0.1) for name in network.activations}
        return kind(network, scales, options or BuildOptions(), SHAPES, **more), rt

    return make


def test_int8_is_allowed_constraints_are_obeyed_tf32_is_off(weak):
    builder, rt = weak(BuildOptions(workspace_bytes=1 << 20, optimization_level=2))
    assert builder.build(prefix(8, 3)).serialized.data == b"engine"
    config = rt.configs[-1]
    assert config.flags == {"INT8", OBEY}
    assert config.limits == {"WORKSPACE": 1 << 20}
    assert (config.builder_optimization_level, config.profiling_verbosity) == (2, "DETAILED")
    assert [profile.shapes for profile in config.profiles] == [SHAPES]
    assert rt.networks[-1].asked()["add"] == FLOAT
    assert rt.networks[-1].tensors["x"].dynamic_range == pytest.approx((-12.7, 12.7))


OBEY = "OBEY_PRECISION_CONSTRAINTS"


@pytest.mark.parametrize(
    ("kind", "plan", "flags"),
    [
        (TensorRTWeakBuilder, prefix(8, 3, Precision.FP16), {"INT8", "FP16", OBEY}),
        (TensorRTWeakBuilder, int8_set(8, (), Precision.FP16), {"FP16", OBEY}),
        (TensorRTStrongBuilder, prefix(8, 3), {"INT8"}),
        (TensorRTStrongBuilder, prefix(8, 3, Precision.FP16), {"INT8", "FP16"}),
        (TensorRTStrongBuilder, int8_set(8, ()), set()),
    ],
)
def test_before_tensorrt_10_the_precisions_of_a_plan_are_allowed(weak, kind, plan, flags):
    """Full FP16 is what a user would build without INT8."""
    builder, rt = weak(kind=kind)
    builder.build(plan)
    assert rt.configs[-1].flags == flags


def test_before_tensorrt_10_the_pairs_are_parsed(weak):
    """The way that docs/evidence measured on an H200 (``qdq``): no constraints, no ranges, the pairs alone."""
    builder, rt = weak(kind=TensorRTStrongBuilder)
    builder.build(prefix(8, 3))
    assert {"QuantizeLinear", "DequantizeLinear"} <= rt.operators
    assert rt.networks[-1].asked() == {}
    assert rt.networks[-1].tensors["x"].dynamic_range is None


def test_the_reference_allows_neither_int8_nor_fp16(weak):
    builder, rt = weak(BuildOptions(high=Precision.FP16))
    builder.reference()
    assert rt.configs[-1].flags == set()
    assert rt.networks[-1].asked() == {}


def test_the_network_is_written_once_and_parsed_for_every_plan(weak):
    builder, rt = weak()
    builder.build(prefix(8, 0))
    builder.build(prefix(8, 3))
    assert len(rt.networks) == 2
    assert len(set(rt.files)) == 1


def test_the_parser_reads_names_that_it_gives_to_no_layer_of_its_own(network, weak):
    """``relu1`` of the network is called ``fc_1`` here: the parser may give that name to the sum with fc's bias."""
    model = onnx.load(network.source)
    model.graph.node[1].name = "fc_1"
    onnx.save(model, Path(network.source).with_name("collides.onnx"))
    collides = load_network(Path(network.source).with_name("collides.onnx"))
    builder, rt = weak(network=collides)
    builder.build(prefix(8, 3))
    names = [node.name for node in onnx.load(rt.files[0], load_external_data=False).graph.node]
    assert [name for name in names if name.startswith("fc")] == ["fc.1", "fc"]
    assert collides.layers[1].name == "fc_1"


def test_timings_are_shared_by_the_builds_of_a_run(weak, tmp_path):
    path = tmp_path / "run" / "timing.cache"
    builder, rt = weak(BuildOptions(timing_cache=path))
    builder.build(prefix(8, 0))
    assert path.read_bytes() == b"+built"
    builder.build(prefix(8, 1))
    assert rt.timings_during_build.data == b"+built"
    path.write_bytes(b"spoilt")
    builder.build(prefix(8, 2))
    assert rt.timings_during_build.data == b""
    assert [file.name for file in path.parent.iterdir()] == ["timing.cache"]


def test_timings_from_other_machines_are_merged_by_the_next_build(weak, tmp_path):
    """A stand-in's word for it: no TensorRT has combined caches here."""
    path = tmp_path / "timing.cache"
    for place, timings in (("a1", b"one"), ("b2", b"spoilt"), ("c3", b"other device"), ("d4", b"two")):
        timings_of(path, place).write_bytes(timings)
    builder, _ = weak(BuildOptions(timing_cache=path))
    builder.build(prefix(8, 0))
    assert path.read_bytes() == b"one|two+built"


def test_tactic_sources_can_be_left_out(weak):
    builder, rt = weak(BuildOptions(tactic_sources=("JIT_CONVOLUTIONS", "CUDNN")))
    builder.build(prefix(8, 0))
    assert rt.configs[-1].sources == 1 << 4 | 1 << 2


def test_a_tactic_source_that_this_version_has_not_is_named(weak):
    builder, _ = weak(BuildOptions(tactic_sources=("JIT_CONVOLUTIONS", "CUBLAS_LT")))
    with pytest.raises(BadInput, match="'CUBLAS_LT'") as error:
        builder.build(prefix(8, 0))
    assert error.value.remedy == "Use CUBLAS, CUDNN, JIT_CONVOLUTIONS."


def test_a_failed_build_is_an_outcome(weak):
    builder, _ = weak(rt=FakeTensorRT(fails=True))
    with pytest.raises(TrialFailed, match="gave no reason") as failure:
        builder.build(prefix(8, 0))
    assert failure.value.outcome == "build failed"


def test_tensorrt_11_has_no_weak_typing(weak):
    with pytest.raises(EngineUnavailable, match=r"11\.0\.0 has no weak"):
        weak(rt=FakeTensorRT("11.0.0"))


def test_the_builder_tells_the_plan_that_it_sets(weak, network):
    """Every layer of the parsed network that was told something is in the plan that recipes are written from."""
    builder, rt = weak(BuildOptions(force_int8=True))
    plan = prefix(8, 4)
    builder.network_definition(plan)
    set_on = rt.networks[-1].asked()
    told = builder.weak_plan(plan)
    assert {each.layer for each in told.constraints} == set(set_on)
    assert {each.layer: each.precision and str(each.precision) for each in told.constraints} == {
        name: {"FLOAT": "fp32", "INT8": "int8", None: None}[precision] for name, (precision, _) in set_on.items()
    }
    assert told.parser == "TensorRT 8.6.0"
    assert told.layers == tuple(layer.name for layer in parsed().layers)
    assert told.scales["product"] == pytest.approx(0.1)


def test_the_recipe_is_for_the_tensorrt_in_use(weak):
    builder, _ = weak(rt=FakeTensorRT("10.7.0.23"))
    request = SimpleNamespace(trt_version="")
    assert target_version(request, builder).header == "TRT-100700-EntropyCalibration2"
    assert target_version(SimpleNamespace(trt_version="8.6.1"), builder).header == "TRT-8601-EntropyCalibration2"
    emulated = SimpleNamespace(engine="onnxruntime", versions={"onnxruntime": "1.20.0"})
    assert target_version(request, emulated).number[0] == 11, "the newest"
    rtx = SimpleNamespace(engine="tensorrt-rtx", versions={"tensorrt-rtx": "1.7.1.116"})
    assert target_version(request, rtx).title == "TensorRT-RTX 1.7.1"


class Strong(FakeTensorRT):
    """TensorRT with strongly typed networks."""

    def __init__(self, version):
        super().__init__(version)
        self.module.NetworkDefinitionCreationFlag.__members__ = {"STRONGLY_TYPED": 1}

    def create_network(self, flags):
        assert flags == 2, "strongly typed"
        return parsed()


@pytest.mark.parametrize("version", ["8.6.1", "10.3.0", "10.16.0", "11.3.0"])
def test_the_dla_takes_no_strongly_typed_network_before_11_4(weak, version):
    with pytest.raises(BadInput, match="no strongly typed network"):
        weak(BuildOptions(dla=0), Strong(version), kind=TensorRTStrongBuilder)


@pytest.mark.parametrize(
    ("kind", "rt", "flags"),
    [
        (TensorRTWeakBuilder, FakeTensorRT(), {"INT8", OBEY, "GPU_FALLBACK"}),
        (TensorRTStrongBuilder, Strong("11.4.0"), {"GPU_FALLBACK"}),
        (TensorRTStrongBuilder, Strong("11.4.1"), {"GPU_FALLBACK"}),
    ],
)
def test_the_dla_takes_plans_but_not_the_fp32_reference(weak, kind, rt, flags):
    """With strong typing the graph says what is in INT8."""
    builder, _ = weak(BuildOptions(dla=1), rt, kind=kind)
    builder.build(prefix(8, 3))
    config = rt.configs[-1]
    assert config.flags == flags
    assert (config.default_device_type, config.DLA_core) == ("DLA", 1)
    builder.reference()
    assert rt.configs[-1].flags == set()
    assert builder.versions["dla"] == "1"
