"""Values that leave the range of FP16 or BF16, as found with all layers in that precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trt_bisect.support.type_checks import checked

OVERFLOW, NAN, UNDERFLOW = "overflow", "nan", "underflow"


@dataclass(frozen=True)
class Overflow:
    """The first value of a tensor that a low precision cannot hold.

    Attributes:
        layer: the name of the layer that makes or reads the tensor in the low precision.
        op_type: its operator.
        tensor: the name of the tensor.
        role: ``output``, ``input`` or ``weight`` of the layer.
        kind: ``overflow``: a finite value becomes infinite; ``nan``: the layer makes NaN or an infinite value of finite
            ones; ``underflow``: a value other than zero becomes zero.
        element: its position in the tensor.
        value: before rounding; None for NaN.
        times: an overflow's magnitude as a multiple of the largest value of the type; None for the others.
        count: the number of such values in the tensor.
        sample: the place of the judged input on which it was seen first; None for a weight.
    """

    layer: str
    op_type: str
    tensor: str
    role: str
    kind: str
    element: tuple[int, ...]
    value: float | None
    times: float | None
    count: int
    sample: int | None

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Overflow:
        """Returns the overflow of a record of ``report.json``.

        Raises:
            KeyError, TypeError, ValueError: the record is none.
        """
        return checked(cls(**{**record, "element": tuple(record["element"])}))

    def text(self, title: str, largest: float) -> str:
        """Returns a sentence without its full stop.

        Args:
            title: the title of the low precision, such as ``FP16``.
            largest: its largest value.
        """
        where = f"'{self.tensor}'[{', '.join(map(str, self.element))}]" if self.element else f"'{self.tensor}'"
        on = "" if self.sample is None else f" on judged input {self.sample}"
        more = f"; {self.count} values of the tensor do" if self.count > 1 else ""
        name = f"'{self.layer}' ({self.op_type})"
        if self.kind == OVERFLOW and self.value is not None and self.times is not None:
            return (
                f"{name} overflows {title}: its {self.role} {where} is {self.value:.6g}{on}, {self.times:.3g} times "
                f"the largest value {largest:g}, and becomes infinite{more}"
            )
        if self.kind == UNDERFLOW and self.value is not None:
            return f"{name} underflows {title}: its {self.role} {where} is {self.value:.3g}{on} and becomes zero{more}"
        made = "NaN" if self.value is None else "an infinite value"
        return f"{name} makes {made} of finite values in {title}: {where}{on}{more}"
