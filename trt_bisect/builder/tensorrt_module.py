"""TensorRT and TensorRT-RTX as Python modules, imported when they are needed, and their logger."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from trt_bisect.builder.inspector import LOGGED
from trt_bisect.errors import EngineUnavailable, install

TENSORRT = "tensorrt"
RTX = "tensorrt-rtx"

_MODULES = {TENSORRT: ("tensorrt",), RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}
_EXTRAS = {TENSORRT: "tensorrt", RTX: "rtx"}


def import_tensorrt(engine: str) -> ModuleType:
    """Imports the Python module of ``tensorrt`` or ``tensorrt-rtx``.

    Raises:
        EngineUnavailable: it is not installed, or its libraries do not load.
    """
    broken = ""
    for name in _MODULES[engine]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                broken = f"{name}: {error}"
        except (ImportError, OSError) as error:
            broken = f"{name}: {error}"
    remedy = install(_EXTRAS[engine])
    if broken:
        raise EngineUnavailable(f"{engine} does not load: {broken}", f"Install it again: {remedy}")
    raise EngineUnavailable(f"{engine} is not installed.", remedy)


def version_of(version: str) -> tuple[int, int]:
    """Returns major and minor of a version text.

    >>> version_of("10.12.0.36")
    (10, 12)
    """
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[0] if numbers else 0, 0)


@dataclass(frozen=True)
class Message:
    """An error or a warning that TensorRT logged."""

    is_error: bool
    text: str


LISTENERS: list[Callable[[Message], None]] = []
"""Called with every error and warning at once, so that they are known even if the process crashes."""


@functools.cache
def logger_of(trt: ModuleType) -> Any:
    """Returns the logger of this process, which prints nothing.

    It keeps errors and warnings in ``records``, and in ``layers`` the last message that lists an engine's layers.
    TensorRT has one logger for each process: it uses the first one, and ignores all later ones.
    """

    class KeepingLogger(trt.ILogger):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.records: list[Message] = []
            self.layers = ""

        def log(self, severity: Any, msg: str) -> None:
            if severity.name in ("INTERNAL_ERROR", "ERROR", "WARNING"):
                message = Message(severity.name != "WARNING", msg.strip())
                self.records.append(message)
                for tell in LISTENERS:
                    tell(message)
            elif msg.startswith(LOGGED):
                self.layers = msg

    return KeepingLogger()


def drain(logger: Any) -> tuple[Message, ...]:
    """Returns the messages logged since the last call, each once, in order, and removes them from the logger."""
    records = tuple(dict.fromkeys(logger.records))
    logger.records.clear()
    return records


def errors_in(messages: Iterable[Message], otherwise: str) -> str:
    """Returns the errors among ``messages`` as one text, or ``otherwise`` if there are none."""
    return "\n".join(message.text for message in messages if message.is_error) or otherwise


def failure_in(messages: Iterable[Message], otherwise: str) -> str:
    """Returns the errors of a failed build as one text, or ``otherwise``, and then its warnings."""
    kept = tuple(messages)
    return "\n".join([errors_in(kept, otherwise), *(f"warning: {text}" for text in warnings_in(kept))])


def warnings_in(messages: Iterable[Message]) -> tuple[str, ...]:
    """Returns the texts of the warnings among ``messages``."""
    return tuple(message.text for message in messages if not message.is_error)
