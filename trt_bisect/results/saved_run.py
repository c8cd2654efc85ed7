"""The folder of tensors in a run folder: ``tensors/fp32/000000.npz`` and so on, and ``tensors/index.json``."""

from __future__ import annotations

TENSORS, INDEX = "tensors", "index.json"
SAMPLE = "{:06}.npz"
"""The file of a sample, by its number."""
