"""Arrays that are kept in memory up to a limit, and beyond it in files of a temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import numpy as np

from trt_bisect.support.scratch import ScratchFolder


class Spill:
    """Keeps arrays until it is closed. It keeps copies: an array of ONNX Runtime keeps its session's arena alive.

    Args:
        memory: bytes of arrays that stay in memory. Arrays of objects, such as texts, always do.
    """

    def __init__(self, memory: int) -> None:
        self._left = memory
        self._scratch = ScratchFolder()
        self._files = 0

    def kept(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the same arrays; those beyond the limit are read from files, and are not writable."""
        return {name: self._kept(array) for name, array in arrays.items()}

    def _kept(self, array: np.ndarray) -> np.ndarray:
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            return array
        if array.nbytes <= self._left:
            self._left -= array.nbytes
            return np.array(array)
        folder = self._scratch.path if self._files else self._scratch.open()
        path = folder / f"{self._files}.npy"
        self._files += 1
        np.save(path, array)
        read: np.ndarray = np.load(path, mmap_mode="r")
        return read

    def close(self) -> None:
        """Removes the files."""
        self._scratch.close()
        self._files = 0

    def __enter__(self) -> Spill:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
