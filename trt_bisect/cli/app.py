"""The command line: its commands by name, their help, and what is told where it is used wrongly.

Every command has the options ``--config``, ``--json``, ``-q`` and ``-v``.
"""

from __future__ import annotations

import difflib
import inspect
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from trt_bisect.options.concerns import PANELS
from trt_bisect.options.declare import FLAT, Option, Options, declared, nearest, panel, read_config
from trt_bisect.options.kinds import FILE, SWITCH, choice, whole

if TYPE_CHECKING:
    from rich.console import Console

    from trt_bisect.support.progress import Progress

GOES_ON = "The same command goes on from what was measured."
BEGINS_ANEW = "The command keeps nothing; the same command begins again."
COMMANDS = {
    "demo": ("runs", BEGINS_ANEW),
    "run": ("runs", GOES_ON),
    "sensitivity": ("network", GOES_ON),
    "regress": ("runs", GOES_ON),
    "layers": ("network", BEGINS_ANEW),
    "compare": ("network", BEGINS_ANEW),
    "profile": ("network", BEGINS_ANEW),
    "calibrate": ("network", BEGINS_ANEW),
    "check": ("network", BEGINS_ANEW),
    "migrate": ("network", BEGINS_ANEW),
    "worst": ("network", GOES_ON),
    "view": ("runs", GOES_ON),
    "history": ("runs", GOES_ON),
    "engines": ("network", BEGINS_ANEW),
    "clean": ("runs", BEGINS_ANEW),
}
"""The commands in the order of the help, each with its module in ``trt_bisect.cli`` and the remedy after Ctrl-C.

``name_command`` in the module is the function of a command.
"""
_GONE = {"recover": "Use 'trt-bisect run' with --front, or with the same --budget or --drop."}
"""By command that there was once, what to use instead."""
ABOUT = "Name the layers that lose a network's accuracy under TensorRT INT8, and write the recipe that restores it."
_TABLES = (*COMMANDS, *map(str.lower, PANELS))
"""The tables that a configuration file may have."""
_HELP = ("-h", "--help", "--help-all")
_WIDEST = 100
_LONGEST_WORD = 56
"""The width of the second column of a help of 80 columns; a longer word would be cut."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")
_NAMED = 3


def function_of(command: str) -> Callable[..., int | None]:
    """Returns the function of a command."""
    module = import_module(f"trt_bisect.cli.{COMMANDS[command][0]}")
    return getattr(module, f"{command}_command")  # type: ignore[no-any-return]


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
    for name, (module, _) in COMMANDS.items():
        app.command(f"trt_bisect.cli.{module}:{name}_command", name=name)
    app.register_install_completion_command()
    return app


def parsed(words: Sequence[str]) -> Callable[[], int | None]:
    """Returns the call that a command line asks for.

    Raises BadInput if there is no such command, or an option or a value is unknown, missing or too many.
    """
    if not words or words[0] in _HELP:
        return lambda: print(overview())
    if words[0] in COMMANDS and (help_flags := set(words) & set(_HELP)):
        return lambda: print(help_of(words[0], _width(), everything="--help-all" in help_flags))
    function, bound = bound_to(words)
    return lambda: function(*bound.args, **bound.kwargs)


def bound_to(words: Sequence[str]) -> tuple[Callable[..., int | None], inspect.BoundArguments]:
    """Returns the function that a command line calls, and its arguments; raises BadInput as ``parsed`` does."""
    words = _each_once(words)
    try:
        function, bound, _ = application().parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _bad_input(error, words) from error
    return function, bound


def _each_once(words: Sequence[str]) -> list[str]:
    """Returns a command line in which no option of one value is repeated: the parser would take the last value.

    Counts by name are joined.

    Raises:
        BadInput: such an option is there with two values.
    """
    if not words or words[0] not in COMMANDS:
        return list(words)
    by_flag = {flag: option for option in declared(function_of(words[0])) for flag in option.flags}
    kept = [words[0]]
    places: dict[str, int] = {}
    rest = iter(words[1:])
    for word in rest:
        flag, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = by_flag.get(flag)
        if option is None or option.kind is SWITCH or option.kind.several:
            kept.append(word)
            continue
        given = value if has_value else next(rest, None)
        if given is None:  # the parser says that it is missing
            kept.append(word)
        elif option.keyword not in places:
            places[option.keyword] = len(kept) + 1
            kept += [flag, given]
        elif option.kind.joined:
            kept[places[option.keyword]] += f",{given}"
        elif kept[places[option.keyword]] != given:
            both = f"{kept[places[option.keyword]]!r} and {given!r}"
            raise BadInput(f"{option.flag} takes one value, and {both} are given.", "Leave out one of the two.")
    return kept


def _configured(_app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Gives options the values that the file of ``--config`` has for them, where the command line has none."""
    by_name = {argument.field_info.name: argument for argument in arguments}
    config = by_name.get("config")
    if config is None or not config.tokens:
        return
    everything = declared(function_of(commands[0]))
    options = [option for option in everything if option.keyword != "config" and option.parse is None]
    for name, value in read_config(Path(config.tokens[0].value), commands[0], _TABLES, options).items():
        if not by_name[name].tokens:
            by_name[name].append(Token(implicit_value=value))


