"""Asks TensorRT's own ONNX parser, in a worker process, if it accepts a network. TensorRT-RTX's parser needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trt_bisect.builder import tensorrt_build
from trt_bisect.builder.base import DEFAULT_TIMEOUT
from trt_bisect.builder.isolation import WorkerProcess
from trt_bisect.builder.tensorrt_build import RTX, TENSORRT, TensorRT
from trt_bisect.errors import EngineUnavailable, TrialFailed
from trt_bisect.model.file import Written, save_model
from trt_bisect.support.files import ScratchFolder

PARSERS = (TENSORRT, RTX)  # the engines whose parser may be asked, in this order


@dataclass(frozen=True)
class Refusal:
    """An error of the parser, in its own words.

    Attributes:
        node, operator: the node in the file, and its operator; empty if not named.
    """

    node: str
    operator: str
    reason: str


# The parser's engine and version, and its errors on a file; it stops at the first node that it cannot import.
ParserAnswer = tuple[str, tuple[Refusal, ...]]


def ask_parser(written: Written) -> ParserAnswer | None:
    """Returns the parser's engine and version, as one text, and its errors: none if it accepts the network.

    Asks TensorRT's parser, or TensorRT-RTX's if that does not start; returns None if neither starts.
    """
    for engine in PARSERS:
        if not tensorrt_build.is_installed(engine):
            continue
        process = WorkerProcess()
        try:
            with ScratchFolder() as folder:
                path = folder / "network.onnx"
                save_model(written.model, written.weights, path)
                request = ("call", partial(_answer_of, engine, path))
                answer: ParserAnswer = process.worker().ask(request, DEFAULT_TIMEOUT)
                return answer
        except (EngineUnavailable, TrialFailed):
            continue
        finally:
            process.stop()
    return None


def _answer_of(engine: str, path: Path) -> ParserAnswer:
    rt = tensorrt_build.start_tensorrt(engine)
    return f"{engine} {rt.module.__version__}", tuple(refusals_of(rt, path))


def refusals_of(rt: TensorRT, path: Path) -> Iterator[Refusal]:
    """Yields the parser's errors on an ONNX file; none if it accepts the file."""
    definition, is_whole = tensorrt_build.parsed(rt, path, ("EXPLICIT_BATCH", "STRONGLY_TYPED"))
    parser, messages = definition.parser, tensorrt_build.drain(rt.logger)
    for index in range(parser.num_errors):
        yield _refusal(parser.get_error(index))
    if not is_whole and not parser.num_errors:
        yield Refusal("", "", _in_words(tensorrt_build.errors_in(messages, "The parser gives no reason.")))


def _refusal(error: Any) -> Refusal:
    # TensorRT names node and operator since 10.0, not in all errors; else the importer's function tells the operator.
    operator = getattr(error, "node_operator", str)() or re.sub(r"^import(?=[A-Z])|^.*$", "", error.func(), count=1)
    return Refusal(getattr(error, "node_name", str)(), operator, _in_words(error.desc()))


def _in_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("Invalid Node")]
    words = re.sub(r"^.*Error Code \d+: (?:API Usage Error|Internal Error|Shape Error)? ?", "", next(iter(lines), text))
    words = re.sub(r"\s+In \S+ at /\S+\)?$", "", words.removeprefix("Assertion failed: "))
    return words.strip("() ")
