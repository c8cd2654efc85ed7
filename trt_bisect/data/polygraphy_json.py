"""What Polygraphy saved as JSON, read without running any code that the file brings along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trt_bisect.errors import first_line

_TORCH = ("Tensor", "__polygraphy_encoded_Tensor")
"""The marks of PyTorch tensors, which Polygraphy hands to ``torch.load``: before PyTorch 2.6 that unpickles anything.

Source: ``polygraphy/json/serde.py`` of 0.49.0.
"""


def load_saved(path: Path) -> Any:
    """What the file holds: lists, dictionaries, NumPy arrays and Polygraphy's own types, but no PyTorch tensors.

    Raises:
        ValueError: it cannot be read, or holds other types; Polygraphy's decoders raise whatever the file provokes.
    """
    from polygraphy.json import from_json, load_json
    from polygraphy.json.serde import Decoder

    from_json("[]")  # registers the types
    for mark in _TORCH:
        Decoder.polygraphy_registered.pop(mark, None)
    try:
        return load_json(str(path))
    except Exception as error:
        raise ValueError(first_line(error)) from error
