"""The options for operators that ONNX does not have.

The names of the parts of a network stand here again: their module loads slowly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from trt_bisect.jobs.options.adapting import AdaptingOptions
from trt_bisect.jobs.options.declare import option
from trt_bisect.jobs.options.kinds import TEXTS

if TYPE_CHECKING:
    from trt_bisect.model.low import LowPrecision
    from trt_bisect.model.network import Network
    from trt_bisect.precision import Precision

BEFORE, AFTER = "before", "after"
PARTS = (BEFORE, AFTER)


@dataclass(frozen=True, kw_only=True)
class OperatorOptions(AdaptingOptions):
    """The operators that ONNX does not have."""

    panel: ClassVar[str] = "Operators"

    ort_ops: Sequence[str] = option(
        (),
        kind=TEXTS,
        help="Libraries with operators of yours for ONNX Runtime (RegisterCustomOps); may be repeated.",
    )
    unknown_ops: str = option(
        BEFORE,
        choices=PARTS,
        noun="part of the network",
        help="The part that is judged where ONNX Runtime cannot run a node: before it, or after it, from data that "
        "holds the tensors that it makes.",
    )

    def network(self, model: str | Path | Network, shapes: Mapping[str, tuple[int, ...]] | None) -> Network:
        """Returns a network with what the options ask of it.

        Args:
            model: its file, or one that is read already, which keeps its own low precision where INT8 is asked for.
            shapes: the shapes of dynamic inputs, for a file.

        Raises:
            BadInput: a library or the file cannot be used, or an option does not fit the network.
        """
        return self.adapted(self.read(model, shapes, self.low_precision, self.base_precision))

    def read(
        self,
        model: str | Path | Network,
        shapes: Mapping[str, tuple[int, ...]] | None,
        low: LowPrecision | None = None,
        base: Precision | None = None,
    ) -> Network:
        """Returns a network with these operators and nothing else that the options ask for.

        Args:
            model: its file, or one that is read already.
            shapes: the shapes of dynamic inputs, for a file.
            low: the low precision; None for INT8, or that of a network that is read already.
            base: see ``Network``; None for that of each plan.

        Raises:
            BadInput: a library or the file cannot be used.
        """
        from trt_bisect.model.low import INT8
        from trt_bisect.model.network import Network, load_network
        from trt_bisect.model.operators import use_libraries

        use_libraries(self.ort_ops)
        if isinstance(model, Network):
            found = model if low in (None, INT8, model.low) else model.with_low(low or INT8)
            return found if base is None else found.with_base(base)
        return load_network(model, shapes, self.unknown_ops, low or INT8, base)
