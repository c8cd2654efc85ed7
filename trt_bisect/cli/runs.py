"""The commands on runs: ``run``, ``demo``, the nightly ``regress``; ``view``, ``history``, ``clean`` of those made."""

from __future__ import annotations

import inspect
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from trt_bisect.cli.app import WIDE, Annotations, Configured, Model, Output, Top, console, run_folder
from trt_bisect.errors import BadInput, install
from trt_bisect.options.commands import PipelineOptions
from trt_bisect.options.concerns import EXPLAIN_FULL, RunOptions
from trt_bisect.options.declare import Option
from trt_bisect.options.kinds import FUNCTION, PLACES, InFile, whole

if TYPE_CHECKING:
    from socket import socket

    from rich.console import Console

    from trt_bisect.report.model import Report
    from trt_bisect.view.server import Certificate


def run_command(
    model: Model,
    *,
    options: RunOptions = RunOptions(),
    all_layers: bool = False,
    display: Configured = Configured(),
) -> int:
    """Find the layers that lose the accuracy, and write the plan that restores it.

    Exit codes: 0 full INT8 passes; 1 it fails, or passes with doubts; 2 bad use or input; 3 nothing could be measured;
    130 interrupted, the same command goes on.

    Args:
        all_layers: Print the curve with a row per layer, and the advice in full.
        quiet: Show no progress, and print the verdict only.
    """
    from trt_bisect.commands.run.run import run

    return _measured(run.job, model, replace(options, output=run_folder(options.output, model)), display, all_layers)


def pipeline_command(
    function: Annotated[Any, FUNCTION],
    *,
    options: PipelineOptions = PipelineOptions(),
    all_layers: bool = False,
    display: Configured = Configured(),
) -> int:
    """Find the layers of several networks that spoil the result of your function, and write the plans that restore it.

    Exit codes: those of 'run'.

    Args:
        function: Your code, module:function or file.py:function. It is called with the networks and a sample, and
            returns the outputs: nets["detector"](feeds) runs a network.
        all_layers: Print the curve with a row per layer, and the advice in full.
        quiet: Show no progress, and print the verdict only.
    """
    from trt_bisect.commands.run.pipeline import run_pipeline

    folder = run_folder(options.output, Path(str(function).rpartition(":")[2]))
    return _measured(run_pipeline.job, function, replace(options, output=folder), display, all_layers)


_Asked = TypeVar("_Asked", bound=RunOptions)


def _measured(
    job: Callable[[Any, _Asked, str], Report], model: Any, options: _Asked, display: Configured, all_layers: bool
) -> int:
    from trt_bisect.commands.run.live import StoppedRun
    from trt_bisect.report.page import PAGE
    from trt_bisect.report.screen.tables import TENSORS_UP_TO, print_explained_tensors

    folder = Path(str(options.output))
    command = shlex.join(["trt-bisect", *sys.argv[1:]])
    try:
        report = job(model, replace(options, progress=display.progress()), command)
    except StoppedRun as stop:
        _printed(stop.report, display, is_whole=False)
        raise
    screen = _printed(report, display, every_layer=all_layers)
    if screen is None:
        return report.exit_code
    report = report.titled
    if options.explain == EXPLAIN_FULL and report.explanation is not None:
        print_explained_tensors(report.explanation, report.low, screen, top=0 if all_layers else TENSORS_UP_TO)
    screen.print(
        f"Plans: {report.plans}; engines: {report.builds}, {report.engine} ({report.arithmetic}); "
        f"{report.seconds.total:.1f} s, at most {report.peak_bytes >> 20} MiB.",
        markup=False,
    )
    screen.print(f"Report and recipe: {folder}\nThe page to look at: {folder / PAGE}", markup=False, soft_wrap=True)
    return report.exit_code


_PIPED = 100  # the width of a report in characters if stdout is no terminal


def _printed(report: Report, display: Configured, *, is_whole: bool = True, **layout: Any) -> Console | None:
    # the console, if the whole report was printed
    from trt_bisect.report.screen.run import print_report, print_verdict

    if display.json:
        display.print_json(report)
        return None
    screen = console(_PIPED)
    if display.quiet or not is_whole:
        print_verdict(report, screen)
        return None
    print_report(report, screen, **layout)
    return screen


SAMPLE = Path(__file__).with_name("sample")
NETWORK, CALIBRATION = "lenet_planted.onnx", "calibration.npz"
_AROUND = 17  # lines that the command prints before and after the report
_LOOK = """
What to look at:
  {page}
      in a browser: the curve falls at ip2, the layer that was planted to lose
      the accuracy.
  {recipe}
      how TensorRT, trtexec, Polygraphy and ModelOpt take the recipe.
The network is LeNet, which reads digits. One channel of it was made a thousand
times larger on purpose, so that INT8 has no steps left for the others. For your
own network, with an .npz file or a folder of pictures:
  trt-bisect run NETWORK.onnx --calibration DATA"""


