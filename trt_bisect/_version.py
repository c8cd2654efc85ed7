"""The version, and the versions on which figures depend."""

from __future__ import annotations

__version__ = "0.2.0"


def versions() -> dict[str, str]:
    """Returns the versions of this package, Python, NumPy and ONNX, by name."""
    import platform

    import numpy as np
    import onnx

    return {
        "trt_bisect": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": onnx.__version__,
    }
