"""``trt-bisect history``: how the networks went, run by run."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trt_bisect.cli.config import with_config
from trt_bisect.cli.display import Display, console
from trt_bisect.cli.options import WIDE, Top
from trt_bisect.errors import BadInput

if TYPE_CHECKING:
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
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the reports to this file.", show_default=False)
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write the reports to this file.", show_default=False)
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
    from msgspec import to_builtins

    from trt_bisect.history.queries import HistoryFilter, write_table
    from trt_bisect.history.run_folders import run_folders
    from trt_bisect.history.store import History

    selection = HistoryFilter(label, model, _since(since), _fingerprint(fingerprint))
    with History(_file(where or Path()), reading=not add) as history:
        if add:
            folders = run_folders(add)
            for folder in folders:
                history.record(folder, label or "")
            display.say(f"{len(folders)} run folder{'s' if len(folders) > 1 else ''} taken in.")
        if copy is not None:
            history.copy(copy)
            display.say(f"Copied to {copy}")
        for option, path in (("--csv", csv), ("--parquet", parquet)):
            if path is not None:
                table = history.reports(selection)
                write_table(table, path, option)
                display.say(f"{len(table)} rows written to {path}")
        if display.as_json:
            records = to_builtins(history.past(selection))
            for record in records:
                del record["report"]["layers"]
            display.print_json(records)
        elif copy is None and csv is None and parquet is None:
            _show(history, selection, top=top)


def _file(where: Path) -> Path:
    """The history that a file, a folder or a run folder stands for."""
    from trt_bisect.history.run_folders import holds_run
    from trt_bisect.history.store import HISTORY

    if not where.is_dir():
        return where
    beside = where.absolute().parent / HISTORY
    return beside if holds_run(where) and not (where / HISTORY).exists() else where / HISTORY


def _show(history: History, selection: HistoryFilter, *, top: int) -> None:
    from trt_bisect.history.screen import run_table, trend_table
    from trt_bisect.history.trends import trends

    screen = console(WIDE)
    entries = history.past(selection)
    groups = trends(entries)
    by_run = selection.label is not None
    rows = len(entries) if by_run else len(groups)
    if not rows:
        screen.print(f"Nothing of that kind is recorded in {history.path}.", markup=False, soft_wrap=True)
        return
    screen.print(run_table(groups, top, screen) if by_run else trend_table(groups[: top or None], screen))
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
