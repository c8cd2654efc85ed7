"""Spoils bytes, texts and JSON: one step of a mutation, drawn from a generator that can be started again."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

ODD_INTS = (0, 1, -1, 2, 7, 127, 255, 256, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1)
ODD_FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3.4e38, 1e308, float("inf"), float("-inf"), float("nan"))
ODD_TEXTS = (
    "", " ", "x", "../../../etc/passwd", "/dev/zero", "[red]bold[/red]", "<script>alert(1)</script>", "a\nb", "a\0b",
    "ü\u202e\ud7ff", "x" * 300, "x" * 70000, "%s%n{0}{x}", ".", "NUL",
)  # fmt: skip


def spoiled_bytes(content: bytes, random: Random) -> bytes:
    """Bits turned, bytes replaced, stretches taken out, doubled or moved, the end cut off."""
    made = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        if not made:
            break
        at = random.randrange(len(made))
        length = min(random.choice((1, 2, 4, 8, 64, 512)), len(made) - at)
        how = random.randrange(7)
        if how == 0:
            made[at] ^= 1 << random.randrange(8)
        elif how == 1:
            made[at : at + length] = random.randbytes(length)
        elif how == 2:
            del made[at : at + length]
        elif how == 3:
            made[at:at] = made[at : at + length] * random.choice((1, 2, 100))
        elif how == 4:
            del made[at:]
        elif how == 5:
            made[at : at + 4] = struct.pack(
                "<i", random.choice([odd for odd in ODD_INTS if -(1 << 31) <= odd < 1 << 31])
            )
        else:
            other = random.randrange(len(made))
            made[at : at + length] = made[other : other + length]
    return bytes(made)


def spoiled_lines(content: bytes, random: Random) -> bytes:
    """A text with lines taken out, doubled, swapped, or with one of their fields replaced."""
    lines = content.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(lines))
        how = random.randrange(6)
        if how == 0:
            del lines[at]
        elif how == 1:
            lines.insert(at, lines[at])
        elif how == 2:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == 3:
            separator = random.choice((b",", b":", b" ", b"\t"))
            fields = lines[at].split(separator)
            fields[random.randrange(len(fields))] = _odd_text(random)
            lines[at] = separator.join(fields)
        elif how == 4:
            lines[at] = random.choice((b"", b"\xff\xfe", b"\0", b'"', b",,,,", lines[at] * 3, b"x" * 100_000))
        else:
            lines[at] = spoiled_bytes(lines[at], random)
        lines = lines or [b""]
    return b"\n".join(lines)


def _odd_text(random: Random) -> bytes:
    odd: Any = random.choice(random.choice((ODD_INTS, ODD_FLOATS, ODD_TEXTS)))
    return str(odd).encode(errors="replace")


def spoiled_toml(content: bytes, random: Random) -> bytes:
    """A config with a key's value replaced by one of another type, or with a key, or a table, of its own."""
    odd = (
        "1979-05-27", "07:32:00", "[]", "[[1], 2]", "{}", "{a = {b = 1}}", "nan", "-inf", "0x10", "true", '""', "1e400",
        '"../../x"', '"\\u0000"', '"a\\nb"', "9" * 40, "-1", "0", '"""' + "x" * 5000 + '"""', "[" * 3000,
        '"nothing.onnx"',
    )  # fmt: skip
    lines = content.decode().splitlines()
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(lines))
        key = lines[at].split("=")[0] if "=" in lines[at] and random.randrange(3) else random.choice(_TOML_KEYS)
        tables = ("[network]", "[defaults]", "[[network]]", "[x.y]", "[[defaults]]", "[network.one]")
        lines[at:at] = [f"{key} = {random.choice(odd)}" if random.randrange(5) else random.choice(tables)]
        if random.randrange(4):
            del lines[at + 1]
    return "\n".join(lines).encode()


_TOML_KEYS = """name model calibration input dataset shape outputs metric threshold share precision engine typing output
    strategy samples target target_recipe repeats memory percentile workspace network defaults nonsense""".split()


def spoiled_json(content: bytes, random: Random) -> bytes:
    """JSON with values replaced, taken out, doubled or put elsewhere; at times too deep, too large, or no JSON."""
    how = random.randrange(12)
    if how == 0:
        return spoiled_bytes(content, random)
    if how == 1:
        return random.choice(
            (b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"null", b"[]", b"{}", b'"\\ud800"', b"")
        )
    root = [json.loads(content)]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _spoil_value(root, random)
    text = json.dumps(root[0])
    if how == 2:
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice(("NaN", "1e999", "-Infinity", "9" * 400, "[" * 2000, "\\u0000")) + text[at:]
    return text.encode()


def _spoil_value(root: Any, random: Random) -> None:
    holder, key = random.choice(_places(root))
    how = random.randrange(5)
    if how == 0 and holder is not root:
        del holder[key]
    elif how == 1:
        source, source_key = random.choice(_places(root))
        holder[key] = json.loads(json.dumps(source[source_key]))
    elif how == 2 and isinstance(holder[key], list):
        holder[key] = holder[key] * random.choice((2, 50))
    else:
        holder[key] = odd_value(random)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """The place of a value: its container, and its key or index there."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys: Any = range(len(holder)) if isinstance(holder, list) else list(holder)
        for key in keys:
            places.append((holder, key))
            if isinstance(holder[key], (list, dict)):
                waiting.append(holder[key])
    return places


def odd_value(random: Random) -> Any:
    """A value of any of JSON's types."""
    odd: tuple[Any, ...] = (
        None, True, False, [], {}, [None], [[[]]], {"": None}, [1, "2", None], random.choice(ODD_INTS), 10**30,
        random.choice(ODD_FLOATS), random.choice(ODD_TEXTS),
    )  # fmt: skip
    return random.choice(odd)


def spoiled_stem(content: bytes, random: Random, how: Callable[[bytes, Random], bytes]) -> bytes:
    """Spoils the structure three times of four, else the bytes."""
    return how(content, random) if random.randrange(4) else spoiled_bytes(content, random)
