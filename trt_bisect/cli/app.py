"""The command line: its commands by name, their help, and the errors on wrong use.

Cyclopts splits a command line into values and writes the completion of shells; the options are those that
``trt_bisect.options`` declares. The help is our own: that of cyclopts has no ``--help-all``.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter, Token
from cyclopts.exceptions import CoercionError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

from trt_bisect._version import __version__
from trt_bisect.errors import BadInput
from trt_bisect.options import PANELS
from trt_bisect.options.declare import Option, Options, declared, nearest, read_config
from trt_bisect.options.kinds import FILE, OBJECT, SWITCH, whole

if TYPE_CHECKING:
    from rich.console import Console

    from trt_bisect.support.progress import Progress

GOES_ON = "The same command goes on from what was measured."
BEGINS_ANEW = "The command keeps nothing; the same command begins again."
COMMANDS = {
    "demo": ("runs", BEGINS_ANEW),
    "run": ("runs", GOES_ON),
    "pipeline": ("runs", GOES_ON),
    "sensitivity": ("network", GOES_ON),
    "regress": ("runs", GOES_ON),
    "layers": ("network", BEGINS_ANEW),
    "compare": ("network", BEGINS_ANEW),
    "profile": ("network", BEGINS_ANEW),
    "calibrate": ("network", BEGINS_ANEW),
    "check": ("network", BEGINS_ANEW),
    "migrate": ("network", BEGINS_ANEW),
    "verify": ("network", BEGINS_ANEW),
    "worst": ("network", GOES_ON),
    "view": ("runs", GOES_ON),
    "history": ("runs", GOES_ON),
    "engines": ("network", BEGINS_ANEW),
    "clean": ("runs", BEGINS_ANEW),
}
"""The commands in the order of the help, each with its module in ``trt_bisect.cli`` and the remedy after Ctrl-C."""
ABOUT = "Name the layers that lose a network's accuracy under TensorRT INT8, and write the recipe that restores it."
_TABLES = (*COMMANDS, *map(str.lower, PANELS))
"""The tables that a configuration file may have."""
_HELP = ("-h", "--help", "--help-all")
_FLAGS = {
    "--version": "Print the version.",
    "--install-completion": "Install completion for the shell in use.",
}
"""The options without a command, with their help."""
_WIDEST = 100
_LONGEST_WORD = 56
"""The width of the second column of a help of 80 columns; a longer word would be cut."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")
_NAMED = 3


def function_of(command: str) -> Callable[..., int | None]:
    """Returns the function of a command."""
    module = import_module(f"trt_bisect.cli.{COMMANDS[command][0]}")
    return getattr(module, f"{command}_command")  # type: ignore[no-any-return]


def application(*commands: str) -> App:
    """Returns the command line with these commands, or with all of them."""
    app = App(
        name="trt-bisect",
        version=__version__,
        version_flags=("--version",),
        help_flags=_HELP,
        default_parameter=Parameter(negative=(), allow_repeating=True),
        result_action="return_value",
    )
    for name in commands or COMMANDS:
        app.command(_taking(declared(function_of(name))), name=name, help=paragraphs_of(name)[0])
    app.register_install_completion_command()
    return app


def _taking(options: Iterable[Option]) -> Callable[..., None]:
    """A function whose parameters are options, as cyclopts reads them; it is only bound, not called."""
    parameters = []
    for option in options:
        kind = option.kind
        if kind is OBJECT:
            continue
        facts = Parameter(
            name=option.flags,
            converter=partial(_read, option),
            n_tokens=None if kind.several or kind is SWITCH else 1,
            allow_leading_hyphen=kind.hyphens,
            choices=kind.choices if kind.closed else None,
            help=option.effect,
        )
        taken: Any = list[str]  # so that all values of an option that is repeated are seen
        if kind is SWITCH or (option.is_argument and not kind.several):
            taken = bool if kind is SWITCH else str
        place = inspect.Parameter.POSITIONAL_ONLY if option.is_argument else inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(option.keyword, place, default=None, annotation=Annotated[taken, facts]))

    def command(*_values: Any, **_named: Any) -> None:
        pass

    vars(command)["__signature__"] = inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))
    return command


