"""The parameters of a command, made from its options: flags, help panels, choices, defaults."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from trt_bisect.cli.config import config_parameter
from trt_bisect.jobs.options.declare import Options
from trt_bisect.jobs.options.option_info import OptionInfo

Model = Annotated[Path, typer.Argument(help="The ONNX network.", show_default=False)]
Top = Annotated[int, typer.Option("--top", min=0, help="How many rows of a table are printed; 0 for all.")]
Columns = Annotated[
    str,
    typer.Option(
        "--columns",
        help="The columns of the tables on the screen, by their names in the CSV file, with commas between them.",
        show_default="those that fit",
    ),
]
WIDE = 220
"""The columns of a table with many of them, where stdout is no terminal."""
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_Given = TypeVar("_Given", bound=Options)


def with_options(
    options: type[Options], *, config: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function: its parameter ``options`` becomes the flags of a class of options.

    The options on the command line are put together and checked, and the function is called with them. ``--config``
    gives defaults to all of them, and to the other parameters of the function.

    Args:
        options: the command's.
        config: the command has ``--config`` for its options.
    """

    def command(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters
        flags = [info for info in options.declared() if info.flags]
        parameters = [
            *(_keyword(each) for each in own.values() if each.name != "options"),
            *map(_parameter, flags),
            *map(_old_parameter, options.RENAMED),
            *([config_parameter(own, options)] if config else []),
        ]

        @functools.wraps(function)
        def called(**given: Any) -> None:
            if config:
                given.pop("config")
            _rename(options, given)
            values = {info: given.pop(info.name) for info in flags}
            chosen = {info.name: info.kind.parse(value) for info, value in values.items() if value is not None}
            function(**given, options=options(**chosen))

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return command


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=_KEYWORD)


def _parameter(info: OptionInfo) -> inspect.Parameter:
    """A flag. Values are checked with the options, not here, so that every interface says the same."""
    kind = info.kind
    plain: Any = list[str] if kind.several else kind.typed
    default = info.default if info.default not in ((), "") else None
    described = typer.Option(
        *info.flags,
        help=_escaped(info.help if not info.bounds else f"{info.help} ({info.bounds})"),
        metavar=_metavar(info),
        rich_help_panel=info.panel,
        show_default=_escaped(info.otherwise) if info.otherwise else default is not None and default is not False,
        autocompletion=_completion(info.choices) if info.choices else None,
    )
    typed = plain if default is not None else plain | None
    return inspect.Parameter(info.name, _KEYWORD, default=default, annotation=Annotated[typed, described])


def _completion(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Returns the function that a shell's completion asks for the values of an option."""

    def completed(incomplete: str) -> list[str]:
        return [each for each in choices if each.startswith(incomplete)]

    return completed


def _metavar(info: OptionInfo) -> str | None:
    """The word that the help shows for a value: the choices, or the unit; None leaves it to Typer."""
    if info.choices:
        return "|".join(info.choices if info.kind.closed else (*info.choices, "FILE"))
    return f"<{info.unit}>" if info.unit else info.kind.metavar or None


def _old_parameter(old: str) -> inspect.Parameter:
    hidden = typer.Option(f"--{old.replace('_', '-')}", hidden=True)
    return inspect.Parameter(old, _KEYWORD, default=None, annotation=Annotated[str | None, hidden])


def _rename(options: type[Options], given: dict[str, Any]) -> None:
    """Takes old names for new ones, with a line on stderr."""
    for old, renamed in options.RENAMED.items():
        value = given.pop(old)
        if value is not None:
            given[renamed.new] = renamed.value(value)
            note = f"trt-bisect: --{old} is an old name: give --{renamed.new} {given[renamed.new]}."
            typer.echo(note, err=True)


def listed(text: str) -> list[str]:
    """Returns the words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def in_folder(options: _Given, model: Path) -> _Given:
    """The options with a folder for the output, ``trt-bisect-<model>`` where none was given."""
    return replace(options, output=options.output or Path(f"trt-bisect-{model.stem}"))  # type: ignore[attr-defined,call-arg]


def _escaped(text: str) -> str:
    """``text`` with the square brackets kept that Rich would read as markup."""
    return text.replace("[", r"\[")