def _bad_input(error: CycloptsError, words: Sequence[str]) -> BadInput:
    command = words[0]
    if isinstance(error, UnknownCommandError) or command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, 1)
        remedy = f"Did you mean '{near[0]}'?" if near else f"The commands are {', '.join(COMMANDS)}."
        if command.endswith(".onnx"):
            remedy = f"Write the command first: {shlex.join(['trt-bisect', 'run', *words])}"
        return BadInput(f"There is no command '{command}'.", _GONE.get(command, remedy))
    by_name = {option.keyword: option for option in declared(function_of(command))}
    if isinstance(error, UnknownOptionError):
        return _unknown(command, str(error.token.keyword or error.token.value), by_name, words)
    if isinstance(error, UnusedCliTokensError):
        return _too_many(list(error.unused_tokens or ()), "calibration" in by_name, words)
    option = by_name.get(error.argument.field_info.name) if error.argument else None
    if option and isinstance(error, CoercionError) and error.token is not None:
        try:
            option.kind.read(error.token.value, error.token.keyword or option.flag)
        except BadInput as refusal:
            return refusal
    if option and isinstance(error, MissingArgumentError) and option.is_argument:
        name = option.keyword.upper()
        line = f"{command} {'NETWORK.onnx' if name == 'MODEL' else name}"
        data = " --calibration DATA" if "calibration" in by_name else ""
        return BadInput(f"The argument {name} is missing.", f"Write trt-bisect {line}{data}.")
    if option and isinstance(error, MissingArgumentError):
        flag = error.keyword or option.flag
        return BadInput(f"{flag} needs a value: {option.kind.metavar}.", f"'trt-bisect {command} -h' explains {flag}.")
    return BadInput(f"{str(error).rstrip('.')}.", f"'trt-bisect {command} -h' lists the options.")


def _unknown(command: str, flag: str, by_name: Mapping[str, Option], words: Sequence[str]) -> BadInput:
    near = nearest(flag, [name for option in by_name.values() for name in option.flags])
    remedy = f"Did you mean {near}?" if near else f"'trt-bisect {command} -h' lists the options."
    if flag in ("--model", "--network", "--onnx"):
        line = shlex.join(["trt-bisect", command, *(word for word in words[1:] if word != flag)])
        remedy = f"Write the network without a flag: {line}"
    return BadInput(f"'trt-bisect {command}' has no option {flag}.", remedy)