def _read(option: Option, _type: Any, tokens: Sequence[Token]) -> Any:
    """Returns the value of an option from its tokens, the texts of counts joined.

    Raises BadInput if it cannot be used, or an option of one value has two.
    """
    if isinstance(tokens[0].implicit_value, bool):
        return tokens[0].implicit_value
    flag, texts = tokens[0].keyword or option.flag, [token.value for token in tokens]
    if option.kind.several:
        return option.kind.read(texts, flag)
    if option.kind.joined:
        return option.kind.read(",".join(texts), flag)
    for text in texts:
        if text != texts[0]:
            problem = f"{option.flag} takes one value, and {texts[0]!r} and {text!r} are given."
            raise BadInput(problem, "Leave out one of the two.")
    return option.kind.read(texts[0], flag)


def parsed(words: Sequence[str]) -> Callable[[], Any]:
    """Returns the call that a command line asks for.

    Raises BadInput if there is no such command, or an option or a value is unknown, missing or too many.
    """
    if not words or words[0] in _HELP:
        return lambda: print(overview())
    asks_help = {*words} & {*_HELP}
    if words[0] in COMMANDS and asks_help:
        return lambda: print(help_of(words[0], everything="--help-all" in asks_help))
    function, arguments = bound_to(words)
    return lambda: function(**arguments)


def bound_to(words: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns the function that a command line calls, and its arguments; raises BadInput as ``parsed`` does."""
    command = words[0]
    is_command = command in COMMANDS
    if not is_command and command not in _FLAGS:
        raise _no_command(words)
    options = declared(function_of(command)) if is_command else ()
    try:
        app = application(command) if is_command else application()
        called, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _bad_input(error, words, {option.keyword: option for option in options}) from error
    given = dict(bound.arguments)
    if not is_command:
        return called, given
    if "config" in given:
        in_file = [option for option in options if option.keyword != "config" and option.kind is not OBJECT]
        given = read_config(given["config"], command, _TABLES, in_file) | given
    return function_of(command), _arguments(command, given)


def _arguments(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a command's function, with those that are options of a dataclass in an object of it."""
    arguments = {}
    for name, parameter in inspect.signature(function_of(command), eval_str=True).parameters.items():
        options = parameter.annotation
        if isinstance(options, type) and issubclass(options, Options):
            known = {option.keyword for option in declared(options)}
            arguments[name] = options(**{key: given[key] for key in known & given.keys()})
        elif name in given:
            arguments[name] = given[name]
        elif parameter.default is parameter.empty:
            line = f"{command} {'NETWORK.onnx' if name == 'model' else name.upper()}"
            is_calibrated = any(option.keyword == "calibration" for option in declared(function_of(command)))
            data = " --calibration DATA" if is_calibrated else ""
            raise BadInput(f"The argument {name.upper()} is missing.", f"Write trt-bisect {line}{data}.")
    return arguments


def _no_command(words: Sequence[str]) -> BadInput:
    near = difflib.get_close_matches(words[0], COMMANDS, 1)
    remedy = f"Did you mean '{near[0]}'?" if near else f"The commands are {', '.join(COMMANDS)}."
    if words[0].endswith(".onnx"):
        remedy = f"Write the command first: {shlex.join(['trt-bisect', 'run', *words])}"
    return BadInput(f"There is no command '{words[0]}'.", remedy)


def _bad_input(error: CycloptsError, words: Sequence[str], options: Mapping[str, Option]) -> BadInput:
    """Returns the error on a command line; ``options``: those of the command, by keyword."""
    line = f"trt-bisect {words[0]}" if options else "trt-bisect"
    remedy = f"'{line} -h' lists the options."
    if isinstance(error, UnknownOptionError):
        flag = str(error.token.keyword or error.token.value)
        near = nearest(flag, [*_HELP, *(name for option in options.values() for name in option.flags)])
        if flag in ("--model", "--network", "--onnx"):
            kept = shlex.join(word for word in words if word != flag)
            remedy = f"Write the network without a flag: trt-bisect {kept}"
        elif words[0] == "pipeline" and any(flag in option.flags for option in declared(function_of("run"))):
            remedy = "Leave it out: it is an option of 'trt-bisect run', which takes one network."
        elif near:
            remedy = f"Did you mean {near}?"
        return BadInput(f"'{line}' has no option {flag}.", remedy)
    if isinstance(error, UnusedCliTokensError):
        return _too_many(list(error.unused_tokens or ()), "calibration" in options, words)
    option = options.get(error.argument.field_info.name) if error.argument else None
    if option and isinstance(error, MissingArgumentError):
        flag = error.keyword or option.flag
        return BadInput(f"{flag} needs a value: {option.kind.metavar}.", f"'{line} -h' explains {flag}.")
    if option and isinstance(error, CoercionError) and error.token is not None:
        option.kind.read(error.token.value, error.token.keyword or option.flag)
    return BadInput(f"{str(error).rstrip('.')}.", remedy)


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
        "Options": [*_FLAGS.items()],
    }
    texts = [ABOUT, "Usage: trt-bisect COMMAND [OPTIONS]"]
    return _page(texts, sections, "'trt-bisect COMMAND -h' explains a command.")


