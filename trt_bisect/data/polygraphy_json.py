"""JSON files of Polygraphy, read without running code that a file carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trt_bisect.errors import first_line

_TORCH = ("Tensor", "__polygraphy_encoded_Tensor")
"""The type names of PyTorch tensors. Polygraphy reads them with ``torch.load``, which before PyTorch 2.6 unpickles all.

Source: ``polygraphy/json/serde.py`` of 0.49.0.
"""


def load_saved(path: Path) -> Any:
    """Reads a file that holds lists, dictionaries, NumPy arrays and Polygraphy's own types.

    Raises:
        ValueError: the file cannot be read, or holds PyTorch tensors or other types.
    """
    from polygraphy.json import from_json, load_json
    from polygraphy.json.serde import Decoder

    from_json("[]")  # registers the types
    for type_name in _TORCH:
        Decoder.polygraphy_registered.pop(type_name, None)
    try:
        return load_json(str(path))
    except Exception as error:
        raise ValueError(first_line(error)) from error
