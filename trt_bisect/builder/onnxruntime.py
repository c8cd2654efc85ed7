"""ONNX Runtime: the emulated arithmetic of TensorRT INT8, on any machine.

The Q/DQ graph runs in float32; ``model.session`` says why ONNX Runtime's own INT8 kernels stay out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType

import numpy as np
import onnx
import onnxruntime as ort

from trt_bisect.builder.base import EMULATED, BuildOptions, Outputs
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed, first_line
from trt_bisect.model.network import Network
from trt_bisect.model.operators import digests_of, use_libraries
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales, scale_in
from trt_bisect.model.session import CPU, SAME_SUMS, integer_sums_are_exact, make_session, usable_provider
from trt_bisect.model.switch import WrittenSwitch, write_switch
from trt_bisect.precision import WORDS, Precision, PrecisionPlan
from trt_bisect.support.machine import processor

_HIGH = (Precision.FP32, Precision.FP16, Precision.BF16)
_RAN_FOLLOWING = {own: str(own if own in _HIGH else Precision.FP32) for own in Precision}
_WITH_KERNELS = {Precision.INT8, Precision.FP32}


class OnnxRuntimeEngine:
    """An ONNX Runtime session of one plan."""

    def __init__(self, session: ort.InferenceSession, ran: Mapping[int, str]) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self.ran = ran
        self.messages: tuple[str, ...] = ()

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for one sample; raises TrialFailed if ONNX Runtime fails."""
        try:
            return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error

    def latency(self, feeds: Feeds) -> None:
        """Returns None: the time of an emulation is not that of an engine."""

    def __enter__(self) -> OnnxRuntimeEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._session


class SwitchSession:
    """One session that runs any plan of the low and one high precision, with any scales of the activations.

    Its outputs are, bit by bit, those of the plan's own graph in ONNX Runtime with optimisations off.
    """

    def __init__(
        self,
        written: WrittenSwitch,
        writer: PlanWriter,
        scales: Scales,
        high: Precision,
        provider: str,
        threads: int | None,
    ) -> None:
        self._session = make_session(written, provider, threads, one_of_many=True, level=SAME_SUMS)
        self._names = [output.name for output in self._session.get_outputs()]
        self._written = replace(written, model=onnx.ModelProto(), weights={})
        self._writer = writer
        self._own_scales = scales
        self._high = high

    def runs(self, plan: PrecisionPlan) -> bool:
        """Returns true if each layer of a plan is low or in the session's one high precision; followers in the base."""
        layers = self._writer.network.layers
        base = self._writer.network.base or self._high
        return all(
            precision in ((plan.low, self._high) if layer.quantizable else (base,))
            for layer, precision in zip(layers, plan.precisions, strict=True)
        )

    def infer(self, plan: PrecisionPlan, feeds: Feeds, scales: Scales | None = None) -> Outputs:
        """Returns the outputs of a plan for one sample.

        Args:
            plan: the precision of each layer.
            feeds: the sample.
            scales: the scales of the activations; None for those of the builder.

        Raises:
            TrialFailed: ONNX Runtime fails.
        """
        chosen = self._own_scales if scales is None else scales
        inputs = {**feeds, **self._gates(plan), **self._scales(chosen)}
        try:
            return dict(zip(self._names, self._session.run(self._names, inputs), strict=True))
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error

    def _gates(self, plan: PrecisionPlan) -> Feeds:
        """Returns the input that says which layers are low, and which tensors are rounded where they are made."""
        written = self._written
        if not written.gates_input:
            return {}
        rounded = self._writer.followed(plan.lowered) if written.followed else ()
        gates = [layer in plan.lowered for layer in written.gates]
        return {written.gates_input: np.array(gates + [tensor in rounded for tensor in written.followed])}

    def _scales(self, chosen: Scales) -> Feeds:
        """Returns the input with the scales of the activations."""
        written, low, kind = self._written, self._writer.network.low, self._writer.network.base_type
        if not written.scales_input:
            return {}
        scales = np.array([scale_in(low, chosen[tensor]) for tensor in written.scales], np.float32)
        return {written.scales_input: scales if kind is None else kind.positive(scales)}


class OnnxRuntimeBuilder:
    """Builds sessions from plans."""

    engine = "onnxruntime"
    typing = "strong"
    arithmetic = EMULATED

    def __init__(self, network: Network, scales: Scales, options: BuildOptions) -> None:
        self._network = network
        self._scales = scales
        self._writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, followers_round=options.followers_round)
        self._options = options
        self.provider = usable_provider()
        use_libraries(options.operators)
        self.versions: Mapping[str, str] = {
            "onnxruntime": ort.__version__,
            "device": self.provider,
            "processor": processor(),
            "numpy": np.__version__,
            **({"operators": digests_of(options.operators)} if options.operators else {}),
        }

    def build(self, plan: PrecisionPlan) -> OnnxRuntimeEngine:
        """Builds the session of one plan; its ``ran`` is that of the graph that was written."""
        session = make_session(self._writer.write(plan), self.provider, self._options.threads)
        return OnnxRuntimeEngine(session, self.ran(plan))

    def plain(self, plan: PrecisionPlan) -> OnnxRuntimeEngine | None:
        """Builds the session that a user gets from the file of a plan: with default options, and INT8 kernels.

        Returns:
            None if these kernels are not exact here, or the plan has layers in FP16 or the like: that compares other
            arithmetics.
        """
        if self.provider != CPU or not integer_sums_are_exact() or not {*plan.precisions} <= _WITH_KERNELS:
            return None
        written = PlanWriter(self._network, self._scales, GraphTarget.TENSORRT).write(plan)
        return OnnxRuntimeEngine(make_session(written, threads=self._options.threads, integers=True), self.ran(plan))

    def switch(self, threads: int | None = None) -> SwitchSession:
        """Builds the session of all plans; raises TrialFailed if ONNX Runtime refuses it.

        Args:
            threads: the threads for one inference; None for those of the build options.
        """
        written = write_switch(self._writer, self._options.high)
        high, threads = self._options.high, threads or self._options.threads
        return SwitchSession(written, self._writer, self._scales, high, self.provider, threads)

    def ran(self, plan: PrecisionPlan) -> dict[int, str]:
        """Returns by index the precision in which each layer of a plan runs."""
        return precisions_in(self._network, plan)

    def reference(self) -> OnnxRuntimeEngine:
        """Builds the float32 network, with no layer in INT8."""
        return self.build(self._network.free_plan())


def precisions_in(network: Network, plan: PrecisionPlan) -> dict[int, str]:
    """Returns by index the precision of each layer in a written plan: only quantizable layers are low."""
    ran = dict(enumerate(map(_RAN_FOLLOWING.__getitem__, plan.precisions)))
    return ran | {k: WORDS[plan.precisions[k]] for k in network.quantizable}
