"""Tells an invalid network from an error of this program when a network cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnxruntime as ort

from trt_bisect.errors import BadInput, TrtBisectError, first_line
from trt_bisect.model.operators import new_options


@contextmanager
def refusing_invalid(path: Path) -> Iterator[None]:
    """Turns an unexpected error into BadInput if ONNX's checker or ONNX Runtime refuses the file too.

    Raises:
        BadInput: the network is not valid, or needs more memory than the machine has.
    """
    try:
        yield
    except TrtBisectError:
        raise
    except MemoryError as error:
        raise BadInput(
            f"The network '{path}' needs more memory than this machine has: {first_line(error)}",
            "Check the sizes of its tensors, or use a machine with more memory.",
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
    """The first line of the error of ONNX's checker, else of ONNX Runtime, for a file; None if both accept it."""
    try:
        onnx.checker.check_model(str(path), full_check=True)
        options = new_options()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return first_line(error)
    return None
