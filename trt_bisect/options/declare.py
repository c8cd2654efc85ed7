"""Declares options: ``Option`` in an annotation, and ``Options``, the base of dataclasses; and reads them in TOML
files.

Python functions get the fields of a dataclass as keywords by ``takes``; ``trt_bisect.cli.app`` makes the parameters of
the command line. Help texts are the sections "Attributes" and "Args" of docstrings. All values are read by the option's
kind, wherever they come from.
"""

from __future__ import annotations

import difflib
import inspect
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from trt_bisect.errors import BadInput, TrtBisectError, first_line
from trt_bisect.model.gpu_time import GPU_KEYS, Gpu, gpu_named, gpu_of
from trt_bisect.options import ARGUMENTS, PANELS
from trt_bisect.options.kinds import OBJECT, PLACE, SWITCH, TEXT, TEXTS, OptionKind, choice
from trt_bisect.support.voices import in_python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_facts):
        """Marks nothing: the mark is for type checkers, and comes with Python 3.11."""
        return lambda marked: marked


_LEAST_BEGINNING = 4
# the least similarity of a misspelt name, the first of short ones: ``--samples`` is not ``--shapes`` (0.82)
_SHORT, _SIMILAR_SHORT, _SIMILAR = 5, 0.6, 0.83
_MOST_KEYS = 12  # the most keys that a message lists
_SECTION = re.compile(r"^(?:Attributes|Args):\n(.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^    (\w+): (.*(?:\n     +.*)*)", re.MULTILINE)
_Given = TypeVar("_Given", bound="Options")
_Keywords = ParamSpec("_Keywords")
_Model = TypeVar("_Model")
_Model_contra = TypeVar("_Model_contra", contravariant=True)
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


@dataclass(frozen=True)
class Option:
    """An option of a command. In an annotation it has only what type, docstring and the table ``PANELS`` do not say.

    Attributes:
        names: its flags, separated by spaces, if they differ from the keyword.
        panel: its group in the help, and its table in a configuration file.
        expert: only ``--help-all`` shows it.
        repeated: suggested commands repeat it.
        without_in_python: the behaviour without the option in Python, if it differs from ``without``.
        effect: its help.
        without: the behaviour without the option, if no default value says it; the help ends with ``Default: ...``.
        keyword: the name of the field or parameter, which is the keyword in Python and the key in TOML.
        default: the value without the option.
        kind: the form of its values.
    """

    names: str = ""
    panel: str = ""
    expert: bool = False
    repeated: bool = True
    without_in_python: str = ""
    effect: str = ""
    without: str = ""
    keyword: str = ""
    default: Any = None
    kind: OptionKind = TEXT

    @property
    def is_argument(self) -> bool:
        """True if the command line takes the option by position."""
        return self.panel == ARGUMENTS

    @property
    def flags(self) -> tuple[str, ...]:
        """The option's flags, the first one used in messages; empty for an argument, and for an object that only Python
        can give.
        """
        if self.is_argument or self.kind is OBJECT:
            return ()
        return tuple(self.names.split()) or (f"--{self.keyword.replace('_', '-')}",)

    @property
    def flag(self) -> str:
        """The option's name in messages: the first flag, else the keyword."""
        return next(iter(self.flags), self.keyword)

    @property
    def keys(self) -> tuple[str, ...]:
        """The option's names in TOML and Python: the keyword, and those of the flags."""
        flags = (flag[2:].replace("-", "_") for flag in self.flags if flag.startswith("--"))
        return tuple(dict.fromkeys((self.keyword, *flags)))

    @property
    def shown_default(self) -> str:
        """The behaviour without the option, as text; empty if the option then has no effect."""
        if self.without or self.default in (None, (), "", False, inspect.Parameter.empty, Path()):
            return self.without
        if self.default is True:
            return "on"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def described_in_python(self) -> str:
        """The option's help for Python with all facts: keywords in place of flags, values as Python writes them."""
        effect = in_python(self.effect).replace("Repeatable", "A list names several")
        default = in_python(self.without_in_python or self.without)
        if not default and self.shown_default:
            default = repr(self.default)
        return self.with_facts(effect, tuple(map(repr, self.kind.choices)), default)

    def with_facts(self, effect: str, choices: Sequence[str], default: str = "") -> str:
        """Returns the help text ``effect`` with choices, bounds and ``default`` in parentheses."""
        facts = [f"{'one of' if self.kind.closed else 'or'} {', '.join(choices)}"] if choices else []
        facts += filter(None, (self.kind.limits, default and f"default: {default}"))
        return f"{effect} ({'; '.join(facts)})" if facts else effect


