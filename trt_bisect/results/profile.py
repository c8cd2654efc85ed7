"""What ``profile`` found: the tensors of one network, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trt_bisect.analyzer.tensors import Spread
from trt_bisect.support.files import make_folder, write_whole
from trt_bisect.support.plain_json import csv_text, write_json

if TYPE_CHECKING:
    import pandas as pd

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
class Profile:
    """The tensors of the layers that were asked for, in execution order.

    Attributes:
        source: where the samples come from; ``samples`` how many there were.
        notes: what else is to be said, a sentence each.
    """

    model: str
    source: str
    samples: int
    tensors: tuple[ProfiledTensor, ...]
    notes: tuple[str, ...] = ()

    def table(self) -> pd.DataFrame:
        """The tensors as a pandas table, one a row."""
        import pandas as pd

        table: pd.DataFrame = pd.DataFrame([each.record() for each in self.tensors])
        return table

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "source": self.source,
            "samples": self.samples,
            "tensors": [each.record() for each in self.tensors],
            "notes": list(self.notes),
        }

    def save(self, folder: str | Path) -> Path:
        """Writes ``profile.json`` and ``profile.csv``; raises BadInput where the folder cannot be written."""
        path = make_folder(Path(folder))
        write_whole(path / TENSORS, csv_text(each.record() for each in self.tensors).encode())
        write_json(path / PROFILE, self.to_json())
        return path
