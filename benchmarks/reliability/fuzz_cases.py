"""Makes the cases of the fuzzer: a number always gives the same spoiled files and the command that reads them."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from benchmarks.reliability.seeds import Seeds
from benchmarks.reliability.spoil import (
    ODD_INTS,
    spoiled_bytes,
    spoiled_json,
    spoiled_lines,
    spoiled_stem,
    spoiled_toml,
)
from benchmarks.reliability.spoil_network import spoiled_network
from trt_bisect.history.store import HISTORY

VIEW = "view"
_QUICK = ("--strategy", "bisect", "--explain", "none")
_GOAL = ("--budget", "5%", "--front")
_RUNS = ((), (), _QUICK, ("--strategy", "exhaustive"), _GOAL)
_JOURNALED = ("journal.jsonl", "ranges.json", "inputs.json", "inputs.npz", "run.json", "report.json", "network.json")
_SHOWN = ("report.json", "run.json", "network.json", "explanation.json", "journal.jsonl")


class Case(NamedTuple):
    """The kind of file that is spoiled, and the arguments of a command: of ``view`` the folder for its readers."""

    kind: str
    arguments: tuple[str, ...]


def make_case(seeds: Seeds, seed: int, number: int, folder: Path, only: str = "") -> Case:
    """Writes the files of case ``number`` into ``folder``; ``only`` fixes the kind of the case."""
    random = Random(f"{seed} {number}")
    kinds, weights = zip(*((kind, weight) for kind, (weight, _) in _KINDS.items()), strict=True)
    kind = only or random.choices(kinds, weights)[0]
    return Case(kind, tuple(_KINDS[kind][1](seeds, random, folder)))


def _network(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    seed = seeds.networks[random.choice(list(seeds.networks))]
    path = folder / "network.onnx"
    path.write_bytes(spoiled_network(seed.model, random))
    (folder / "link.bin").symlink_to("/etc/passwd")
    for beside in seed.folder.glob("*.bin"):
        (folder / beside.name).write_bytes(beside.read_bytes()[: random.choice((None, None, 100))])
    data, out = ["--calibration", str(seed.data)], ["--output", str(folder / "out")]
    commands = {
        "check": ([*out] if random.randrange(2) else [], 30),
        "layers": (["--json"] if random.randrange(2) else [], 20),
        "run": ([*data, *out, *random.choice(_RUNS)], 32),
        "compare": ([*data, *out], 8),
        "calibrate": ([*data, "-o", str(folder / "c.cache")], 3),
        "worst": ([*data, *out], 3),
        "profile": ([*data, *out], 2),
        "sensitivity": ([*data, *out], 2),
    }
    name = random.choices(list(commands), [weight for _, weight in commands.values()])[0]
    return [name, str(path), *commands[name][0]]


def _spoiled(seeds: Seeds, random: Random, folder: Path, name: str, how: Callable[[bytes, Random], bytes]) -> Path:
    source = seeds.files[name]
    path = folder / f"spoiled{source.suffix or '.cache'}"
    path.write_bytes(spoiled_stem(source.read_bytes(), random, how))
    return path


def _with_data(seeds: Seeds, random: Random, folder: Path, data: Path) -> list[str]:
    """A command that reads ``data``, as calibration or as input."""
    plain, out = seeds.plain, ["--output", str(folder / "out")]
    network = str(plain.network)
    return random.choice(
        (
            ["run", network, "--calibration", str(data), *_QUICK, *out],
            ["run", network, "--calibration", str(plain.data), "--input", str(data), *_QUICK, *out],
            ["run", network, "--calibration", str(plain.data), "--dataset", str(data), *_QUICK, *out],
            ["calibrate", network, "--calibration", str(data), "-o", str(folder / "c.cache")],
            ["compare", network, "--calibration", str(data)],
            ["worst", network, "--calibration", str(plain.data), "--dataset", str(data), *out],
        )
    )


def _cache(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    path = _spoiled(seeds, random, folder, "cache", spoiled_lines)
    plain = seeds.plain
    options = ["--calibration", str(path), "--input", str(plain.data)]
    if random.randrange(2):
        return ["compare", str(plain.network), *options]
    return ["run", str(plain.network), *options, *_QUICK, "--output", str(folder / "out")]


def _npz(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    path = folder / "data.npz"
    if not random.randrange(100):
        os.link(seeds.bomb, path)
    elif random.randrange(3):
        _write_archive(path, random)
    else:
        path.write_bytes(spoiled_bytes(seeds.files[random.choice(("npz", "packed.npz"))].read_bytes(), random))
    return _with_data(seeds, random, folder, path)


def _write_archive(path: Path, random: Random) -> None:
    """Writes a valid archive with unexpected contents."""
    packing = random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    odd = ("y.npy", "x", "x.npy/", "../x.npy", "/x.npy", ".npy", "ü.npy")
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", packing) as archive:
        warnings.simplefilter("ignore")
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            name = random.choice(odd) if random.randrange(2) else "x.npy"
            archive.writestr(name, _odd_array(random))


def _odd_array(random: Random) -> bytes:
    """Returns an ``.npy`` file of a wrong type or shape, or with a header that does not fit its data."""
    shapes = ((2, 3, 16, 16), (2, 3, 16, 16), (1, 2, 3, 16, 16), (0, 3, 16, 16), (3, 16, 16), (), (5,), (2, 3, 16, 0))
    dtypes = "float32 float32 float16 float64 int8 int64 uint64 bool complex64 str object datetime64[s] void".split()
    shape = random.choice(shapes)
    dtype = random.choice([*dtypes, "f4,i4"])
    array = np.zeros(shape, np.dtype([("a", "f4"), ("b", "i4")]) if "," in dtype else np.dtype(dtype))
    if array.dtype.kind == "f" and array.size:
        array.flat[0] = random.choice((0.0, 1.0, np.nan, np.inf, 6e4))
    memory = io.BytesIO()
    if array.dtype.hasobject:
        np.lib.format.write_array_header_1_0(memory, {"descr": "|O", "fortran_order": False, "shape": shape})
        memory.write(pickle.dumps([_Touch()]))
        return memory.getvalue()
    np.save(memory, array, allow_pickle=False)
    content = memory.getvalue()
    if random.randrange(2):
        return content
    if random.randrange(2):
        claim = repr(tuple(random.choice((*ODD_INTS, 3, 16)) for _ in range(random.randrange(1, 6))))
        return content.replace(f"'shape': {shape}".encode(), f"'shape': {claim}".encode(), 1)
    return content[:6] + spoiled_bytes(content[6:130], random) + content[130:]


class _Touch:
    """An object that runs a command if it is unpickled: no pickle may be loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo 'Traceback: a pickle was loaded' >&2",)


