"""Sound files of every kind that a command reads, small ones, for the fuzzer to spoil."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

from benchmarks.reliability.forked import run
from tests.support import networks

_PARSED = {
    "branches": """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3, 8, 8] x) => (float[n, 4, 8, 8] y)
        <float[4, 3, 1, 1] w, bool condition = {1}> {
            h = Conv (x, w)
            y = If (condition) <
                then_branch = then () => (float[n, 4, 8, 8] a) { a = Relu (h) },
                else_branch = otherwise () => (float[n, 4, 8, 8] b) { b = Neg (h) }
            >
        }""",
    "loop": """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 3, 8, 8] x) => (float[n, 3, 8, 8] y)
        <float[3, 3, 1, 1] w, int64 trips = {2}, bool go_on = {1}> {
            y = Loop (trips, go_on, x) <
                body = b (int64 i, bool c, float[n, 3, 8, 8] s) => (bool d, float[n, 3, 8, 8] t) {
                    d = Identity (c)
                    r = Conv (s, w)
                    t = Tanh (r)
                }
            >
        }""",
    "function": """<ir_version: 8, opset_import: ["": 17, "own": 1]>
        g (float[n, 8] x) => (float[n, 4] y) <float[8, 4] w> {
            h = own.twice (x)
            y = MatMul (h, w)
        }
        <domain: "own", opset_import: ["": 17]> twice (a) => (b) { b = Add (a, a) }""",
    "folding": """<ir_version: 8, opset_import: ["": 17]>
        g (float[n, 4, 6] x) => (float[n, 24] y)
        <int64[2] size = {24, 24}, int64 zero = {0}, int64 one = {1}, int64 last = {24}, float[24, 24] w> {
            blank = ConstantOfShape <value = float[1] {0.5}> (size)
            counted = Range (zero, last, one)
            floats = Cast <to = 1> (counted)
            wide = Expand (floats, size)
            both = Add (blank, wide)
            weight = Mul (both, w)
            shape = Shape (x)
            first = Gather (shape, zero)
            axis = Constant <value_ints = [0]> ()
            n1 = Unsqueeze (first, axis)
            rest = Constant <value_ints = [-1]> ()
            flat = Concat <axis = 0> (n1, rest)
            h = Reshape (x, flat)
            y = MatMul (h, weight)
        }""",
    "normalized": """<ir_version: 7, opset_import: ["": 11]>
        g (float[n, 3, 8, 8] x, float[n, 4] z) => (float[n, 4] y)
        <float[4, 3, 3, 3] w, float[4] gamma, float[4] beta, float[4] mean, float[4] variance, float[4, 4] v> {
            c = Conv <pads = [1, 1, 1, 1]> (x, w)
            n0 = BatchNormalization (c, gamma, beta, mean, variance)
            i = Identity (n0)
            d = Dropout (i)
            r = Relu (d)
            p = GlobalAveragePool (r)
            f = Flatten (p)
            s = Add (f, z)
            y = Gemm (s, v)
        }""",
}


@dataclass(frozen=True)
class Seed:
    """A folder with a valid network and its data."""

    folder: Path

    @property
    def network(self) -> Path:
        return self.folder / "network.onnx"

    @property
    def data(self) -> Path:
        return self.folder / "data.npz"

    @cached_property
    def model(self) -> onnx.ModelProto:
        return onnx.load(str(self.network), load_external_data=False)


@dataclass(frozen=True)
class Seeds:
    """All files that the fuzzer spoils.

    Attributes:
        files: by kind, such as ``cache`` or ``labels.npy``; all of the network ``plain``.
        finished: the folder of a finished run, by the seed's name.
        suite: a folder with ``trt-bisect.toml``, the ``nightly`` folder of a night, and its ``baseline``.
    """

    networks: dict[str, Seed]
    files: dict[str, Path]
    finished: dict[str, Path]
    suite: Path

    @property
    def plain(self) -> Seed:
        return self.networks["chain"]

    @cached_property
    def bomb(self) -> Path:
        """Calibration data of 3 GiB, made at the first use: packing it takes seconds."""
        return _bomb(self.suite.parent)


def make_seeds(folder: Path) -> Seeds:
    """Writes the valid files, the same ones at each call."""
    shutil.rmtree(folder, ignore_errors=True)
    made = {
        "chain": networks.chain(2, 4),
        "residual": networks.residual(1, 4),
        "depthwise": networks.depthwise(1, 2),
        "transformer": networks.transformer(1, 8, 4),
        **{name: _with_weights(parser.parse_model(text)) for name, text in _PARSED.items()},
    }
    seeds = {name: _written(folder / name, model) for name, model in made.items()}
    seeds["external"] = _written(folder / "external", made["chain"], external=True)
    finished = {name: _finished(seeds[name], folder) for name in ("chain", "residual")}
    seeds["quantized"] = Seed(folder / "quantized")
    seeds["quantized"].folder.mkdir()
    shutil.copy(finished["residual"] / "recipe/network.qdq.onnx", seeds["quantized"].network)
    shutil.copy(seeds["residual"].data, seeds["quantized"].data)
    files, suite = _files(seeds["chain"], finished["chain"], folder), _suite(seeds["chain"], folder)
    return Seeds(seeds, files, finished, suite)


def _with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns ``model`` with random weights; its text gives only their shapes."""
    random = np.random.default_rng(5)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        values = random.uniform(0.1, 0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, value.name))
    del model.graph.value_info[:]
    return model


