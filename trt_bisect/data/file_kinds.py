"""Files by their first bytes: a message can name the kind of a file that was given in place of another."""

from __future__ import annotations

import zipfile
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

ARRAYS, ARRAY = "arrays (.npz)", "an array (.npy)"
CACHE = "a TensorRT calibration cache"
PICTURE = "a picture"
DATA_KINDS = (ARRAYS, ARRAY, CACHE, PICTURE)
"""The kinds that calibration and inputs take."""
ENGINE = "a TensorRT engine"
PYTORCH = "a PyTorch file"
TFLITE = "a TensorFlow Lite network"
ONNX = "an ONNX network"
_SIMILAR = 0.75
"""Names at least so similar, as ``difflib`` counts it, are one misspelt; a shared ending alone is less."""
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
    """Returns the kind of a file or folder in words, such as ``a PyTorch file``; empty if it is not recognised."""
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
        return _kind_of_archive(path)
    return _by_structure(path, first)


def _kind_of_archive(path: Path) -> str:
    with suppress(OSError, zipfile.BadZipFile, ValueError), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if any(name.endswith(("data.pkl", "/version", "constants.pkl")) for name in names):
            return PYTORCH
        if names and all(name.endswith(".npy") for name in names):
            return ARRAYS
    return "a ZIP archive"


def _by_structure(path: Path, first: bytes) -> str:
    if first[8:9] == b"{" and int.from_bytes(first[:8], "little") < path.stat().st_size:
        return "a safetensors file"
    if path.name == "saved_model.pb":
        return "a TensorFlow network"
    if path.suffix.lower() in (".plan", ".engine", ".trt"):
        return ENGINE
    is_onnx = first[:1] == b"\x08" and path.suffix.lower() == ".onnx"
    return ONNX if is_onnx else ""


def similar_file(path: Path) -> str:
    """Returns a question after a file with a similar name in the same folder; empty if there is none."""
    with suppress(OSError):
        near = get_close_matches(path.name, [each.name for each in path.parent.iterdir()], 1, _SIMILAR)
        if near:
            return f"Did you mean '{path.with_name(near[0])}'?"
    return ""


def remedy_of(kind: str) -> str:
    """Returns what to do with a file of a kind that was given as the network; empty if nothing is known."""
    if kind in DATA_KINDS:
        return "The network comes first, and data after --calibration or --input: were the two swapped?"
    return _REMEDIES.get(kind, "")
