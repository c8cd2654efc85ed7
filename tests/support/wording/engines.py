"""Sentences of the engines and their builders."""

from __future__ import annotations

WAS_ASKED_FOR = "was asked for"
DID_NOT_OBEY = "did not obey"
MATMULS_IN_FLOAT = "runs a transformer's MatMuls in float"
TELLS_OF_NONE = "tells of no layer"
NO_GAIN = "without a gain in speed"
NO_GPU_ANSWERS = "No NVIDIA GPU answers"
NOT_INSTALLED = "is not installed"
NO_GPU = "there is none"
MEMORY_RAN_OUT = "memory runs out"
DOES_NOT_START = "does not start: "
STARTS_NOWHERE = "starts in no worker process"
NO_MEMORY_TO_RUN_IN = "cannot be given memory"
NOT_IN_NUMPY = "which NumPy does not have"
SHAPE_REFUSED = "does not take the shape"
SHAPES_MISSING = "lacks the shapes of"
SHAPE_UNTOLD = "told no shape of"
DID_NOT_RUN = "did not run"
NO_REASON = "gave no reason"
SCALES_REFUSED = "Scale coefficients must all be positive"
"""TensorRT's own message."""
NO_PLUGIN = "Plugin not found"
"""TensorRT's own message."""


def no_typing(version: str, typing: str) -> str:
    """Returns the clause on a typing that a version of an engine does not have."""
    return f"{version} has no {typing} typing"


def ended_by(signal: str) -> str:
    """Returns the clause on a worker process that a signal ended."""
    return f"by signal {signal}"


def not_obeyed(culprit: str, ran: str) -> str:
    """Returns the note on a culprit whose trial did not run in the requested precisions."""
    return (
        f"the engine did not obey the trial that makes '{culprit}' a culprit: it ran {ran}; "
        "'--force-int8' or strong typing is stricter"
    )


def ran_low(low: int, asked: int) -> str:
    """Returns the clause on the number of layers that ran in INT8."""
    return f"{low} of {asked} layers ran in INT8"


def float_kernels(layers: int, rounded: int) -> str:
    """Returns the clause on layers that round and compute in FP32."""
    return f"kernels in FP32 compute {layers} of {rounded} layers"
