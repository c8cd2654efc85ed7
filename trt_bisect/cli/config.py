"""``--config``: a TOML file that gives defaults to the parameters of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from trt_bisect.jobs.options import toml
from trt_bisect.jobs.options.declare import Options
from trt_bisect.jobs.options.kinds import SWITCH
from trt_bisect.jobs.options.tables import read_config, readers

_DISPLAY = {"json": "as_json", "quiet": "quiet", "verbose": "verbose"}
"""From keys to the parameters that every command has."""


def with_config(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command ``--config`` for its own parameters."""
    own = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def called(**given: Any) -> None:
        given.pop("config")
        command(**given)

    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own.values()]
    parameters = [*keywords, config_parameter(own)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def config_parameter(own: Mapping[str, inspect.Parameter], options: type[Options] | None = None) -> inspect.Parameter:
    """Returns the parameter ``--config`` of a command.

    Args:
        own: the parameters of the command's function.
        options: the command's class of options, if it has one.
    """
    known = _known(own, options)

    def take(context: typer.Context, file: Path | None) -> Path | None:
        if file is not None:
            context.default_map = {**(context.default_map or {}), **defaults(read_config(file, known), options)}
        return file

    described = typer.Option(
        "--config",
        callback=take,
        is_eager=True,
        show_default=False,
        help="A TOML file with options, named as in Python; those on the command line come before it.",
    )
    typed = Annotated[Path | None, described]
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=typed)


def _known(own: Mapping[str, inspect.Parameter], options: type[Options] | None) -> dict[str, toml.Read]:
    """The readers of a command's keys."""
    known = {each.name: _reader(each) for each in own.values() if each.name not in ("options", "display")}
    return {**known, **(readers(options) if options else {}), **dict.fromkeys(_DISPLAY, toml.switch)}


def _reader(parameter: inspect.Parameter) -> toml.Read:
    """The reader of a parameter that is a switch, a number, a text, a path or several paths."""
    if parameter.name == "model" and Path in _types(parameter.annotation):
        return toml.file
    kinds = _types(parameter.annotation)
    if list in kinds:
        return toml.places
    if bool in kinds:
        return toml.switch
    if int in kinds:
        return functools.partial(toml.whole, least=0)
    return toml.place if Path in kinds else toml.text


def _types(annotation: Any) -> set[Any]:
    """The types in an annotation, without ``Annotated`` and ``None``; ``list`` stands for a list of anything."""
    if get_origin(annotation) is Annotated:
        return _types(get_args(annotation)[0])
    if get_origin(annotation) is list:
        return {list}
    parts = get_args(annotation)
    return set().union(*map(_types, parts)) if parts else {annotation}


def defaults(values: Mapping[str, Any], options: type[Options] | None) -> dict[str, Any]:
    """Values from a file as defaults of parameters, in the words of the command line."""
    infos = {info.name: info for info in options.declared()} if options else {}
    found: dict[str, Any] = {}
    for name, value in values.items():
        info = infos.get(name)
        if info is None or info.kind is SWITCH:
            found[_DISPLAY.get(name, name)] = value
        else:
            words = info.kind.words(value)
            found[name] = list(words) if info.kind.several else words[0]
    return found
