"""The options for tensors that are written to disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import NUMBER

NO_TENSORS, OUTPUTS, ALL_LAYERS = "none", "outputs", "layers"


@dataclass(frozen=True, kw_only=True)
class TensorFileOptions(Options):
    """The tensors that are written to disk."""

    panel: ClassVar[str] = "Tensors"

    save_tensors: str = option(
        NO_TENSORS,
        choices=(NO_TENSORS, OUTPUTS, ALL_LAYERS),
        noun="choice of tensors",
        repeated=False,
        help="Save the final outputs, or the tensors of all layers (ONNX Runtime), of FP32, full INT8 and the recipe "
        "on the inputs given, in the run folder; 'compare --fp32 --int8' reads them.",
    )
    max_size: float = option(
        1024.0, kind=NUMBER, above=0, unit="MiB", repeated=False, help="So many inputs are saved as fit into this."
    )
