"""ONNX Runtime: the emulated arithmetic of TensorRT INT8, on any machine.

The Q/DQ graph runs in float32; ``model.session`` says why ONNX Runtime's own INT8 kernels stay out of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from trt_bisect.builder.base import EMULATED, BuildOptions, Outputs, precisions_in
from trt_bisect.builder.switch import SwitchSession
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed, first_line
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import Network
from trt_bisect.model.operators import digests_of, use_libraries
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Scales
from trt_bisect.model.session import CPU, integer_sums_are_exact, make_session, usable_provider
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.machine import processor

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

    def __exit__(self, *_: object) -> None:
        del self._session


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

    def has_plain(self, plan: PrecisionPlan) -> bool:
        """Returns true if ``plain`` computes as a plan means it.

        It does not where INT8 kernels are not exact, and where layers are in FP16 or the like: that compares other
        arithmetics.
        """
        return self.provider == CPU and integer_sums_are_exact() and {*plan.precisions} <= _WITH_KERNELS

    def plain(self, plan: PrecisionPlan) -> OnnxRuntimeEngine:
        """Builds the session that a user gets from the file of a plan: with default options, and INT8 kernels.

        Raises:
            TrialFailed: ONNX Runtime refuses the file with these options.
        """
        written = PlanWriter(self._network, self._scales, GraphTarget.TENSORRT).write(plan)
        return OnnxRuntimeEngine(make_session(written, threads=self._options.threads, integers=True), self.ran(plan))

    def switch(self, threads: int | None = None, facts: TensorFacts | None = None, memory: int = 0) -> SwitchSession:
        """Builds the session of all plans; raises TrialFailed if ONNX Runtime refuses it.

        Args:
            threads: the threads for one inference; None for those of the build options.
            facts: the shapes of the tensors, by which the network is cut into pieces; None to keep it whole.
            memory: the bytes that tensors between the pieces may take.
        """
        high, threads = self._options.high, threads or self._options.threads
        return SwitchSession(self._writer, self._scales, high, self.provider, threads, facts, memory)

    def ran(self, plan: PrecisionPlan) -> dict[int, str]:
        """Returns by index the precision in which each layer of a plan runs."""
        return precisions_in(self._network, plan)

    def reference(self) -> OnnxRuntimeEngine:
        """Builds the float32 network, with no layer in INT8."""
        return self.build(self._network.free_plan())
