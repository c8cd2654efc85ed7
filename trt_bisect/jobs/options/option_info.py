"""The facts of an option, and the kind of its values."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options import toml

_MIB = 1 << 20
_SURELY_BYTES = 1 << 26
"""A number of MiB from which on it must be meant in bytes: no machine has 64 TiB."""


@dataclass(frozen=True)
class Kind:
    """A kind of options.

    Attributes:
        typed: the type of one value on the command line.
        reader: from the option to its reader in TOML files.
        words: from a value to the texts that stand for it on the command line; empty for a switch.
        several: the option may be repeated on the command line.
        closed: the value must be one of the option's choices, where it has any.
        parse: from what the command line holds to the value.
        metavar: stands for a value in the help; empty for the name of the type.
    """

    typed: type
    reader: Callable[[OptionInfo], toml.Read]
    words: Callable[[Any], tuple[str, ...]]
    several: bool = False
    closed: bool = True
    parse: Callable[[Any], Any] = lambda value: value
    metavar: str = ""


@dataclass(frozen=True)
class OptionInfo:
    """The facts of one option.

    Attributes:
        name: the name of the field, which is the Python keyword and the key in TOML.
        help: its effect, in a sentence or two.
        kind: the form of its values.
        flags: on the command line, the first one used in messages; empty for an option of Python alone.
        unit: the unit of the value, such as ``MiB`` or ``seconds``.
        choices: the known values.
        noun: the value's name in messages on choices.
        least, above, most: bounds of a number: not less than, more than, not more than.
        otherwise: the behaviour without the option, if no default value says it.
        bytes_before: in Python the value was in bytes in an earlier release: 1 << 20 and more is still read as bytes.
        repeated: suggested commands repeat it.
        stands_for: the placeholder in suggested commands for data that has no name.
        panel: the group in the help of a command.
        default: the value without the option.
        annotation: the annotation of the value in Python, as text.
    """

    name: str
    help: str
    kind: Kind
    flags: tuple[str, ...] = ()
    unit: str = ""
    choices: tuple[str, ...] = ()
    noun: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    otherwise: str = ""
    bytes_before: bool = False
    repeated: bool = True
    stands_for: str = ""
    panel: str = ""
    default: Any = None
    annotation: str = ""

    @property
    def flag(self) -> str:
        """The option's name in messages."""
        return self.flags[0] if self.flags else self.name

    @property
    def bounds(self) -> str:
        """The bounds as text: ``1 or more``, ``more than 0, at most 100``; empty without any."""
        least = "" if self.least is None else f"{self.least:g} or more"
        above = "" if self.above is None else f"more than {self.above:g}"
        if self.least is not None and self.most is not None:
            return f"{self.least:g} to {self.most:g}"
        most = "" if self.most is None else f"at most {self.most:g}"
        return ", ".join(text for text in (least, above, most) if text)

    def check(self, value: Any) -> None:
        """Raises BadInput where a value is none of the choices, or out of bounds."""
        if value is None or (isinstance(value, str) and value == self.default):
            return
        if self.choices and self.kind.closed and value not in self.choices:
            raise BadInput(f"There is no {self.noun or self.name} '{value}'.", f"Use one of {', '.join(self.choices)}.")
        if self.bytes_before and isinstance(value, int) and value >= _SURELY_BYTES:
            raise BadInput(
                f"{self.flag} {value} is in {self.unit}: {value >> 10:,} GiB.",
                f"Give {self.flag} {value // _MIB} for as many bytes.",
            )
        if not self.bounds:
            return
        low = -math.inf if self.least is None else self.least
        high = math.inf if self.most is None else self.most
        is_number = isinstance(value, numbers.Real)
        if not (is_number and low <= value <= high and math.isfinite(value)) or (
            self.above is not None and not value > self.above
        ):
            shown = f"{value:g}" if is_number else repr(value)
            unit = f" {self.unit}" if self.unit else ""
            in_unit = f", in {self.unit}" if self.unit else ""
            if is_number and self.most is not None and self.most <= 1.0 < value <= 100.0:
                raise BadInput(
                    f"{self.flag} cannot be {value:g}.",
                    f"Give {self.flag} {self.bounds}; {value:g} % is {self.flag} {value / 100:g}.",
                )
            raise BadInput(f"{self.flag} cannot be {shown}{unit}.", f"Give {self.flag} {self.bounds}{in_unit}.")
