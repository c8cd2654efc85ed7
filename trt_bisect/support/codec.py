"""JSON of results: msgspec writes, reads and checks dataclasses by the types of their fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from trt_bisect.support.files import write_whole

Kind = TypeVar("Kind")
# a float that can be NaN or infinite, in a dataclass that is ``NanForNull``: it is null in JSON
if TYPE_CHECKING:
    Real = float
else:
    Real = float | None
# raised for damaged JSON or JSON of another type; the text has the path of the wrong field
Malformed = msgspec.DecodeError


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


@dataclass(frozen=True)
class FileHead:
    """The fields of a JSON file that tell its kind and the version of its schema."""

    schema: int
    kind: str = ""


class NanForNull:
    """Base of dataclasses in whose ``Real`` fields a null of the JSON becomes NaN."""

    def __post_init__(self) -> None:
        if None in (values := vars(self)).values():
            for name in [name for name, value in values.items() if value is None]:
                object.__setattr__(self, name, math.nan)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def encode(value: Any) -> bytes:
    """Returns a dataclass, or containers of dataclasses, as compact JSON; floats that are not finite are null."""
    # Bytes of a file name that are no Unicode are written as escapes.
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_each(msgspec.to_builtins(value, enc_hook=_plain), _readable))


def _readable(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    # the value with each text, number and key changed
    if isinstance(value, (list, tuple)):
        return [_each(inner, change) for inner in value]
    if isinstance(value, dict):
        return {change(key): _each(inner, change) for key, inner in value.items()}
    return change(value)


def shortened(value: Any, digits: int) -> Any:
    """Returns a value in JSON types, with floats rounded to ``digits`` significant digits."""

    def short(number: Any) -> Any:
        return float(f"{number:.{digits}g}") if isinstance(number, float) else number

    return _each(msgspec.to_builtins(value, enc_hook=_plain), short)


def encode_lines(record: Any) -> bytes:
    """Returns a dataclass or a dict as JSON with a line for each field and each element of a tuple."""
    items = (
        record if isinstance(record, dict) else {field.name: getattr(record, field.name) for field in fields(record)}
    )
    lines = []
    for name, value in items.items():
        text = encode(value)
        if isinstance(value, (list, tuple)) and value:
            text = b"[\n  " + b",\n  ".join(map(encode, value)) + b"\n ]"
        lines.append(b' "%s": %s' % (name.encode(), text))
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def decode(kind: type[Kind], text: bytes | str) -> Kind:
    """Returns JSON as a value of type ``kind``; ignores unknown fields, raises Malformed if the JSON does not fit."""
    try:
        return msgspec.json.decode(text, type=kind)
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8: {error}") from error


def read(kind: type[Kind], path: Path) -> Kind | None:
    """Returns the content of a JSON file as a value of type ``kind``; None if it cannot be read or is malformed."""
    try:
        return decode(kind, path.read_bytes())
    except (OSError, Malformed, RecursionError):
        return None


def write(path: Path, record: Any) -> None:
    """Writes a dataclass as JSON, a line for each field; raises BadInput if it cannot be written."""
    write_whole(path, encode_lines(record))
