"""The choice of the engine and of the typing, and the reasons why another cannot be used."""

import ctypes
import importlib
import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace

import onnxruntime
import pytest
from rich.console import Console

from tests.support.networks import chain, save
from trt_bisect.builder import engines
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import EngineStatus, choose_engine, engine_status, make_builder, typing_of
from trt_bisect.builder.tensorrt_build import import_tensorrt, version_of
from trt_bisect.errors import BadInput, EngineUnavailable
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import BF16, FP8, FP16, INT8
from trt_bisect.report.screen.layout import fitted
from trt_bisect.support import machine as host
from trt_bisect.support.machine import InstalledGpu, find_gpu


def engines_table(*statuses):
    """The table of the command ``engines``."""
    return fitted(EngineStatus, statuses, Console(width=200))


H200 = InstalledGpu("NVIDIA H200", "9.0", "12.4")


@pytest.fixture
def machine(monkeypatch):
    """A machine made to order: modules by name and version, and a GPU or none."""

    def make(modules=(), answers=True, pycuda=True):
        for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
            module = ModuleType(name)
            module.__version__ = dict(modules).get(name, "")
            monkeypatch.setitem(sys.modules, name, module if module.__version__ else None)
        monkeypatch.setitem(sys.modules, "pycuda", ModuleType("pycuda") if pycuda else None)
        monkeypatch.setitem(sys.modules, "pycuda.driver", ModuleType("pycuda.driver") if pycuda else None)

        def found():
            if answers:
                return H200
            raise EngineUnavailable("No NVIDIA GPU answers: cuInit returned 100 (CUDA_ERROR_NO_DEVICE).", "Get one.")

        monkeypatch.setattr(engines, "find_gpu", found)

    return make


@pytest.mark.parametrize(
    ("modules", "answers", "pycuda", "chosen"),
    [
        ({"tensorrt": "8.6.1"}, True, True, "tensorrt"),
        ({}, True, True, "onnxruntime"),
        ({"tensorrt": "8.6.1"}, False, True, "onnxruntime"),
        ({"tensorrt": "8.6.1"}, True, False, "onnxruntime"),
        ({"tensorrt": "8.4.3"}, True, True, "onnxruntime"),
        ({"tensorrt_rtx": "1.7.1"}, True, True, "onnxruntime"),
    ],
)
def test_auto_takes_tensorrt_where_it_can_be_used(machine, modules, answers, pycuda, chosen):
    machine(modules, answers, pycuda)
    assert choose_engine("auto") == chosen


def test_an_engine_asked_for_by_name_is_taken_or_refused_with_the_reason(machine):
    machine({"tensorrt_rtx_bindings": "1.7.1"})
    assert choose_engine("tensorrt-rtx") == "tensorrt-rtx"
    assert choose_engine("onnxruntime") == "onnxruntime"
    for modules, without, reason in (
        ((), {}, r"pip install 'tensorrt>=8\.6'"),
        ({"tensorrt": "8.6.1"}, {"answers": False}, "cuInit returned 100"),
        ({"tensorrt": "8.6.1"}, {"pycuda": False}, "PyCUDA"),
    ):
        machine(modules, **without)
        with pytest.raises(EngineUnavailable, match=reason):
            choose_engine("tensorrt")
    with pytest.raises(BadInput, match="no engine 'openvino'"):
        choose_engine("openvino")


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("9.0", False), ("10.0", False), ("7.5", True), ("8.9", True), ("12.1", True), ("13.0", True)],
)
def test_tensorrt_rtx_is_not_offered_on_a_gpu_that_it_refuses(machine, monkeypatch, capability, runs):
    """On an H200 TensorRT-RTX 1.7.1 built every engine and loaded none; the capabilities are those of its module."""
    machine({"tensorrt_rtx_bindings": "1.7.1"})
    names = dict.fromkeys(("NONE", "CURRENT", "SM75", "SM80", "SM86", "SM89", "SM120", "SM121"))
    sys.modules["tensorrt_rtx_bindings"].ComputeCapability = SimpleNamespace(__members__=names)
    monkeypatch.setattr(engines, "find_gpu", lambda: InstalledGpu("GPU", capability, "13.0"))
    status = engine_status("tensorrt-rtx")
    assert status.usable is runs
    assert (capability in status.why_not) is not runs


@pytest.mark.parametrize(
    ("version", "numpy", "told"),
    [
        ("8.6.0", "2.2.6", True),
        ("10.15.1.29", "2.4.6", True),
        ("8.6.0", "1.26.4", False),
        ("10.16.0.72", "2.2.6", False),
        ("11.4.0.106", "2.2.6", False),
    ],
)
def test_the_numpy_that_goes_with_a_version_is_named(machine, monkeypatch, version, numpy, told):
    """The versions are those of the table in docs/evidence/README.md."""
    machine({"tensorrt": version})
    monkeypatch.setattr(engines.np, "__version__", numpy)
    status = engine_status("tensorrt")
    assert status.usable
    assert ("numpy<2" in status.note) is told
    assert ("numpy<2" in engines_table(status).columns[4]._cells[0].plain) is told


def test_the_list_names_every_engine(machine, monkeypatch):
    machine({"tensorrt": "10.3.0"})
    monkeypatch.setattr(engines.np, "__version__", "1.26.4")
    listed = {status.name: status for status in engines.list_engines()}
    assert list(listed) == ["onnxruntime", "tensorrt", "tensorrt-rtx"]
    assert listed["tensorrt"] == EngineStatus("tensorrt", "10.3.0", ("strong", "weak"), str(H200))
    assert "H200" in listed["tensorrt"].device
    assert not listed["tensorrt-rtx"].usable
    assert "'tensorrt-rtx-cu13-libs>=1.4'" in listed["tensorrt-rtx"].why_not
    assert listed["onnxruntime"].usable


