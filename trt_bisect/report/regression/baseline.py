"""A baseline: the figures of a few runs of each network, as small JSON files that can be kept with the sources.

The folder has one file for each network. Each layer is one line, so that a diff shows the layers that changed. Equal
runs are written once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_bisect.analyzer.figures import Figures
from trt_bisect.errors import BadInput, first_line
from trt_bisect.support.files import make_folder, write_whole

_SCHEMA = 1
_KIND = "trt-bisect baseline"


@dataclass(frozen=True)
class NetworkBaseline:
    """The runs that one network is compared with.

    Attributes:
        name: the network's in the suite.
        origin: the parts that the runs are made of (see ``analyzer.differences.origin``).
        repeats: the number of runs.
        runs: the runs, equal ones once.
        measured: the nightly run in which they were measured; empty where that is not known.
    """

    name: str
    origin: Mapping[str, Any]
    repeats: int
    runs: tuple[Figures, ...]
    measured: str = ""


def baseline_of(name: str, origin: Mapping[str, Any], runs: Iterable[Figures], measured: str = "") -> NetworkBaseline:
    """Returns the baseline of a network's runs, ``measured`` in that nightly run."""
    made = list(runs)
    different: list[Figures] = []
    for run in made:
        if run not in different:
            different.append(run)
    return NetworkBaseline(name, origin, len(made), tuple(different), measured)


def write_baseline(folder: Path, files: Mapping[str, NetworkBaseline]) -> None:
    """Writes baselines by their files' stems, and removes the files of other networks from the folder.

    Raises:
        BadInput: the folder cannot be written, or it holds JSON that is no baseline.
    """
    stale = {path for path, _ in _records(folder)} - {folder / f"{stem}.json" for stem in files}
    make_folder(folder, "--baseline")
    for stem, network in files.items():
        write_whole(folder / f"{stem}.json", _text(network).encode())
    for path in stale:
        path.unlink(missing_ok=True)


def read_baseline(folder: Path) -> dict[str, NetworkBaseline]:
    """Returns the baselines in a folder by the networks' names; empty where there is no folder.

    Raises:
        BadInput: a JSON file in it is no baseline.
    """
    networks = {}
    for path, record in _records(folder):
        try:
            runs = tuple(Figures.from_json(run) for run in record["runs"])
            measured, repeats = str(record.get("measured", "")), int(record["repeats"])
            network = NetworkBaseline(str(record["name"]), dict(record["origin"]), repeats, runs, measured)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise _no_baseline(path, f"{type(error).__name__}: {first_line(error)}") from error
        if not runs:
            raise _no_baseline(path, "it holds no run")
        networks[network.name] = network
    return networks


def _records(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    return [(path, _record(path)) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _no_baseline(path, first_line(error)) from error
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise _no_baseline(path, f"it has no 'kind' of '{_KIND}'")
    if record.get("schema") != _SCHEMA:
        raise _no_baseline(path, f"its schema is {record.get('schema')!r}, this version reads {_SCHEMA}")
    return record


def _no_baseline(path: Path, why: str) -> BadInput:
    return BadInput(
        f"'{path}' is no baseline: {why}.",
        "Give --baseline a folder that --update-baseline wrote, a run folder, a report.json, or 'latest'.",
    )


def _text(network: NetworkBaseline) -> str:
    """Returns JSON with one line for each layer."""
    head = {"kind": _KIND, "schema": _SCHEMA, "name": network.name, "repeats": network.repeats}
    head |= {"measured": network.measured} if network.measured else {}
    runs = ",\n".join(_run_text(run) for run in network.runs)
    return f'{_dumps({**head, "origin": dict(network.origin)})[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def _run_text(run: Figures) -> str:
    record = run.to_json()
    layers = ",\n".join("  " + json.dumps(layer, allow_nan=False) for layer in record.pop("layers"))
    return f'{_dumps(record)[:-2]},\n "layers": [\n{layers}\n ]}}'


def _dumps(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1, allow_nan=False)
