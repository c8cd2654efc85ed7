"""``trt-bisect engines``: which engines can be used here, and why the others cannot."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from trt_bisect.cli.display import Configured, Display, console

if TYPE_CHECKING:
    from rich.table import Table

    from trt_bisect.builder.engines import EngineStatus


def engines_command(*, display: Display = Configured()) -> None:
    """List the inference engines with version, typing and device, and why an engine cannot be used."""
    from trt_bisect.builder.engines import list_engines

    engines = list_engines()
    if display.json:
        display.print_json([{**asdict(engine), "usable": engine.usable} for engine in engines])
        return
    console(160).print(engines_table(engines))


def engines_table(engines: tuple[EngineStatus, ...]) -> Table:
    """The engines as a table, one a row; the typing that a run takes by default stands first."""
    from rich.table import Table

    table = Table("engine", "version", "typing", "device", "usable", box=None, pad_edge=False, header_style="bold")
    for engine in engines:
        table.add_row(
            engine.name,
            engine.version or "-",
            ", ".join(engine.typings) or "-",
            engine.device or "-",
            "\n".join(filter(None, (_usable(engine), _plain(engine.note)))),
        )
    return table


def _usable(engine: EngineStatus) -> str:
    return "[green]yes[/green]" if engine.usable else f"[red]no:[/red] {_plain(engine.why_not)}"


def _plain(text: str) -> str:
    """``text`` with the square brackets that Rich would read as markup, such as those of a pip extra, kept."""
    return text.replace("[", r"\[")
