"""The result of ``profile``: the tensors of a network, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trt_bisect.analyzer.channel_map import ChannelMap
from trt_bisect.analyzer.tensor_histogram import TensorHistogram
from trt_bisect.analyzer.tensors import Spread
from trt_bisect.results.saving import SCHEMA, WithTablePage, pictures
from trt_bisect.support.from_json import built

PROFILE, TENSORS = "profile.json", "profile.csv"
_APART = ("spread", "histogram", "map")


@dataclass(frozen=True)
class ProfiledTensor:
    """One tensor at one layer.

    Attributes:
        role: ``input``, ``output``, ``weight``, ``bias`` or ``constant``.
        slot: its position among the layer's inputs or outputs.
        quantized_dtype: the type that INT8 rounds it to for this layer; empty where it is not rounded.
        scale: of that rounding, the largest of a per-channel scale; None where it is not rounded.
        shape: on the first sample.
        spread: None where no data was given.
        histogram: of the finite values; None where there are none.
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
    shape: tuple[int | str | None, ...]
    spread: Spread | None
    histogram: TensorHistogram | None = None
    map: ChannelMap | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ProfiledTensor:
        """Returns the tensor of a row of ``profile.json``."""
        shape = tuple(record["shape"])
        return built(cls, record, shape=shape, spread=None if record["count"] is None else built(Spread, record))

    def record(self) -> dict[str, Any]:
        """Returns the values by column."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in _APART}
        known = asdict(self.spread) if self.spread else dict.fromkeys(Spread.__dataclass_fields__)
        return {**columns, **known}


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
