"""The command line: its commands by name, their help, and what is told where it is used wrongly."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from cyclopts import App, ArgumentCollection, CycloptsError, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from trt_bisect._version import __version__
from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.concerns import PANELS
from trt_bisect.jobs.options.declare import Declared, Read, declared
from trt_bisect.jobs.options.kinds import SWITCH
from trt_bisect.jobs.options.tables import read_config

GOES_ON = "The same command goes on from what was measured."
BEGINS_ANEW = "The command keeps nothing; the same command begins again."
COMMANDS = {
    "demo": BEGINS_ANEW,
    "run": GOES_ON,
    "recover": GOES_ON,
    "sensitivity": GOES_ON,
    "regress": GOES_ON,
    "layers": BEGINS_ANEW,
    "compare": BEGINS_ANEW,
    "profile": BEGINS_ANEW,
    "calibrate": BEGINS_ANEW,
    "check": BEGINS_ANEW,
    "worst": GOES_ON,
    "view": GOES_ON,
    "history": GOES_ON,
    "engines": BEGINS_ANEW,
    "clean": BEGINS_ANEW,
}
"""The commands in the order of the help, each with the remedy after Ctrl-C.

``name_command`` in the module ``trt_bisect.cli.name`` is the function of a command.
"""
ABOUT = "Name the layers that lose a network's accuracy under TensorRT INT8, and write the recipe that restores it."
_TABLES = (*COMMANDS, *map(str.lower, PANELS))
"""The tables that a configuration file may have."""
_HELP = ("-h", "--help", "--help-all")
_COLUMN, _WIDEST = 24, 100
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")
_NAMED = 3


def function_of(command: str) -> Callable[..., int | None]:
    """Returns the function of a command."""
    function: Callable[..., int | None] = getattr(import_module(f"trt_bisect.cli.{command}"), f"{command}_command")
    return function


def application() -> App:
    """Returns the command line; a command's module is imported when it is called."""
    app = App(
        name="trt-bisect",
        help=ABOUT,
        version=__version__,
        version_flags=("--version",),
        help_flags=_HELP,
        default_parameter=Parameter(negative=(), allow_repeating=True),
        config=_configured,
        result_action="return_value",
    )
    for name in COMMANDS:
        app.command(f"trt_bisect.cli.{name}:{name}_command", name=name)
    app.register_install_completion_command()
    return app


def parsed(words: Sequence[str]) -> Callable[[], int | None]:
    """Returns the call that a command line asks for.

    Raises:
        BadInput: there is no such command, or an option or a value is unknown, missing or too many.
    """
    if not words or words[0] in _HELP:
        return lambda: print(_overview())
    if words[0] in COMMANDS and (asked := set(words) & set(_HELP)):
        return lambda: print(help_of(words[0], _width(), everything="--help-all" in asked))
    function, bound = bound_to(words)
    return lambda: function(*bound.args, **bound.kwargs)


def bound_to(words: Sequence[str]) -> tuple[Callable[..., int | None], inspect.BoundArguments]:
    """Returns the function that a command line calls, and its arguments; raises BadInput as ``parsed`` does."""
    try:
        function, bound, _ = application().parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _told(error, words) from error
    return function, bound


