"""The command line: its commands by name, their help, and the errors on wrong use.

Cyclopts splits a command line into values, and writes the help and the completion of shells; the options are those that
``trt_bisect.options`` declares.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter, Token
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from cyclopts.help import ColumnSpec, HelpEntry, HelpPanel, TableSpec
from cyclopts.help.specs import DescriptionColumn

from trt_bisect._version import __version__
from trt_bisect.errors import BadInput
from trt_bisect.options import ARGUMENTS, PANELS
from trt_bisect.options.declare import Option, Options, declared, nearest, read_config
from trt_bisect.options.kinds import OBJECT, SWITCH, InFile, whole

if TYPE_CHECKING:
    from rich.console import Console

    from trt_bisect.support.progress import Progress

# the commands in the order of the help, each with its module in ``trt_bisect.cli``
COMMANDS = {
    "demo": "runs",
    "run": "runs",
    "pipeline": "runs",
    "sensitivity": "network",
    "regress": "runs",
    "layers": "network",
    "compare": "network",
    "profile": "network",
    "calibrate": "network",
    "check": "network",
    "migrate": "network",
    "verify": "network",
    "worst": "network",
    "view": "runs",
    "history": "runs",
    "engines": "network",
    "clean": "runs",
}
# the commands that keep what was done before Ctrl-C
CONTINUED = ("run", "pipeline", "sensitivity", "regress", "view", "history")
ABOUT = "Name the layers that lose a network's accuracy under TensorRT INT8, and write the recipe that restores it."
_HELP = ("-h", "--help", "--help-all")
_WIDEST = 100
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)")
_NAMED = 3


def function_of(command: str) -> Callable[..., int | None]:
    """Returns the function that runs a command."""
    module = import_module(f"trt_bisect.cli.{COMMANDS[command]}")
    return getattr(module, f"{command}_command")  # type: ignore[no-any-return]


def application(*commands: str, everything: bool = False) -> App:
    """Returns the command line with these commands, or with all if none is given; ``everything``: its help has expert
    options too.
    """
    from rich.console import Console

    values: dict[str, str] = {}
    app = App(
        name="trt-bisect",
        version=__version__,
        version_flags=("--version",),
        help=ABOUT,
        help_flags=_HELP,
        help_format="plaintext",
        help_formatter=partial(_print_panel, values),
        help_epilogue="'trt-bisect COMMAND -h' explains a command.",
        console=Console(width=min(shutil.get_terminal_size().columns, _WIDEST), highlight=False),
        group_arguments=_GROUPS[ARGUMENTS],
        default_parameter=Parameter(negative=(), allow_repeating=True),
        result_action="return_value",
        usage="Usage: trt-bisect COMMAND [OPTIONS]",
    )
    for place, name in enumerate(commands or COMMANDS):
        function = function_of(name)
        about = (inspect.getdoc(function) or "").partition("\n\nArgs:")[0]
        usage, end = f"Usage: trt-bisect {name}", ""
        for option in declared(function):
            values[option.flag] = "NAME" if option.kind.closed else option.kind.metavar
            if option.is_argument:
                word = option.keyword.upper() + "..." * option.kind.several
                usage += f" {word}" if option.default is inspect.Parameter.empty else f" [{word}]"
            if option.expert and not everything:
                end = f"'trt-bisect {name} --help-all' lists the expert options too."
        app.command(
            _taking(declared(function), everything),
            name=name,
            help=re.sub(r"(?<!\n)\n(?!\n)", " ", about),
            help_epilogue=end,
            sort_key=place,
            usage=f"{usage} [OPTIONS]",
        )
    app.register_install_completion_command()
    return app


def _taking(options: Iterable[Option], everything: bool) -> Callable[..., None]:
    # a function whose parameters are the options, for cyclopts to read; it is never called
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
            group=_GROUPS[option.panel],
            show=everything or not option.expert,
            show_choices=not all(word in option.effect for word in kind.choices),
        )
        taken: Any = list[str]  # so that all values of an option that is repeated are seen
        if kind is SWITCH or (option.is_argument and not kind.several):
            taken = bool if kind is SWITCH else str
        place = inspect.Parameter.POSITIONAL_ONLY if option.is_argument else inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(
                option.keyword, place, default=option.shown_default or None, annotation=Annotated[taken, facts]
            )
        )

    def command(*_values: Any, **_named: Any) -> None:
        pass

    vars(command)["__signature__"] = inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))
    return command


def _read(option: Option, _type: Any, tokens: Sequence[Token]) -> Any:
    if isinstance(tokens[0].implicit_value, bool):
        return tokens[0].implicit_value
    flag, texts = tokens[0].keyword or option.flag, [token.value for token in tokens]
    if option.kind.several:
        return option.kind.read(texts, flag)
    for text in texts:
        if text != texts[0]:
            problem = f"{option.flag} takes one value, and {texts[0]!r} and {text!r} are given."
            raise BadInput(problem, "Leave out one of the two.")
    return option.kind.read(texts[0], flag)


def bound_to(words: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Returns the function that a command line calls, and its arguments.

    Raises BadInput if there is no such command, or an option or a value is unknown, missing or too many.
    """
    commands: Sequence[str] = ()
    options: Sequence[Option] = ()
    if words and words[0] in COMMANDS:
        commands, options = words[:1], declared(function_of(words[0]))
    try:
        app = application(*commands, everything="--help-all" in words)
        called, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        raise _bad_input(error, words, {option.keyword: option for option in options}) from error
    given = dict(bound.arguments)
    if called.__module__ != __name__:  # help, version and completion are functions of cyclopts
        return called, given
    if "config" in given:
        in_file = [option for option in options if option.keyword != "config" and option.kind is not OBJECT]
        given = read_config(given["config"], words[0], COMMANDS, in_file) | given
    return function_of(words[0]), _arguments(words[0], given)


