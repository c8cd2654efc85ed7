"""Texts for the command line, turned into texts for Python: keywords in place of flags."""

from __future__ import annotations

import re
from collections.abc import Mapping

# the values of options; a word after a flag is its value if it is one of these
CHOICES = frozenset(
    "adaptive auto beside bf16 bgr bisect boundaries classify culprits default depth detect embed entropy exhaustive "
    "fp16 fp32 fp8 full gray high instances int16 int8 layers macs measured minmax mixed mse none obb onnxruntime "
    "outputs percentile polygraphy pose quick remedies rgb segment strong tensorrt tensorrt-rtx tensors text thorough "
    "weak weak-int8".split()
)
_FUNCTIONS = ("run", "sensitivity", "worst", "compare", "profile", "check", "migrate", "regress")
_QUOTED = re.compile(r"'((?:trt-bisect [a-z]|--[a-z])[^']*)'")
_WORD = "|".join(sorted(map(re.escape, CHOICES), key=len, reverse=True))
_VALUE = rf"[A-Z][A-Z_.]+|\d+(?:\.\d+)?%?|[\w.]+[:=][^\s'\"]*[^\s'\".,;:)]|{_WORD}"
_FLAG = re.compile(rf"(?<![\w-])(--[a-z][a-z0-9-]*[a-z0-9])(?![\w=-])(?: ({_VALUE})(?![\w-]))?")


def in_python(text: str, keywords: Mapping[str, str] | None = None) -> str:
    """Returns a text for the command line as it reads in Python: ``base="fp16"`` for ``'--base fp16'``.

    Args:
        keywords: by flag its keyword; other flags stay. None turns every flag into a keyword of the same name.
    """

    def keyword(flag: str) -> str | None:
        return flag[2:].replace("-", "_") if keywords is None else keywords.get(flag)

    def call(match: re.Match[str]) -> str:
        words = match[1].split()
        command = words[1] if words[0] == "trt-bisect" else ""
        if command and command not in _FUNCTIONS:
            return match[0]
        arguments: dict[str, list[str]] = {}
        files: list[str] = []
        for word in words[2:] if command else words:
            name = keyword(word) if word.startswith("--") else ""
            if name is None:
                return match[0]
            if name:
                arguments[name] = []
            else:
                (arguments[[*arguments][-1]] if arguments else files).append(word)
        told = [*map(_literal, files)]
        for name, values in arguments.items():
            without = "..." if command else "True"
            told.append(f"{name}={_literal(' '.join(values)) if values else without}")
        if not command:
            return ", ".join(told)
        return f"trt_bisect.{command}({', '.join(told)})" if told else f"trt_bisect.{command}"

    def argument(match: re.Match[str]) -> str:
        name = keyword(match[1])
        if name is None:
            return match[0]
        return name if match[2] is None else f"{name}={_literal(match[2])}"

    text = _FLAG.sub(argument, _QUOTED.sub(call, text))
    return text.replace("same command", "same call")


def _literal(word: str) -> str:
    return word if re.fullmatch(r"[A-Z][A-Z_.]+|\d+(\.\d+)?", word) else f'"{word}"'
