"""Tensors saved by another program: ``.npz``, or the JSON of Polygraphy's ``--save-outputs``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np

from trt_bisect.data.array_files import DAMAGED, read_archive
from trt_bisect.data.polygraphy_json import load_saved
from trt_bisect.errors import BadInput, first_line

Tensors = dict[str, np.ndarray]
_KINDS = "Give an .npz with the tensors by name, Polygraphy's --save-outputs JSON, or a folder of such files."


def open_dumps(
    fp32: str | Path, int8: str | Path
) -> tuple[tuple[str, ...], Iterator[tuple[Tensors, Tensors]], list[str]]:
    """Opens two saved runs of one network.

    An ``.npz`` holds one inference. JSON holds any number, and is read as a whole. A folder holds such files, read in
    the order of their names, one file of each run in memory at a time. The first runner of a file is used; if both
    paths are the same file, its second runner is the INT8 run.

    Returns:
        The names of the tensors that both runs have; for each inference the FP32 and the INT8 tensors, both under the
        FP32 run's names; and a sentence for each run on the tensors that only it has. Names that are not equal are
        matched without case, punctuation and a trailing ``:0``.

    Raises:
        BadInput: a file cannot be read, no name is in both runs, or their numbers of inferences differ.
    """
    paths = Path(fp32), Path(int8)
    second = 1 if paths[0] == paths[1] else 0
    pairs = _pairs(paths, second)
    first = next(pairs, None)
    if first is None:
        raise BadInput(f"The saved runs '{fp32}' and '{int8}' hold no inference.", "Save at least one.")
    names = match_names(first[0], first[1])
    if not names:
        raise BadInput(
            f"No tensor of '{fp32}' ({_some(first[0])}) is in '{int8}' ({_some(first[1])}).",
            "Save both runs of one network with the same tensors marked as outputs.",
        )
    renamed = map(partial(_renamed, names), chain([first], pairs))
    return tuple(names), renamed, _unmatched(first, names)


def match_names(reference: Iterable[str], output: Iterable[str]) -> dict[str, str]:
    """Maps names of ``reference`` to equal names of ``output``, else to the only similar one (see ``open_dumps``)."""
    ours, theirs = list(reference), dict.fromkeys(output)
    same = {name: name for name in ours if name in theirs}
    left = _by_plain_name(name for name in ours if name not in same)
    right = _by_plain_name(name for name in theirs if name not in same)
    alike = {names[0]: right[plain][0] for plain, names in left.items() if len(names) == len(right.get(plain, ())) == 1}
    matched = {**same, **alike}
    return {name: matched[name] for name in ours if name in matched}


def _by_plain_name(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r":\d+$", "", name).lower()).strip("_")
        found.setdefault(plain, []).append(name)
    return found


def _renamed(names: Mapping[str, str], pair: tuple[Tensors, Tensors]) -> tuple[Tensors, Tensors]:
    """The tensors of both runs, those of the second under the first one's names."""
    return pair[0], {ours: pair[1][theirs] for ours, theirs in names.items() if theirs in pair[1]}


def _unmatched(pair: tuple[Tensors, Tensors], names: Mapping[str, str]) -> list[str]:
    unmatched = (
        ("FP32", [name for name in pair[0] if name not in names]),
        ("INT8", [name for name in pair[1] if name not in set(names.values())]),
    )
    return [f"in the {run} run only ({len(left)}): {_some(left)}" for run, left in unmatched if left]


def _some(names: Iterable[str], most: int = 4) -> str:
    shown = [f"'{name}'" for name in names]
    return ", ".join(shown[:most]) + (" and others" if len(shown) > most else "")


def _pairs(paths: tuple[Path, Path], second: int) -> Iterator[tuple[Tensors, Tensors]]:
    runs = zip_longest(inferences(paths[0], 0), inferences(paths[1], second))
    for position, (reference, output) in enumerate(runs):
        if reference is None or output is None:
            longer, shorter = (paths[0], paths[1]) if output is None else (paths[1], paths[0])
            raise BadInput(
                f"'{shorter}' holds {position} inferences, '{longer}' more.", "Save both runs on the same inputs."
            )
        yield reference, output
        del reference, output


def inferences(path: Path, runner: int = 0) -> Iterator[Tensors]:
    """Yields the tensors of each inference of a saved run, see ``open_dumps``.

    Args:
        path: a file, or a folder of files.
        runner: the place of the runner that is read, in a JSON file with several.

    Raises:
        BadInput: a file cannot be read.
    """
    readers: dict[str, Callable[[Path, int], Iterator[Tensors]]] = {".npz": _read_npz, ".json": _read_json}
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in readers)
    else:
        files = [path] if path.is_file() else []
    if not files:
        missing = "holds no .npz and no .json file" if path.is_dir() else "does not exist"
        raise BadInput(f"The saved run '{path}' {missing}.", _KINDS)
    for file in files:
        if file.suffix not in readers:
            raise BadInput(f"The saved run '{file}' is of an unknown kind ('{file.suffix}').", _KINDS)
        yield from readers[file.suffix](file, runner)


def _read_npz(path: Path, _runner: int) -> Iterator[Tensors]:
    try:
        tensors = read_archive(path)
    except DAMAGED as error:
        raise _unreadable(path, error) from error
    yield tensors


def _read_json(path: Path, runner: int) -> Iterator[Tensors]:
    from polygraphy.comparator import RunResults

    try:
        results = load_saved(path)
    except ValueError as error:
        raise _unreadable(path, error) from error
    if not isinstance(results, RunResults):
        raise BadInput(
            f"'{path}' is JSON, but not a run that Polygraphy saved.",
            "Save it with 'polygraphy run ... --save-outputs FILE', or use .npz.",
        )
    runs = list(results.items())
    if runner >= len(runs):
        raise BadInput(
            f"'{path}' holds {len(runs)} runners, and was given for both runs.",
            "Give the other run's file, or save both runners into this one.",
        )
    for inference in runs[runner][1]:
        yield {name: np.asarray(values) for name, values in inference.items()}


def _unreadable(path: Path, error: Exception) -> BadInput:
    return BadInput(f"The saved run '{path}' cannot be read: {first_line(error)}", _KINDS)
