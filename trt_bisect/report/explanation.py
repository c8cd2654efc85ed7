"""``explanation.json``: causes of the accuracy loss, and remedies; ``pictures.json``: the worst images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trt_bisect.analyzer.blame import LOUD, Advice, LossAlone
from trt_bisect.analyzer.compared import Compared, channel_spreads, input_axis
from trt_bisect.analyzer.histograms import ChannelMap, TensorHistogram
from trt_bisect.analyzer.origins import ACTIVATION, RESULT
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.data.statistics import Spread
from trt_bisect.recipe.commands import Command
from trt_bisect.report.answer import AS_CHEAP

EXPLANATION = "explanation.json"
DIGITS = 7
SCHEMA = 3


@dataclass(frozen=True)
class Channels:
    """The channels of a weight in FP32.

    Attributes:
        axis: the axis of the output channels, or of the input channels if the outlier is an input channel.
        min, max, std: a figure for each channel; None for a channel without a finite value.
        outlier: the index of the channel whose largest magnitude is at least 20 times the median of the others'; None
            if there is none.
        times: the outlier's largest magnitude divided by this median; None without an outlier.
    """

    axis: int
    min: tuple[float | None, ...]
    max: tuple[float | None, ...]
    std: tuple[float | None, ...]
    outlier: int | None
    times: float | None

    @classmethod
    def of(cls, values: np.ndarray, compared: Compared) -> Channels | None:
        """Returns the channels of a weight, whose FP32 values are ``values``; None if it has no channels."""
        axis = compared.origin.channel_axis
        if axis is None:
            return None
        sides = ((axis, compared.loud), (input_axis(axis), compared.loud_input))
        axis, outlier = next(((at, loud) for at, loud in sides if loud and loud.times >= LOUD), (axis, None))
        assert axis is not None
        spreads = channel_spreads(values, axis)
        return cls(
            axis=axis % values.ndim,
            min=tuple(spread.min for spread in spreads),
            max=tuple(spread.max for spread in spreads),
            std=tuple(spread.std for spread in spreads),
            outlier=outlier.channel if outlier else None,
            times=outlier.times if outlier else None,
        )


@dataclass(frozen=True)
class ExplainedTensor:
    """A tensor in FP32 and full INT8: an activation before its rounding, or a weight after it.

    What a tensor does not have is None or empty.

    Attributes:
        kind: ``input``, ``activation``, ``weight`` or ``bias``.
        shape: the shape on the first input.
        dtype: the type in FP32.
        quantized_dtype: the type that INT8 rounds the tensor to.
        scale: the scale, or the largest of a per-channel scale.
        scales: the scale of each channel; None if all share one.
        axis: the axis of ``scales``.
        cosine, mse, l1, kl, sqnr, max_abs, max_rel: INT8 against FP32; ``l1`` is the mean absolute error,
            ``max_abs`` and ``max_rel`` the largest differences.
        fp32: the moments of the values in FP32.
        int8: the moments of the values in full INT8.
        clipped: the share of values beyond the range.
        histogram: the histogram of the values that INT8 layers read.
        channels: the channels of a weight.
        map: a histogram of each channel of a weight.
    """

    tensor: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    quantized_dtype: str
    scale: float | None
    scales: tuple[float | None, ...] | None
    axis: int | None
    cosine: float | None
    mse: float | None
    l1: float | None
    kl: float | None
    sqnr: float | None
    max_abs: float | None
    max_rel: float | None
    fp32: Spread
    int8: Spread
    clipped: float | None
    histogram: TensorHistogram | None
    channels: Channels | None
    map: ChannelMap | None

    @classmethod
    def of(cls, compared: Compared, channels: Channels | None = None) -> ExplainedTensor:
        """Returns a tensor from its comparison of FP32 and INT8; ``channels`` are those of a weight."""
        origin = compared.origin
        first = origin.quantizers[0] if origin.quantizers else None
        axis = None if first is None else first.axis
        scales = None if first is None or axis is None else tuple(first.scale.reshape(-1).tolist())
        return cls(
            tensor=origin.tensor,
            kind=ACTIVATION if origin.kind == RESULT else origin.kind,
            shape=compared.shape,
            dtype=compared.dtype,
            quantized_dtype=origin.quantized_dtype,
            scale=compared.scale,
            scales=scales,
            axis=axis,
            **{name: None if math.isnan(value) else value for name, value in vars(compared.figures).items()},
            fp32=compared.fp32,
            int8=compared.int8,
            clipped=compared.rounding.clipped if compared.rounding else None,
            histogram=compared.histogram,
            channels=channels,
            map=compared.map,
        )


@dataclass(frozen=True)
class ExplainedLayer:
    """A layer's cost, losses, tensors and weights.

    Attributes:
        macs: the multiply-adds for one inference.
        share: the layer's share of the network's multiply-adds.
        sensitivity: the losses with only this layer in INT8; None if not measured.
        outputs: the float tensors that the layer makes.
        weights: the constants that INT8 would round.
        biases: the constants that stay unrounded.
    """

    macs: int
    share: float
    sensitivity: LossAlone | None
    outputs: tuple[ExplainedTensor, ...]
    weights: tuple[ExplainedTensor, ...]
    biases: tuple[ExplainedTensor, ...]


@dataclass(frozen=True)
class Tried:
    """A measured remedy: all layers in INT8 except those that the remedy keeps in high precision.

    Attributes:
        culprits: the culprits that the remedy is for; empty for the whole network.
        remedy: the name of the remedy.
        what: the remedy in words.
        similarity: the similarity on the worst input, or the accuracy if that decides; None, as ``loss``, if not
            finite.
        loss: the loss of ``similarity``.
        part: not all inputs were run: the similarity may be worse.
        meets: the loss is within the threshold, or the accuracy meets its target.
        calibrator: the calibrator that was tried; None for other remedies.
        high: the number of layers kept in high precision.
        precision: the precision of the layers kept in high precision; empty if none or several.
        layers: the names of the layers kept in high precision.
        cost: the share of INT8's speedup over FP16 that the remedy gives up.
        confirmed: the remedy passes on held-out inputs and in all settings, without a doubt; None if not tested.
        own: the plan is the run's recipe.
        cache: the path, in the run folder, of the remedy's calibration cache; empty without one.
        network: the path, in the run folder, of a changed network that meets the threshold, or loses much less than the
            given one; else empty.
    """

    culprits: tuple[str, ...]
    remedy: str
    what: str
    similarity: float | None
    loss: float | None
    meets: bool
    calibrator: Calibrator | None = None
    high: int = 0
    cost: float = 0.0
    own: bool = False
    cache: str = ""
    network: str = ""
    layers: tuple[str, ...] = ()
    confirmed: bool | None = None
    part: bool = False
    precision: str = ""

    def is_cheaper(self, cost: float) -> bool:
        """Returns true if the remedy costs less than ``cost``; if it keeps layers in high precision,
        less by over 3 % of INT8's speedup.
        """
        return self.cost + (AS_CHEAP if self.high else 0.0) < cost

    @property
    def offered(self) -> bool:
        """True if the remedy meets the threshold and no other measurement contradicts it."""
        return self.meets and self.confirmed is not False

    @property
    def rank(self) -> tuple[bool, bool, float, bool, bool, float]:
        """The sort key that puts the best remedies first: passing ones, ``offered``, cheap, for the whole network,
        confirmed, with a small loss.
        """
        loss = math.inf if self.loss is None else self.loss
        cost = self.cost if self.meets else 0.0
        return not self.meets, not self.offered, cost, bool(self.culprits), not self.confirmed, loss

    @property
    def title(self) -> str:
        """The remedy in words; without culprits it ends in ``for the whole network``."""
        return self.what if self.culprits else f"{self.what} for the whole network"


@dataclass(frozen=True)
class Remedy:
    """A remedy for a culprit.

    Attributes:
        remedy: the name of the remedy.
        why: the reason why it may help.
        speed: the cost in speed, as a phrase.
        commands: the commands that apply the remedy, one for each tool.
        tried: the best measurement in this run; None if not measured.
    """

    remedy: str
    why: str
    speed: str = "none"
    commands: tuple[Command, ...] = ()
    tried: Tried | None = None


@dataclass(frozen=True)
class CulpritAdvice:
    """The evidence against a culprit and the remedies for it.

    Attributes:
        culprit: the name of the culprit.
        evidence: the evidence in words, a paragraph.
        reasons: the abnormal facts about its tensors and structure, the strongest first.
        blame: the rounded part to blame: ``weight``, ``activation``, ``both``, or None if not known.
        remedies: in this order, and then by cost: measured to pass at the recipe's cost or less; unmeasured, and the
            recipe; measured to pass at a higher cost; measured to miss.
    """

    culprit: str
    evidence: str
    reasons: tuple[str, ...]
    blame: str | None
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Cause:
    """The culprits of one cause, and the remedies for it.

    Attributes:
        cause: the strongest reason of these culprits, or ``no single cause found``.
        culprits: the names of the culprits, in the report's order.
        words: the figures of the cause, a clause.
        measured: the measured remedies: passing ones first, the cheapest of them first.
        remedies: the unmeasured remedies.
    """

    cause: str
    culprits: tuple[str, ...]
    words: str
    measured: tuple[Tried, ...]
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Explanation:
    """The reasons why the network loses accuracy in INT8, and the remedies.

    Attributes:
        layers: by name, the layers that make a float tensor or have a weight.
        inputs: the network's inputs.
        findings: the abnormal tensors, in execution order.
        advice: the advice on each culprit, in the report's order.
        tried: the measured remedies, for culprits or the whole network.
        causes: the culprits grouped by cause, the largest group first.
    """

    samples: int
    layers: Mapping[str, ExplainedLayer]
    inputs: tuple[ExplainedTensor, ...]
    findings: tuple[Advice, ...]
    advice: tuple[CulpritAdvice, ...]
    tried: tuple[Tried, ...] = ()
    causes: tuple[Cause, ...] = ()
    schema: int = SCHEMA


PICTURES = "pictures.json"
FP32 = "fp32"
KEPT, LOST, INVENTED = "kept", "lost", "invented"


@dataclass(frozen=True)
class Mark:
    """A detection in a picture.

    Attributes:
        kind: ``kept``, ``lost`` or ``invented`` in comparison with FP32; empty for FP32's own detections.
        text: the class and the score.
        outline: the corners of the box, x and y in pixels.
        points: the visible keypoints, x and y in pixels.
    """

    kind: str
    text: str
    outline: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Drawing:
    """A plan's results on a picture.

    Attributes:
        plan: ``fp32``, ``int8`` or ``recipe``.
        agreement: the agreement with FP32 on this input, from 0 to 1; None for FP32.
        counts: the number of ``kept``, ``lost`` and ``invented`` detections.
        marks: at most 100 detections.
        overlay: an image, as data URI, of masks, or of the pixels' classes or depths.
        text: the recognized text or class.
    """

    plan: str
    agreement: float | None
    counts: Mapping[str, int]
    marks: tuple[Mark, ...] = ()
    overlay: str = ""
    text: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture with each plan's results.

    Attributes:
        name: the name of the input.
        width, height: the size of the network's input.
        image: the picture as data URI.
        drawings: the results of each plan, FP32 first.
    """

    name: str
    width: int
    height: int
    image: str
    drawings: tuple[Drawing, ...]


@dataclass(frozen=True)
class Pictures:
    """The worst images of a run.

    Attributes:
        task: the task, such as ``detect``.
        note: a sentence on how the outputs are read.
        pictures: the worst first.
    """

    task: str
    note: str
    pictures: tuple[Picture, ...]
