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
            message = error.format_message().rstrip(".")
            remedy = _remedy(self, ctx, error, given) or f"'trt-bisect {self.name} -h' lists the options."
            raise BadInput(f"{message}.", remedy) from error


def _remedy(command: TyperCommand, context: Any, error: Any, given: list[str]) -> str:
    """Returns a sentence on what to write instead; empty where the problem says it."""
    shares = [match for word in given if (match := _PER_CENT.fullmatch(word))]
    if shares and isinstance(error, typer.BadParameter):
        return f"Write {float(shares[0][1]) / 100:g} instead of {shares[0][1]}%."
    if type(error) is UsageError:
        return _for_extra(command, context, given)
    if getattr(error, "param", None) is not None and error.param.name == "model":
        data = " --calibration DATA" if _takes_data(command) else ""
        return f"Give the ONNX network: trt-bisect {command.name} NETWORK.onnx{data}"
    return ""


def _takes_data(command: TyperCommand) -> bool:
    return any(each.name == "calibration" for each in command.params)


def _for_extra(command: TyperCommand, context: Any, given: list[str]) -> str:
    """Returns a sentence on arguments that are too many: data without its option, or a pattern without quotes."""
    _, extra, _ = command.make_parser(context).parse_args(list(given))
    is_data = len(extra) == 1 and Path(extra[0]).exists() and not extra[0].endswith(".onnx")
    if is_data and _takes_data(command) and "--calibration" not in given:
        others = [word for word in given if word != extra[0]]
        line = ["trt-bisect", str(command.name), *others, "--calibration", extra[0]]
        return f"Data stand after an option: {shlex.join(line)}"
    return "An option takes one value; repeat the option for more, and put names with * or spaces in quotes."
