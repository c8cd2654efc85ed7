"""Wrong use of a command's options, told as every other error: the problem, what to do, and as JSON with ``--json``."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from trt_bisect.errors import BadInput

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""Click's error for wrong use. Newer versions of Typer bring a Click of their own, which they do not name."""
_LINE_END = re.compile(r"(?<!\n)\n(?!\n)")
"""A line's end inside a paragraph."""
_NAMED = 3
_PER_CENT = re.compile(r"(?:--[\w-]+=)?(\d+(?:\.\d+)?)%")


class Command(TyperCommand):
    """A command that raises BadInput where its command line is wrong. Its help is as wide as the terminal."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = _LINE_END.sub(" ", self.help or "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line as Typer does.

        Raises:
            BadInput: an option or a value is unknown, missing or too many.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if ctx.resilient_parsing:
                raise
            if type(error) is UsageError:
                raise _too_many(self, given, self.make_parser(ctx).parse_args(list(given))[1]) from error
            remedy = _remedy(self, error, given) or f"'trt-bisect {self.name} -h' lists the options."
            raise BadInput(f"{error.format_message().rstrip('.')}.", remedy) from error


def _remedy(command: TyperCommand, error: Any, given: list[str]) -> str:
    """Returns a sentence on what to write instead; empty where the problem says it."""
    shares = [match for word in given if (match := _PER_CENT.fullmatch(word))]
    if shares and isinstance(error, typer.BadParameter):
        return f"Write {float(shares[0][1]) / 100:g} instead of {shares[0][1]}%."
    if getattr(error, "param", None) is not None and error.param.name == "model":
        data = " --calibration DATA" if _takes_data(command) else ""
        return f"Give the ONNX network: trt-bisect {command.name} NETWORK.onnx{data}"
    return ""


def _takes_data(command: TyperCommand) -> bool:
    return any(each.name == "calibration" for each in command.params)


def _too_many(command: TyperCommand, given: list[str], extra: list[str]) -> BadInput:
    """Returns the error on arguments that are too many: data without its option, or names that the shell expanded."""
    rest = f" and {len(extra) - _NAMED} more" if len(extra) > _NAMED else ""
    problem = f"Too many arguments: {', '.join(extra[:_NAMED])}{rest}."
    folders = {Path(each).parent for each in extra}
    if not all(Path(each).exists() for each in extra) or extra[0].endswith(".onnx"):
        remedy = "An option takes one value. Repeat an option that takes several, and quote names with * or spaces."
        return BadInput(problem, remedy)
    if len(extra) == 1 and _takes_data(command) and "--calibration" not in given:
        others = [word for word in given if word != extra[0]]
        line = ["trt-bisect", str(command.name), *others, "--calibration", extra[0]]
        return BadInput(problem, f"Data stand after an option: {shlex.join(line)}")
    return BadInput(problem, f"Give the folder of the files instead of each: {shlex.quote(str(folders.pop()))}")
