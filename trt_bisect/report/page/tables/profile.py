"""The page of ``profile``: the tensors of each layer."""

from __future__ import annotations

from trt_bisect.report.page.tables.shape import (
    INDEX,
    NAME,
    SHAPE,
    TEXT,
    Column,
    Distribution,
    Panels,
    Ranges,
    Section,
    TablePage,
)
from trt_bisect.results.profile import TENSORS, Profile
from trt_bisect.results.saving import pictures

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
    Column("shape", "Shape", "On the first sample; sorted by the number of values", SHAPE),
    Column("min", "Min", "", phone=True, paper=True),
    Column("max", "Max", "", phone=True, paper=True),
    Column("mean", "Mean", "", paper=True),
    Column("std", "Std", "Standard deviation", paper=True),
    Column("variance", "Variance", ""),
    Column("count", "Values", "Their number"),
    Column("nonfinite", "Not finite", "Values that are NaN or infinite"),
)


def page(found: Profile) -> TablePage:
    """Returns the page of a profile."""
    layers = len({row.index for row in found.tensors})
    return TablePage(
        command="profile",
        model=found.model,
        headline=f"{len(found.tensors)} tensors of {layers} {'layer' if layers == 1 else 'layers'}, in FP32.",
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
