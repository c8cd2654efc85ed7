"""The suite of networks that a nightly run measures, read from ``trt-bisect.toml``.

Mistakes in the file are raised before anything is run; a missing file of a network is an error of that network only.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_bisect._version import versions
from trt_bisect.analyzer.judge import make_rule, refuse_per_cent
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.errors import BadInput, TrtBisectError
from trt_bisect.options import declare
from trt_bisect.options.concerns import EXPLAIN_NOTHING, OutputOptions, RunOptions
from trt_bisect.options.kinds import FILE, TEXT, OptionKind, number, shown, whole
from trt_bisect.report.changes import INT8, RECIPE, Tolerances
from trt_bisect.runs.cached_inputs import fingerprint

REPEATS = 3


def _name(value: Any, flag: str) -> Any:
    if not TEXT.read(value, flag).isprintable():
        raise BadInput(f"{flag} cannot be {shown(value)}.", "Write a name that can be printed.")
    return value


_NAME = OptionKind("NAME", _name)
# the keys of a network, besides ``name``, that are not options of ``trt_bisect.run``
NIGHT_KINDS = {
    "target": number(share=True),
    "target_recipe": number(share=True),
    "similarity_tolerance": number(above=0, most=1, share=True),
    "latency_tolerance": number(above=0, most=1, share=True),
    "repeats": whole(least=1, most=100),
}
_TARGETS = {INT8: "target", RECIPE: "target_recipe"}
# options of ``run`` that the suite or the command sets
_SET_ELSEWHERE = {"save_tensors", "history", *(option.keyword for option in declare.declared(OutputOptions))}
NETWORK_KEYS = {
    key: declare.Option(keyword=key, kind=kind) for key, kind in {"name": _NAME, "model": FILE, **NIGHT_KINDS}.items()
} | declare.by_key(option for option in declare.declared(RunOptions) if option.keyword not in _SET_ELSEWHERE)
_TOP_KEYS = ("output", "defaults", "network")
_LONGEST = 80
_NO_SUITE = (
    "Give its path: trt-bisect regress SUITE.toml. A suite has a table [[network]] with model and calibration for each "
    "network."
)


@dataclass(frozen=True)
class NetworkTask:
    """One network of a suite.

    Attributes:
        stem: unique name of the network's folder and baseline file.
        targets: by plan, ``int8`` and ``recipe``, the worst value of the metric that passes.
        repeats: number of runs that make a baseline.
        missing: error on a missing file or function; None if all are there.
    """

    name: str
    stem: str
    keywords: Mapping[str, Any]
    targets: Mapping[str, float]
    tolerances: Tolerances
    repeats: int
    missing: BadInput | None = None

    @property
    def direction(self) -> str:
        """``higher`` or ``lower``: which values of the metric are better."""
        return "higher" if find_metric(self.keywords.get("metric", "cosine")).higher else "lower"


@dataclass(frozen=True)
class Suite:
    """The networks that a nightly run measures, in the file's order."""

    path: Path
    output: Path
    networks: tuple[NetworkTask, ...]

    def digest(self) -> str:
        """Returns the SHA-256 of the settings, the versions, and the sizes and times of the networks' files."""
        networks = [
            [n.name, dict(n.keywords), dict(n.targets), vars(n.tolerances), n.repeats, _states(n.keywords)]
            for n in self.networks
        ]
        return fingerprint([networks, versions()])


def suite_output(path: str | Path) -> Path:
    """Returns the output folder that a suite names, without reading the rest of the suite.

    Raises BadInput if the file cannot be read, or the folder's name cannot be used.
    """
    file = Path(path)
    table = declare.read_toml(file, "suite", _NO_SUITE)
    return file.parent / str(declare.read_value(file, "", "output", table.get("output", "nightly"), TEXT))


