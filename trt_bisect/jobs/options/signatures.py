"""Python functions that take options as keywords: their signature and their help come from the declarations."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from trt_bisect.jobs.options.declare import Options
from trt_bisect.jobs.options.option_info import OptionInfo

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLACE = "        options: "
_WIDTH = 116


def takes(options: type[Options]) -> Callable[[_Function], _Function]:
    """Gives a function with ``**options`` the flat signature and the documentation of its options.

    In the docstring the line that begins with ``options:`` is replaced by a line for each option.

    Args:
        options: a command's class of options.
    """

    def documented(function: _Function) -> _Function:
        bare = inspect.signature(function)
        plain = [each for each in bare.parameters.values() if each.kind is not each.VAR_KEYWORD]
        flat = [
            inspect.Parameter(
                info.name, inspect.Parameter.KEYWORD_ONLY, default=info.default, annotation=info.annotation
            )
            for info in options.declared()
            if info.name not in bare.parameters
        ]
        function.__signature__ = bare.replace(parameters=[*plain, *flat])  # type: ignore[attr-defined]
        lines = [_documented(info) for info in options.declared()]
        named = (function.__doc__ or "").splitlines()
        function.__doc__ = "\n".join("\n".join(lines) if line.startswith(_PLACE) else line for line in named)
        return function

    return documented


def described(info: OptionInfo) -> str:
    """An option's help with its choices, its unit and bounds, and what holds without it."""
    facts = []
    if info.choices:
        facts.append("one of " + ", ".join(info.choices) if info.kind.closed else "or " + ", ".join(info.choices))
    if info.unit:
        facts.append(f"in {info.unit}")
    if info.bounds:
        facts.append(info.bounds)
    if info.otherwise:
        facts.append(f"default: {info.otherwise}")
    return info.help if not facts else f"{info.help} ({'; '.join(facts)})"


def _documented(info: OptionInfo) -> str:
    text = f"{info.name}: {described(info)}"
    return textwrap.fill(text, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False)
