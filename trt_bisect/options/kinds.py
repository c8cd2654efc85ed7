"""The kinds of values: each reads a text of the command line, a value of a TOML file and a value in Python alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.data.named import load_function, name_of
from trt_bisect.data.preprocessing import numbers, size
from trt_bisect.errors import BadInput

if TYPE_CHECKING:
    from trt_bisect.data.named import StagedFile
    from trt_bisect.model.network import GivenModel
    from trt_bisect.support.progress import Progress as Progress

    Data = Any
    Share = float | str
    Size = int | str
    Channels = float | str | Sequence[float]
    PictureSize = int | str | Sequence[int]
    Shapes = Mapping[str, tuple[int, ...]]
    Counts = Mapping[str, int]
    Model = GivenModel | Callable[..., Any]
    File = str | Path
    Place = str | Path | StagedFile
    Function = str | Callable[..., Any]
else:  # what the command line reads: one text for each option, or several
    Data = Share = Size = Counts = Channels = PictureSize = Model = File = Place = Function = Progress = str
    Shapes = Sequence[str]

MIB = 1 << 20
_SURELY_BYTES = 1 << 26
"""A number of MiB from which on it must be meant in bytes: no machine has 64 TiB."""
_SHAPE = re.compile(r"(.+):(\d+(?:x\d+)*)")
_PER_CENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 20, "k": 10, "m": 20, "g": 30, "t": 40}
_FUNCTION = "MODULE:FUNCTION"
_LONGEST = 60


def shown(value: Any) -> str:
    """Returns a value for a message, at most 60 letters of it."""
    letters = f"{value:g}" if isinstance(value, float) else repr(value)
    return letters if len(letters) <= _LONGEST else f"{letters[: _LONGEST - 3]}..."


def _word(value: Any) -> tuple[str, ...]:
    return (f"{value:.15g}" if isinstance(value, float) else str(value),)


def _each(values: Any) -> tuple[str, ...]:
    return tuple(map(str, values))


def _unchanged(given: Any, _folder: Path) -> Any:
    return given


@dataclass(frozen=True)
class OptionKind:
    """A kind of values.

    Attributes:
        metavar: the word that stands for a value in the help; empty for a switch.
        read: from a given value and the option's flag to the value that the package works with; a value that was read
            before stays. Raises BadInput with the flag.
        words: from a value to the texts that stand for it on the command line.
        located: from a value in a TOML file and the file's folder to the value with whole paths. Raises BadInput with a
            problem that ends a sentence on the key.
        several: the option may be repeated on the command line.
        choices: the known words.
        open: other values are taken too.
        limits: the bounds of a number, as text.
        hyphens: on the command line a value may begin with a hyphen.
    """

    metavar: str
    read: Callable[[Any, str], Any]
    words: Callable[[Any], tuple[str, ...]] = _word
    located: Callable[[Any, Path], Any] = _unchanged
    several: bool = False
    choices: tuple[str, ...] = ()
    open: bool = False
    limits: str = ""
    hyphens: bool = False

    @property
    def closed(self) -> bool:
        """The value must be one of the choices."""
        return bool(self.choices) and not self.open


def _text(given: Any, flag: str) -> str:
    if not isinstance(given, str) or not given.strip() or "\0" in given:
        raise BadInput(f"{flag} cannot be {shown(given)}.", "Give a text, in quotes.")
    return given


def _texts(given: Any, flag: str) -> tuple[str, ...]:
    several = (given,) if isinstance(given, str) else given
    if not isinstance(several, Sequence):
        raise BadInput(f"{flag} cannot be {shown(given)}.", 'Give a list of texts: ["conv1", "op:Softmax"].')
    return tuple(_text(text, flag) for text in several)


def _switch(given: Any, flag: str) -> bool:
    if not isinstance(given, bool):
        raise BadInput(f"{flag} cannot be {shown(given)}.", "Give true or false.")
    return given


def _any(given: Any, _flag: str) -> Any:
    return given


def choice(*known: str) -> OptionKind:
    """Returns the kind of one of some words."""

    def read(given: Any, flag: str) -> Any:
        if given not in known:
            raise BadInput(f"{flag} cannot be {shown(given)}.", f"Use one of {', '.join(known)}.")
        return given

    return OptionKind("|".join(known), read, choices=known)


def choice_with_percentile(*known: str) -> OptionKind:
    """Returns the kind of one of some words, of which ``percentile`` may have a number: ``percentile=99.9``."""
    plain = choice(*known)
    percent = number(above=0, most=100, unit="percent")

    def read(given: Any, flag: str) -> Any:
        method, _, value = str(given).partition("=")
        if method != "percentile" or not value:
            return plain.read(given, flag)
        if percent.read(value, f"{flag} percentile") < 1:
            hint = f"Give {flag} percentile={100 * float(value):g}."
            raise BadInput(f"{flag} {given} is in per cent.", hint)
        return given

    return OptionKind(plain.metavar, read, choices=known, open=True)


def choice_or_path(*known: str) -> OptionKind:
    """Returns the kind of one of some words, or a path."""

    def located(given: Any, folder: Path) -> Any:
        return given if given in known else _place(given, folder)

    return OptionKind("|".join((*known, "FILE")), _path, located=located, choices=known, open=True)


def number(
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    unit: str = "",
    whole: bool = False,
    share: bool = False,
) -> OptionKind:
    """Returns the kind of numbers within bounds.

    Args:
        above: more than this.
        unit: the unit of the value.
        share: a percentage is taken as well: 99% is 0.99.
    """
    ends = {f"{least:g} or more": least, f"more than {above:g}": above, f"at most {most:g}": most}
    limits = ", ".join(text for text, end in ends.items() if math.isfinite(end))
    if math.isfinite(least) and math.isfinite(most):
        limits = f"{least:g} to {most:g}"

    def read(given: Any, flag: str) -> float | int:
        value = _number(given, share=share)
        if math.isfinite(value) and least <= value <= most and value > above and not (whole and value % 1):
            return int(value) if whole else value
        text = given if isinstance(given, str) and math.isfinite(value) else shown(given)
        expected = limits or f"a {'whole ' if whole else ''}number"
        if share and 1 < value <= 100 and math.isfinite(most):
            remedy = f"Give {flag} {expected}; {value:g} % is {flag} {value / 100:g}."
        else:
            remedy = f"Give {flag} {expected}{f', in {unit}' if unit else ''}."
        raise BadInput(f"{flag} cannot be {f'{text} {unit}'.rstrip()}.", remedy)

    return OptionKind(unit.upper() or ("SHARE" if share else "N"), read, limits=limits)


def _number(given: Any, *, share: bool) -> float:
    """The number, or NaN for what is none."""
    per_cent = _PER_CENT.fullmatch(given.strip()) if share and isinstance(given, str) else None
    if per_cent:
        return float(per_cent[1]) / 100
    try:
        return float(given) if isinstance(given, (str, Real)) and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan


whole = partial(number, whole=True)
"""Returns the kind of whole numbers within bounds; see ``number``."""


def counts(**most: int) -> OptionKind:
    """Returns the kind of counts by name, each from 0 to its most: ``channels=8,samples=3``."""
    kinds = {name: whole(least=0, most=bound) for name, bound in most.items()}

    def read(given: Any, flag: str) -> dict[str, int]:
        texts = [] if isinstance(given, Mapping) else _text(given, flag).split(",")
        pairs = given.items() if isinstance(given, Mapping) else (text.split("=") for text in texts)
        try:
            return {name: kinds[name].read(count, f"{flag} {name}") for name, count in pairs}
        except (KeyError, ValueError):
            example = ",".join(f"{name}={min(8, bound)}" for name, bound in most.items())
            raise BadInput(f"{flag} cannot be {shown(given)}.", f"Give one or more of {flag} {example}.") from None

    return OptionKind("NAME=N", read, lambda value: (",".join(f"{name}={count}" for name, count in value.items()),))


def _mebibytes(given: Any, flag: str) -> int:
    match = _SIZE.fullmatch("" if isinstance(given, bool) else str(given).strip())
    mebibytes = int(float(match[1]) * (1 << _BYTES[match[2].lower()]) / MIB) if match else 0
    if not mebibytes:
        raise BadInput(f"{flag} cannot be {shown(given)}.", f"Give {flag} 1 MiB or more: 512, 512MB or 2GB.")
    if mebibytes >= _SURELY_BYTES:
        problem = f"{flag} {given} is in MiB: {mebibytes >> 10:,} GiB."
        raise BadInput(problem, f"Give {flag} {mebibytes // MIB} for as many bytes.")
    return mebibytes


PRESETS = {"mlperf99": "1%", "mlperf99.9": "0.1%"}
"""The losses of accuracy that MLPerf Inference allows, by their names."""


def _drop(given: Any, flag: str) -> Any:
    """Checks a loss of accuracy, and leaves it as given: ``1%`` means another one than ``0.01``."""
    if given not in PRESETS:
        number(least=0, most=1, share=True).read(given, flag)
    return given


def parse_time(given: str | float) -> float:
    """Returns a duration in seconds: ``90s``, ``10m``, ``1h``, or a number of seconds.

    Raises:
        BadInput: it is of another form, or 0.
    """
    match = _DURATION.fullmatch(str(given).strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise BadInput(f"The time '{given}' cannot be read.", "Write 90s, 10m or 1h.")
    return seconds


def _duration(given: Any, _flag: str) -> Any:
    parse_time(given)
    return given


def parse_shapes(texts: Sequence[str] | None) -> dict[str, tuple[int, ...]] | None:
    """Returns ``name:1x3x224x224`` as a name and a shape; names may hold colons.

    Raises:
        BadInput: a text is of another form, or a size is 0.
    """
    shapes = {}
    for text in texts or ():
        match = _SHAPE.fullmatch(text)
        if not match or "0" in match[2].split("x"):
            raise BadInput(f"The shape '{text}' cannot be read.", _shape_remedy(text))
        shapes[match[1]] = tuple(int(size) for size in match[2].split("x"))
    return shapes or None


def _shape_remedy(text: str) -> str:
    name, _, sizes = text.rpartition(":")
    given = re.findall(r"[1-9]\d*", sizes)
    example = f"--shape {name or 'NAME'}:{'x'.join(given) if len(given) > 1 else '1x3x224x224'}"
    named = "" if name else " with the input's name ('trt-bisect layers' prints it)"
    return f"Write {example}{named}, every size 1 or more."


def _shapes(given: Any, flag: str) -> Mapping[str, tuple[int, ...]] | None:
    if isinstance(given, Mapping):
        bad = [name for name, sizes in given.items() if not all(isinstance(dim, int) and dim > 0 for dim in sizes)]
        if bad:
            raise BadInput(f"{flag} cannot be {shown(given)}.", "Give sizes by input: { x = [1, 3, 224, 224] }.")
        return {name: tuple(sizes) for name, sizes in given.items()}
    return parse_shapes(_texts(given, flag))


def _told(read: Callable[[Any], Any], given: Any, flag: str) -> Any:
    """Reads with a function whose errors do not name the option."""
    try:
        return read(given)
    except BadInput as error:
        raise BadInput(f"{flag} cannot be {shown(given)}.", error.remedy) from error


def _version(given: Any, flag: str) -> Any:
    from trt_bisect.calibration.cache import parse_version

    if _text(given, flag):
        _told(parse_version, given, flag)
    return given


def _trtexec(given: Any, flag: str) -> Any:
    from trt_bisect.recipe.trtexec import options_in

    if given:
        _told(options_in, _text(given, flag), flag)
    return given


def _path(given: Any, flag: str) -> Any:
    if isinstance(given, (int, float, bool, Sequence, Mapping)) and (not isinstance(given, str) or "\0" in given):
        raise BadInput(f"{flag} cannot be {shown(given)}.", "Give a path, in quotes.")
    return given


def _place(given: Any, folder: Path) -> Any:
    if isinstance(given, list):
        return [_place(path, folder) for path in given]
    return str(folder / given) if isinstance(given, str) else given


def _existing(given: Any, folder: Path) -> Any:
    path = _place(given, folder)
    if isinstance(path, str) and not _exists(Path(path)):
        raise BadInput(f"names '{path}', which does not exist", "Paths are relative to the folder of this file.")
    return path


def _data(given: Any, folder: Path) -> Any:
    """A file, a folder, or a function, which is loaded to see that it is there."""
    is_function = isinstance(given, str) and ":" in given and not _exists(folder / given)
    return _function(given, folder) if is_function else _existing(given, folder)


def _metric(given: Any, folder: Path) -> Any:
    return _function(given, folder) if isinstance(given, str) and ".py:" in given else given


def _function(given: Any, folder: Path) -> Any:
    """``module:function``, loaded to see that it is there; a module that is a file is relative to the folder."""
    if not isinstance(given, str):
        return given
    module, _, called = given.rpartition(":")
    full = f"{folder / module if module.endswith('.py') else module}:{called}"
    try:
        load_function(full, "function")
    except BadInput as error:
        raise BadInput(f"cannot be used: {error.problem.rstrip('.')}", error.remedy) from error
    return full


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _function_words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    return (f"{module}:{name}" if module not in (None, "__main__") and name.isidentifier() else _FUNCTION,)


def named(metavar: str, stands_for: str) -> OptionKind:
    """Returns the kind of data, or of a plan: a file, a folder, ``module:function``, or objects in Python.

    Args:
        metavar: stands for a value in the help.
        stands_for: stands for an object without a name in suggested commands.
    """
    return OptionKind(metavar, _any, lambda value: (name_of(value) or stands_for,), _data)


def share_or(data: OptionKind, *, most: float) -> OptionKind:
    """Returns the kind of a share up to ``most``, or of data."""
    share = number(least=0, most=most, share=True)

    def kind_of(given: Any) -> OptionKind:
        return data if math.isnan(_number(given, share=True)) else share

    return OptionKind(
        data.metavar,
        lambda given, flag: kind_of(given).read(given, flag),
        lambda value: kind_of(value).words(value),
        lambda given, folder: kind_of(given).located(given, folder),
        limits=f"a share: {share.limits}",
    )


OBJECT = OptionKind("", _any)
"""An object of Python."""
TEXT = OptionKind("TEXT", _text)
"""A text."""
TEXTS = OptionKind("NAME", _texts, _each, several=True)
"""Several texts."""
SWITCH = OptionKind("", _switch, lambda _: ())
"""True or false; on the command line a flag without a value."""
MEBIBYTES = OptionKind("SIZE", _mebibytes)
"""An amount of memory: MiB, or 512MB, 2GB, in powers of 1024."""
DROP = OptionKind("SHARE", _drop)
"""A loss of accuracy: a share of FP32's, points, or the name of a preset."""
DURATION = OptionKind("TIME", _duration)
"""A duration: 90s, 10m, 1h, or seconds; see ``parse_time``."""
CHANNELS = OptionKind("N,N,N", partial(_told, numbers), lambda given: (",".join(f"{n:.15g}" for n in numbers(given)),))
"""One number, or one for each channel."""
PICTURE_SIZE = OptionKind("HxW", partial(_told, size), lambda given: ("x".join(map(str, size(given))),))
"""Height and width."""
SHAPES = OptionKind(
    "NAME:SIZES",
    _shapes,
    lambda shapes: tuple(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items()),
    several=True,
)
"""Shapes of inputs by name."""
METRIC = OptionKind("METRIC", _any, _function_words, _metric)
"""A metric by its name or as a function."""
FUNCTION = OptionKind("FUNCTION", _any, _function_words, _function)
"""A function of the user's."""
FILE = OptionKind("FILE", _path, located=_existing)
"""A file or folder that is read."""
GPU = OptionKind("GPU|FILE", _text, located=lambda gpu, folder: _place(gpu, folder) if ".toml" in str(gpu) else gpu)
"""A GPU by name, or a TOML file that describes it."""
PLACE = OptionKind("PATH", _path, located=_place)
"""A file or folder that is written."""
PLACES = OptionKind("PATH", lambda given, flag: list(map(Path, _texts(given, flag))), _each, _place, several=True)
"""Several files or folders."""
TRTEXEC = OptionKind("FLAGS", _trtexec, hyphens=True)
"""Flags of trtexec that say how an engine is built."""
VERSION = OptionKind("VERSION", _version)
"""A version of TensorRT."""