def demo_command(
    *,
    output: Annotated[Path, Option("--output -o")] = Path("trt-bisect-demo"),
    display: Configured = Configured(),
) -> None:
    """Find the planted culprit of a small network that comes with the package, in seconds and without a GPU.

    Args:
        output: Write the sample and its run to this folder.
        quiet: Show no progress, and print the verdict only.
    """
    from trt_bisect.commands.run.run import run
    from trt_bisect.report.page import PAGE
    from trt_bisect.support.files import make_folder

    make_folder(output)
    for name in (NETWORK, CALIBRATION):
        shutil.copyfile(SAMPLE / name, output / name)
    model, data, folder = output / NETWORK, output / CALIBRATION, output / "run"
    command = shlex.join(["trt-bisect", "run", str(model), "--calibration", str(data), "--output", str(folder)])
    display.say(f"$ {command}\n")
    options = RunOptions(calibration=str(data), output=folder, engine="onnxruntime", history="none")
    report = run.job(model, replace(options, progress=display.progress()), command)
    if _printed(report, display, around=_AROUND):
        print(_LOOK.format(page=folder / PAGE, recipe=folder / "recipe" / "README.md"))


SUITE = "trt-bisect.toml"  # the file of the suite if none is given
_TOKEN = "TRT_BISECT_TOKEN"
_AGO = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file whose Markdown GitHub Actions shows with a job's step


def view_command(
    folder: InFile = Path(),
    *,
    host: str = "127.0.0.1",
    port: Annotated[int | None, whole(least=0, most=65535)] = None,
    token: str | None = None,
    tls: bool = False,
    certificate: InFile | None = None,
    key: InFile | None = None,
    display: Configured = Configured(),
) -> None:
    """Serve the page of a run while it goes on, or of several runs with their history, until Ctrl-C.

    The page requires the token in the printed address. The command writes nothing into the run folders.

    Args:
        folder: A run folder, or the folder above several run folders; an empty one waits for the first run. Default:
            the current folder.
        host: Listen on this address; 0.0.0.0 for every network.
        port: Listen on this port; 0 for any free port. Default: 8765, or the next free port.
        token: Require this token. The variable TRT_BISECT_TOKEN sets the token too. Default: a new token each time.
        tls: Encrypt with a self-signed certificate, which the first use makes and keeps for a year.
        certificate: Encrypt with this certificate (PEM).
        key: Take the certificate's key from this file.
    """
    try:
        from trt_bisect.view.server import (
            check_folder,
            given_certificate,
            listen,
            lower_priority,
            make_server,
            own_certificate,
        )
    except ImportError as error:
        raise BadInput(f"The package '{error.name}' is not installed.", install("view")) from error

    token = os.environ.get(_TOKEN) if token is None else token
    if token is not None and not token.strip():
        raise BadInput("An empty token protects nothing.", "Give --token some text, or leave it out for a new one.")
    if key is not None and certificate is None:
        raise BadInput("--key needs --certificate.", "Give both, or --tls alone.")
    check_folder(folder)
    shown = token.strip() if token else secrets.token_urlsafe(24)
    pair = None
    if certificate:
        pair = given_certificate(certificate, key)
    elif tls:
        pair = own_certificate(host)
    with listen(host, port) as bound:
        server = make_server(folder, bound, shown, pair)
        _say_where(display, folder, bound, shown, pair)
        lower_priority()
        try:
            server.run(sockets=[bound])
        except KeyboardInterrupt:
            return


def _say_where(display: Configured, folder: Path, bound: socket, token: str, pair: Certificate | None) -> None:
    from trt_bisect.view.server import address, is_loopback, tunnel

    where, fingerprint = address(bound, token, tls=pair is not None), None if pair is None else pair.fingerprint
    if display.json:
        display.print_json({"folder": str(folder), "address": where, "fingerprint": fingerprint})
    display.say(f"'{folder}' is shown at\n\n    {where}\n")
    if fingerprint:
        display.say(f"SHA-256 fingerprint of the certificate: {fingerprint}")
    if is_loopback(bound):
        display.say(f"From another machine: ssh -N -L {tunnel(bound)} USER@THIS_MACHINE, then the same address.")
    elif pair is None:
        display.say("Others on the network can read the traffic: --tls encrypts.")
    display.say("Ctrl-C stops the server.")


