"""The result of ``profile``: the tensors of a network, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from trt_bisect.analyzer.channel_map import ChannelMap
from trt_bisect.analyzer.tensor_histogram import TensorHistogram
from trt_bisect.analyzer.tensors import RoundingFigures, Spread
from trt_bisect.report.saving import SCHEMA, WithTablePage, pictures
from trt_bisect.support.from_json import built

PROFILE, TENSORS = "profile.json", "profile.csv"
_APART = ("spread", "rounded", "rounding", "histogram", "map")
_ROUNDED, _ROUNDING = "rounded_", "rounding_"
Figures = TypeVar("Figures", Spread, RoundingFigures)


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

    index: int
    layer: str
    op_type: str
    role: str
    slot: int
    tensor: str
    dtype: str
    quantized_dtype: str
    scale: float | None
    zero_point: int | None
    shape: tuple[int | str | None, ...]
    spread: Spread | None
    rounded: Spread | None = None
    rounding: RoundingFigures | None = None
    histogram: TensorHistogram | None = None
    map: ChannelMap | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProfiledTensor:
        """Returns the tensor of a row of ``profile.json``."""
        return built(
            cls,
            record,
            shape=tuple(record["shape"]),
            zero_point=record.get("zero_point"),
            spread=_built(Spread, record, "", "count"),
            rounded=_built(Spread, record, _ROUNDED, "count"),
            rounding=_built(RoundingFigures, record, _ROUNDING, "levels"),
        )

    def record(self) -> dict[str, Any]:
        """Returns the values by column."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in _APART}
        return {
            **columns,
            **_columns(Spread, self.spread, ""),
            **_columns(Spread, self.rounded, _ROUNDED),
            **_columns(RoundingFigures, self.rounding, _ROUNDING),
        }


def _columns(kind: type[Spread | RoundingFigures], figures: Any, prefix: str) -> dict[str, Any]:
    """Returns figures by column, each None where there are none."""
    values = asdict(figures) if figures is not None else dict.fromkeys(kind.__dataclass_fields__)
    return {f"{prefix}{name}": value for name, value in values.items()}


def _built(kind: type[Figures], record: Mapping[str, Any], prefix: str, always: str) -> Figures | None:
    """Returns the figures in some columns; None where ``always``, a column that figures always have, has no value."""
    if record.get(f"{prefix}{always}") is None:
        return None
    return built(kind, {name: record[f"{prefix}{name}"] for name in kind.__dataclass_fields__})


@dataclass(frozen=True)
class Profile(WithTablePage):
    """The tensors of the selected layers, in execution order.

    Attributes:
        source: a description of where the samples come from.
        samples: their number.
        notes: further remarks, a sentence each.
    """

    JSON = PROFILE
    CSV = TENSORS

    model: str
    source: str
    samples: int
    tensors: tuple[ProfiledTensor, ...]
    notes: tuple[str, ...] = ()

    def records(self) -> list[dict[str, Any]]:
        """Returns the tensors, one a row."""
        return [each.record() for each in self.tensors]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of ``profile.json``."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "source": self.source,
            "samples": self.samples,
            "tensors": [{**each.record(), **pictures(each)} for each in self.tensors],
            "notes": list(self.notes),
        }
