"""The page of ``profile``: the tensors of each layer."""

from __future__ import annotations

from trt_bisect.report.page.tables.shape import (
    DECIBELS,
    INDEX,
    NAME,
    PERCENT,
    SHAPE,
    TEXT,
    Column,
    Distribution,
    Panels,
    Ranges,
    Section,
    TablePage,
)
from trt_bisect.report.profile import TENSORS, Profile
from trt_bisect.report.saving import pictures
from trt_bisect.support.figures import counted

_COLUMNS = (
    Column("index", "#", "Place in execution order", INDEX, paper=True),
    Column("layer", "Layer", "", NAME, phone=True, paper=True),
    Column("op_type", "Op", "Operator", TEXT, paper=True),
    Column("role", "Role", "Input, output, weight, bias or constant", TEXT, phone=True, paper=True),
    Column("slot", "Slot", "Position among the layer's inputs or outputs"),
    Column("tensor", "Tensor", "", TEXT),
    Column("dtype", "dtype", "", TEXT, paper=True),
    Column("quantized_dtype", "Rounded to", "By INT8", TEXT, paper=True),
    Column("scale", "Scale", "Of INT8; the largest one if each channel has its own", paper=True),
    Column("zero_point", "Zero point", "Of INT8"),
    Column("shape", "Shape", "On the first sample; sorted by the number of values", SHAPE),
    Column("min", "Min", "", phone=True, paper=True),
    Column("max", "Max", "", phone=True, paper=True),
    Column("mean", "Mean", "", paper=True),
    Column("std", "Std", "Standard deviation", paper=True),
    Column("variance", "Variance", ""),
    Column("count", "Values", "Their number"),
    Column("nonfinite", "Not finite", "Values that are NaN or infinite"),
    Column("rounding_clipped", "Clipped", "Saturation: share of values beyond the range", PERCENT, paper=True),
    Column("rounding_sqnr", "Own rounding", "SQNR of the rounding, dB", DECIBELS),
    Column("rounded_min", "Min rounded", "After the Q/DQ pair"),
    Column("rounded_max", "Max rounded", "After the Q/DQ pair"),
    Column("rounded_mean", "Mean rounded", "After the Q/DQ pair"),
    Column("rounded_std", "Std rounded", "After the Q/DQ pair"),
    Column("rounded_variance", "Variance rounded", "After the Q/DQ pair"),
    Column("rounding_clipped_noise", "Clipped noise", "Their share of the rounding noise", PERCENT),
    Column("rounding_near_zero", "Near zero", "Share of values in the 5 levels around zero", PERCENT),
    Column("rounding_to_zero", "To zero", "Share of the non-zero values that become zero", PERCENT),
    Column("rounding_levels_90", "Levels for 90%", "That hold 90% of the non-zero values"),
)


def page(found: Profile) -> TablePage:
    """Returns the page of a profile."""
    layers = len({row.index for row in found.tensors})
    return TablePage(
        command="profile",
        model=found.model,
        headline=f"{len(found.tensors)} tensors of {counted(layers, 'layer')}, in FP32.",
        facts={"Samples": f"{found.samples} of {found.source}" if found.samples else ""},
        notes=found.notes,
        sections=(
            Section(
                "tensors",
                "Tensors",
                _COLUMNS,
                found.records(),
                TENSORS,
                plots=(
                    Ranges("Range of each tensor"),
                    Panels("Moments", ("mean", "std", "scale"), log=("scale",), split="role"),
                    Distribution("How many tensors have which value", "std"),
                ),
                pictures=[pictures(row) for row in found.tensors],
                filters=("role", "op_type", "quantized_dtype"),
            ),
        ),
    )