def history_command(
    where: Path | None = None,
    *,
    label: str | None = None,
    model: Annotated[str | None, Option(panel="Runs")] = None,
    since: str | None = None,
    fingerprint: str | None = None,
    add: Annotated[list[Path] | None, PLACES] = None,
    csv: Path | None = None,
    parquet: Path | None = None,
    copy: Path | None = None,
    top: Top = 50,
    display: Configured = Configured(),
) -> None:
    """Show the figures of each network over its runs, and what changed; or write them as CSV or Parquet.

    Each run adds itself to the history when it ends. Times are in UTC.

    Args:
        where: The history file, the folder that contains it or is above it, or a run folder next to it. Default: the
            current folder's.
        label: Show only this network, run by run; with --add, record the runs under this name.
        model: Show only this model: path, file name or stem.
        since: Show only runs since this time: 7d or 12h ago, 2026-11-01, 2026-11-01T02:00Z.
        fingerprint: Show only runs whose fingerprint begins with these digits.
        add: First record this run folder, or all run folders below this folder. Repeatable.
        csv: Write the reports to this CSV file.
        parquet: Write the reports to this Parquet file.
        copy: Copy the history to this file; safe while runs go on.
    """
    from msgspec import to_builtins

    from trt_bisect.history.queries import print_entries, table_of, write_table
    from trt_bisect.history.store import history_of, run_folders
    from trt_bisect.support.text import counted

    if fingerprint is not None and not re.fullmatch("[0-9a-f]{1,64}", fingerprint.lower()):
        raise BadInput(f"'{fingerprint}' is no fingerprint.", "Give hexadecimal digits, as report.json has them.")
    after = None if since is None else _since(since)
    history = history_of(where or Path(), recording=bool(add))
    if add:
        for folder in (folders := run_folders(add)):
            history.record(folder, label or "")
        display.say(f"{counted(len(folders), 'run folder')} recorded.")
    if copy is not None:
        history.copy(copy)
        display.say(f"Copied to {copy}")
    entries = history.past(label=label, model=model, since=after, fingerprint=fingerprint or "")
    for option, path in (("--csv", csv), ("--parquet", parquet)):
        if path is not None:
            write_table(table_of(entries), path, option)
            display.say(f"{len(entries)} rows written to {path}")
    if display.json:
        records = to_builtins(entries)
        for record in records:
            del record["report"]["layers"]
        display.print_json(records)
    elif copy is None and csv is None and parquet is None:
        print_entries(entries, console(WIDE), history.path, by_run=label is not None, top=top)


def _since(text: str) -> datetime:
    # a time without a zone is in UTC
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        when = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip()))
    except (ValueError, OverflowError) as error:
        remedy = "Write --since as 90m, 12h, 7d, 2w, 2026-11-01 or 2026-11-01T02:00Z."
        raise BadInput(f"The time '{text}' cannot be read.", remedy) from error
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def clean_command(
    folders: Annotated[list[Path], PLACES],
    *,
    yes: Annotated[bool, Option("--yes -y")] = False,
    display: Configured = Configured(),
) -> None:
    """List files in run folders that a rerun would recreate; delete them with --yes.

    The files are saved tensors, calibration results and TensorRT's timing cache. Journal, reports, page and recipe
    stay: the command of the run calibrates again and reuses its trials.

    Args:
        folders: Run folders.
        yes: Delete the listed files.
    """
    from trt_bisect.preparation.workspace import clean, removable

    leftovers = [leftover for folder in folders for leftover in (clean(folder) if yes else removable(folder))]
    total = sum(leftover.size for leftover in leftovers)
    if display.json:
        rows = [{"path": str(leftover.path), "what": leftover.what, "bytes": leftover.size} for leftover in leftovers]
        display.print_json({"removed": yes, "bytes": total, "found": rows})
        return
    for leftover in leftovers:
        print(f"{leftover.size / (1 << 20):10.1f} MiB  {leftover.path}  ({leftover.what})")
    verb = "Freed" if yes else "Can be freed, with --yes:"
    print(f"{verb} {total / (1 << 20):.1f} MiB." if leftovers else "There is nothing to remove.")


def regress_command(
    suite: InFile | None = None,
    *,
    suite_file: Annotated[InFile | None, Option("--config")] = None,
    baseline: str = "latest",
    update_baseline: bool = False,
    annotations: Annotations = None,
    display: Output = Output(),
) -> int:
    """Measure a suite of networks, and say what is worse than in the baseline and what else changed.

    Exit codes: 0 nothing is worse; 1 a figure is worse, or misses a target; 2 bad use or config, nothing was run; 3 a
    network could not be measured, and no network is worse; 130 interrupted, the same command goes on.

    Args:
        suite: The suite, a TOML file: networks, their data, engines, targets. Default: trt-bisect.toml.
        suite_file: Take this suite, like the argument SUITE.
        baseline: Compare with this folder of --update-baseline, run folder or report.json, or each network with the
            newest night in which it passed or was accepted (latest).
        update_baseline: Take tonight's figures as the new baseline, good or bad.
    """
    from rich.console import Console

    from trt_bisect.commands.regress import regress
    from trt_bisect.report.annotations import of_night
    from trt_bisect.report.nightly import SUMMARY, Regression, print_regression

    if suite is not None and suite_file is not None:
        raise BadInput(f"Two suites are given, '{suite}' and --config '{suite_file}'.", "Leave out one of the two.")
    file, progress = suite or suite_file or SUITE, display.progress()
    regression: Regression = inspect.unwrap(regress)(file, baseline, update_baseline=update_baseline, progress=progress)
    if display.json:
        display.print_json(regression)
    else:
        print_regression(regression, Console(highlight=False, soft_wrap=True))
    if annotations is not None:
        display.annotate(of_night(regression))
    if summary := os.environ.get(_STEP_SUMMARY):
        try:
            with Path(summary).open("ab") as target:
                target.write((regression.folder / SUMMARY).read_bytes())
        except OSError as error:
            print(f"trt-bisect: ${_STEP_SUMMARY} cannot be written: {error}", file=sys.stderr)
    return regression.exit_code
