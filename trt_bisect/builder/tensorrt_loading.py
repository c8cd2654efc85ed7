"""Additions to TensorRT: plugins from libraries, and the DLA. Unproven: no GPU and no board has run them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from trt_bisect.errors import BadInput


def load_plugins(trt: ModuleType, logger: Any, libraries: Iterable[str]) -> None:
    """Loads libraries with plugins, which register themselves, and TensorRT's own plugins.

    From TensorRT 10.1 on the parser does not register TensorRT's own, which stand for RoiAlign, NonMaxSuppression and
    other operators.

    Args:
        trt: the TensorRT module.
        logger: see ``logger_of``.
        libraries: paths of the user's.

    Raises:
        BadInput: a library does not load.
    """
    for path in libraries:
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise BadInput(
                f"The plugins in '{path}' do not load: {error}",
                f"Give a library that was built for TensorRT {trt.__version__} on this machine.",
            ) from error
    trt.init_libnvinfer_plugins(logger, "")


def use_dla(trt: ModuleType, builder: Any, config: Any, core: int) -> None:
    """Lets a DLA core run what it can, and the GPU the rest.

    The DLA computes in INT8 or FP16: layers asked into FP32 run on the GPU.

    Source: TensorRT's documentation, "Working with DLA": the default device, and GPU fallback.

    Raises:
        BadInput: the machine has no such core.
    """
    cores = builder.num_DLA_cores
    if core >= cores:
        there = f"It has {cores} cores" if cores else "It has no DLA"
        raise BadInput(f"This machine has no DLA core {core}.", f"{there}; leave out --dla to run on the GPU.")
    config.default_device_type = trt.DeviceType.DLA
    config.DLA_core = core
    config.set_flag(trt.BuilderFlag.GPU_FALLBACK)