def _written(folder: Path, model: onnx.ModelProto, *, external: bool = False) -> Seed:
    seed = Seed(folder)
    folder.mkdir(parents=True)
    onnx.save(model, seed.network, save_as_external_data=external, location="w.bin", size_threshold=16)
    np.savez(seed.data, **networks.samples(model, 2))  # type: ignore[arg-type]
    return seed


def _finished(seed: Seed, folder: Path) -> Path:
    run_folder = folder / "runs" / seed.folder.name
    run_folder.mkdir(parents=True)
    options = ["--calibration", str(seed.data), "--threshold", "0.999999", "--output", str(run_folder)]
    options += ["--trt-version", "10.3.0"]
    ended = run(["run", str(seed.network), *options, "--front"], folder)
    assert ended.code in (0, 1), ended.err
    return run_folder


def _suite(seed: Seed, folder: Path) -> Path:
    suite = folder / "suite"
    suite.mkdir()
    keys: dict[str, Any] = {"name": "one", "model": str(seed.network), "calibration": str(seed.data)}
    keys |= {"strategy": "bisect", "calibrator": "minmax"}
    keys |= {"metric": "cosine", "threshold": 0.9, "target": 0.5, "samples": 1}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    head = 'output = "nightly"\n[defaults]\nrepeats = 1\nsimilarity_tolerance = 0.1\nlatency_tolerance = 0.05\n'
    (suite / "trt-bisect.toml").write_text(f"{head}[[network]]\n{text}\n")
    command = ["regress", "--config", str(suite / "trt-bisect.toml"), "--baseline", str(suite / "baseline")]
    ended = run([*command, "--update-baseline"], folder)
    assert ended.code == 0, ended.err
    return suite


def _files(seed: Seed, finished: Path, folder: Path) -> dict[str, Path]:
    """Files of the other kinds, and the reader's option that each belongs to."""
    files_folder = folder / "files"
    files_folder.mkdir()
    feeds = networks.samples(seed.model, 2)
    files = {"npz": seed.data, "cache": finished / "recipe/calibration.cache"}
    np.save(files_folder / "data.npy", feeds["x"])
    np.savez_compressed(files_folder / "packed.npz", **feeds)  # type: ignore[arg-type]
    np.save(files_folder / "labels.npy", np.array([1, 2]))
    (files_folder / "labels.txt").write_text("1\n2\n")
    layers = [layer["name"] for layer in json.loads((finished / "report.json").read_text())["layers"]]
    rows = [f"{name},{0.5 + k},{0.25 + k},{0.375 + k}" for k, name in enumerate(layers)]
    (files_folder / "cost.csv").write_text("\n".join(["layer,fp32,int8,fp16", *rows]) + "\n")
    _polygraphy(files_folder / "data.json", feeds)
    np.savez(files_folder / "tensors.npz", y=np.ones((1, 4), np.float32), z=np.ones(3, np.float32))
    return files | {path.name: path for path in files_folder.iterdir()}


def _polygraphy(path: Path, feeds: dict[str, np.ndarray]) -> None:
    from polygraphy.json import save_json

    save_json([{name: array[k : k + 1] for name, array in feeds.items()} for k in range(2)], str(path))


def _bomb(folder: Path) -> Path:
    """Calibration data that unpacks to 3 GiB of zeros, in the shape that the network takes."""
    path = folder / "bomb.npz"
    count = 3 * (1 << 30) // (3 * 16 * 16 * 4)
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, 3, 16, 16), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    block = bytes(1 << 20)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        for _ in range(3 * 1024):
            file.write(block)
    return path
