"""The options for tensors that are written to disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.declare import Options, option
from trt_bisect.jobs.options.kinds import NUMBER, SWITCH

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
    polygraphy_json: bool = option(
        False,
        kind=SWITCH,
        repeated=False,
        help="And the same as Polygraphy's JSON, in tensors/polygraphy: inputs.json for its --load-inputs, fp32.json, "
        "int8.json and recipe.json for its --load-outputs.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.polygraphy_json and self.save_tensors == NO_TENSORS:
            raise BadInput("There are no tensors to write as Polygraphy's JSON.", "Add --save-tensors outputs.")
