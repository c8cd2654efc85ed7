"""The kinds of options' values: each reads a text of the command line, a value of a TOML file and a value in Python
alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite, isnan, nan
from numbers import Real
from os.path import exists
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from trt_bisect.cluster.address import check_address
from trt_bisect.data.named import load_function, name_of
from trt_bisect.data.preprocessing import numbers, size
from trt_bisect.errors import BadInput

CalibratorName = Literal["auto", "entropy", "minmax", "percentile", "mse"]
Curve = Literal["auto", "full", "adaptive", "culprits"]
# choices: type checkers and editors know them; an option of such a type has the kind ``choice``
Engine = Literal["auto", "onnxruntime", "tensorrt", "tensorrt-rtx"]
High = Literal["fp32", "fp16"]
MetricName = Literal["cosine", "sqnr", "centered_sqnr", "mse", "l1", "kl", "max_abs", "max_rel", "top1"]
Strategy = Literal["auto", "exhaustive", "bisect"]

MIB = 1 << 20
_SURELY_BYTES = 1 << 26  # a number of MiB from which on it must be meant in bytes: no machine has 64 TiB
_DEVICE = re.compile(r"cpu|(cuda)(?::(\d+))?")
_SHAPE = re.compile(r"(.+):(\d+(?:x\d+)*)")
_PER_CENT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")
_NAME = re.compile(r"[\w.-]+")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 20, "k": 10, "m": 20, "g": 30, "t": 40}


def shown(value: Any) -> str:
    """Returns a value for a message, at most 60 letters of it."""
    letters = f"{value:g}" if isinstance(value, float) else repr(value)
    return letters if len(letters) <= 60 else f"{letters[:57]}..."


def refused(flag: str, value: Any, remedy: str) -> BadInput:
    """Returns the BadInput for a value that the option ``flag`` does not take."""
    return BadInput(f"{flag} cannot be {shown(value)}.", remedy)


@dataclass(frozen=True)
class OptionKind:
    """A kind of values of options.

    Attributes:
        metavar: the word that stands for a value in the help; empty for a switch.
        read: turns a given value, with the option's flag for errors, into the value that the package works with;
            returns a value that was read before unchanged. Raises BadInput.
        words: turns a value into the texts that stand for it on the command line.
        located: turns a value in a TOML file, with the file's folder, into the value with whole paths. Raises BadInput,
            whose problem is worded to follow the key.
        several: the option may be repeated on the command line.
        choices: the known words.
        closed: the value must be one of the choices.
        limits: the bounds of a number, as text.
        hyphens: on the command line a value may begin with a hyphen.
    """

    metavar: str
    read: Callable[[Any, str], Any]
    words: Callable[[Any], tuple[str, ...]] = lambda value: (
        f"{value:.15g}" if isinstance(value, float) else str(value),
    )
    located: Callable[[Any, Path], Any] = lambda value, _folder: value
    several: bool = False
    choices: tuple[str, ...] = ()
    closed: bool = False
    limits: str = ""
    hyphens: bool = False


def _checked(metavar: str, is_valid: Callable[[Any], bool], remedy: str, **facts: Any) -> OptionKind:
    def read(value: Any, flag: str) -> Any:
        if not is_valid(value):
            raise refused(flag, value, remedy)
        return value

    return OptionKind(metavar, read, **facts)


def choice(*words: str) -> OptionKind:
    """Returns the kind whose values are these words."""
    return _checked("|".join(words), words.__contains__, f"Use one of {', '.join(words)}.", choices=words, closed=True)


def choice_or_path(*words: str) -> OptionKind:
    """Returns the kind whose values are these words and paths."""
    return OptionKind(
        "|".join((*words, "FILE")),
        lambda value, flag: value if value in words else PLACE.read(value, flag),
        located=lambda value, folder: value if value in words else _path_in(folder, value),
        choices=words,
    )


def number(
    *,
    least: float = -inf,
    above: float = -inf,
    most: float = inf,
    unit: str = "",
    whole: bool = False,
    share: bool = False,
) -> OptionKind:
    """Returns the kind of numbers from ``least`` to ``most`` and more than ``above``.

    Args:
        share: a percentage is taken as well: 99% is 0.99.
    """
    ends = {f"{least:g} or more": least, f"more than {above:g}": above, f"at most {most:g}": most}
    limits = ", ".join(text for text, end in ends.items() if isfinite(end))
    if isfinite(least) and isfinite(most):
        limits = f"{least:g} to {most:g}"

    def read(value: Any, flag: str) -> float | int:
        amount = _number(value, share=share)
        if isfinite(amount) and least <= amount <= most and amount > above and not (whole and amount % 1):
            return int(amount) if whole else amount
        text = value if isinstance(value, str) and isfinite(amount) else shown(value)
        expected = limits or f"a {'whole ' if whole else ''}number"
        hint = f", in {unit}" if unit else ""
        if share and 1 < amount <= 100 and isfinite(most) and "%" not in text:
            hint = f"; {amount:g} % is {flag} {amount / 100:g}"
        raise BadInput(f"{flag} cannot be {f'{text} {unit}'.rstrip()}.", f"Give {flag} {expected}{hint}.")

    return OptionKind(unit.upper() or ("SHARE" if share else "N"), read, limits=limits)


def _number(value: Any, *, share: bool) -> float:
    per_cent = _PER_CENT.fullmatch(value.strip()) if share and isinstance(value, str) else None
    if per_cent:
        return float(per_cent[1]) / 100
    try:
        return float(value) if isinstance(value, (str, Real)) and not isinstance(value, bool) else nan
    except (ValueError, OverflowError):
        return nan


whole = partial(number, whole=True)  # returns the kind of whole numbers within bounds; see ``number``


ONLY = "only"
# the counts of ``--tensorboard-detail``, with the most of each
_MOST = {"channels": 256, "samples": 1000, "plans": 1000}


def _detail(value: Any, flag: str) -> dict[str, Any]:
    # counts by name, and patterns: ``samples=3,only=op:Conv``
    detail: dict[str, Any] = {}
    texts = value
    if not isinstance(value, Mapping):
        value = ",".join(_texts(value, flag))
        texts = value.split(",")
    for name, given in _pairs(texts, flag):
        if name not in (ONLY, *_MOST) or given == "":
            raise refused(flag, value, f"Give one or more of {flag} {','.join(f'{name}=8' for name in _MOST)}.")
        if name == ONLY:
            detail[ONLY] = (*detail.get(ONLY, ()), *([given] if isinstance(given, str) else given))
        elif name in detail:
            raise BadInput(f"{flag} {value} has a name twice.", "Give each name once.")
        else:
            detail[name] = whole(least=0, most=_MOST[name]).read(given, f"{flag} {name}")
    return detail


def _detail_words(value: Mapping[str, Any]) -> tuple[str, ...]:
    texts = [f"{name}={count}" for name, count in value.items() if name != ONLY]
    return (",".join([*texts, *(f"{ONLY}={pattern}" for pattern in value.get(ONLY, ()))]),)


def _mebibytes(value: Any, flag: str) -> int:
    match = _SIZE.fullmatch("" if isinstance(value, bool) else str(value).strip())
    mebibytes = int(float(match[1]) * (1 << _BYTES[match[2].lower()]) / MIB) if match else 0
    if not mebibytes:
        raise refused(flag, value, f"Give {flag} 1 MiB or more: 512, 512MB or 2GB.")
    if mebibytes >= _SURELY_BYTES:
        problem = f"{flag} {value} is in MiB: {mebibytes >> 10:,} GiB."
        raise BadInput(problem, f"Give {flag} {mebibytes // MIB} for as many bytes.")
    return mebibytes


# the losses of accuracy that MLPerf Inference allows, by their names
PRESETS = {"mlperf99": "1%", "mlperf99.9": "0.1%"}


def _drop(value: Any, flag: str) -> Any:
    # ``1%`` is a share of FP32's accuracy, ``0.01`` is not
    if value not in PRESETS:
        number(least=0, most=1, share=True).read(value, flag)
    return value


def parse_time(value: str | float) -> float:
    """Returns a duration in seconds: ``90s``, ``10m``, ``1h``, or a number of seconds.

    Raises BadInput if it is of another form, or 0.
    """
    match = _DURATION.fullmatch(str(value).strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise BadInput(f"The time '{value}' cannot be read.", "Write 90s, 10m or 1h.")
    return seconds


def read_shapes(value: Any, flag: str = "--shape") -> Mapping[str, tuple[int, ...]]:
    """Returns shapes by name, from a mapping or from texts like ``name:1x3x224x224``; names may hold colons.

    Raises BadInput if a text is of another form, or a size is 0.
    """
    if isinstance(value, Mapping):
        if not all(isinstance(size, int) and size > 0 for sizes in value.values() for size in sizes):
            raise refused(flag, value, "Give sizes by input: { x = [1, 3, 224, 224] }.")
        return {name: tuple(sizes) for name, sizes in value.items()}
    shapes = {}
    for text in _texts(value, flag):
        match = _SHAPE.fullmatch(text)
        if not match or "0" in match[2].split("x"):
            name, _, sizes_text = text.rpartition(":")
            sizes = "x".join(re.findall(r"[1-9]\d*", sizes_text))
            example = f"--shape {name or 'NAME'}:{sizes if 'x' in sizes else '1x3x224x224'}"
            hint = "" if name else " with the input's name ('trt-bisect layers' prints it)"
            raise BadInput(f"The shape '{text}' cannot be read.", f"Write {example}{hint}, every size 1 or more.")
        shapes[match[1]] = tuple(int(size) for size in match[2].split("x"))
    return shapes


def _texts(value: Any, flag: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        raise refused(flag, value, 'Give a list of texts: ["conv1", "op:Softmax"].')
    return tuple(TEXT.read(text, flag) for text in texts)


def _pairs(value: Any, flag: str) -> list[tuple[str, Any]]:
    # of a mapping, or of texts ``NAME=VALUE``
    if isinstance(value, Mapping):
        return [*value.items()]
    return [text.partition("=")[::2] for text in _texts(value, flag)]


def _naming_option(read: Callable[[Any], Any], value: Any, flag: str) -> Any:
    # errors of ``read`` do not name the option
    try:
        return read(value)
    except BadInput as error:
        raise refused(flag, value, error.remedy) from error


def _version(value: Any, flag: str) -> Any:
    from trt_bisect.calibration.cache import parse_version

    _naming_option(parse_version, TEXT.read(value, flag), flag)
    return value


def _trtexec(value: Any, flag: str) -> Any:
    from trt_bisect.recipe.trtexec import options_in

    if value:
        _naming_option(options_in, TEXT.read(value, flag), flag)
    return value


def _path(value: Any, flag: str) -> Any:
    # objects that stand for a file, such as a network, stay as they are
    if isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    if isinstance(value, (int, float, Sequence, Mapping)):
        raise refused(flag, value, "Give a path, in quotes.")
    return value


def _path_in(folder: Path, value: Any) -> Any:
    if isinstance(value, list):
        return [_path_in(folder, path) for path in value]
    return str(folder / value) if isinstance(value, str) else value


def _existing(value: Any, folder: Path) -> Any:
    path = _path_in(folder, value)
    if isinstance(path, str) and not exists(path):  # noqa: PTH110  # Path.exists fails on long names
        raise BadInput(f"names '{path}', which does not exist", "Paths are relative to the folder of this file.")
    return path


def _function(value: Any, folder: Path) -> Any:
    # the module's file is relative to ``folder``; values that are no text stay as they are
    if not isinstance(value, str):
        return value
    module, _, function = value.rpartition(":")
    if module.endswith(".py"):
        module = str(folder / module)
    full_name = f"{module}:{function}"
    try:
        load_function(full_name, "function")
    except BadInput as error:
        raise BadInput(f"cannot be used: {error.problem.rstrip('.')}", error.remedy) from error
    return full_name


def _data(value: Any, folder: Path) -> Any:
    if isinstance(value, str) and ":" in value and not exists(folder / value):  # noqa: PTH110
        return _function(value, folder)
    return _existing(value, folder)


def _function_words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return ("MODULE:FUNCTION",)
    return (f"{module}:{name}",)


def _data_named(metavar: str) -> OptionKind:
    # in suggested commands ``metavar`` stands for an object without a name
    return replace(OBJECT, metavar=metavar, words=lambda value: (name_of(value) or metavar,), located=_data)


def by_name(metavar: str) -> OptionKind:
    """Returns the kind of values that name a file, or data, for each network: ``detector=det.onnx``, or a mapping."""

    def read(value: Any, flag: str) -> dict[str, Any]:
        pairs = _pairs(value, flag)
        named = {}
        for name, given in pairs:
            if _NAME.fullmatch(str(name)) and given:
                named[str(name)] = given
        if len(named) < len(pairs):
            raise refused(flag, value, f"Give {flag} {metavar}, each name once, without '/'.")
        return named

    def located(value: Any, folder: Path) -> Any:
        return {name: _data(given, folder) for name, given in value.items()} if isinstance(value, Mapping) else value

    def words(value: Any) -> tuple[str, ...]:
        return tuple(f"{name}={name_of(given) or 'FILE'}" for name, given in value.items())

    return OptionKind(metavar, read, words, located, several=True)


def share_or_data(*, most: float) -> OptionKind:
    """Returns the kind whose values are shares up to ``most``, or data."""
    share = number(least=0, most=most, share=True)

    def is_share(value: Any) -> bool:
        return not isnan(_number(value, share=True))

    return OptionKind(
        "DATA",
        lambda value, flag: share.read(value, flag) if is_share(value) else value,
        lambda value: share.words(value) if is_share(value) else (name_of(value) or "DATA",),
        lambda value, folder: value if is_share(value) else _data(value, folder),
        limits=f"a share: {share.limits}",
    )


def _calibrator(value: Any, flag: str) -> str:
    method, _, percent = str(value).partition("=")
    if method != "percentile" or not percent:
        return choice(*get_args(CalibratorName)).read(value, flag)  # type: ignore[no-any-return]
    if number(above=0, most=100, unit="percent").read(percent, f"{flag} percentile") < 1:
        raise BadInput(f"{flag} {value} is in per cent.", f"Give {flag} percentile={100 * float(percent):g}.")
    return str(value)


def _device(value: Any, flag: str) -> str:
    match = _DEVICE.fullmatch(str(value).lower())
    if not match:
        raise refused(flag, value, "Give cpu or a GPU: cuda:0.")
    return "cpu" if match[1] is None else f"cuda:{match[2] or 0}"


def _address(value: Any, flag: str) -> Any:
    check_address(TEXT.read(value, flag))
    return value


OBJECT = OptionKind("", lambda value, _flag: value)  # an object of Python
TEXT = _checked(
    "TEXT",
    lambda value: isinstance(value, str) and "\0" not in value and bool(value.strip()),
    "Give a text, in quotes.",
)
TEXTS = OptionKind("NAME", _texts, lambda texts: tuple(map(str, texts)), several=True)
# true or false; on the command line a flag without a value
SWITCH = _checked("", lambda value: isinstance(value, bool), "Give true or false.", words=lambda _: ())
# a file or folder that is written
PLACE = OptionKind("PATH", _path, located=lambda value, folder: _path_in(folder, value))
PLACES = replace(
    TEXTS, metavar="PATH", read=lambda value, flag: list(map(Path, _texts(value, flag))), located=PLACE.located
)
FILE = replace(PLACE, metavar="FILE", located=_existing)  # a file or folder that is read
FUNCTION = replace(OBJECT, metavar="FUNCTION", words=_function_words, located=_function)

# an address of workers; see ``check_address``
Address = Annotated[str, replace(TEXT, metavar="ADDRESS", read=_address)]
# a calibrator by its name; ``percentile`` may have a number: ``percentile=99.9``
Calibrator = Annotated[CalibratorName | str, OptionKind("METHOD", _calibrator, choices=get_args(CalibratorName))]
# one number, or one for each channel
Channels = Annotated[
    float | str | Sequence[float],
    OptionKind(
        "N,N,N", partial(_naming_option, numbers), lambda value: (",".join(f"{n:.15g}" for n in numbers(value)),)
    ),
]
Cost = Annotated[str | Path, choice_or_path("macs", "measured")]
Data = Annotated[Any, _data_named("DATA")]
DataFile = Annotated[Any, _data_named("FILE")]
Detail = Annotated[Mapping[str, Any], OptionKind("NAME=N", _detail, _detail_words, several=True)]
DataByName = Annotated[Mapping[str, Any], by_name("NAME=DATA")]
# a loss of accuracy: a share of FP32's, points, or the name of a preset
Drop = Annotated[float | str, OptionKind("SHARE", _drop)]
# the CPU, or a GPU by its number; ``torch.device`` has the same names
Device = Annotated[str, replace(TEXT, metavar="DEVICE", read=_device)]
# a duration, which stays as given; see ``parse_time``
Duration = Annotated[float | str, OptionKind("TIME", lambda value, _flag: parse_time(value) and value)]
File = Annotated[str | Path, FILE]
InFile = Annotated[Path, FILE]  # a file or folder that the command line names, and that is read
Fraction = Annotated[float | str, number(least=0, most=1, share=True)]
Function = Annotated[str | Callable[..., Any], FUNCTION]
# a GPU by name, or a TOML file that describes it
GpuName = Annotated[
    str,
    replace(
        TEXT,
        metavar="GPU|FILE",
        located=lambda value, folder: _path_in(folder, value) if ".toml" in str(value) else value,
    ),
]
History = Annotated[str | Path, choice_or_path("beside", "none")]
# a metric by its name or as a function
Metric = Annotated[
    MetricName | str | Callable[..., Any],
    replace(
        FUNCTION,
        metavar="METRIC",
        located=lambda value, folder: _function(value, folder) if ".py:" in str(value) else value,
    ),
]
PictureSize = Annotated[
    int | str | Sequence[int],
    OptionKind("HxW", partial(_naming_option, size), lambda value: ("x".join(map(str, size(value))),)),
]
Networks = Annotated[Mapping[str, Any], by_name("NAME=FILE")]  # networks by name: files, or what ``onnx.load`` returns
Place = Annotated[str | Path, PLACE]
Shapes = Annotated[
    Mapping[str, tuple[int, ...]],
    OptionKind(
        "NAME:SIZES",
        read_shapes,
        lambda shapes: tuple(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in shapes.items()),
        several=True,
    ),
]
Share = Annotated[float | str, number(share=True)]
# an amount of memory: MiB, or 512MB, 2GB, in powers of 1024
Size = Annotated[int | str, OptionKind("SIZE", _mebibytes)]
TextOrFile = Annotated[Any, _data_named("TEXT")]
# flags of trtexec that say how an engine is built
TrtexecFlags = Annotated[str, OptionKind("FLAGS", _trtexec, hyphens=True)]
Version = Annotated[str, OptionKind("VERSION", _version)]  # a version of TensorRT
if TYPE_CHECKING:
    from trt_bisect.model.network import GivenModel
    from trt_bisect.support.progress import Progress as Progress

    Model = GivenModel | Callable[..., Any]
else:  # their modules load slowly
    Model, Progress = Annotated[Any, FILE], Annotated[Any, OBJECT]
