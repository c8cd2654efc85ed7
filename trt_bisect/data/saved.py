"""Reads tensors and runs that other tools saved: JSON of Polygraphy, trtexec and Triton, raw bytes, NumPy's files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from trt_bisect.data.feeds import DAMAGED, Feeds, TensorSpec, match_names, read_archive, read_array
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.codec import read
from trt_bisect.support.text import listed

# PyTorch tensors are refused: Polygraphy reads them with torch.load, which unpickles anything before PyTorch 2.6
# (polygraphy/json/serde.py of 0.49.0).
_TORCH = ("Tensor", "__polygraphy_encoded_Tensor")
RAW = (".bin", ".raw", ".dat")
SAVED = (".npz", ".npy", ".json", *RAW)
# trtexec (samples/common of TensorRT) --dumpRawBindingsToFile: prob.output.1.10.Float.raw;
# --saveAllDebugTensors=numpy: 0007_conv1.npy
_DUMPED = re.compile(r"(?P<name>.+)\.(?P<side>input|output)\.(?P<shape>[\d.]*)\.(?P<type>\w+)\.raw")
_SUMMARY = "tensor_summary.json"
_NUMBERED = re.compile(r"^\d{4}_|(_to_float|_to_int8)$")
_NOT_FINITE = re.compile(r"(?<=[\[,\s])(-?)(nan|inf)(?=[\s,\]])")
# NumPy's types, where trtexec and Triton have other names
_TYPES: Mapping[str, Any] = {
    **{"float": np.float32, "half": np.float16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64},
    **{"bfloat16": ml_dtypes.bfloat16, "bf16": ml_dtypes.bfloat16},
}
_KINDS = (
    "Give .npz, .npy, the JSON of Polygraphy, of trtexec --exportOutput or of Triton, raw bytes as name:file.bin, or a "
    "folder of such files."
)


def load_saved(path: Path) -> Any:
    """Reads a JSON file of lists, dictionaries, NumPy arrays and Polygraphy's own types.

    Raises ValueError if it cannot be read, or holds PyTorch tensors or other types.
    """
    from polygraphy.json import from_json
    from polygraphy.json.serde import Decoder

    from_json("[]")  # registers the types
    for type_name in _TORCH:
        Decoder.polygraphy_registered.pop(type_name, None)
    try:
        text = path.read_text(encoding="utf-8")
        words = {"nan": "NaN", "inf": "Infinity"}
        return from_json(_NOT_FINITE.sub(lambda match: match[1] + words[match[2]], text))
    except Exception as error:
        raise ValueError(first_line(error)) from error


def open_dumps(
    fp32: str | Path, int8: str | Path, specs: Sequence[TensorSpec] = ()
) -> tuple[tuple[str, ...], Iterator[tuple[Feeds, Feeds]], list[str]]:
    """Opens two saved runs of one network: files or folders of tensors; ``specs`` (the network's) as for
    ``inferences``.

    If both paths are the same file of Polygraphy, its second runner is the INT8 run. Samples of ``--save-tensors`` are
    matched by name, others by order.

    Returns:
        The names of the tensors that both runs have; for each inference the FP32 and the INT8 tensors, under the FP32
        run's names; and sentences on tensors or samples in one run only.

    Raises:
        BadInput: a file cannot be read, no name is in both runs, or their numbers of inferences differ.
    """
    paths = Path(fp32), Path(int8)
    samples = [_named_samples(path) for path in paths]
    pairs = _pairs(paths, samples, specs)
    first = next(pairs, None)
    if first is None:
        raise BadInput(f"The saved runs '{fp32}' and '{int8}' hold no inference.", "Save at least one.")
    names = match_names(first[0], first[1])
    if not names:
        problem = f"No tensor of '{fp32}' ({listed([*first[0]], 4)}) is in '{int8}' ({listed([*first[1]], 4)})."
        raise BadInput(problem, "Save both runs of one network with the same tensors marked as outputs.")
    renamed = (
        (reference, {ours: output[theirs] for ours, theirs in names.items() if theirs in output})
        for reference, output in chain([first], pairs)
    )
    unmatched = {
        "FP32": [name for name in first[0] if name not in names],
        "INT8": [name for name in first[1] if name not in set(names.values())],
    }
    notes = [f"in the {run} run only ({len(only)}): {listed(only, 4)}" for run, only in unmatched.items() if only]
    common, single = samples[0].keys() & samples[1].keys(), len(samples[0].keys() ^ samples[1].keys())
    if common and single:
        notes.append(f"{len(common)} samples are in both runs, {single} in one of them only")
    return tuple(names), renamed, notes


def _named_samples(path: Path) -> dict[str, Path]:
    index = read(dict, path.parent / "index.json") or {}
    if path.name not in index.get("plans", ()):
        return {}
    files = {name: path / f"{number:06}.npz" for number, name in enumerate(index.get("samples", ()))}
    return {name: file for name, file in files.items() if file.is_file()}


def _pairs(
    paths: tuple[Path, Path], samples: Sequence[Mapping[str, Path]], specs: Sequence[TensorSpec]
) -> Iterator[tuple[Feeds, Feeds]]:
    if common := [name for name in samples[0] if name in samples[1]]:
        for name in common:
            yield next(inferences(samples[0][name])), next(inferences(samples[1][name]))
        return
    both_in_one = int(paths[0] == paths[1])
    runs = zip_longest(inferences(paths[0], 0, specs), inferences(paths[1], both_in_one, specs))
    for position, (reference, output) in enumerate(runs):
        if reference is None or output is None:
            longer, shorter = (paths[0], paths[1]) if output is None else (paths[1], paths[0])
            raise BadInput(
                f"'{shorter}' holds {position} inferences, '{longer}' more.", "Save both runs on the same inputs."
            )
        yield reference, output
        del reference, output


def inferences(path: Path, runner: int = 0, specs: Sequence[TensorSpec] = (), side: str = "output") -> Iterator[Feeds]:
    """Yields the tensors of each inference of a saved run: a file, a folder of files, or ``name:file.bin,...``.

    Files are read in the order of their names. An ``.npz`` is one inference, JSON any number; files of single tensors
    are one inference together.

    Args:
        runner: index of the runner in a JSON file with several.
        specs: the network's tensors: they give raw bytes type and shape, and a single array its name.
        side: tensors to read, if both are saved: ``input`` or ``output``.

    Raises:
        BadInput: a file cannot be read.
    """
    if named := raw_files(str(path)):
        yield {name: _read_raw(file, name, specs) for name, file in named.items()}
        return
    files = [path] if path.is_file() else []
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SAVED and _is_of(side, file))
    if not files:
        missing = "holds no file of tensors" if path.is_dir() else "does not exist"
        raise BadInput(f"The saved run '{path}' {missing}.", _KINDS)
    single: Feeds = {}
    for file in files:
        if file.suffix not in SAVED:
            raise BadInput(f"The saved run '{file}' is of an unknown kind ('{file.suffix}').", _KINDS)
        try:
            if file.suffix == ".json":
                yield from read_json(file, runner, specs, side)
            elif file.suffix == ".npz":
                yield read_archive(file)
            elif file.suffix == ".npy":
                name = specs[0].name if len(specs) == len(files) == 1 else _NUMBERED.sub("", file.stem)
                single[name] = read_array(file)
            else:
                match = _DUMPED.fullmatch(file.name)
                if match:
                    name = match["name"]
                else:
                    name = specs[0].name if len(specs) == 1 else file.stem
                single[name] = _read_raw(file, name, specs)
        except DAMAGED as error:
            raise BadInput(f"The saved run '{file}' cannot be read: {first_line(error)}", _KINDS) from error
    if single:
        yield single


def _is_of(side: str, file: Path) -> bool:
    match = _DUMPED.fullmatch(file.name)
    return file.name != _SUMMARY and (match is None or match["side"] == side)


def inferences_for(path: Path, count: int, specs: Sequence[TensorSpec]) -> list[Feeds]:
    """Returns the saved outputs of ``count`` inferences; one saved inference may hold all of them, stacked. ``specs``
    are the network's outputs.

    Raises BadInput if a file cannot be read, or holds another number of inferences.
    """
    found = list(inferences(path, 0, specs))
    if len(found) == 1 < count and all(array.ndim and len(array) % count == 0 for array in found[0].values()):
        ranks = {spec.name: len(spec.shape) for spec in specs}
        parts = {name: np.split(array, count) for name, array in found[0].items()}
        for name, arrays in parts.items():
            if arrays[0].ndim == ranks.get(name, -1) + 1:
                parts[name] = [array[0] for array in arrays]
        found = [{name: arrays[k] for name, arrays in parts.items()} for k in range(count)]
    if len(found) != count:
        problem = f"'{path}' has the outputs of {len(found)} inferences, and there are {count} samples."
        raise BadInput(problem, "Give what the network gave for the samples of --input, in their order.")
    return found


def raw_files(text: str) -> dict[str, Path]:
    """Returns the files by name in a text of trtexec's form ``name:file.bin,name:file.bin``; empty for others."""
    named: dict[str, Path] = {}
    for part in text.split(","):
        ends = [match.start() for match in re.finditer(":", part)]
        found = [(part[:end].strip("'\""), Path(part[end + 1 :])) for end in ends]
        files = {name: file for name, file in found if name and file.suffix in RAW and file.is_file()}
        if not files:
            return {}
        name, file = next(iter(files.items()))
        named[name] = file
    return named


def _read_raw(file: Path, name: str, specs: Sequence[TensorSpec]) -> np.ndarray:
    # The bytes may be FP16 where the network has FP32. Several samples are stacked.
    match, content = _DUMPED.fullmatch(file.name), file.read_bytes()
    if match:
        shape = [int(size) for size in match["shape"].split(".") if size]
        return np.frombuffer(content, _dtype(match["type"])).reshape(shape)
    spec = next((spec for spec in specs if spec.name == name), None)
    if spec is None:
        known = f"The network has {', '.join(map(str, specs))}." if specs else "Give the network too."
        raise BadInput(f"'{file}' has bytes of '{name}', whose type and shape are not known.", known)
    dtype, fixed = spec.dtype, [size for size in spec.shape[1:] if size is not None]
    row = math.prod(fixed) * (spec.shape[0] or 1 if spec.shape else 1)
    if dtype == np.float32 and len(content) == 2 * row:
        dtype = np.dtype(np.float16)
    unknown = len(spec.shape[1:]) - len(fixed)
    is_whole = len(content) % (row * dtype.itemsize) == 0 and len(content) > 0
    if not is_whole or unknown > 1 or (unknown and spec.shape[0] is None):
        problem = f"'{file}' has {len(content)} bytes, which is no {spec}."
        raise BadInput(problem, "Give the shape of a dynamic input with --shape, or .npz with arrays.")
    values = np.frombuffer(content, dtype)
    sizes = [-1 if size is None else size for size in spec.shape]
    if sizes and not unknown:
        sizes[0] = -1
    return values.reshape(sizes)


def _dtype(name: str) -> Any:
    return _TYPES.get(name.lower()) or np.dtype(name.lower())


def read_json(path: Path, runner: int, specs: Sequence[TensorSpec], side: str) -> list[Feeds]:
    """Returns the ``input`` or ``output`` tensors (``side``) of each inference in a JSON file of Polygraphy, trtexec or
    Triton; of several runners those of index ``runner``. The network's ``specs`` give dtypes.

    Raises BadInput if the file cannot be read, or holds no tensors.
    """
    from polygraphy.comparator import RunResults

    try:
        content = load_saved(path)
        if isinstance(content, RunResults):
            runs = list(content.items())
            if runner >= len(runs):
                problem = f"'{path}' holds {len(runs)} runners, and was given for both runs."
                raise BadInput(problem, "Give the other run's file, or save both runners into this one.")
            content = [dict(inference) for inference in runs[runner][1]]
        found = list(_tensors_of(content, {spec.name: spec.dtype for spec in specs}, side))
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"'{path}' cannot be read: {first_line(error)}", _KINDS) from error
    if not found:
        raise BadInput(f"'{path}' is JSON, but holds no {side}s.", _KINDS)
    return found