def read_suite(path: str | Path) -> Suite:
    """Returns the suite in a TOML file; relative paths in it are relative to its folder.

    Raises BadInput, with the table and key, if the file cannot be read or used.
    """
    file = Path(path)
    table = declare.read_toml(file, "suite", _NO_SUITE)
    defaults, networks = table.get("defaults", {}), table.get("network", [])
    if not isinstance(networks, list) or not networks or not all(isinstance(entry, dict) for entry in networks):
        raise BadInput(f"{file}: it has no network.", "Write a table [[network]] for each, with its model.")
    declare.refuse_unknown(file, "", table, _TOP_KEYS)
    if not isinstance(defaults, dict):
        raise BadInput(f"{file}: 'defaults' is not a table.", "Write [defaults].")
    default_keys = {key: option for key, option in NETWORK_KEYS.items() if key not in ("name", "model")}
    declare.read_table(file, "[defaults]", defaults, default_keys, missing=[])  # an error of the networks
    tasks = [_task(file, ordinal, entry, defaults) for ordinal, entry in enumerate(networks, 1)]
    names = [task.name.casefold() for task in tasks]
    twice = next((task.name for k, task in enumerate(tasks) if names[k] in names[:k]), None)
    if twice is not None:
        problem = f"{file}: two networks are called {twice!r}, case aside."
        raise BadInput(problem, "Give each [[network]] a 'name' of its own.")
    return Suite(file, suite_output(file), tuple(tasks))


def _states(keywords: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    model = Path(keywords["model"])
    files = [*model.parent.glob(f"{glob.escape(model.stem)}*"), *model.parent.glob("*.data")]
    data = (keywords.get(key) for key in ("calibration", "inputs", "dataset", "validation"))
    for path in (Path(value) for value in data if isinstance(value, str)):
        files += path.iterdir() if path.is_dir() else [path]
    states = {path: path.stat() for path in sorted(set(files)) if path.is_file()}
    return [(str(path), state.st_size, state.st_mtime_ns) for path, state in states.items()]


def _task(file: Path, ordinal: int, entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> NetworkTask:
    unnamed = f"[[network]] number {ordinal}"
    declare.refuse_unknown(file, unnamed, entry, NETWORK_KEYS)
    if "model" not in entry:
        raise BadInput(f"{file}: {unnamed} has no 'model'.", "Give 'model' the path of an ONNX network.")
    model = declare.read_value(file, unnamed, "model", entry["model"], TEXT)
    name = declare.read_value(file, unnamed, "name", entry.get("name", Path(model).stem or model), TEXT)
    where = f"[[network]] {name!r}"
    keys = {NETWORK_KEYS[key].keyword for key in entry}
    usual = {key: value for key, value in defaults.items() if NETWORK_KEYS[key].keyword not in keys}
    missing: list[declare.NotThere] = []
    asked = {**usual, **entry, "name": name}
    values = declare.read_table(file, where, asked, NETWORK_KEYS, missing)
    keywords = {key: value for key, value in values.items() if key not in (*NIGHT_KINDS, "name")}
    keywords.setdefault("model", str(file.parent / model))
    keywords.setdefault("explain", EXPLAIN_NOTHING)
    targets = {plan: values[key] for plan, key in _TARGETS.items() if key in values}
    if ("metric" in asked) == ("metric" in keywords):
        _check_figures(f"{file}: {where}", keywords, targets)
    most = {part: values[key] for part in ("similarity", "latency") if (key := f"{part}_tolerance") in values}
    repeats, first_missing = values.get("repeats", REPEATS), next(iter(missing), None)
    return NetworkTask(name, stem_of(name), keywords, targets, Tolerances(**most), repeats, first_missing)


def _check_figures(where: str, keywords: Mapping[str, Any], targets: Mapping[str, float]) -> None:
    try:
        metric = find_metric(keywords.get("metric", "cosine"))
        make_rule(metric, keywords.get("threshold"))
        for plan, target in targets.items():
            refuse_per_cent(metric, target, f"'{_TARGETS[plan]}'")
    except TrtBisectError as error:
        raise BadInput(f"{where}: {error.problem}", error.remedy) from error


def stem_of(name: str) -> str:
    """Returns ``name`` if it can be a file's name, else a similar one that ends in a digest."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_LONGEST]
    return safe if safe == name else f"{safe or 'network'}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
