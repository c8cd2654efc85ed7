"""``trt-bisect history``: how the networks went, run by run."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trt_bisect.cli.config import with_config
from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import WIDE, Top
from trt_bisect.errors import BadInput

if TYPE_CHECKING:
    from pandas import DataFrame

    from trt_bisect.history.queries import HistoryFilter
    from trt_bisect.history.store import History

_AGO = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@with_config
def history_command(
    display: Display,
    where: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE|FOLDER]",
            help="The history, the folder it is in, or a run folder beside it. [default: the current folder's]",
            show_default=False,
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Only this network, run by run; with --add, its name.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only this model: path, file name or stem.", show_default=False)
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only what began since: 7d, 12h, 2026-11-01, 2026-11-01T02:00Z.", show_default=False),
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Only this fingerprint, or its beginning.", show_default=False)
    ] = None,
    trials: Annotated[bool, typer.Option("--trials", help="The trials instead of the reports.")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write them to this file.", show_default=False)] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write them to this file.", show_default=False)
    ] = None,
    add: Annotated[
        list[Path] | None,
        typer.Option("--add", help="First take in these run folders, or all under it.", show_default=False),
    ] = None,
    copy: Annotated[
        Path | None, typer.Option("--copy", help="Write a sound copy, also while runs go on.", show_default=False)
    ] = None,
    top: Top = 50,
) -> None:
    """Show how the figures of each network went over the runs, and what changed; or write them as CSV or Parquet.

    Every run is recorded when it ends. Times are in UTC.
    """
    from trt_bisect.history.queries import HistoryFilter
    from trt_bisect.history.store import History

    wanted = HistoryFilter(label, model, _since(since), _fingerprint(fingerprint))
    with History(_file(where or Path()), reading=not add) as kept:
        if add:
            display.say(_add(kept, add, label or ""))
        if copy is not None:
            kept.copy(copy)
            display.say(f"Copied to {copy}")
        if csv is not None or parquet is not None:
            _export(kept.trials(wanted) if trials else kept.reports(wanted), csv, parquet, display)
        if display.as_json:
            rows = kept.past_trials(wanted) if trials else kept.past(wanted)
            display.print_json([asdict(row) for row in rows])
        elif copy is None and csv is None and parquet is None:
            _show(kept, wanted, trials=trials, top=top)


def _file(where: Path) -> Path:
    """The history that a file, a folder or a run folder stands for."""
    from trt_bisect.history.record_on_exit import BESIDE, history_file
    from trt_bisect.history.run_folder_reader import holds_run
    from trt_bisect.history.store import HISTORY

    if not where.is_dir():
        return where
    if holds_run(where) and not (where / HISTORY).exists():
        return history_file(BESIDE, where) or where
    return where / HISTORY


def _add(kept: History, folders: list[Path], label: str) -> str:
    from trt_bisect.history.run_folder_reader import run_folders

    found = run_folders(folders)
    for folder in found:
        kept.record(folder, label)
    return f"{len(found)} run folder{'s' if len(found) > 1 else ''} taken in."


def _export(table: DataFrame, csv: Path | None, parquet: Path | None, display: Display) -> None:
    from trt_bisect.history.export import write_table_csv, write_table_parquet

    for path, write in ((csv, write_table_csv), (parquet, write_table_parquet)):
        if path is not None:
            write(table, path)
            display.say(f"{len(table)} rows written to {path}")


def _show(kept: History, wanted: HistoryFilter, *, trials: bool, top: int) -> None:
    from trt_bisect.history.screen import run_table, trend_table, trial_table
    from trt_bisect.history.trends import trends

    screen = console(WIDE)
    if trials:
        tried = kept.past_trials(wanted)
        rows, table = len(tried), trial_table(tried[-top:], screen)
    else:
        reports = kept.past(wanted)
        groups = trends(reports)
        by_run = wanted.label is not None
        rows = len(reports) if by_run else len(groups)
        table = run_table(groups, top, screen) if by_run else trend_table(groups[: top or None], screen)
    if not rows:
        screen.print(f"Nothing of that kind is recorded in {kept.path}.", markup=False, soft_wrap=True)
        return
    screen.print(table)
    if top and rows > top:
        screen.print(f"{top} of {rows} rows; --top 0 shows all.", markup=False)


def _since(text: str | None) -> datetime | None:
    """``7d`` ago, or a time; one without a zone is in UTC.

    Raises:
        BadInput: it is neither.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return datetime.now(timezone.utc) - timedelta(**{_UNITS[ago[2]]: float(ago[1])})
        when = datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text.strip()))
        return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"The time '{text}' cannot be read.", "Write --since as 90m, 12h, 7d, 2w, 2026-11-01 or 2026-11-01T02:00Z."
        ) from error


def _fingerprint(text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-f]{1,64}", text.lower()):
        raise BadInput(f"'{text}' is no fingerprint.", "Give hexadecimal digits, as report.json has them.")
    return text