def _declared(taker: Any) -> tuple[Option, ...]:
    # of a dataclass, or of a command's function with those of its dataclasses
    hints, texts = get_type_hints(taker, include_extras=True), _texts(taker)
    options: list[Option] = []
    for name, parameter in inspect.signature(taker).parameters.items():
        if is_dataclass(hints[name]):
            for option in declared(hints[name]):
                options.append(replace(option, effect=texts.get(option.keyword, option.effect)))
            continue
        parts = [*_parts(hints[name])]
        mark = next((part for part in parts if isinstance(part, Option)), Option())
        if not mark.panel:
            mark = replace(mark, **_place_of(name))
        effect, _, without = texts.get(name, mark.effect).partition(" Default: ")
        without, kind = without.removesuffix("."), _kind_in(parts)
        options.append(
            replace(mark, keyword=name, default=parameter.default, kind=kind, effect=effect, without=without)
        )
    return tuple(options)


def _place_of(keyword: str) -> dict[str, Any]:
    for panel, (usual, expert) in PANELS.items():
        if keyword in f"{usual} {expert}".split():
            return {"panel": panel, "expert": keyword in expert.split()}
    raise KeyError(f"{keyword} is in no panel of trt_bisect.options.PANELS")


declared: Callable[[Any], tuple[Option, ...]] = cache(_declared)


def _parts(hint: Any) -> Iterator[Any]:
    # a type, then its parts and theirs, from the last one on: the mark of an ``Annotated`` comes before its type
    yield hint
    for part in reversed(get_args(hint)):
        yield from _parts(part)


def _kind_in(parts: Sequence[Any]) -> OptionKind:
    # the first kind among the parts of a type, else the kind for a Literal, bool, Path or Sequence
    for part in parts:
        if isinstance(part, OptionKind):
            return part
        if get_origin(part) is Literal:
            return choice(*get_args(part))
        if part is bool:
            return SWITCH
        if part is Path:
            return PLACE
        if get_origin(part) is Sequence:
            return TEXTS
    return TEXT


def _texts(taker: Any) -> dict[str, str]:
    texts: dict[str, str] = {}
    for owner in reversed(getattr(taker, "__mro__", (taker,))):
        section = _SECTION.search(inspect.cleandoc(owner.__doc__ or ""))
        for name, text in _ITEM.findall(section[1] if section else ""):
            texts[name] = " ".join(text.split())
    return texts


def by_key(options: Iterable[Option]) -> dict[str, Option]:
    """Returns options by name; an option has an entry for each of its names in TOML and Python."""
    return {key: option for option in options for key in option.keys}


def nearest(name: str, names: Collection[str]) -> str:
    """Returns the first of ``names`` that begins with ``name``, else the most similar one; empty for neither."""
    longer = [each for each in names if each.startswith(name)] if len(name) >= _LEAST_BEGINNING else []
    least = _SIMILAR if len(name) > _SHORT else _SIMILAR_SHORT
    return next(iter(longer or difflib.get_close_matches(name, names, 1, least)), "")


def fixed(value: Any, *, init: Literal[False] = False) -> Any:
    """Returns the field of a dataclass for an option that a command does not offer; the value is always ``value``."""
    return field(default=value, init=init)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field, fixed))