def paragraphs_of(command: str) -> list[str]:
    """Returns the paragraphs of a command's help."""
    text = (inspect.getdoc(function_of(command)) or "").split("\n\nArgs:")[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def help_of(command: str, *, everything: bool = False) -> str:
    """Returns the help of a command, with ``everything`` the expert options too."""
    sections: dict[str, list[tuple[str, str]]] = {title: [] for title in PANELS}
    usage, end = f"Usage: trt-bisect {command}", ""
    for option in declared(function_of(command)):
        kind, name, default = option.kind, option.keyword.upper(), option.shown_default
        if option.is_argument:
            several = "..." if kind.several else ""
            usage += f" {name}{several}" if option.default is inspect.Parameter.empty else f" [{name}]"
        elif kind is OBJECT:
            continue
        elif option.expert and not everything:
            end = f"'trt-bisect {command} --help-all' lists the expert options too."
            continue
        else:
            short = [flag for flag in option.flags if not flag.startswith("--")]
            name = f"{', '.join([*short, option.flag])} {'NAME' if kind.choices else kind.metavar}"
        choices = ""
        if not all(word in option.effect for word in kind.choices):
            choices = f" [{kind.metavar if len(kind.metavar) <= _LONGEST_WORD else ', '.join(kind.choices)}]"
        sections[option.panel].append((name, f"{option.effect}{choices}{default and f' (default: {default})'}"))
    return _page([f"{usage} [OPTIONS]", *paragraphs_of(command)], sections, end)


def _page(texts: Sequence[str], sections: Mapping[str, Sequence[tuple[str, str]]], end: str) -> str:
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
    console = Console(width=min(shutil.get_terminal_size().columns, _WIDEST))
    with console.capture() as page:
        console.print(Text("\n\n".join(texts)), grid, Text(f"\n{end}"), sep="\n")
    return "\n".join(map(str.rstrip, page.get().rstrip().splitlines()))


WIDE = 220
"""The columns of a table with many of them, where stdout is no terminal."""
Model = Annotated[Path, FILE, Option(effect="The ONNX network, or a PyTorch module:function.")]
Top = Annotated[int, whole(least=0), Option(effect="Print this many rows of a table; 0 prints all.")]
Annotations = Annotated[Literal["github"] | None, Option(effect="Print annotations for this CI service too.")]
_COLUMNS = "Print these columns: their CSV names, separated by commas. Default: those that fit."
Columns = Annotated[str, Option(effect=_COLUMNS)]


@dataclass(frozen=True, kw_only=True)
class Output(Options):
    """The output of a command, as its display options ask for it.

    Attributes:
        json: Print the result as one JSON document on stdout.
        quiet: Show no progress.
        verbose: Show every step with its time, on stderr.

    Raises:
        BadInput: quiet and verbose.
    """

    json: bool = False
    quiet: Annotated[bool, Option("--quiet -q")] = False
    verbose: Annotated[bool, Option("--verbose -v")] = False

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

    config: Annotated[Path | None, FILE] = None


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
    """Returns the folder for the output, by default ``trt-bisect-<model>``."""
    return output or Path(f"trt-bisect-{model.stem}")
