"""Declaring options: ``option`` describes a field of a dataclass, and ``Options`` is the base of these dataclasses."""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.kinds import TEXT, TEXTS, Kind

_INFO = "option"
_MIB = 1 << 20
_SURELY_BYTES = 1 << 26
"""A number of MiB from which on it must be meant in bytes: no machine has 64 TiB."""
_Given = TypeVar("_Given", bound="Options")


@dataclass(frozen=True)
class OptionInfo:
    """The facts of one option.

    Attributes:
        name: of the field, which is the Python keyword and the key in TOML.
        help: what it does, in a sentence or two.
        kind: how values are given.
        flags: on the command line, the first one used in messages; empty for an option of Python alone.
        unit: of the value, such as ``MiB`` or ``seconds``.
        choices: that are known.
        noun: for messages on choices.
        least, above, most: bounds of a number: not less than, more than, not more than.
        otherwise: what happens without the option, where no default value says it.
        bytes_before: in Python the value was in bytes in an earlier release: 1 << 20 and more is still read as bytes.
        repeated: suggested commands repeat it.
        stands_for: what suggested commands hold in place of data that has no name.
        panel: the group in the help of a command.
        default: the value without the option.
        annotation: of the value in Python, as text.
    """

    name: str
    help: str
    kind: Kind = TEXT
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


def option(default: Any, *, help: str, flag: str | tuple[str, ...] | None = None, **facts: Any) -> Any:
    """A dataclass field that is an option.

    Args:
        default: of the field.
        help: what the option does.
        flag: on the command line, or several that mean the same; made of the field's name where None is given.
            An empty text makes an option of Python alone.
        **facts: other attributes of ``OptionInfo``.
    """
    flags = None if flag is None else (flag,) if isinstance(flag, str) and flag else tuple(flag)
    described = {**facts, "help": help} if flags is None else {**facts, "help": help, "flags": flags}
    return field(default=default, metadata={_INFO: described})


def fixed(default: Any) -> Any:
    """A dataclass field that is an option of other commands, and has one value in this one."""
    return field(default=default, init=False)


@dataclass(frozen=True)
class Renamed:
    """An option that had another name.

    Attributes:
        new: its name now.
        values: from old values to new ones; other values are the same.
    """

    new: str
    values: Mapping[Any, Any]

    def value(self, value: Any) -> Any:
        """The new value for an old one."""
        return self.values.get(value, value)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of all options. A subclass is a concern, with a ``panel``, or a command: several concerns together.

    Attributes:
        panel: the group of the options in the help of a command.
        RENAMED: old names of options, which still work.
        POSITIONAL: the options that the Python function takes by position, after the model.

    Raises:
        BadInput: a value is none of the choices, or out of bounds.
    """

    panel: ClassVar[str] = ""
    RENAMED: ClassVar[Mapping[str, Renamed]] = {}
    POSITIONAL: ClassVar[tuple[str, ...]] = ("calibration", "inputs")

    def __post_init__(self) -> None:
        for info in self.declared():
            value = getattr(self, info.name)
            if info.kind is TEXTS:
                object.__setattr__(self, info.name, (value,) if isinstance(value, str) else tuple(value))
            info.check(getattr(self, info.name))

    @classmethod
    def declared(cls) -> tuple[OptionInfo, ...]:
        """The options in the order of the concerns, those that the command fixes left out."""
        return tuple(_declared(cls))

    @classmethod
    def given(cls: type[_Given], function: str, keywords: Mapping[str, Any]) -> _Given:
        """The options from the keywords of a Python function.

        Raises:
            TypeError: there is no such keyword.
            BadInput: a value cannot be used.
        """
        known = {info.name: info for info in cls.declared()}
        taken: dict[str, Any] = {}
        for name, value in keywords.items():
            renamed = cls.RENAMED.get(name)
            if renamed is not None:
                new = f"{renamed.new}={renamed.value(value)!r}"
                warnings.warn(f"{name}={value!r} is an old name: give {new}", DeprecationWarning, stacklevel=3)
                taken[renamed.new] = renamed.value(value)
            elif name not in known:
                raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
            elif known[name].bytes_before and isinstance(value, int) and value >= _MIB:
                in_mib = value // _MIB
                note = f"{name}={value} is taken as bytes; it is in MiB now: give {in_mib}"
                warnings.warn(note, DeprecationWarning, stacklevel=3)
                taken[name] = in_mib
            else:
                taken[name] = value
        return cls(**taken)


def _declared(cls: type[Options]) -> Iterator[OptionInfo]:
    own = {each.name: each for each in fields(cls)}
    seen: set[str] = set()
    concerns = [base for base in cls.__mro__ if issubclass(base, Options) and base.panel and base is not cls]
    for concern in (*concerns, cls):
        for name in inspect.get_annotations(concern):
            each = own.get(name)
            if each is None or name in seen or _INFO not in each.metadata or not each.init:
                continue
            seen.add(name)
            facts = dict(each.metadata[_INFO])
            facts.setdefault("flags", (f"--{name.replace('_', '-')}",))
            assert each.default is not MISSING
            yield OptionInfo(
                name=name, panel=concern.panel or cls.panel, default=each.default, annotation=str(each.type), **facts
            )