def _npy(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    path = folder / "data.npy"
    is_odd, plain = random.randrange(2), seeds.files["data.npy"]
    path.write_bytes(_odd_array(random) if is_odd else spoiled_bytes(plain.read_bytes(), random))
    return _with_data(seeds, random, folder, path)


def _polygraphy(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    return _with_data(seeds, random, folder, _spoiled(seeds, random, folder, "data.json", spoiled_json))


def _data_folder(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    data = folder / "data"
    data.mkdir()
    for k in range(random.randrange(4)):
        how = random.randrange(5)
        path = data / f"{k}{random.choice(('.npz', '.npy', '.txt', ''))}"
        if how == 0:
            path.mkdir()
        elif how == 1:
            path.symlink_to(random.choice((path, "/dev/zero", "/nowhere", data)))
        elif how == 2:
            path.write_bytes(_odd_array(random))
        elif how == 3:
            np.savez(path.with_suffix(".npz"), x=np.zeros((random.choice((1, 1, 2)), 3, 16, 16), np.float32))
        else:
            _write_archive(path, random)
    return _with_data(seeds, random, folder, data)


def _saved_runs(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    path = folder / "tensors.npz"
    path.write_bytes(spoiled_bytes(seeds.files["tensors.npz"].read_bytes(), random))
    if random.randrange(2):
        path = folder / "tensors.json"
        path.write_bytes(spoiled_json(seeds.files["data.json"].read_bytes(), random))
    if not random.randrange(3):
        plan = folder / "plan.json"
        plan.write_bytes(spoiled_json((seeds.finished["chain"] / "recipe/plan.json").read_bytes(), random))
        return ["compare", str(seeds.plain.network), "--calibration", str(seeds.plain.data), "--recipe", str(plan)]
    pair = [str(path), str(seeds.files["tensors.npz"])]
    random.shuffle(pair)
    if not random.randrange(3):
        return ["verify", str(seeds.plain.network), "--input", str(seeds.plain.data), "--outputs", str(path)]
    return ["compare", "--fp32", pair[0], "--int8", pair[1]]


def _cost(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    path = _spoiled(seeds, random, folder, "cost.csv", spoiled_lines)
    return _with_goal(seeds, folder, "--threshold", "0.9999", "--cost", str(path))


def _labels(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    name = random.choice(("labels.npy", "labels.txt"))
    path = _spoiled(seeds, random, folder, name, spoiled_lines if name.endswith("txt") else spoiled_bytes)
    return _with_goal(seeds, folder, "--drop", "1%", "--labels", str(path), "--dataset", str(seeds.plain.data))


def _with_goal(seeds: Seeds, folder: Path, *more: str) -> list[str]:
    plain = seeds.plain
    options = ["--calibration", str(plain.data), "--explain", "none", "--front", "--output", str(folder / "out")]
    return ["run", str(plain.network), *options, *more]


def _resumed(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    """The same command again, in a folder that was spoiled since."""
    name = random.choice(list(seeds.finished))
    seed, run = seeds.networks[name], folder / "out"
    shutil.copytree(seeds.finished[name], run)
    for file in random.sample(_JOURNALED, random.choice((1, 1, 2))):
        _spoil_run_file(run / file, random)
    options = ["--calibration", str(seed.data), "--threshold", "0.999999", "--output", str(run)]
    return ["run", str(seed.network), *options, *(() if random.randrange(4) else _GOAL)]


def _viewed(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    run = folder / "runs" / "one"
    shutil.copytree(seeds.finished[random.choice(list(seeds.finished))], run)
    shutil.copytree(run, folder / "runs" / "two")
    for file in random.sample(_SHOWN, random.choice((1, 1, 2, 3))):
        _spoil_run_file(run / file, random)
    if not random.randrange(3):
        running = {"pid": 1, "born": 1, "host": "elsewhere", "began": 2e9, "stage": "s"}
        running |= {"done": 1, "total": 2, "seconds": 1.0, "what": "w"}
        (run / "progress.json").write_bytes(spoiled_json(json.dumps(running).encode(), random))
    if not random.randrange(3):
        (run / "report.json").unlink(missing_ok=True)
    if not random.randrange(6):
        (run / "run.json").unlink(missing_ok=True)
    return [VIEW, str(folder / "runs")]


def _history(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    path = folder / HISTORY
    if not random.randrange(4):
        run = folder / "run"
        shutil.copytree(seeds.finished["chain"], run)
        _spoil_run_file(run / random.choice(("report.json", "run.json", "journal.jsonl")), random)
        return ["history", str(path), "--add", str(run)]
    content = (seeds.finished["chain"].parent / HISTORY).read_bytes()
    path.write_bytes(content)
    _spoil_run_file(path, random)
    if not random.randrange(3):
        data, out = ["--calibration", str(seeds.plain.data)], ["--output", str(folder / "out")]
        return ["run", str(seeds.plain.network), *data, *_QUICK, *out]
    files = ["--csv", str(folder / "h.csv")], ["--copy", str(folder / "copy")]
    return ["history", str(path), *random.choice(([], ["--label", "network"], *files))]


def _nights(seeds: Seeds, random: Random, folder: Path) -> list[str]:
    """Spoils a config, a baseline, or the files of an earlier night."""
    suite = folder / "suite"
    shutil.copytree(seeds.suite, suite)
    config = suite / "trt-bisect.toml"
    what = random.randrange(4)
    if what < 2:
        how = random.choice((spoiled_toml, spoiled_toml, spoiled_lines))
        config.write_bytes(spoiled_stem(config.read_bytes(), random, how))
    else:
        places = (suite / "baseline") if what == 2 else (suite / "nightly")
        files = [path for path in sorted(places.rglob("*")) if path.suffix in (".json", ".jsonl")]
        _spoil_run_file(random.choice(files), random)
    baselines = (["--baseline", str(suite / name)] for name in ("baseline", "nightly"))
    options = [[], *baselines, ["--update-baseline"]]
    return ["regress", "--config", str(config), *options[1 if what == 2 else random.randrange(len(options))]]


def _spoil_run_file(path: Path, random: Random) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    if path.suffix == ".json":
        path.write_bytes(spoiled_json(content, random))
    elif path.suffix == ".jsonl":
        lines = content.splitlines()
        at = random.randrange(len(lines))
        lines[at] = spoiled_json(lines[at], random)
        path.write_bytes(b"\n".join(lines) + random.choice((b"\n", b"\n", b"")))
    else:
        path.write_bytes(spoiled_bytes(content, random))


_Maker = Callable[[Seeds, Random, Path], list[str]]
_KINDS: dict[str, tuple[int, _Maker]] = {
    "network": (58, _network),
    "calibration cache": (7, _cache),
    "npz": (8, _npz),
    "npy": (4, _npy),
    "Polygraphy JSON": (4, _polygraphy),
    "data folder": (2, _data_folder),
    "saved runs, recipes": (3, _saved_runs),
    "cost CSV": (2, _cost),
    "labels": (2, _labels),
    "run folder, resumed": (4, _resumed),
    "run folder, viewed": (6, _viewed),
    "history": (4, _history),
    "config, baseline, night": (5, _nights),
}
