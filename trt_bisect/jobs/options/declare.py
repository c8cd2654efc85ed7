"""Declaring options: ``option`` describes a field of a dataclass, and ``Options`` is the base of these dataclasses."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from trt_bisect.jobs.options.kinds import TEXT, TEXTS
from trt_bisect.jobs.options.option_info import OptionInfo

_INFO = "option"
_MIB = 1 << 20
_Given = TypeVar("_Given", bound="Options")


def option(default: Any, *, help: str, flag: str | tuple[str, ...] | None = None, **facts: Any) -> Any:
    """A dataclass field that is an option.

    Args:
        default: the default of the field.
        help: the effect of the option.
        flag: on the command line, or several that mean the same; made of the field's name where None is given.
            An empty text makes an option of Python alone.
        **facts: other attributes of ``OptionInfo``.
    """
    flags = None if flag is None else (flag,) if isinstance(flag, str) and flag else tuple(flag)
    described = {"kind": TEXT, **facts, "help": help, **({} if flags is None else {"flags": flags})}
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
