"""What ``profile`` found: the tensors of one network, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from trt_bisect.analyzer.tensors import Spread
from trt_bisect.results.saving import Tabular

SCHEMA = 1
PROFILE, TENSORS = "profile.json", "profile.csv"


@dataclass(frozen=True)
class ProfiledTensor:
    """One tensor at one layer.

    Attributes:
        role: ``input``, ``output``, ``weight``, ``bias`` or ``constant``.
        slot: its position among the layer's inputs, or outputs.
        quantized_dtype: what INT8 rounds it to for this layer, empty where it does not; ``scale`` its scale then, the
            largest where there is one a channel.
        shape: on the first sample.
        spread: None where no data was given.
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

    def record(self) -> dict[str, Any]:
        """All of it by column, flat."""
        columns = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "spread"}
        known = asdict(self.spread) if self.spread else dict.fromkeys(Spread.__dataclass_fields__)
        return {**columns, **known}


@dataclass(frozen=True)
class Profile(Tabular):
    """The tensors of the layers that were asked for, in execution order.

    Attributes:
        source: where the samples come from; ``samples`` how many there were.
        notes: what else is to be said, a sentence each.
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
        """All of it."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "source": self.source,
            "samples": self.samples,
            "tensors": self.records(),
            "notes": list(self.notes),
        }