class Options:
    """The base of all options. A subclass, a frozen dataclass, has the options of one concern, or of a command: several
    concerns together.

    Raises:
        BadInput: a value cannot be used.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for option in declared(type(self)):
            value = getattr(self, option.keyword)
            if not _is_default(value, option.default):
                object.__setattr__(self, option.keyword, option.kind.read(value, option.flag))

    @classmethod
    def given(cls: type[_Given], function: str, keywords: Mapping[str, Any]) -> _Given:
        """Returns the options from the keywords of a Python function, which may have the names of the flags.

        Raises:
            TypeError: there is no such keyword, or it is there twice.
            BadInput: a value cannot be used.
        """
        options = by_key(declared(cls))
        values: dict[str, Any] = {}
        for key, value in keywords.items():
            if key not in options:
                near = nearest(key, options)
                hint = f". Did you mean '{near}'?" if near else ""
                raise TypeError(f"{function}() got an unexpected keyword argument '{key}'{hint}")
            name = options[key].keyword
            if name in values:
                raise TypeError(f"{function}() got '{name}' and '{key}', which are the same")
            values[name] = value
        return cls(**values)


def shared(given: Options, taker: type[Options]) -> dict[str, Any]:
    """Returns the values of the options that ``taker``, another class, takes too, as keywords for it."""
    both = {option.keyword for option in declared(taker)} & {option.keyword for option in declared(type(given))}
    return {keyword: getattr(given, keyword) for keyword in both}


def repeated(given: Options) -> dict[str, tuple[str, ...]]:
    """Returns, by flag, the words that repeat the given options on a command line, without options at their defaults.

    Data that has no name on the command line, such as an array, becomes a word for the user to fill in.
    """
    values = ((option, getattr(given, option.keyword)) for option in declared(type(given)) if option.repeated)
    return {option.flag: option.kind.words(value) for option, value in values if not _is_default(value, option.default)}


def _is_default(value: Any, default: Any) -> bool:
    # values of one type can be compared: that of an array with a number is no bool
    return value is None or (type(value) is type(default) and bool(value == default))


@contextmanager
def naming_keywords(keywords: Mapping[str, str] | None = None) -> Iterator[None]:
    """Makes errors in the block, or in the function that it decorates, name Python's keywords in place of flags.

    ``keywords``: by flag; None: as the flag. The command line calls the undecorated function (``inspect.unwrap``).
    """
    try:
        yield
    except TrtBisectError as error:
        error.problem, error.remedy = (in_python(text, keywords) for text in (error.problem, error.remedy))
        error.args = (error.problem,)
        raise


class Job(Protocol[_Model_contra, _Keywords, _Result_co]):
    """A Python function that takes a network, and options as keywords; the result of ``takes``."""

    @property
    def job(self) -> Callable[..., _Result_co]:
        """The original function, of a network and one object with the options."""

    def __call__(self, model: _Model_contra = ..., *given: _Keywords.args, **options: _Keywords.kwargs) -> _Result_co:
        """Calls the function with the network ``model`` and its options."""


def takes(
    options: Callable[_Keywords, _Given],
) -> Callable[[Callable[Concatenate[_Model, _Given, ...], _Result]], Job[_Model, _Keywords, _Result]]:
    """Returns a decorator that turns ``function(network, options)`` into ``function(network, **keywords)``.

    The original function is the attribute ``job``. The keywords are the fields of the class of options, for type
    checkers as well. In the docstring the line that begins with ``options:`` is replaced by a line for each option.
    Errors name keywords in place of flags.
    """
    cls: Any = options
    keywords = {flag: option.keyword for option in declared(cls) for flag in option.flags}
    wrapper = textwrap.TextWrapper(112, " " * 4, " " * 8, break_on_hyphens=False)
    help_lines = [wrapper.fill(f"{option.keyword}: {option.described_in_python}") for option in declared(cls)]
    parameters = [param.replace(annotation=param.empty) for param in inspect.signature(cls).parameters.values()]
    places = [param for param in parameters if param.kind is param.POSITIONAL_OR_KEYWORD]

    def flat(job: Callable[Concatenate[_Model, _Given, ...], _Result]) -> Job[_Model, _Keywords, _Result]:
        name = getattr(job, "__name__", "")
        model, *_ = inspect.signature(job).parameters.values()
        by_place = inspect.Signature([model, *places, inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD)])

        @wraps(job)
        def called(*values: Any, **named: Any) -> _Result:
            try:
                arguments = by_place.bind(*values, **named).arguments
            except TypeError as error:
                raise TypeError(f"{name}(): {error}") from None
            network = arguments.pop(model.name, None)
            with naming_keywords(keywords):
                return job(network, cls.given(name, arguments.pop("named", {}) | arguments))

        vars(called).update(job=job, __signature__=inspect.Signature([model, *parameters]))
        # Python 3.13 and later take the indentation off docstrings themselves.
        doc = inspect.cleandoc(job.__doc__ or "")
        called.__doc__ = re.sub(r"(?m)^ {4}options: .*", lambda _: "\n".join(help_lines), doc)
        return cast(Job[_Model, _Keywords, _Result], called)

    return flat


def read_toml(file: Path, kind: str, remedy: str) -> dict[str, Any]:
    """Returns the table in a TOML file; a byte order mark of UTF-8 is passed over.

    Raises BadInput if the file does not exist or cannot be read.

    Args:
        kind: the kind of file, as messages name it.
        remedy: the remedy if the file does not exist.
    """
    try:
        content = file.read_bytes()
        if b"\0" in content:
            raise UnicodeError("it has zero bytes, as UTF-16 has")
        table: dict[str, Any] = tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise BadInput(f"The {kind} '{file}' does not exist.", remedy) from None
    except UnicodeError as error:
        problem = f"The {kind} '{file}' is not in UTF-8: {first_line(error)}."
        raise BadInput(problem, "Save it in UTF-8, as TOML has to be.") from error
    except (OSError, ValueError, RecursionError) as error:
        problem = f"The {kind} '{file}' cannot be read: {first_line(error)}"
        raise BadInput(problem, "Write TOML: one 'key = value' per line, texts in quotes.") from error
    return table


class NotThere(BadInput):
    """A file or a function that a TOML file names, and that cannot be used."""


def refuse_unknown(file: Path, where: str, table: Mapping[str, Any], keys: Collection[str]) -> None:
    """Raises BadInput for a key of ``table`` that is not in ``keys``.

    The message suggests the most similar key, or lists the first keys if none is similar.
    """
    for key in table:
        if key in keys:
            continue
        near, listed = nearest(key, keys), ", ".join([*keys][:_MOST_KEYS])
        remedy = f"Did you mean '{near}'?" if near else f"The keys are {listed}."
        if not near and len(keys) > _MOST_KEYS:
            remedy = f"The keys are {listed} and {len(keys) - _MOST_KEYS} more: the option --help-all lists them."
        has = f"{where} has" if where else "there is"
        raise BadInput(f"{file}: {has} no key {key!r}.", remedy)


def read_value(file: Path, where: str, key: str, value: Any, kind: OptionKind) -> Any:
    """Returns ``value`` as ``kind`` reads it. Raises BadInput or NotThere, which name file, table (``where``) and
    key.
    """
    prefix = f"{file}: {where}: " if where else f"{file}: "
    try:
        located = kind.located(value, file.parent)
    except BadInput as error:
        raise NotThere(f"{prefix}'{key}' {error.problem}.", error.remedy) from error
    try:
        return kind.read(located, f"'{key}'")
    except BadInput as error:
        raise BadInput(f"{prefix}{error.problem}", error.remedy) from error


def read_table(
    file: Path,
    where: str,
    table: Mapping[str, Any],
    options: Mapping[str, Option],
    missing: list[NotThere] | None = None,
) -> dict[str, Any]:
    """Returns the values of a file's table by the names of their options; paths are relative to the file.

    Args:
        where: the table's name in messages.
        missing: a list; errors on missing files and functions are appended to it, and their values are left out.

    Raises:
        BadInput: a key or a value cannot be used, or an option is there under two names.
        NotThere: ``missing`` is None, and something that the table names is not there.
    """
    refuse_unknown(file, where, table, options)
    values: dict[str, Any] = {}
    keys: dict[str, str] = {}
    for key, value in table.items():
        name = options[key].keyword
        if name in keys:
            raise BadInput(f"{file}: '{keys[name]}' and '{key}' are the same.", "Leave out one of the two.")
        keys[name] = key
        try:
            values[name] = read_value(file, where, key, value, options[key].kind)
        except NotThere as error:
            if missing is None:
                raise
            missing.append(error)
    return values


def read_config(file: Path, command: str, commands: Collection[str], options: Sequence[Option]) -> dict[str, Any]:
    """Returns the values in a file for ``--config`` by the names of their options.

    Options stand at the top, in the table of the command (``[run]``) or of a panel (``[data]``, ``[run.data]``). If an
    option stands in several, a table of the command (``[run]``, ``[run.data]``) wins. Tables of other commands, and of
    panels that the command does not have, are left out.

    Args:
        file: TOML. Paths in it are relative to its folder.
        commands: the names of all commands.

    Raises:
        BadInput: the file cannot be read, or has a key or a value that cannot be used.
    """
    table = read_toml(file, "configuration", "Give --config the path of a TOML file with options.")
    if isinstance(table.get("network"), list):
        problem = f"{file} is a suite of networks, and no options of '{command}'."
        raise BadInput(problem, f"Measure the suite: trt-bisect regress {shlex.quote(str(file))}")
    by_name = by_key(options)
    panels = {option.panel.lower() for option in options}
    others = {*commands, *map(str.lower, PANELS)} - by_name.keys()
    own_table = table.pop(command) if command in others and isinstance(table.get(command), dict) else {}
    values: dict[str, Any] = {}
    for where, content in (("", table), (f"[{command}]", own_table)):
        own: dict[str, Any] = {}
        for key, part in content.items():
            if key not in others or not isinstance(part, dict):
                own[key] = part
            elif key in panels:
                values |= read_table(file, f"[{key}]", part, by_name)
        values |= read_table(file, where, own, by_name)
    return values


def asked_gpu(text: str) -> Gpu:
    """Returns a GPU by its name in the table of known GPUs, or as a TOML file of the user's describes it.

    Raises BadInput if the name is not known, or the file cannot be used.
    """
    file = Path(text)
    if file.suffix.lower() != ".toml":
        return gpu_named(text)
    table = read_toml(file, "GPU", "Give --gpu the name of a GPU, or a TOML file with its peaks.")
    refuse_unknown(file, "", table, GPU_KEYS)
    return gpu_of(table, file.stem)