def _too_many(extra: list[str], takes_data: bool, words: Sequence[str]) -> BadInput:
    """Returns the error on too many arguments: numbers, data without its option, or names that the shell expanded."""
    more = f" and {len(extra) - _NAMED} more" if len(extra) > _NAMED else ""
    first = words.index(extra[0])
    flag, value = words[first - 2 : first] if first > 1 else ("", "")
    if all(map(_NUMBER.fullmatch, [value, *extra])) and flag.startswith("--"):
        remedy = f"Write {flag} {','.join([value, *extra])}."
    elif not all(Path(path).exists() for path in extra) or extra[0].endswith(".onnx"):
        remedy = "Give one value after an option. Repeat the option for more values, and quote names with * or spaces."
    elif len(extra) == 1 and takes_data and "--calibration" not in words:
        line = ["trt-bisect", *(word for word in words if word != extra[0]), "--calibration", extra[0]]
        remedy = f"Give data after an option: {shlex.join(line)}"
    else:
        remedy = f"Give the folder of the files instead of each: {shlex.quote(str(Path(extra[-1]).parent))}"
    return BadInput(f"Too many arguments: {', '.join(extra[:_NAMED])}{more}.", remedy)


def overview() -> str:
    """Returns the help of the command line: its commands, each in a sentence."""
    sections = {
        "Commands": [(name, paragraphs_of(name)[0]) for name in COMMANDS],
        "Options": [
            ("--version", "Print the version."),
            ("--install-completion", "Install completion for the shell in use."),
        ],
    }
    texts = [ABOUT, "Usage: trt-bisect COMMAND [OPTIONS]"]
    return _page(texts, sections, "'trt-bisect COMMAND -h' explains a command.", _width())


