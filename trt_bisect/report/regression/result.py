"""The result of ``regress``: the networks of a nightly run against their baselines; and the files of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from trt_bisect.errors import BadInput, first_line
from trt_bisect.report.changes import TARGET, Change, Difference
from trt_bisect.report.model import SCHEMA as REPORT_SCHEMA
from trt_bisect.report.model import Report
from trt_bisect.support.codec import Malformed, decode, encode_lines, write
from trt_bisect.support.files import make_folder, write_whole

SCHEMA = 2
REGRESSION, JUNIT, SUMMARY = "regression.json", "junit.xml", "summary.md"
FILES = (REGRESSION, JUNIT, SUMMARY)
PASSED, FAILED, ERROR = "passed", "failed", "error"
_KIND = "trt-bisect baseline"


@dataclass(frozen=True)
class Baseline:
    """The runs that a network is compared with.

    Attributes:
        name: the network's in the suite.
        repeats: the number of runs.
        measured: the nightly run in which they were measured; empty where that is not known.
        runs: their reports, equal ones once, with what comparisons read; see ``compared_part``. What they are made of
            is always the last good night's.
        kind: the same in every baseline.
        schema: the schema of the reports.
    """

    name: str
    repeats: int
    measured: str
    runs: tuple[Report, ...]
    kind: str = _KIND
    schema: int = REPORT_SCHEMA


@dataclass(frozen=True)
class NetworkResult:
    """One network of a nightly run.

    Attributes:
        name: the name in the suite.
        run: the run folder, relative to the nightly folder.
        status: ``passed``, ``failed``, or ``error`` where nothing could be measured.
        seconds: the time measuring it took, repeats included.
        tonight: the report, without the layers, which are in the run folder; None where nothing could be measured.
        baseline: the runs that it was compared with, without the layers; None for a new network.
        failures: the changes that fail the night: those that a repeat confirmed, and missed targets.
        changes: the other changes that a repeat confirmed.
        noise: changes that the repeat did not confirm.
        differs: the parts that differ between the two runs; None where they are not known.
        accepted: the changes are accepted, so that only a missed target fails.
        targets: the targets of ``int8`` and ``recipe``.
        message: the reason why nothing could be measured.
    """

    name: str
    run: str
    status: str = ERROR
    seconds: float = 0.0
    tonight: Report | None = None
    baseline: Baseline | None = None
    failures: tuple[Change, ...] = ()
    changes: tuple[Change, ...] = ()
    noise: tuple[Change, ...] = ()
    differs: tuple[Difference, ...] | None = None
    accepted: bool = False
    targets: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True)
class Regression:
    """A nightly run.

    Attributes:
        suite: the path of its file.
        folder: the folder of this nightly run.
        number: the number of the nightly run in its folder.
        began: the time of its start in UTC, ISO 8601.
        baseline: a description of the baseline; empty without one.
        accepted: this run became the baseline, by ``--update-baseline`` or as the first one that passed.
        status: ``failed`` if a network failed, else ``error`` if one could not be measured, else ``passed``.
        exit_code: 0: passed. 1: worse than the baseline, or a target missed. 3: a network not measured, and none worse.
        networks: the networks in the suite's order.
        gone: networks of the baseline that the suite no longer has.
        baseline_folder: the folder that ``--baseline`` named and that can be updated; None for ``latest``, a run, a
            report or a nightly run.
        schema: the version of the form of this file; keys may be added without a new number.
    """

    suite: str
    folder: Path
    number: int
    began: str
    baseline: str
    accepted: bool
    status: str
    exit_code: int
    networks: tuple[NetworkResult, ...]
    gone: tuple[str, ...] = ()
    baseline_folder: Path | None = None
    schema: int = SCHEMA

    @property
    def is_worse(self) -> bool:
        """True if a figure is worse than in the baseline, which ``--update-baseline`` would accept."""
        return any(change.kind != TARGET for result in self.networks for change in result.failures)

    def save(self, folder: str | Path) -> Path:
        """Writes ``regression.json``, ``junit.xml`` and ``summary.md`` into a folder, which is made if it is missing.

        Returns:
            The folder.

        Raises:
            BadInput: the folder cannot be written.
        """
        from trt_bisect.report.nightly import markdown
        from trt_bisect.report.regression.junit import junit_xml

        path = make_folder(Path(folder))
        write_whole(path / JUNIT, junit_xml(self))
        write_whole(path / SUMMARY, markdown(self).encode())
        write(path / REGRESSION, self)
        return path


@dataclass(frozen=True)
class _Head:
    """The beginning of a baseline of any version."""

    kind: str
    schema: int


def read_baselines(folder: Path, *, replacing: bool = False) -> dict[str, Baseline]:
    """Returns the baselines in a folder by the networks' names; empty where there is no folder.

    Args:
        folder: the folder.
        replacing: baselines of other versions are left out, since new ones replace them.

    Raises:
        BadInput: a JSON file in it is no baseline, or one that this version cannot read.
    """
    baselines = {}
    for path in sorted(folder.glob("*.json")):
        try:
            text = path.read_bytes()
            head = decode(_Head, text)
            if head.kind != _KIND:
                raise Malformed(f"its 'kind' is not '{_KIND}'")
            if head.schema == REPORT_SCHEMA:
                baseline = decode(Baseline, text)
                if not baseline.runs:
                    raise Malformed("it holds no run")
                baselines[baseline.name] = baseline
        except (OSError, Malformed, RecursionError) as error:
            raise BadInput(
                f"'{path}' is not a baseline: {first_line(error)}.",
                "Give --baseline a folder that --update-baseline wrote, a run folder, a report.json, or 'latest'.",
            ) from error
        if head.schema != REPORT_SCHEMA and not replacing:
            raise BadInput(
                f"'{path}' is a baseline of another version of trt-bisect, which this one cannot read.",
                "Make a new one: the same command with --update-baseline measures the suite and replaces it.",
            )
    return baselines


def write_baselines(folder: Path, baselines: Mapping[str, Baseline]) -> None:
    """Writes baselines by the stems of their files, and removes the baselines of other networks from the folder.

    Raises:
        BadInput: the folder cannot be written, or it holds JSON that is no baseline.
    """
    read_baselines(folder, replacing=True)
    make_folder(folder, "--baseline")
    for stem, baseline in baselines.items():
        runs = b",\n".join(encode_lines(_given(run)).strip() for run in baseline.runs)
        head = encode_lines({"kind": baseline.kind, "schema": baseline.schema, **vars(baseline), "runs": ()})
        write_whole(folder / f"{stem}.json", head.replace(b' "runs": []', b' "runs": [\n%s\n ]' % runs))
    for path in folder.glob("*.json"):
        if path.stem not in baselines:
            path.unlink()


def _given(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass that are not as its class has them by default, and those of its layers."""
    given = {
        each.name: value
        for each in fields(record)
        if (value := getattr(record, each.name))
        != (each.default if each.default_factory is MISSING else each.default_factory())
    }
    return {**given, "layers": list(map(_given, record.layers))} if isinstance(record, Report) else given
