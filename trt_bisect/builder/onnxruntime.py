"""ONNX Runtime: the emulated arithmetic of TensorRT INT8, on any machine.

The Q/DQ graph runs in float32; ``model.session`` says why ONNX Runtime's own INT8 kernels stay out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import numpy as np
import onnxruntime as ort

from trt_bisect.builder.base import EMULATED, BuildOptions, Outputs
from trt_bisect.data import Feeds
from trt_bisect.errors import TrialFailed, first_line
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter, Scales, Target
from trt_bisect.model.session import CPU, make_session
from trt_bisect.precision import Precision, PrecisionPlan, int8_set

_CUDA = "CUDAExecutionProvider"


class OnnxRuntimeEngine:
    """One session."""

    def __init__(self, session: ort.InferenceSession, ran: Mapping[int, str]) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self.ran = ran
        self.messages: tuple[str, ...] = ()

    def infer(self, feeds: Feeds) -> Outputs:
        """The outputs for one sample; raises TrialFailed where ONNX Runtime does."""
        try:
            return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error

    def latency(self, feeds: Feeds) -> None:
        """None: the time of an emulation says nothing of an engine's."""

    def __enter__(self) -> OnnxRuntimeEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._session


class OnnxRuntimeBuilder:
    """Builds sessions from plans."""

    engine = "onnxruntime"
    typing = "strong"
    arithmetic = EMULATED

    def __init__(self, network: Network, scales: Scales, options: BuildOptions) -> None:
        self._network = network
        self._writer = PlanWriter(network, scales, Target.ONNXRUNTIME)
        self._options = options
        self._provider = _CUDA if _CUDA in ort.get_available_providers() else CPU
        self.versions: Mapping[str, str] = {
            "onnxruntime": ort.__version__,
            "device": self._provider,
            "numpy": np.__version__,
        }

    def build(self, plan: PrecisionPlan) -> OnnxRuntimeEngine:
        """The session of one plan; ``ran`` is read off the graph that was written."""
        written = self._writer.write(plan)
        ran = {
            layer.index: "int8" if layer.index in written.pairs else _high_of(plan, layer.index)
            for layer in self._network.layers
        }
        return OnnxRuntimeEngine(make_session(written, self._provider, self._options.threads), ran)

    def reference(self) -> OnnxRuntimeEngine:
        """The float32 network, no layer in INT8."""
        return self.build(int8_set(len(self._network.layers), ()))


def _high_of(plan: PrecisionPlan, index: int) -> str:
    precision = plan.precisions[index]
    return str(Precision.FP32 if precision is Precision.INT8 else precision)
