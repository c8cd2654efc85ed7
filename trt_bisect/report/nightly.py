"""The result of ``regress``: its files, text, Markdown and JUnit XML."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from rich.console import Console
from rich.text import Text

from trt_bisect.analyzer.metrics import figure_text
from trt_bisect.errors import BadInput, TrtBisectError, first_line
from trt_bisect.report import changes
from trt_bisect.report.changes import PLANS, Change, Difference, made_of_text, range_text, sentence
from trt_bisect.report.model import Report
from trt_bisect.report.parts import SCHEMA as REPORT_SCHEMA
from trt_bisect.report.screen.run import bullets, literal, table
from trt_bisect.support.codec import FileHead, Malformed, decode, encode_lines, write
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.text import counted, listed

SCHEMA = 3
REGRESSION, JUNIT, SUMMARY = "regression.json", "junit.xml", "summary.md"
FILES = (REGRESSION, JUNIT, SUMMARY)
PASSED, FAILED, ERROR = "passed", "failed", "error"
_KIND = "trt-bisect baseline"


@dataclass(frozen=True)
class Baseline:
    """The earlier runs that a network is compared with.

    Attributes:
        measured: the number and start of the night of these runs, as text; empty if not known.
        runs: the reports, equal ones once, with only the fields that are compared.
    """

    name: str
    repeats: int
    measured: str
    runs: tuple[Report, ...]
    kind: str = _KIND
    schema: int = REPORT_SCHEMA


@dataclass(frozen=True)
class NetworkResult:
    """A network's result in a nightly run. What is not known is None or empty.

    Attributes:
        run: the run folder, relative to the nightly folder.
        status: ``passed``, ``failed``, or ``error`` if nothing could be measured.
        seconds: the time of measuring it, repeats included.
        tonight: the report without the layers.
        baseline: the earlier runs, without the layers.
        failures: the changes that fail the night.
        changes: other changes that a repeat confirmed.
        noise: changes that a repeat did not confirm.
        differs: the differences of run and baseline in model, data, engine and options.
        accepted: the changes are accepted: only a missed target fails.
        targets: by plan (``int8``, ``recipe``), the required figure.
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

    @property
    def becomes_baseline(self) -> bool:
        """True if later nights can be compared with this result: it passed, or failed and was accepted."""
        return self.status == PASSED or (self.accepted and self.status == FAILED)


@dataclass(frozen=True)
class Regression:
    """The result of a nightly run.

    Attributes:
        suite: the path of the suite's file.
        folder: the nightly folder.
        number: the number of the night in this folder.
        began: the start in UTC, ISO 8601.
        baseline: the baseline in words; empty without any.
        accepted: this night became the baseline.
        status: ``failed`` if a network failed, else ``error`` if one could not be measured, else ``passed``.
        exit_code: 0: passed. 1: a figure is worse, or a target missed. 3: none is worse, but a network was not
            measured.
        networks: in the suite's order.
        gone: the networks of the baseline that the suite no longer has.
        baseline_folder: the folder of ``--baseline``; None if there is none to update.
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
        """True if a network failed otherwise than by a missed target."""
        return any(change.kind != changes.TARGET for result in self.networks for change in result.failures)

    def save(self, folder: str | Path) -> Path:
        """Writes ``regression.json``, ``junit.xml`` and ``summary.md`` into a folder, and returns its path.

        Raises:
            BadInput: the folder cannot be written.
        """
        path = make_folder(Path(folder))
        write_whole(path / JUNIT, junit_xml(self))
        write_whole(path / SUMMARY, markdown(self).encode())
        write(path / REGRESSION, self)
        return path


def read_baselines(folder: Path, *, replacing: bool = False) -> dict[str, Baseline]:
    """Returns the baselines in a folder, by network.

    Raises BadInput for JSON that is no baseline, or of another version; if ``replacing``, leaves out other versions.
    """
    baselines = {}
    for path in sorted(folder.glob("*.json")):
        try:
            text = path.read_bytes()
            head = decode(FileHead, text)
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
    """Replaces the baselines in a folder; keys are the names of files without ``.json``.

    Raises BadInput if the folder cannot be written, or holds JSON that is no baseline.
    """
    read_baselines(folder, replacing=True)
    make_folder(folder, "--baseline")
    for stem, baseline in baselines.items():
        runs = b",\n".join(encode_lines(_changed(run)).strip() for run in baseline.runs)
        head = encode_lines({"kind": baseline.kind, "schema": baseline.schema, **vars(baseline), "runs": ()})
        write_whole(folder / f"{stem}.json", head.replace(b' "runs": []', b' "runs": [\n%s\n ]' % runs))
    for path in folder.glob("*.json"):
        if path.stem not in baselines:
            path.unlink()


def _changed(record: Any) -> dict[str, Any]:
    changed = {
        declared.name: value
        for declared in fields(record)
        if (value := getattr(record, declared.name))
        != (declared.default if declared.default_factory is MISSING else declared.default_factory())
    }
    return {**changed, "layers": list(map(_changed, record.layers))} if isinstance(record, Report) else changed


_STYLES = {PASSED: "bold green", FAILED: "bold red", ERROR: "bold yellow"}
_MOST = 5
_MOST_ROWS = 500
_MOST_DETAILED = 50  # networks with details in Markdown: GitHub takes 1 MiB a step
_MOST_NAMES = 4


def sentences(result: NetworkResult) -> list[str]:
    """Returns sentences on a network's changes, failures first; of many changed layers only a few."""
    report = result.tonight
    if report is None:
        return [result.message]
    part = report.inputs.part
    is_told = not part or any(change.kind == changes.PART for change in (*result.failures, *result.changes))
    overall = [change for change in result.changes if change.kind not in (changes.LOSS, changes.CURVE, changes.LAYER)]
    texts = [] if is_told else [part]
    texts += [sentence(change, report.metric) for change in result.failures]
    for change in overall:
        advises = result.status == PASSED and change.what not in result.targets
        texts.append(sentence(change, report.metric, advises=advises))
    for kind in (changes.LOSS, changes.CURVE):
        changed = [change for change in result.changes if change.kind == kind]
        texts += [sentence(change, report.metric) for change in changed[:_MOST]]
        if len(changed) > _MOST:
            texts.append(f"{len(changed) - _MOST} more layers changed in the same way (regression.json has all)")
    for state in ("new", "gone"):
        names = [change.what for change in result.changes if change.kind == changes.LAYER and change.now == state]
        if names:
            noun = "layer" if len(names) == 1 else "layers"
            texts.append(f"{noun} {state}: {listed(names)}")
    if result.baseline is None:
        texts.append("no baseline for this network yet: only its targets and its recipe are checked")
    elif result.baseline.measured:
        texts.append(f"compared with {result.baseline.measured}")
    if result.noise:
        texts.append(
            f"noise: {counted(len(result.noise), 'figure')} outside the baseline's range, inside it in a repeat, first "
            f"{sentence(result.noise[0], report.metric)}"
        )
    return texts


