"""Runs the real Python modules of TensorRT with NumPy 1 and 2, without a GPU, and prints a table of what works.

    python3.10 tools/binding_facts.py /tmp/binding-facts          # Linux, Python 3.10, gcc and binutils; 2 GB

It installs each module from its wheel and this project's dependencies with each NumPy into the folder. A module is
loaded on empty libraries with the names of those that it links, whose functions are never called: weights, dimensions
and subclasses of loggers, calibrators, profilers and allocators live in the module itself. Builders, parsers and
engines do not, so that they are not tried. Where a cell says ``wrong``, the module loads and gives other values.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
NUMPYS = ("1.26.4", "2.2.6")
MODULES = {
    "tensorrt": ("8.5.3.1", "8.6.0"),
    "tensorrt_cu12_bindings": (
        *("10.0.1", "10.1.0", "10.3.0", "10.4.0", "10.5.0", "10.7.0", "10.9.0.34", "10.13.3.9", "10.15.1.29"),
        "10.16.0.72",
    ),
    "tensorrt_cu13_bindings": ("11.4.0.106",),
    "tensorrt_rtx_cu13_bindings": ("1.7.1.116",),
}
"""The versions by package. Each has a wheel for Python 3.10."""


def facts_of(name: str) -> dict[str, str]:
    """Returns what works in the module ``name``: ``yes``, ``no`` where the module lacks the class, or the failure."""
    trt = import_module(name)
    return {title: _outcome(check, trt) for title, check in CHECKS.items()}


def _outcome(check: Callable[[ModuleType], object], trt: ModuleType) -> str:
    try:
        return "yes" if check(trt) else "**wrong**"
    except AttributeError as error:
        return "no" if "module 'tensorrt' has no attribute" in str(error) else f"fails: {error}"
    except Exception as error:
        return f"fails: {type(error).__name__}: {error}"


def _weights(trt: ModuleType) -> bool:
    import numpy as np

    values = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    return np.array_equal(np.asarray(trt.Weights(values).numpy()).reshape(-1), values.reshape(-1))


def _dims(trt: ModuleType) -> bool:
    import numpy as np

    given = [trt.Dims([1, 3, 8]), trt.Dims(np.array([1, 3, 8])), trt.Dims(tuple(np.int64(size) for size in (1, 3, 8)))]
    return all(tuple(int(size) for size in dims) == (1, 3, 8) for dims in given)


def _logger(trt: ModuleType) -> bool:
    from trt_bisect.builder.tensorrt_build import drain, logger_of

    logger = logger_of(trt)
    logger.log(trt.ILogger.Severity.WARNING, "a warning")
    logger.log(trt.ILogger.Severity.INFO, "not kept")
    return [message.text for message in drain(logger)] == ["a warning"]


def _calibrator(trt: ModuleType) -> bool:
    from trt_bisect.builder.tensorrt_weak import cache_calibrator

    calibrator = cache_calibrator(trt, b"cache")
    return calibrator.read_calibration_cache() == b"cache" and calibrator.get_batch(["x"]) is None


def _profiler(trt: ModuleType) -> bool:
    from trt_bisect.builder.tensorrt_engine import adding_profiler

    profiler = adding_profiler(trt)
    profiler.report_layer_time("conv1", 1.5)
    return profiler.totals == {"conv1": 1.5}


def _allocator(trt: ModuleType) -> bool:
    from types import SimpleNamespace

    from trt_bisect.builder.tensorrt_engine import output_allocator

    buffers: Any = {"y": SimpleNamespace(hold=lambda _: None, address=4096)}
    allocator = output_allocator(trt, buffers)
    allocator.notify_shape("y", trt.Dims([2, 3]))
    return allocator.reallocate_output("y", 0, 24, 256) == 4096 and allocator.shapes == {"y": (2, 3)}


CHECKS: Mapping[str, Callable[[ModuleType], object]] = {
    "Weights.numpy": _weights,
    "Dims": _dims,
    "ILogger": _logger,
    "IInt8EntropyCalibrator2": _calibrator,
    "IProfiler": _profiler,
    "IOutputAllocator": _allocator,
}


def install(package: str, version: str, python: str, folder: Path) -> Path:
    """Puts the module of one wheel and empty libraries into ``folder``; returns the folder to import it from."""
    place = folder / f"{package}-{version}"
    if (place / "tensorrt").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    _run(python, "-m", "pip", "download", "-q", "--no-deps", "-d", str(place / "wheel"), f"{package}=={version}")
    (wheel,) = (place / "wheel").glob("*.whl")
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.search(r"/(__init__\.py|[\w]*(?<!plugin)\.so)$", name)]
        inside = {Path(name).parent for name in names if name.endswith("/tensorrt.so") or "rtx" in name}
        archive.extractall(place, [name for name in names if Path(name).parent in inside])
    wheel.unlink()
    for library in sorted(place.rglob("*.so")):
        _stub(library, place)
    module = next(library.parent for library in place.rglob("*.so") if library.parent != place)
    module.rename(place / "tensorrt")
    return place


def _stub(module: Path, place: Path) -> None:
    """Makes empty libraries with the names that ``module`` links, and in them the functions that it lacks."""
    linked = re.findall(r"NEEDED.*\[(libnv\S+|libtensorrt\S+)\]", _run("readelf", "-d", str(module)))
    lacking = re.findall(r" U ((?!_?Py)\w+)$", _run("nm", "-D", "--undefined-only", str(module)), re.MULTILINE)
    source = place / "empty.c"
    source.write_text("".join(f"int {name}(void) {{ __builtin_trap(); }}\n" for name in lacking))
    for name in linked:
        _run(
            "gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(place / name), str(source)
        )


def environment(numpy: str, folder: Path) -> str:
    """Returns the Python of an environment with this project's dependencies and one NumPy, made if need be."""
    place = folder / f"numpy-{numpy}"
    python = str(place / "bin" / "python")
    if not place.exists():
        _run(sys.executable, "-m", "venv", str(place))
        _run(python, "-m", "pip", "install", "-q", str(ROOT), f"numpy=={numpy}")
        _run(python, "-m", "pip", "uninstall", "-q", "-y", "trt-bisect")
    return python


def _run(*command: str, **environ: str) -> str:
    done = subprocess.run(command, env={**os.environ, **environ}, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:300]}\n{done.stderr[-2000:]}")
    return done.stdout


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="binding_facts", description="Runs TensorRT's modules with NumPy 1 and 2.")
    parser.add_argument("folder", type=Path, help="for the modules and environments; kept for the next call")
    parser.add_argument("--inside", metavar="MODULE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(facts_of(asked.inside)))
        return 0
    print("| module | version | NumPy |", " | ".join(CHECKS), "|")
    print("| --- | --- | --- |", " --- |" * len(CHECKS))
    for package, versions in MODULES.items():
        for version in versions:
            for numpy in NUMPYS:
                python = environment(numpy, asked.folder)
                place = install(package, version, python, asked.folder)
                paths = {"PYTHONPATH": f"{place}:{ROOT}", "LD_LIBRARY_PATH": str(place)}
                facts = json.loads(_run(python, __file__, str(asked.folder), "--inside", "tensorrt", **paths))
                print(f"| {package} | {version} | {numpy} |", " | ".join(facts.values()), "|", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
