"""The folder of tensors in a run folder: ``tensors/fp32/000000.npz`` and so on, and ``tensors/index.json``."""

from __future__ import annotations

BOUNDARIES = "boundaries"
"""The folder in it of the curve: ``boundaries/fp32``, and by layer ``boundaries/0002-conv2`` and so on."""
TENSORS, INDEX = "tensors", "index.json"
SAMPLE = "{:06}.npz"
"""The file of a sample, by its number."""
POLYGRAPHY, INPUTS_JSON = "polygraphy", "inputs.json"
"""The folder in it of the same as Polygraphy's JSON: ``inputs.json``, ``fp32.json`` and so on."""