def print_regression(regression: Regression, console: Console) -> None:
    """Prints each network and its changes."""
    for result in regression.networks:
        report, figures = result.tonight, ""
        if report is not None:
            cells = (f"{PLANS[plan]} {figure_text(report.metric, value)}" for plan, value in report.similarity.items())
            figures = f": {', '.join(cells)}"
        console.print(Text.assemble((f"{result.status:7}", _STYLES[result.status]), f" {result.name}{figures}"))
        for text in sentences(result):
            console.print(Text(f"        {text}"))
        if report is not None and result.baseline is not None and result.differs != ():
            console.print(Text(f"        what differs: {made_of_text(result.differs)}", style="dim"))
    if regression.gone:
        console.print(Text(f"In the baseline, but no longer in the suite: {listed(regression.gone)}"))
    console.print(Text(f"\n{_headline(regression)}.", style=_STYLES[regression.status]))
    if regression.is_worse:
        console.print(Text(f"To accept the changes: {_accept_command(regression)}"))
    console.print(Text(f"{regression.folder / SUMMARY}, {JUNIT} and the runs' reports next to it"))


def markdown(regression: Regression) -> str:
    """Returns a nightly run as Markdown."""
    return "\n\n".join(_blocks(regression)) + "\n"


def _blocks(regression: Regression) -> Iterator[str]:
    yield f"## trt-bisect: {regression.status}"
    yield literal(f"Night {regression.number}, {regression.began}: {_headline(regression)}.")
    header = ("network", "", "full INT8", "was", "recipe", "was", "culprits")
    yield table(header, map(_row, regression.networks[:_MOST_ROWS]))
    if len(regression.networks) > _MOST_ROWS:
        yield f"{len(regression.networks) - _MOST_ROWS} more are in `regression.json`."
    if regression.gone:
        yield literal(f"In the baseline, but no longer in the suite: {listed(regression.gone)}.")
    changed = [
        result
        for result in regression.networks
        if result.failures or result.changes or result.noise or result.message or result.differs
    ]
    for result in sorted(changed, key=lambda result: result.status != FAILED)[:_MOST_DETAILED]:
        yield f"### {literal(result.name)}: {result.status}"
        yield bullets(sentences(result) or ["no figure moved beyond noise"])
        if result.baseline is not None and result.tonight is not None:
            yield literal(f"What differs from the baseline: {made_of_text(result.differs)}.")
    if len(changed) > _MOST_DETAILED:
        yield f"{len(changed) - _MOST_DETAILED} more networks changed: `regression.json` has them."
    if regression.is_worse:
        yield "To accept the changes as the new baseline:"
        yield f"```\n{_accept_command(regression)}\n```"