def _tensors_of(content: Any, dtypes: Mapping[str, Any], side: str) -> Iterator[Feeds]:
    entries = content if isinstance(content, list) else [content]
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        return
    # trtexec --exportOutput: [{"name", "dimensions": "1x10", "values"}], six digits a value, bare nan and inf
    if all({"name", "dimensions", "values"} <= entry.keys() for entry in entries):
        dims = {entry["name"]: [int(size) for size in re.findall(r"\d+", entry["dimensions"])] for entry in entries}
        values = {entry["name"]: entry["values"] for entry in entries}
        yield {name: np.array(values[name], dtypes.get(name, np.float32)).reshape(dims[name]) for name in dims}
        return
    # Triton's HTTP protocol: {"inputs" or "outputs": [{"name", "shape", "datatype", "data"}]}; perf_analyzer's
    # --input-data: {"data": [{name: {"content", "shape"}}], "validation_data": ..}
    for entry in entries:
        if f"{side}s" in entry and isinstance(entry[f"{side}s"], list):
            tensors = entry[f"{side}s"]
            yield {each["name"]: _array(each["data"], _dtype(each["datatype"]), each["shape"]) for each in tensors}
        elif isinstance(entry.get("data"), list):
            for step in entry["validation_data" if side == "output" and "validation_data" in entry else "data"]:
                for tensors in step if isinstance(step, list) else [step]:
                    yield {name: _array(given, dtypes.get(name, np.float32)) for name, given in tensors.items()}
        else:
            if not entry or any(isinstance(values, (str, Mapping)) for values in entry.values()):
                return
            yield {str(name): np.asarray(values) for name, values in entry.items()}


def _array(given: Any, dtype: Any, shape: Sequence[int] | None = None) -> np.ndarray:
    if isinstance(given, Mapping):
        given, shape = given["content"], given.get("shape")
    values = np.array(given, dtype)
    return values if shape is None else values.reshape(-1 if -1 in shape else shape)
