"""One layer in a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trt_bisect.support.type_checks import checked

FOLLOWS = "follows"
NOT_TRIED = "not tried"
NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class RoundedTensor:
    """One rounding of a culprit: the tensor or weight, its producer, its consumer and its scale.

    Attributes:
        kind: ``activation``, ``weight`` or ``output``.
        scale: the scale of the rounding, the largest of a per-channel scale; None for FP16 and BF16, which have none.
        also_for: other INT8 layers that read the same rounded tensor.
    """

    tensor: str
    kind: str
    producer: str
    consumer: str
    scale: float | None
    also_for: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerRow:
    """One layer in the report.

    Attributes:
        similarity: the similarity of the final outputs with this layer and all before it in INT8, earlier suspects
            high.
        drop: the loss that the layer added there, in the metric's units; for cosine a fraction of 1.
        culprit: the layer stays high, and taking it back to INT8 was measured to miss the threshold.
        sqnr: the SQNR of the same trial, in dB.
        outcome: ``measured``, ``build failed``, ``inference failed``, ``out of memory``, ``timed out``,
            ``lost`` with its worker, ``not finite``, ``follows`` for a layer that does not change the engine,
            or whose precision the user fixed, ``not tried`` where the strategy did not need it.
        asked: the precision that the trial requested.
        ran: the precision that the layer's inputs were rounded to, see ``Engine.ran``; empty where the engine reports
            none; ``region`` or ``dla`` where the layer ran in a region that TensorRT compiled as one. ``latency`` of
            the report has the precision that the layer computed in.
        obeyed: true if ``ran`` is the requested precision; None where that is not known.
        recipe: the layer's precision in the recipe.
        why_not: the reason why the layer is not quantizable; empty for one that is.
        message: the message of a failed trial.
        rounds: the roundings of a culprit.
        whole: the similarity on whole engines ``without`` and ``with`` the layer in INT8, for a layer that was blamed
            by pieces that are other engines; else None.
        gain: the loss that full INT8 sheds when this layer alone stays high; None if not measured.
        taken_back: the similarity of the recipe with this culprit in INT8 too, on an input that misses.
        suspect: for a layer with a large drop that is no culprit, the reason why it is none.
        fixed: the precision that the user fixed, which every plan has; empty for a layer left to the search.
        output: the final output that is worst with the layer in INT8, or the group of its places that is.
        output_shape: the shape of the final output ``output``, which was compared; ``shape`` is that of the layer's own
            output.
    """

    index: int
    name: str
    op_type: str
    shape: tuple[int | str | None, ...] | None
    quantizable: bool
    similarity: float | None
    drop: float | None
    culprit: bool
    outcome: str
    asked: str
    ran: str
    obeyed: bool | None = None
    sqnr: float | None = None
    output: str = ""
    recipe: str = ""
    why_not: str = ""
    message: str = ""
    rounds: tuple[RoundedTensor, ...] = ()
    whole: Mapping[str, float | None] | None = None
    gain: float | None = None
    taken_back: float | None = None
    suspect: str = ""
    fixed: str = ""
    output_shape: tuple[int | str | None, ...] | None = None


def row_from_json(record: Mapping[str, Any]) -> LayerRow:
    """Returns the row of one of the ``layers`` of ``report.json``.

    Raises:
        KeyError, TypeError: the record is none.
    """
    fields = dict(record)
    fields |= {key: tuple(record[key]) for key in ("shape", "output_shape") if record.get(key) is not None}
    fields["rounds"] = tuple(
        checked(RoundedTensor(**{**rounded, "also_for": tuple(rounded["also_for"])})) for rounded in record["rounds"]
    )
    return checked(LayerRow(**fields))