def _row(result: NetworkResult) -> tuple[str, ...]:
    report = result.tonight
    if report is None:
        return (result.name, result.status, *[""] * 5)
    figure, runs = partial(figure_text, report.metric), result.baseline.runs if result.baseline else ()
    cells = []
    for plan, value in report.similarity.items():
        was = [earlier for run in runs if (earlier := getattr(run.similarity, plan)) is not None]
        cells += [figure(value), range_text(was, figure) if was else ""]
    return (result.name, result.status, *cells, listed(report.culprits, _MOST_NAMES) or "none")


def _headline(regression: Regression) -> str:
    statuses = [result.status for result in regression.networks]
    words = {FAILED: "failed", ERROR: "not measured", PASSED: "passed"}
    counts = [f"{statuses.count(status)} {word}" for status, word in words.items() if status in statuses]
    against = f"against {regression.baseline}" if regression.baseline else "no baseline yet"
    accepted = ""
    if regression.accepted:
        names = [result.name for result in regression.networks if result.becomes_baseline]
        of_some = f" of {listed(names, _MOST_NAMES)}" if len(names) < len(statuses) else ""
        accepted = f": tonight's figures are the{' new' if regression.baseline else ''} baseline{of_some}"
    return f"{', '.join(counts)}, {against}{accepted}"


def _accept_command(regression: Regression) -> str:
    folder = regression.baseline_folder
    options = ["--config", regression.suite, *(["--baseline", str(folder)] if folder else []), "--update-baseline"]
    return shlex.join(["trt-bisect", "regress", *options])


# Characters that XML 1.0 cannot hold, even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# By test case, the kinds of changes that fail it.
_CASES = {
    "similarity": (changes.SIMILARITY, changes.RECIPE_LAYERS, changes.PART, changes.BOUND),
    "target": (changes.TARGET,),
    "latency": (changes.LATENCY,),
    "culprits": (changes.CULPRIT,),
    "precision obeyed": (changes.OBEYED,),
    "trials": (changes.OUTCOME,),
}
_OF_LAYERS = (changes.CULPRIT, changes.OBEYED, changes.OUTCOME)
_MOST_LAYERS = 200
_LONGEST = 2000


def junit_xml(regression: Regression) -> bytes:
    """Returns a nightly run as JUnit XML in UTF-8."""
    return _document(regression.networks, regression.began)


@contextmanager
def unfinished(folder: Path) -> Iterator[None]:
    """While the context lasts, an error in ``junit.xml`` replaces the last night's files, so that a stopped night does
    not pass.
    """
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    running = NetworkResult("nightly run", "", message=f"running: the nightly run of {began} has not ended")
    write_whole(folder / JUNIT, _document([running], began))
    try:
        yield
    except TrtBisectError as error:
        ended = replace(running, message=" ".join(str(error).splitlines()))
        write_whole(folder / JUNIT, _document([ended], began))
        raise


def _document(results: Sequence[NetworkResult], began: str) -> bytes:
    root = Element("testsuites", name="trt-bisect")
    root.extend(_suite(result, began) for result in results)
    for count in ("tests", "failures", "errors"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _suite(result: NetworkResult, began: str) -> Element:
    cases, lines = list(_cases(result)), sentences(result)
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    counts = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in tags.items()}
    attributes = {"name": _attribute(result.name), "tests": str(len(cases)), **counts}
    suite = Element("testsuite", attributes, time=f"{result.seconds:.3f}", timestamp=began[:19])
    suite.extend(cases)
    if result.tonight is not None and result.baseline is not None:
        lines.append(f"What differs from the baseline: {made_of_text(result.differs)}.")
    SubElement(suite, "system-out").text = _xml_text("\n".join(lines))
    return suite


def _cases(result: NetworkResult) -> Iterator[Element]:
    report = result.tonight
    if report is None:
        yield _failing(_case(result, "measured"), "error", [result.message])
        return
    is_compared = result.baseline is not None and not result.accepted
    judged = {"target": bool(result.targets), "latency": is_compared and report.latency is not None}
    yield _case(result, "measured", result.seconds)
    for name, kinds in _CASES.items():
        case = _case(result, name)
        failing = [sentence(change, report.metric) for change in result.failures if change.kind in kinds]
        if failing:
            _failing(case, "failure", failing)
        elif not judged.get(name, is_compared):
            SubElement(case, "skipped")
        yield case
    for change in [change for change in result.failures if change.kind in _OF_LAYERS][:_MOST_LAYERS]:
        case = _case(result, f"layer {change.what}: {change.kind}")
        yield _failing(case, "failure", [sentence(change, report.metric)])


def _case(result: NetworkResult, name: str, seconds: float = 0.0) -> Element:
    return Element(
        "testcase", classname=_attribute(f"trt-bisect.{result.name}"), name=_attribute(name), time=f"{seconds:.3f}"
    )


def _failing(case: Element, tag: str, messages: list[str]) -> Element:
    kind = "regression" if tag == "failure" else "not measured"
    SubElement(case, tag, message=_attribute(messages[0]), type=kind).text = _xml_text("\n".join(messages))
    return case


def _attribute(text: str) -> str:
    return _xml_text(text)[:_LONGEST]


def _xml_text(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