def test_all_that_is_missing_is_named_at_once(machine):
    machine({"tensorrt": "8.6.1"}, answers=False, pycuda=False)
    status = engine_status("tensorrt")
    assert (status.version, status.device, status.usable) == ("8.6.1", "", False)
    assert "cuInit" in status.why_not
    assert "pycuda" in status.why_not
    assert status.answer.startswith(f"no: {status.why_not}")


@pytest.mark.parametrize(
    ("engine", "version", "asked", "message"),
    [
        ("tensorrt", "11.0.0", "weak", "11.0.0 has no weak"),
        ("tensorrt-rtx", "1.7.1", "weak", "tensorrt-rtx 1.7.1 has no weak"),
        ("onnxruntime", "1.20.0", "weak", "onnxruntime 1.20.0 has no weak"),
        ("tensorrt", "8.6.1", "loose", "no typing 'loose'"),
    ],
)
def test_a_typing_that_is_not_there_is_refused(engine, version, asked, message, monkeypatch):
    monkeypatch.setattr(engines, "engine_version", lambda _: version)
    with pytest.raises(BadInput, match=message):
        typing_of(engine, asked)


@pytest.mark.parametrize(
    ("text", "version"), [("8.6.1.6", (8, 6)), ("10.12.0", (10, 12)), ("11", (11, 0)), ("10.0.0b6", (10, 0))]
)
def test_versions(text, version):
    assert version_of(text) == version


def test_tensorrt_rtx_is_found_under_both_its_names(machine):
    machine({"tensorrt_rtx": "1.9", "tensorrt_rtx_bindings": "1.7"})
    assert import_tensorrt("tensorrt-rtx").__version__ == "1.9"
    machine({"tensorrt_rtx_bindings": "1.7"})
    assert import_tensorrt("tensorrt-rtx").__version__ == "1.7"


def test_a_library_that_does_not_load_is_not_called_missing(monkeypatch):
    def refuse(name):
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(EngineUnavailable, match="libcudart") as refused:
        import_tensorrt("tensorrt")
    assert "is not installed" not in str(refused.value)


class FakeDriver:
    """``libcuda`` that counts GPUs, or with an error from one of its functions; ``test_cuda_driver`` has more."""

    def __init__(self, failing="", code=0, count=1):
        self.failing, self.code, self.count = failing, code, count

    def __getattr__(self, name):
        def call(*arguments):
            if name == self.failing:
                return self.code
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = self.count
            return 0

        return call


def test_the_reason_is_named_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(host, "_LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(EngineUnavailable, match=r"libno-such-driver\.so\.1"):
        find_gpu()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(count=0))
    with pytest.raises(EngineUnavailable, match="cuDeviceGetCount"):
        find_gpu()


def test_the_command_prints_a_row_an_engine(command):
    _, printed, _ = command("engines")
    assert all(name in printed for name in ("onnxruntime", "tensorrt", "tensorrt-rtx"))


@pytest.mark.parametrize(
    ("driver", "variable", "found"),
    [
        (FakeDriver(count=3), None, ("0", "1", "2")),
        (FakeDriver(count=2), "3, 1", ("3", "1")),
        (FakeDriver(count=1), "GPU-aa,nonsense", ("GPU-aa",)),
        (FakeDriver("cuInit", 100), None, ()),
    ],
)
def test_gpus_are_those_that_this_process_may_use(monkeypatch, driver, variable, found):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert host.visible_gpus() == found


def test_onnxruntime_is_known_under_every_name_of_its_package(monkeypatch):
    """``onnxruntime-gpu`` has no metadata under the name ``onnxruntime``."""

    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert engines.engine_version("onnxruntime") == onnxruntime.__version__


@pytest.mark.parametrize(
    ("version", "asked", "low", "cached", "typing"),
    [
        ("8.6.1", "auto", INT8, False, "strong"),
        ("10.12.0.36", "weak", INT8, False, "weak"),
        ("8.6.1", "auto", INT8, True, "weak"),
        ("8.6.1", "strong", INT8, True, "strong"),
        ("10.11.0", "auto", INT8, True, "weak"),
        ("10.12.0", "auto", INT8, True, "strong"),
        ("11.4.0", "auto", INT8, True, "strong"),
        ("8.6.1", "auto", FP16, False, "weak"),
        ("10.3.0", "auto", FP16, False, "strong"),
        ("10.3.0", "weak", BF16, False, "weak"),
        ("10.3.0", "auto", FP8, True, "strong"),
    ],
)
def test_a_job_is_weakly_typed_where_the_engine_of_its_user_is(machine, version, asked, low, cached, typing):
    machine({"tensorrt": version})
    assert typing_of("tensorrt", asked, low, cached=cached) == typing


def test_fp8_and_weak_typing_exclude_each_other():
    with pytest.raises(BadInput, match="FP8"):
        typing_of("tensorrt", "weak", FP8)


def test_bf16_needs_tensorrt_10(machine, tmp_path):
    machine({"tensorrt": "8.6.1"})
    network = load_network(save(chain(), tmp_path), low=BF16)
    with pytest.raises(BadInput, match="BF16"):
        make_builder("tensorrt", "weak", network, {}, BuildOptions())
