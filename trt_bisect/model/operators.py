"""Libraries with operators that ONNX Runtime does not have of its own; every session of the process gets them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnxruntime as ort

from trt_bisect.errors import BadInput, first_line

_libraries: list[Path] = []


def use_libraries(paths: Iterable[str | Path]) -> None:
    """Gives the operators of shared libraries to every session that ``new_options`` is used for from now on.

    Args:
        paths: the paths of the libraries; each has the function ``RegisterCustomOps`` of ONNX Runtime's C interface.

    Raises:
        BadInput: a library cannot be loaded; it is not used.
    """
    for path in paths:
        library = Path(path).resolve()
        if library in _libraries:
            continue
        try:
            ort.SessionOptions().register_custom_ops_library(str(library))
        except Exception as error:
            raise BadInput(
                f"ONNX Runtime cannot load the operators in '{path}': {first_line(error)}",
                f"Give a library that was built for ONNX Runtime {ort.__version__} on this kind of machine.",
            ) from error
        _libraries.append(library)


def new_options() -> ort.SessionOptions:
    """Returns options for a session that says nothing and knows the operators of all libraries."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for library in _libraries:
        options.register_custom_ops_library(str(library))
    return options


def digests_of(paths: Sequence[str | Path]) -> str:
    """Returns the start of the SHA-256 of each library, for a fingerprint; empty without libraries.

    Raises:
        BadInput: a file cannot be read.
    """
    try:
        return " ".join(hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16] for path in paths)
    except OSError as error:
        what = f"The library '{error.filename}' cannot be read: {error.strerror}."
        raise BadInput(what, "Check the path.") from error
