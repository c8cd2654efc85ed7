"""The driver's public functions, called through ctypes and through PyCUDA, against a small driver that the test builds.

It says that there is one GPU, and its device memory is host memory: wrong names, wrong arguments and a context that is
not current show. TensorRT itself does not start on it. PyCUDA is tested where it is installed.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "files" / "cuda_driver.c"
ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="there is no C compiler for Linux"),
]


def missing_functions(library):
    """The driver's functions that a library needs and that the small driver lacks: all must be there to load it."""
    needed = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    names = {line.split()[-1] for line in needed.stdout.splitlines()}
    return sorted(name for name in names if name.startswith("cu") and f" {name}(" not in SOURCE.read_text())


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The folder of the small ``libcuda.so.1``; functions of PyCUDA's other calls answer 801, not supported."""
    folder = tmp_path_factory.mktemp("driver")
    found = importlib.util.find_spec("pycuda")
    libraries = list(Path(found.submodule_search_locations[0]).glob("_driver*.so")) if found else []
    others = {name for library in libraries for name in missing_functions(library)}
    source = folder / "driver.c"
    source.write_text(SOURCE.read_text() + "".join(f"int {name}(void) {{ return 801; }}\n" for name in sorted(others)))
    made = [COMPILER, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source, "-Wl,-soname,libcuda.so.1"]
    subprocess.run(made, check=True)
    return folder


@pytest.fixture
def python(driver):
    """Runs a script where the small driver is the machine's, and returns what it printed, as JSON."""

    def call(script, **environment):
        libraries = f"{driver}:/usr/local/cuda/lib64:{os.environ.get('LD_LIBRARY_PATH', '')}"
        places = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {**os.environ, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": places, **environment}
        command = [sys.executable, "-W", "ignore", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return call


def test_the_gpu_is_found_and_described(python):
    script = "import json; from trt_bisect.support.machine import find_gpu, visible_gpus; "
    script += "print(json.dumps([str(find_gpu()), visible_gpus()]))"
    assert python(script, CUDA_VISIBLE_DEVICES="2") == [
        "Stand-in GPU (compute capability 8.7, driver for CUDA 12.4)",
        ["2"],
    ]


def test_a_driver_without_a_gpu_is_told_by_the_name_of_its_error(python):
    script = """
import json
from trt_bisect.support.machine import find_gpu
from trt_bisect.errors import EngineUnavailable
try:
    find_gpu()
except EngineUnavailable as error:
    print(json.dumps(error.problem))
"""
    assert python(script, NO_GPU="1") == "No NVIDIA GPU answers: cuInit returned 100 (CUDA_ERROR_NO_DEVICE)."


PYCUDA = """
import json
import numpy as np
from trt_bisect.builder.tensorrt_engine import Buffer, open_device
device = open_device()
array = np.arange(6, dtype=np.float32).reshape(2, 3)
with device.current():
    stream, buffer = device.cuda.Stream(), Buffer(device)
    free = device.cuda.mem_get_info()[0]
    buffer.hold(array.nbytes)
    buffer.write(array)
    buffer.upload(array.nbytes, stream)
    buffer.host[:] = 0
    buffer.download(array.nbytes, stream)
    stream.synchronize()
    begin, end = device.cuda.Event(), device.cuda.Event()
    begin.record(stream); end.record(stream); end.synchronize()
    used = free - device.cuda.mem_get_info()[0]
    try:
        device.cuda.mem_alloc(1 << 40)
    except device.cuda.Error as error:
        refused = [type(error).__name__, isinstance(error, device.cuda.MemoryError)]
    said = {
        "read": buffer.read(array.shape, array.dtype).tolist(),
        "taken": used,
        "milliseconds": end.time_since(begin),
        "handle": bool(stream.handle),
        "refused": refused,
    }
    del buffer, stream, begin, end
    said["left"] = free - device.cuda.mem_get_info()[0]
try:
    device.cuda.mem_alloc(8)
except device.cuda.Error as error:
    said["outside"] = type(error).__name__
print(json.dumps(said))
"""


def test_pycuda_moves_memory_as_the_engines_do(python):
    if importlib.util.find_spec("pycuda") is None:
        pytest.skip("PyCUDA is not installed")
    said = python(PYCUDA)
    assert said["read"] == [[0, 1, 2], [3, 4, 5]]
    assert said["taken"] == 24
    assert said["left"] == 0, "memory is given back with the buffer"
    assert said["milliseconds"] == 2.5
    assert said["handle"]
    assert said["refused"] == ["MemoryError", True]
    assert said["outside"] == "LogicError"
