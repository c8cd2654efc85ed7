"""The GPU through PyCUDA: a device, and pinned host memory and device memory that grow as needed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from trt_bisect.builder.gpu import find_gpu
from trt_bisect.errors import EngineUnavailable

PYCUDA = "pycuda.driver"


def import_pycuda() -> Any:
    """The module ``pycuda.driver``.

    Raises:
        EngineUnavailable: it is not installed, or does not load.
    """
    try:
        return importlib.import_module(PYCUDA)
    except (ImportError, OSError) as error:
        raise EngineUnavailable(
            f"PyCUDA, which runs TensorRT's engines, does not import: {error}", "pip install pycuda"
        ) from error


@dataclass(frozen=True)
class Device:
    """A GPU with its primary context, the one that TensorRT uses.

    Attributes:
        cuda: the module ``pycuda.driver``.
        context: the retained primary context.
    """

    cuda: Any
    context: Any

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context current in this thread for as long as the block runs."""
        self.context.push()
        try:
            yield
        finally:
            self.cuda.Context.pop()


@functools.cache
def open_device() -> Device:
    """The first GPU, opened once in a process. A process that is forked later must not use it.

    Raises:
        EngineUnavailable: PyCUDA is not installed, or no GPU answers.
    """
    find_gpu()
    cuda = import_pycuda()
    try:
        cuda.init()
        return Device(cuda, cuda.Device(0).retain_primary_context())
    except cuda.Error as error:
        raise EngineUnavailable(f"No NVIDIA GPU answers: {error}", "'nvidia-smi' must list the GPU.") from error


class Buffer:
    """Pinned host memory and device memory of one tensor, with room for at least the bytes last asked for."""

    def __init__(self, device: Device) -> None:
        self._cuda = device.cuda
        self._bytes = 0
        self.host: np.ndarray = np.empty(0, np.uint8)
        self.memory: Any = None

    def hold(self, size: int) -> None:
        """Makes room for ``size`` bytes; if the buffer has to grow, its content is lost."""
        if self.memory is None or size > self._bytes:
            self.memory = None
            self._bytes = max(size, 1)
            self.host = self._cuda.pagelocked_empty(self._bytes, np.uint8)
            self.memory = self._cuda.mem_alloc(self._bytes)

    @property
    def address(self) -> int:
        """The address of the device memory."""
        return int(self.memory)

    @property
    def host_address(self) -> int:
        """The address of the host memory."""
        return int(self.host.ctypes.data)

    def write(self, array: np.ndarray) -> None:
        """Puts an array's bytes into the host memory."""
        self.host[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def upload(self, size: int, stream: Any) -> None:
        """Begins to copy ``size`` bytes from host to device."""
        self._cuda.memcpy_htod_async(self.memory, self.host[:size], stream)

    def download(self, size: int, stream: Any) -> None:
        """Begins to copy ``size`` bytes from device to host."""
        self._cuda.memcpy_dtoh_async(self.host[:size], self.memory, stream)

    def read(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """A copy of the host memory as an array."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        copied: np.ndarray = self.host[:size].copy().view(dtype).reshape(shape)
        return copied
