"""The result of ``profile``: the tensors of a network, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from trt_bisect.analyzer.histograms import ChannelMap, TensorHistogram
from trt_bisect.analyzer.tensors import RoundingFigures
from trt_bisect.data.statistics import Spread
from trt_bisect.report.page.tables import Bars, Panels, Ranges, TablePage, section_of
from trt_bisect.report.result import Result
from trt_bisect.support.figures import counted
from trt_bisect.support.table import INDEX, NAME, Column, NestedColumns

TENSORS = "profile.csv"


@dataclass(frozen=True)
class ProfiledTensor:
    """One tensor at one layer.

    Attributes:
        role: ``input``, ``output``, ``weight``, ``bias`` or ``constant``.
        slot: its position among the layer's inputs or outputs.
        quantized_dtype: the type that INT8 rounds it to for this layer; empty where it is not rounded.
        scale: the scale of that rounding, the largest of a per-channel scale; None where it is not rounded.
        zero_point: the zero point of that rounding; None where it is not rounded, for FP8, and where the channels have
            several.
        shape: the shape on the first sample.
        spread: the spread of the values, before the rounding; None where no data was given.
        rounded: the spread of the values after the Q/DQ pair; None where it is not rounded, or no data was given.
        rounding: the error of the pair; None where there is no ``rounded``, and for FP8.
        histogram: the histogram of the finite values before and, as ``int8``, after the rounding; None where there are
            none.
        map: the channels of a weight; None where there are none.
    """

    index: Annotated[int, Column("#", "Place in execution order", INDEX, rank=1)]
    layer: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Op", "Operator", rank=4)]
    role: Annotated[str, Column("Role", "Input, output, weight, bias or constant", rank=0)]
    slot: Annotated[int, Column("Slot", "Position among the layer's inputs or outputs")]
    tensor: Annotated[str, Column("Tensor", rank=8)]
    dtype: Annotated[str, Column("dtype", rank=4)]
    quantized_dtype: Annotated[str, Column("Rounded to", "By INT8", rank=3)]
    scale: Annotated[float | None, Column("Scale", "INT8 scale; the largest if each channel has its own", rank=3)]
    zero_point: Annotated[int | None, Column("Zero point", "INT8 zero point")]
    shape: Annotated[
        tuple[int | str | None, ...], Column("Shape", "On the first sample; sorted by the number of values", rank=5)
    ]
    spread: Annotated[Spread | None, NestedColumns()]
    rounded: Annotated[Spread | None, NestedColumns("rounded_", "Rounded", rank=9, shown=("min", "max"))] = None
    rounding: Annotated[RoundingFigures | None, NestedColumns("rounding_")] = None
    histogram: TensorHistogram | None = None
    map: ChannelMap | None = None


@dataclass(frozen=True, repr=False)
class Profile(Result):
    """The tensors of the selected layers, in execution order.

    Attributes:
        source: a description of where the samples come from.
        samples: their number.
        notes: further remarks, a sentence each.
    """

    COMMAND = "profile"

    model: str
    source: str
    samples: int
    tensors: tuple[ProfiledTensor, ...]
    notes: tuple[str, ...] = ()

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the tensors."""
        return {TENSORS: (ProfiledTensor, self.tensors)}

    def page(self) -> TablePage:
        """Returns the page."""
        plots = (
            Ranges("Range of each tensor"),
            Panels("Moments", ("mean", "std", "scale"), log=("scale",), split="role"),
            Bars("Distribution of the tensors", "std"),
        )
        filters = ("role", "op_type", "quantized_dtype")
        layers = len({row.index for row in self.tensors})
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=f"{len(self.tensors)} tensors of {counted(layers, 'layer')}, in FP32.",
            facts={"Samples": f"{self.samples} of {self.source}" if self.samples else ""},
            notes=self.notes,
            sections=section_of(
                "tensors", "Tensors", TENSORS, ProfiledTensor, self.tensors, filters=filters, plots=plots
            ),
        )