def paragraphs_of(command: str) -> list[str]:
    """Returns the paragraphs of a command's help."""
    text = (inspect.getdoc(function_of(command)) or "").split("\n\nArgs:")[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def help_of(command: str, width: int, *, everything: bool = False) -> str:
    """Returns the help of a command for a terminal of that width, with ``everything`` the expert options too."""
    options = declared(function_of(command))
    shown = [option for option in options if option.flags and (everything or not option.expert)]
    arguments = [option for option in options if option.is_argument]
    names = [
        option.keyword.upper() if option.default is inspect.Parameter.empty else f"[{option.keyword.upper()}]"
        for option in arguments
    ]
    sections = {"Arguments": list(map(_row, arguments))}
    sections |= {title: [_row(option) for option in shown if option.panel == title] for title in PANELS}
    is_all = len(shown) == sum(bool(option.flags) for option in options)
    end = "" if is_all else f"'trt-bisect {command} --help-all' lists the expert options too."
    usage = " ".join(["Usage: trt-bisect", command, *names, "[OPTIONS]"])
    return _page([usage, *paragraphs_of(command)], sections, end, width)


def _row(option: Option) -> tuple[str, str]:
    """The name of an option in the help, with the word for its value; and its help, with what holds without it."""
    metavar, default = option.kind.metavar, option.shown_default
    short = [flag for flag in option.flags if not flag.startswith("--")]
    choices = ""
    if option.kind.choices:
        choices = f" [{metavar if len(metavar) <= _LONGEST_WORD else metavar.replace('|', ', ')}]"
        metavar = "NAME"
    text = f"{option.effect}{choices}{f' (default: {default})' if default else ''}"
    return option.keyword.upper() if option.is_argument else f"{', '.join([*short, option.flag])} {metavar}", text


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _page(texts: Sequence[str], sections: Mapping[str, Sequence[tuple[str, str]]], end: str, width: int) -> str:
    """Returns a page of the help: paragraphs, sections with a name and a text in a row, and a line at the end."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    for title, rows in sections.items():
        if rows:
            grid.add_row(Text(f"\n{title}:", style="bold"))
        for name, text in rows:
            grid.add_row(Text(f"  {name}"), Text(text))
    console = Console(width=width)
    with console.capture() as page:
        console.print(Text("\n\n".join(texts)))
        console.print(grid, Text(f"\n{end}" if end else ""))
    return "\n".join(map(str.rstrip, page.get().rstrip().splitlines()))


DISPLAY = panel("Display")
WIDE = 220
"""The columns of a table with many of them, where stdout is no terminal."""
Model = Annotated[Path, DISPLAY(FILE, help="The ONNX network, or a PyTorch module:function.")]
Top = Annotated[int, DISPLAY(whole(least=0), help="Print this many rows of a table; 0 prints all.")]
Annotations = Annotated[
    str | None, DISPLAY(choice(Literal["github"]), help="Print annotations for this CI service too.")
]
Columns = Annotated[
    str, DISPLAY(without="those that fit", help="Print these columns: their CSV names, separated by commas.")
]


@dataclass(frozen=True, kw_only=True)
class Output(Options):
    """The output of a command, as its display options ask for it.

    Attributes:
        json: Print the result as one JSON document on stdout.
        quiet: Show no progress; run and demo print the verdict only.
        verbose: Show every step with its time, on stderr.

    Raises:
        BadInput: quiet and verbose.
    """

    json: Annotated[bool, DISPLAY(SWITCH)] = False
    quiet: Annotated[bool, DISPLAY(SWITCH, "--quiet", "-q")] = False
    verbose: Annotated[bool, DISPLAY(SWITCH, "--verbose", "-v", expert=True)] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quiet and self.verbose:
            raise BadInput("--quiet and --verbose contradict each other.", "Leave out one of the two.")

    def progress(self) -> Progress:
        """Returns the display of progress, on stderr."""
        from trt_bisect.support.progress import RichProgress, Silent

        return Silent() if self.quiet else RichProgress(verbose=self.verbose)

    def print_json(self, record: Any) -> None:
        """Prints a result as JSON on stdout; numbers that are not finite become null.

        If stdout is not in UTF-8, characters beyond ASCII are escaped.
        """
        import msgspec

        from trt_bisect.support.codec import encode

        text = msgspec.json.format(encode(record), indent=1).decode()
        if not (sys.stdout.encoding or "utf-8").lower().startswith("utf"):
            text = json.dumps(json.loads(text), indent=1)
        print(text, flush=True)

    def show(self, result: Any, printed: Callable[[Any, Console], None], piped: int, where: str = "") -> None:
        """Prints a result and ``where`` its files are, or with ``--json`` its JSON; ``piped``: see ``console``."""
        if self.json:
            self.print_json(result)
            return
        screen = console(piped)
        printed(result, screen)
        if where:
            screen.print(where, markup=False, soft_wrap=True)

    def annotate(self, lines: Sequence[str]) -> None:
        """Prints annotations of a CI service on stdout, or on stderr where stdout has JSON."""
        for line in lines:
            print(line, file=sys.stderr if self.json else sys.stdout, flush=True)

    def say(self, text: str) -> None:
        """Prints a line on stdout; with ``--json`` nothing."""
        if not self.json:
            print(text, flush=True)


@dataclass(frozen=True, kw_only=True)
class Configured(Output):
    """The output of a command whose options may stand in a file.

    Attributes:
        config: Take options from this TOML file; the command line wins.
    """

    config: Annotated[Path | None, DISPLAY(FILE)] = None


Display = Annotated[Configured, FLAT]
"""The parameter ``display`` of a command."""


def console(piped: int) -> Console:
    """Returns the console of stdout: as wide as the terminal, or as COLUMNS says.

    Args:
        piped: the columns where stdout is no terminal and COLUMNS is not set.
    """
    from rich.console import Console

    screen = Console(highlight=False)
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=piped)


def listed(text: str) -> list[str]:
    """Returns the words of a text with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def run_folder(output: Any, model: Path) -> Any:
    """Returns the folder for the output: ``trt-bisect-<model>`` where none was given."""
    return output or Path(f"trt-bisect-{model.stem}")