def _arguments(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
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


def _bad_input(error: CycloptsError, words: Sequence[str], options: Mapping[str, Option]) -> BadInput:
    line = f"trt-bisect {words[0]}" if options else "trt-bisect"
    remedy = f"'{line} -h' lists the options."
    if isinstance(error, UnknownCommandError):
        near = nearest(words[0], COMMANDS)
        remedy = f"Did you mean '{near}'?" if near else f"The commands are {', '.join(COMMANDS)}."
        if words[0].endswith(".onnx"):
            remedy = f"Write the command first: {shlex.join(['trt-bisect', 'run', *words])}"
        return BadInput(f"There is no command '{words[0]}'.", remedy)
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


def _print_panel(values: Mapping[str, str], console: Console, _options: Any, panel: HelpPanel) -> None:
    # ``values``: by flag the word for its value, such as ``FILE``
    from rich.padding import Padding

    def name(entry: HelpEntry) -> str:
        names = entry.positive_names or (entry.positional_label or "",)  # arguments have labels in cyclopts 5
        return f"{', '.join((*entry.positive_shorts, names[0]))} {values.get(names[0], '')}"

    if panel.entries:
        columns = ColumnSpec(renderer=name, no_wrap=True, min_width=19), DescriptionColumn
        table = TableSpec().build(columns, panel.entries)
        console.print(f"{panel.title}:", style="bold")
        console.print(Padding(table, (0, 0, 1, 2)))


_GROUPS = {title: Group(title, sort_key=place) for place, title in enumerate(PANELS)}


WIDE = 220  # the width, in characters, of a table with many columns if stdout is no terminal
Model = Annotated[InFile, Option(effect="The ONNX network, or a PyTorch module:function.")]
Top = Annotated[int, whole(least=0), Option(effect="Print this many rows of a table; 0 prints all.")]
Annotations = Annotated[Literal["github"] | None, Option(effect="Print annotations for this CI service too.")]
_COLUMNS = "Print these columns: their CSV names, separated by commas. Default: those that fit."
Columns = Annotated[str, Option(effect=_COLUMNS)]


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

    def show(
        self, result: Any, printed: Callable[[Any, Console], None], piped: int, files: str = "", folder: Any = None
    ) -> None:
        """Prints a result by ``printed``, then where its ``files`` are; with ``--json`` prints its JSON instead.

        Args:
            piped: the width in characters if stdout is no terminal.
            folder: the folder of the files; None: nothing is written.
        """
        if self.json:
            self.print_json(result)
            return
        screen = console(piped)
        printed(result, screen)
        if folder is not None:
            screen.print(f"{files}: {folder}", markup=False, soft_wrap=True)

    def annotate(self, lines: Sequence[str]) -> None:
        """Prints annotations of a CI service on stdout, or on stderr where stdout has JSON."""
        for line in lines:
            print(line, file=sys.stderr if self.json else sys.stdout, flush=True)

    def say(self, text: str) -> None:
        """Prints a line on stdout; with ``--json`` nothing."""
        if not self.json:
            print(text, flush=True)


class Configured(Output):
    """The output of a command whose options may stand in a file.

    Attributes:
        config: Take options from this TOML file; the command line wins.
    """

    config: InFile | None = None


def console(piped: int) -> Console:
    """Returns the console of stdout: as wide as the terminal, or as COLUMNS says.

    Args:
        piped: the width in characters if stdout is no terminal and COLUMNS is not set.
    """
    from rich.console import Console

    screen = Console(highlight=False)
    return screen if screen.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=piped)


def listed(text: str) -> list[str]:
    """Returns the words of a text that commas separate."""
    return [word.strip() for word in text.split(",") if word.strip()]


def run_folder(output: Any, model: Path) -> Any:
    """Returns ``output``, or the default folder ``trt-bisect-<model>``."""
    return output or Path(f"trt-bisect-{model.stem}")
