"""Shared by the benchmarks: their command lines, seconds, processes of their own, and what these measure."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".bench"
COMMAND = str(Path(sys.executable).with_name("trt-bisect"))


def command_line(doc: str | None, *commands: Callable[..., Any], tokens: Sequence[str] | None = None) -> Any:
    """Calls the function that the command line asks for, by the name of its module if there are several.

    The arguments of the function are the options, and ``doc`` is the text of ``--help``.
    """
    from cyclopts import App, Parameter  # not where memory is measured

    default = Parameter(consume_multiple=True, negative=())
    app = App(help=doc, help_format="plaintext", version_flags=[], default_parameter=default)
    for command in commands if len(commands) > 1 else ():
        app.command(command, name=command.__module__.rpartition(".")[2], help=sys.modules[command.__module__].__doc__)
    if len(commands) == 1:
        app.default(*commands)
    return app(tokens, result_action="return_value")


def seconds_of(work: Callable[[], object]) -> np.ndarray:
    """The seconds that a work takes: those that passed, and those of the processor, of all threads."""
    began = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - began


def ended(command: Sequence[object], *, quiet: bool = True) -> tuple[float, resource.struct_rusage]:
    """Runs a command; returns its seconds on the clock, and what the kernel says that it used."""
    words, output = [str(word) for word in command], subprocess.DEVNULL if quiet else None
    began = time.perf_counter()
    _, status, used = os.wait4(subprocess.Popen(words, stdout=output, stderr=output).pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"{' '.join(words)} ended with {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - began, used


def apart(function: Callable[..., Any], *arguments: object) -> Any:
    """Calls a function with texts in a process of its own; its result is JSON."""
    module = sys.modules[function.__module__].__spec__.name  # type: ignore[union-attr]
    code = f"import json, sys; from {module} import {function.__name__} as work; print(json.dumps(work(*sys.argv[1:])))"
    words = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def environment(folder: Path, stamp: str, *installs: Sequence[str]) -> Path:
    """Returns the Python of an environment; makes it, with one ``pip install`` each, where it has another stamp."""
    python, installed = folder / "bin/python", folder / "installed.txt"
    if not installed.exists() or installed.read_text() != stamp:
        venv.create(folder, clear=True, with_pip=True)
        for words in installs:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *words], check=True)
        installed.write_text(stamp)
    return python


def tell_rows(
    rows: Mapping[str, Callable[[], dict[str, Any]]],
    only: Sequence[str],
    table: Callable[[list[dict[str, Any]]], object],
    path: Path | None,
) -> None:
    """Makes the rows, or those of some names; after each prints the table anew and writes all figures as JSON."""
    from rich.console import Console

    console, made = Console(width=160), list[dict[str, Any]]()
    if unknown := set(only) - set(rows):
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; there are {', '.join(rows)}.")
    for name in only or rows:
        console.print(f"{name} ...")
        made.append(rows[name]())
        console.print(table(made))
        if path:
            path.write_text(json.dumps(made, indent=1) + "\n")


def peak_mb() -> float:
    from trt_bisect.support.machine import peak_bytes

    return peak_bytes() / 2**20


def read(network: str, data: str) -> tuple[Any, list[Any]]:
    """The network, and the samples of an ``.npz``."""
    from trt_bisect.data.datasets import open_dataset
    from trt_bisect.model.network import load_network

    loaded = load_network(network)
    return loaded, list(open_dataset(data, loaded.inputs))


def loop(network: str, data: str) -> dict[str, float]:
    """The rebuild loop as a user writes it: for each k the Q/DQ network as an ONNX file, a session, an inference."""
    import onnx
    import onnxruntime as ort

    from tests.support.networks import attached
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.model.qdq import GraphTarget, PlanWriter
    from trt_bisect.precision import int8_set

    loaded, samples = read(network, data)
    writer = PlanWriter(loaded, calibrate(loaded, samples, "minmax").scales, GraphTarget.TENSORRT)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "trial.onnx")
        began = time.perf_counter()
        reference = ort.InferenceSession(network).run(None, samples[0])[0].ravel()
        norm = np.linalg.norm(reference)
        for count in range(len(loaded.quantizable) + 1):
            written = writer.write(int8_set(len(loaded.layers), loaded.quantizable[:count]))
            onnx.save(attached(written.model, written.weights), path)
            output = ort.InferenceSession(path, options).run(None, samples[0])[0].ravel()
            float(reference @ output / norm / np.linalg.norm(output))
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "layers": len(loaded.quantizable)}


def inference(network: str, data: str) -> dict[str, float]:
    """The FP32 network in ONNX Runtime alone: one inference on two threads, and what the process takes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(network, options)
    with np.load(data) as file:
        feeds = {name: file[name][:1] for name in file.files}
    passed, used = np.median([seconds_of(lambda: session.run(None, feeds)) for _ in range(9)], axis=0)
    return {"seconds": passed, "processor": used, "peak_mb": peak_mb()}


def on_the_session(network: str, data: str) -> dict[str, float]:
    """The curve alone, without loading, calibrating and reporting: its seconds and peak memory."""
    from trt_bisect.analyzer.judge import Comparer
    from trt_bisect.builder.base import BuildOptions
    from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.evaluator.evaluators import RebuildEvaluator, SwitchEvaluator
    from trt_bisect.evaluator.trial import TrialStore
    from trt_bisect.precision import int8_set

    loaded, samples = read(network, data)
    scales = calibrate(loaded, samples[:2], "minmax").scales
    feeds, builder = samples[:1], OnnxRuntimeBuilder(loaded, scales, BuildOptions())
    with builder.reference() as engine:
        compare = Comparer([engine.infer(feeds[0])])
    rebuilding = RebuildEvaluator(loaded, builder, feeds, compare, TrialStore())
    plans = [int8_set(len(loaded.layers), loaded.quantizable[:n]) for n in range(len(loaded.quantizable) + 1)]
    began = time.perf_counter()
    evaluator = SwitchEvaluator(rebuilding, builder, scales, memory=128 << 20)
    for plan in plans:
        evaluator.measure(plan)
    return {"seconds": time.perf_counter() - began, "peak_mb": peak_mb()}


def medians(measurement: Callable[..., dict[str, float]], paths: Sequence[Path], repeat: int) -> dict[str, float]:
    """The medians of a measurement's figures, each time in a process of its own."""
    turns = [apart(measurement, *paths) for _ in range(repeat)]
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
