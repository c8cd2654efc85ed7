"""Plugins and the DLA: what is loaded and set, on stand-ins; a real plugin library, without TensorRT, is loaded."""

import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.engines import make_builder
from trt_bisect.builder.tensorrt_build import RTX, TensorRT, load_plugins, use_dla, versions_of
from trt_bisect.errors import BadInput

COMPILER = shutil.which("cc") or shutil.which("gcc")


class Module:
    """``tensorrt``, which says when its own plugins are registered."""

    __version__ = "8.6.1"
    DeviceType = SimpleNamespace(DLA="DLA", GPU="GPU")
    BuilderFlag = SimpleNamespace(GPU_FALLBACK="GPU_FALLBACK")

    def __init__(self):
        self.registered = []

    def init_libnvinfer_plugins(self, logger, namespace):
        self.registered.append(namespace)


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="there is no C compiler for Linux")
def test_plugins_register_themselves_when_they_are_loaded(tmp_path, monkeypatch):
    source, library, mark = tmp_path / "plugin.c", tmp_path / "plugin.so", tmp_path / "registered"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n"
        '__attribute__((constructor)) static void at(void) { fclose(fopen(getenv("MARK"), "w")); }\n'
    )
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("MARK", str(mark))
    module = Module()
    load_plugins(module, None, [str(library)])
    assert mark.exists()
    assert module.registered == [""], "TensorRT's own: from 10.1 on the parser does not register them"


def test_a_library_that_does_not_load_is_named(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(BadInput, match=r"broken\.so") as refused:
        load_plugins(Module(), None, [str(broken)])
    assert "8.6.1" in str(refused.value)


def test_other_plugins_and_another_dla_are_another_fingerprint(tmp_path):
    library = tmp_path / "plugin.so"
    rt = TensorRT("tensorrt", Module(), None, None)
    found = []
    for content, dla in ((b"one", None), (b"two", None), (b"two", 0), (b"two", 1)):
        library.write_bytes(content)
        found.append(versions_of(rt, BuildOptions(plugins=(str(library),), dla=dla)))
    assert len({str(versions) for versions in found}) == 4
    assert "plugins" not in versions_of(rt, BuildOptions())


def test_the_dla_runs_what_it_can_and_the_gpu_the_rest():
    flags = []
    config = SimpleNamespace(set_flag=flags.append)
    use_dla(Module(), SimpleNamespace(num_DLA_cores=2), config, 1)
    assert (config.default_device_type, config.DLA_core, flags) == ("DLA", 1, ["GPU_FALLBACK"])


@pytest.mark.parametrize(("cores", "core"), [(0, 0), (2, 2)])
def test_a_core_that_is_not_there_is_refused(cores, core):
    config = SimpleNamespace()
    with pytest.raises(BadInput, match=f"no DLA core {core}"):
        use_dla(Module(), SimpleNamespace(num_DLA_cores=cores), config, core)
    assert not vars(config)


def test_tensorrt_rtx_has_no_dla():
    with pytest.raises(BadInput, match="no DLA"):
        make_builder(RTX, "strong", None, {}, BuildOptions(dla=0))
