"""Whose fault it is that a network cannot be read into layers: that of its file, or that of this program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnxruntime as ort

from trt_bisect.errors import BadInput, TrtBisectError, first_line


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Where something fails that nobody foresaw: BadInput, if ONNX's checker or ONNX Runtime refuse the file as well.

    Raises:
        BadInput: the network is not valid, or takes more memory than there is.
    """
    try:
        yield
    except TrtBisectError:
        raise
    except MemoryError as error:
        raise BadInput(
            f"The network '{path}' takes more memory than there is: {first_line(error)}",
            "Check the sizes that it asks for, or use a machine with more memory.",
        ) from error
    except Exception as error:
        refusal = refusal_of(path)
        if refusal is None:
            raise
        raise BadInput(
            f"The network '{path}' is not valid: {refusal}",
            "Check it with onnx.checker.check_model and export it again.",
        ) from error


def refusal_of(path: Path) -> str | None:
    """What ONNX's checker, or else ONNX Runtime, says against a file in one line; None where both take it."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return first_line(error)
    return None
