"""The suite of networks of a nightly run, from ``trt-bisect.toml``. Its errors are raised before anything is run."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect._version import versions
from trt_bisect.analyzer.judge import DEFAULT_SHARE, make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.cluster.address import check_address
from trt_bisect.errors import BadInput, TrtBisectError
from trt_bisect.jobs.options import toml
from trt_bisect.jobs.options.cluster import ClusterOptions
from trt_bisect.jobs.options.concerns import EXPLAIN_NOTHING, OutputOptions
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.options.tables import OTHER_NAMES, readers, renamed
from trt_bisect.jobs.options.toml import read_toml, read_value, refuse_unknown, text
from trt_bisect.report.changes import INT8, RECIPE, Tolerances
from trt_bisect.runs.cached_inputs import fingerprint

REPEATS = 3
NIGHT_KEYS: dict[str, toml.Read] = {
    "target": toml.number,
    "target_recipe": toml.number,
    "similarity_tolerance": partial(toml.number, above=0.0),
    "latency_tolerance": partial(toml.number, above=0.0),
    "repeats": partial(toml.whole, least=1, most=100),
}
"""Keys of a network that are not ``trt_bisect.run``'s, the name aside."""
_SET_ELSEWHERE = {
    *("try_remedies", "save_tensors", "max_size"),
    *(info.name for concern in (ClusterOptions, OutputOptions) for info in concern.declared()),
}
"""Options of a run that the suite or the command sets itself."""
NETWORK_KEYS: dict[str, toml.Read] = {
    "name": toml.name,
    "model": toml.file,
    **readers(RunOptions, leaving_out=_SET_ELSEWHERE),
    **NIGHT_KEYS,
}
_TOP_KEYS = ("output", "cluster", "defaults", "network")
_LONGEST = 80
"""Characters of a folder's name."""
_NO_SUITE = (
    "Give its path: trt-bisect regress SUITE.toml. A suite has a table [[network]] with model and calibration for each "
    "network."
)


@dataclass(frozen=True)
class NetworkTask:
    """One network of a suite.

    Attributes:
        name: as the suite has it.
        stem: the name of its folder and its baseline file; two networks never share one.
        keywords: the keywords of ``trt_bisect.run``.
        targets: by ``int8`` and ``recipe`` the worst value of the metric that must hold, whatever the baseline says.
        tolerances: the least changes that count.
        repeats: the number of runs that make a baseline.
    """

    name: str
    stem: str
    keywords: Mapping[str, Any]
    targets: Mapping[str, float]
    tolerances: Tolerances
    repeats: int

    @property
    def direction(self) -> str:
        """The better values of the user's own metric: ``higher`` or ``lower``."""
        return str(self.keywords.get("direction", "higher"))


@dataclass(frozen=True)
class Suite:
    """The networks that a night measures.

    Attributes:
        path: the path of the file.
        output: the folder of the nights.
        networks: the networks in the file's order.
        cluster: the address of the machines that measure them, see ``check_address``.
    """

    path: Path
    output: Path
    networks: tuple[NetworkTask, ...]
    cluster: str = ""

    def digest(self) -> str:
        """SHA-256 over all that is asked for, the sizes and times of the files it is asked of, and the versions."""
        asked = [
            [n.name, dict(n.keywords), dict(n.targets), vars(n.tolerances), n.repeats, _states(n.keywords)]
            for n in self.networks
        ]
        return fingerprint([asked, versions()])


def read_suite(path: str | Path) -> Suite:
    """The suite in a TOML file; relative paths in it are relative to its folder.

    Raises:
        BadInput: the file cannot be read, or names the table and key that cannot be used, and why.
    """
    file = Path(path)
    table = read_toml(file, "suite", _NO_SUITE)
    refuse_unknown(file, "", table, _TOP_KEYS)
    defaults, networks = table.get("defaults", {}), table.get("network", [])
    if not isinstance(defaults, dict):
        raise BadInput(f"{file}: 'defaults' is not a table.", "Write [defaults].")
    if not isinstance(networks, list) or not networks or not all(isinstance(entry, dict) for entry in networks):
        raise BadInput(f"{file}: it has no network.", "Write a table [[network]] for each, with its model.")
    refuse_unknown(file, "[defaults]", defaults, [key for key in NETWORK_KEYS if key not in ("name", "model")])
    _values(file, "[defaults]", defaults)
    tasks = [_task(file, place, entry, defaults) for place, entry in enumerate(networks, 1)]
    names = [task.name.casefold() for task in tasks]
    twice = next((task.name for place, task in enumerate(tasks) if names[place] in names[:place]), None)
    if twice is not None:
        raise BadInput(
            f"{file}: two networks are called {twice!r}, case aside.", "Give each [[network]] a 'name' of its own."
        )
    output = read_value(file, "", "output", table.get("output", "nightly"), text)
    return Suite(file, file.parent / output, tuple(tasks), _cluster(file, table))


def _cluster(file: Path, table: Mapping[str, Any]) -> str:
    if "cluster" not in table:
        return ""
    address: str = read_value(file, "", "cluster", table["cluster"], text)
    try:
        check_address(address)
    except BadInput as error:
        raise BadInput(f"{file}: {error.problem}", error.remedy) from error
    return address


def _states(keywords: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Name, size and time of change of the files that a network and its data are read from."""
    model = Path(keywords["model"])
    files = [*model.parent.glob(f"{glob.escape(model.stem)}*"), *model.parent.glob("*.data")]
    for path in (Path(keywords[key]) for key in ("calibration", "inputs", "dataset", "validation") if key in keywords):
        files += path.iterdir() if path.is_dir() else [path]
    found = {path: path.stat() for path in sorted(set(files)) if path.is_file()}
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in found.items()]


def _task(file: Path, place: int, entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> NetworkTask:
    unnamed = f"[[network]] number {place}"
    refuse_unknown(file, unnamed, entry, NETWORK_KEYS)
    if "model" not in entry:
        raise BadInput(f"{file}: {unnamed} has no 'model'.", "Give it the path of an ONNX network.")
    model = read_value(file, unnamed, "model", entry["model"], text)
    name = read_value(file, unnamed, "name", entry.get("name", Path(model).stem or model), text)
    where = f"[[network]] {name!r}"
    own = {OTHER_NAMES.get(key, key) for key in entry}
    usual = {key: value for key, value in defaults.items() if OTHER_NAMES.get(key, key) not in own}
    values = _values(file, where, {**usual, **entry, "name": name})
    keywords = renamed(file, {key: value for key, value in values.items() if key not in (*NIGHT_KEYS, "name")})
    keywords.setdefault("explain", EXPLAIN_NOTHING)
    try:
        metric = find_metric(keywords.get("metric", "cosine"), keywords.get("direction", "higher"))
        make_rule(metric, keywords.get("threshold"), keywords.get("share", DEFAULT_SHARE))
    except TrtBisectError as error:
        raise BadInput(f"{file}: {where}: {error.problem}", error.remedy) from error
    targets = {plan: values[key] for plan, key in ((INT8, "target"), (RECIPE, "target_recipe")) if key in values}
    given = {part: values[key] for part in ("similarity", "latency") if (key := f"{part}_tolerance") in values}
    return NetworkTask(name, stem_of(name), keywords, targets, Tolerances(**given), values.get("repeats", REPEATS))


def _values(file: Path, where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: read_value(file, where, key, value, NETWORK_KEYS[key]) for key, value in table.items()}


def stem_of(name: str) -> str:
    """A name for files: ``name`` itself where it is one, else like it, with a digest of it."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_LONGEST]
    return safe if safe == name else f"{safe or 'network'}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