def _configured(_app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Gives options the values that the file of ``--config`` has for them, where the command line has none."""
    by_name = {argument.field_info.name: argument for argument in arguments}
    config = by_name.get("config")
    if config is None or not config.tokens:
        return
    options = {option.name: option for option in declared(function_of(commands[0])) if option.name != "config"}
    values = read_config(Path(config.tokens[0].value), commands[0], _TABLES, tuple(options.values()))
    for name, value in values.items():
        if not by_name[name].tokens:
            is_switch = options[name].option.kind is SWITCH
            token = Token(implicit_value=value) if is_switch else Token(value=Read.of(value))
            by_name[name].append(token)


def _told(error: CycloptsError, words: Sequence[str]) -> BadInput:
    """Returns an error of the parser as the problem and what to write instead."""
    command = words[0]
    if isinstance(error, UnknownCommandError) or command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        remedy = f"Did you mean '{near[0]}'?" if near else f"The commands are {', '.join(COMMANDS)}."
        if command.endswith(".onnx"):
            remedy = f"Write the command first: {shlex.join(['trt-bisect', 'run', *words])}"
        return BadInput(f"There is no command '{command}'.", remedy)
    options = declared(function_of(command))
    if isinstance(error, UnknownOptionError):
        return _unknown(command, str(error.token.keyword or error.token.value), options, words)
    if isinstance(error, UnusedCliTokensError):
        return _too_many(list(error.unused_tokens or ()), options, words)
    by_name = {option.name: option for option in options}
    option = by_name.get(error.argument.field_info.name) if error.argument else None
    if option and isinstance(error, CoercionError) and error.token is not None:
        try:
            option.option.kind.read(error.token.value, error.token.keyword or option.flag)
        except BadInput as told:
            return told
    if option and isinstance(error, MissingArgumentError):
        if option.is_argument:
            data = " --calibration DATA" if "calibration" in by_name else ""
            example = "NETWORK.onnx" if option.name == "model" else option.name.upper()
            return BadInput(
                f"The argument {option.name.upper()} is missing.", f"Write trt-bisect {command} {example}{data}."
            )
        flag = error.keyword or option.flag
        return BadInput(
            f"{flag} needs a value: {option.option.kind.metavar}.", f"'trt-bisect {command} -h' explains {flag}."
        )
    return BadInput(f"{str(error).rstrip('.')}.", f"'trt-bisect {command} -h' lists the options.")


def _unknown(command: str, flag: str, options: Sequence[Declared], words: Sequence[str]) -> BadInput:
    """Returns the error on an option that the command does not have."""
    problem = f"'trt-bisect {command}' has no option {flag}."
    if flag in ("--model", "--network", "--onnx"):
        rest = [word for word in words[1:] if word != flag]
        return BadInput(problem, f"Write the network without a flag: {shlex.join(['trt-bisect', command, *rest])}")
    near = difflib.get_close_matches(flag, [each for option in options for each in option.flags], 1)
    return BadInput(problem, f"Did you mean {near[0]}?" if near else f"'trt-bisect {command} -h' lists the options.")


def _too_many(extra: list[str], options: Sequence[Declared], words: Sequence[str]) -> BadInput:
    """Returns the error on too many arguments: numbers, data without its option, or names that the shell expanded."""
    rest = f" and {len(extra) - _NAMED} more" if len(extra) > _NAMED else ""
    problem = f"Too many arguments: {', '.join(extra[:_NAMED])}{rest}."
    if all(map(_NUMBER.fullmatch, extra)):
        first = words.index(extra[0])
        flag, value = words[first - 2], words[first - 1]
        if flag.startswith("--") and _NUMBER.fullmatch(value):
            return BadInput(problem, f"Write {flag} {','.join([value, *extra])}.")
    takes_data = any(option.name == "calibration" for option in options)
    if not all(Path(each).exists() for each in extra) or extra[0].endswith(".onnx"):
        remedy = "Give one value after an option. Repeat the option for more values, and quote names with * or spaces."
        return BadInput(problem, remedy)
    if len(extra) == 1 and takes_data and "--calibration" not in words:
        others = [word for word in words if word != extra[0]]
        line = shlex.join(["trt-bisect", *others, "--calibration", extra[0]])
        return BadInput(problem, f"Give data after an option: {line}")
    folder = shlex.quote(str(Path(extra[-1]).parent))
    return BadInput(problem, f"Give the folder of the files instead of each: {folder}")


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _overview() -> str:
    """Returns the help of the command line: its commands, each in a sentence."""
    lines = [*textwrap.wrap(ABOUT, _width()), "", "Usage: trt-bisect COMMAND [OPTIONS]", "", _title("Commands")]
    for name in COMMANDS:
        lines += _entry(name, paragraphs_of(name)[0], _width(), 14)
    lines += ["", _title("Options")]
    lines += _entry("--version", "Print the version.", _width(), 24)
    lines += _entry("--install-completion", "Install completion for the shell in use.", _width(), 24)
    return "\n".join([*lines, "", "'trt-bisect COMMAND -h' explains a command."])


def paragraphs_of(command: str) -> list[str]:
    """Returns the paragraphs of a command's help."""
    text = (inspect.getdoc(function_of(command)) or "").split("\n\nArgs:")[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def help_of(command: str, width: int, *, everything: bool = False) -> str:
    """Returns the help of a command.

    Args:
        command: its name.
        width: the columns of the terminal.
        everything: the expert options as well.
    """
    options = declared(function_of(command))
    arguments = [option for option in options if option.is_argument]
    named = " ".join(
        option.name.upper() if option.default is inspect.Parameter.empty else f"[{option.name.upper()}]"
        for option in arguments
    )
    lines = [f"Usage: trt-bisect {command} {named}{' ' if named else ''}[OPTIONS]"]
    for paragraph in paragraphs_of(command):
        lines += ["", *textwrap.wrap(paragraph, width)]
    if arguments:
        lines += ["", _title("Arguments")]
    for option in arguments:
        lines += _entry(option.name.upper(), _help(option), width, _COLUMN)
    for panel in PANELS:
        listed = [option for option in options if option.option.panel == panel and option.flags]
        shown = [option for option in listed if everything or not option.option.expert]
        if shown:
            lines += ["", _title(panel)]
        for option in shown:
            lines += _entry(_named(option), _help(option), width, _COLUMN)
    if not everything and any(option.option.expert and option.flags for option in options):
        lines += ["", f"'trt-bisect {command} --help-all' lists the expert options too."]
    return "\n".join(lines)


def _title(text: str) -> str:
    return f"\033[1m{text}:\033[0m" if sys.stdout.isatty() and "NO_COLOR" not in os.environ else f"{text}:"


def _named(option: Declared) -> str:
    """The flags that the help shows: the short one, the first one, and the word for the value."""
    short = [flag for flag in option.flags if not flag.startswith("--")]
    negative = option.option.negative or ()
    kind = option.option.kind
    value = "NAME" if kind.choices else kind.metavar
    return f"{', '.join([*short, option.flag, *negative])} {value}".rstrip()


def _help(option: Declared) -> str:
    """The help of an option, with its choices and what holds without it."""
    kind, without = option.option.kind, option.without
    choices = f" [{kind.metavar}]" if kind.choices else ""
    return f"{option.help}{choices}{f' (default: {without})' if without else ''}"


def _entry(left: str, text: str, width: int, column: int) -> list[str]:
    """The lines of a row: the name, and its help beside it, or below where the name is long."""
    folded = textwrap.wrap(text, width - column, break_on_hyphens=False)
    if len(left) + 4 > column:
        return [f"  {left}", *(" " * column + line for line in folded)]
    return [f"  {left:{column - 2}}{folded[0]}", *(" " * column + line for line in folded[1:])]
