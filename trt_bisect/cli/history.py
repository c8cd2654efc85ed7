"""``trt-bisect history``: how the networks went, run by run."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from trt_bisect.cli.display import WIDE, Configured, Display, Top, console
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.concerns import RESULTS
from trt_bisect.jobs.options.declare import panel
from trt_bisect.jobs.options.kinds import PLACE, PLACES

if TYPE_CHECKING:
    from trt_bisect.history.queries import HistoryFilter
    from trt_bisect.history.store import History

RUNS = panel("Runs")
_AGO = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def history_command(
    where: Annotated[Path | None, RUNS(PLACE, without="the current folder's")] = None,
    /,
    *,
    label: Annotated[str | None, RUNS()] = None,
    model: Annotated[str | None, RUNS()] = None,
    since: Annotated[str | None, RUNS()] = None,
    fingerprint: Annotated[str | None, RUNS()] = None,
    add: Annotated[list[Path] | None, RUNS(PLACES)] = None,
    csv: Annotated[Path | None, RESULTS(PLACE)] = None,
    parquet: Annotated[Path | None, RESULTS(PLACE)] = None,
    copy: Annotated[Path | None, RESULTS(PLACE)] = None,
    top: Top = 50,
    display: Display = Configured(),
) -> None:
    """Show the figures of each network over its runs, and what changed; or write them as CSV or Parquet.

    Each run adds itself to the history when it ends. Times are in UTC.

    Args:
        where: The history file, the folder that contains it, or a run folder beside it.
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

    from trt_bisect.history.queries import HistoryFilter, write_table
    from trt_bisect.history.run_folders import run_folders
    from trt_bisect.history.store import History

    selection = HistoryFilter(label, model, _since(since), _fingerprint(fingerprint))
    with History(_file(where or Path()), reading=not add) as history:
        if add:
            folders = run_folders(add)
            for folder in folders:
                history.record(folder, label or "")
            display.say(f"{len(folders)} run folder{'s' if len(folders) > 1 else ''} recorded.")
        if copy is not None:
            history.copy(copy)
            display.say(f"Copied to {copy}")
        for option, path in (("--csv", csv), ("--parquet", parquet)):
            if path is not None:
                table = history.reports(selection)
                write_table(table, path, option)
                display.say(f"{len(table)} rows written to {path}")
        if display.json:
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
        screen.print(f"The history {history.path} has no such run.", markup=False, soft_wrap=True)
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
