"""Functions that users name, as ``module:function`` or ``path/to/file.py:function``, and the kinds of files."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from uuid import uuid4

from trt_bisect.errors import BadInput, TrtBisectError, raised

_THIS_RUN_ALONE = " known in this run alone"


def load_function(text: str, kind: str) -> Callable[..., Any]:
    """Imports the function of ``module:function`` or ``path/to/file.py:function``; ``kind`` is its purpose in messages,
    such as ``data set``.

    Raises BadInput if that fails.
    """
    module_name, _, attribute = text.rpartition(":")
    try:
        module = _import_file(module_name) if module_name.endswith(".py") else _import_from_here(module_name)
        function = getattr(module, attribute)
    except Exception as error:
        raise BadInput(
            f"The {kind} '{text}' cannot be loaded: {type(error).__name__}: {error}",
            "Give module:function or file.py:function of an importable module, or the path of an existing file.",
        ) from error
    if not callable(function):
        raise BadInput(f"The {kind} '{text}' is a {type(function).__name__}, not a function.", "Name a function.")
    return function  # type: ignore[no-any-return]


def code_digest(function: Callable[..., Any], *facts: object) -> str:
    """Returns the SHA-256 of a function's name, source file and ``facts``.

    Modules that the file imports, and data, are not covered. For an object, a closure or a notebook's function the
    digest is random.
    """
    if isinstance(function, FunctionType):
        source = Path(function.__code__.co_filename)
        name = next((name for name, value in function.__globals__.items() if value is function), None)
        if name is not None and source.suffix == ".py" and source.is_file():
            return hashlib.sha256(repr((name, facts)).encode() + source.read_bytes()).hexdigest()
    return uuid4().hex + _THIS_RUN_ALONE


def is_reusable(digest: str) -> bool:
    """Returns true if a later run gets this digest, from ``code_digest``, again."""
    return not digest.endswith(_THIS_RUN_ALONE)


def samples_from(function: Callable[[], Any], name: str) -> Iterator[Any]:
    """Yields the samples of a function that returns an iterable of them; ``name`` names it in messages.

    Raises BadInput if it returns no iterable, or one of the two raises an error.
    """
    try:
        samples = function()
        if not isinstance(samples, Iterable):
            remedy = "It must return an iterable of dictionaries: input name to array."
            raise BadInput(f"{name} returned a {type(samples).__name__}.", remedy)
        yield from samples
    except (TrtBisectError, MemoryError):
        raise
    except Exception as error:
        raise BadInput(f"{name} failed: {raised(error)}", "Correct the function that gives the data.") from error


def _import_file(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module at {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_from_here(name: str) -> ModuleType:
    # The current folder comes last on sys.path afterwards: a folder tensorrt in it must not hide the package.
    if sys.path[:1] == [""]:
        return importlib.import_module(name)
    sys.path[:] = ["", *filter(None, sys.path)]
    try:
        return importlib.import_module(name)
    finally:
        sys.path[:] = [*filter(None, sys.path), ""]


def name_of(given: Any) -> str:
    """Returns a given path as text; empty for data that is no path."""
    return str(given) if isinstance(given, (str, Path)) else ""


ARRAYS, ARRAY = "arrays (.npz)", "an array (.npy)"
CACHE = "a TensorRT calibration cache"
PICTURE = "a picture"
DATA_KINDS = (ARRAYS, ARRAY, CACHE, PICTURE)  # the kinds of files that calibration and inputs take
ENGINE = "a TensorRT engine"
PYTORCH = "a PyTorch file"
TFLITE = "a TensorFlow Lite network"
ONNX = "an ONNX network"
_SIMILAR = 0.75  # the least difflib ratio of a misspelt name; a shared ending alone scores less
_BEGINNINGS = {
    b"ftrt": ENGINE,
    b"ptrt": ENGINE,
    b"\x93NUMPY": ARRAY,
    b"TRT-": CACHE,
    b"\xff\xd8\xff": PICTURE,
    b"\x89PNG": PICTURE,
    b"\x89HDF": "a Keras or HDF5 file",
    b"version https://git-lfs": "a Git LFS pointer",
    b"<!DOCTYPE": "a web page",
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"<?xml": "an XML file, such as OpenVINO's",
    b"\x1f\x8b": "a packed file (gzip)",
    b"\x80\x02": PYTORCH,
    b"\x80\x04": PYTORCH,
}
_REMEDIES = {
    ENGINE: "An engine has its precisions already: give the ONNX network that it was built from.",
    PYTORCH: "Export it: torch.onnx.export(model, example_input, 'model.onnx').",
    TFLITE: "Convert it: python -m tf2onnx.convert --tflite model.tflite --output model.onnx --opset 17.",
    _BEGINNINGS[b"\x89HDF"]: "Convert it: python -m tf2onnx.convert --keras model.h5 --output model.onnx --opset 17.",
    "a TensorFlow network": "Convert it: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx.",
    "a safetensors file": "It holds weights without a graph: export the model that loads them as ONNX.",
    "a Git LFS pointer": "Fetch the file itself: git lfs pull.",
    "a web page": "The download failed: fetch the file itself.",
    "a packed file (gzip)": "Unpack it first.",
}


def kind_of(path: Path) -> str:
    """Returns the kind of a file or folder, such as ``a PyTorch file``; empty if unknown."""
    if path.is_dir():
        return "a TensorFlow network" if (path / "saved_model.pb").is_file() else ""
    try:
        with path.open("rb") as file:
            first = file.read(64)
    except OSError:
        return ""
    if not first:
        return "an empty file"
    for beginning, kind in _BEGINNINGS.items():
        if first.startswith(beginning):
            return kind
    if first[4:8] == b"TFL3":
        return TFLITE
    if first[:4] == b"PK\x03\x04":
        with suppress(OSError, zipfile.BadZipFile, ValueError), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if any(name.endswith(("data.pkl", "/version", "constants.pkl")) for name in names):
                return PYTORCH
            if names and all(name.endswith(".npy") for name in names):
                return ARRAYS
        return "a ZIP archive"
    if first[8:9] == b"{" and int.from_bytes(first[:8], "little") < path.stat().st_size:
        return "a safetensors file"
    if path.name == "saved_model.pb":
        return "a TensorFlow network"
    if path.suffix.lower() in (".plan", ".engine", ".trt"):
        return ENGINE
    is_onnx = first[:1] == b"\x08" and path.suffix.lower() == ".onnx"
    return ONNX if is_onnx else ""


def similar_file(path: Path) -> str:
    """Returns ``Did you mean 'FILE'?`` with the most similar name in the folder; empty if none is similar."""
    with suppress(OSError):
        near = get_close_matches(path.name, [file.name for file in path.parent.iterdir()], 1, _SIMILAR)
        if near:
            return f"Did you mean '{path.with_name(near[0])}'?"
    return ""


def remedy_of(kind: str) -> str:
    """Returns advice for a file of this ``kind``, one of ``kind_of``, that was given as the network; empty if there is
    none.
    """
    if kind in DATA_KINDS:
        return "The network comes first, and data after --calibration or --input: were the two swapped?"
    return _REMEDIES.get(kind, "")
