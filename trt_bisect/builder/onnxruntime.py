"""ONNX Runtime: emulates TensorRT's INT8 arithmetic, with one session for each plan or one session for all plans.

**The session of all plans.** Building a session takes longer than running it. So one graph has an If at every
quantizable layer, with a branch for each precision, and two more inputs: the branch that each If takes, and the scales
of the activations.

The plans of a search differ in few layers. So the graph is cut into pieces, each a session, and the tensors between
pieces are cached by the input, and by the precisions and scales of all earlier layers. A plan starts after the last
piece whose tensors are cached. Here 8 is a layer in INT8 and f one in FP32:

    piece       0        1        2        3
    plan A   8888---->8888---->ffff---->ffff---->  outputs
    plan B   (cached) (cached) 8fff---->ffff---->  outputs       differs from A in piece 2

**Invariants.** The outputs are, bit for bit, those of the plan's own graph without ONNX Runtime's optimisations. No
piece ends where a tensor has two versions, rounded and unrounded (``model.pieces``). Cached tensors are never changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
import onnx
import onnxruntime as ort

from trt_bisect.builder.base import EMULATED, BuildOptions, Outputs, precisions_in
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed, first_line
from trt_bisect.model.cost import macs
from trt_bisect.model.layers import TensorFacts, TensorTypes
from trt_bisect.model.network import Network
from trt_bisect.model.pieces import PIECE_LAYERS, Boundaries, Piece, cut
from trt_bisect.model.qdq import Choices, GraphTarget, PlanWriter, WrittenSwitch, choices_of, write_switch
from trt_bisect.model.quantizer import Scales, scale_in
from trt_bisect.model.session import (
    CPU,
    SAME_SUMS,
    digests_of,
    integer_sums_are_exact,
    make_session,
    usable_provider,
    use_device,
    use_libraries,
)
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.support.machine import processor
from trt_bisect.support.memory import give_back_memory

_PIECES = 12  # the desired number of pieces; each has about PIECE_LAYERS quantizable layers or more
_LEAST_MACS = 4_000_000  # the least mean multiply-adds of a piece: about as long as a session's call
_Value = TypeVar("_Value")


class Kept(Generic[_Value]):
    """A cache of the most recently used values, at most ``memory`` bytes of them."""

    def __init__(self, memory: int) -> None:
        self._memory, self._bytes = memory, 0
        self._values: OrderedDict[Hashable, tuple[_Value, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> _Value | None:
        """Returns the value of a key; None if it is not in the cache."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: _Value, size: int) -> None:
        """Keeps a value of ``size`` bytes if the memory can hold it; drops the least recently used values for it."""
        if size > self._memory:
            return
        with self._lock:
            self._bytes += size - self._values.pop(key, (value, 0))[1]
            self._values[key] = value, size
            while self._bytes > self._memory:
                self._bytes -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Drops all values."""
        with self._lock:
            self._values.clear()
            self._bytes = 0


class SwitchSession:
    """The session of all plans: runs any plan that gives each layer one of its ``choices``, with any scales.

    Args:
        facts: the tensors' shapes and types, needed to cut the network into pieces; None keeps it whole.
        memory: the most bytes of cached tensors; 0 caches none.

    Raises:
        TrialFailed: ONNX Runtime refuses a session.
    """

    messages: tuple[str, ...] = ()

    def __init__(
        self,
        writer: PlanWriter,
        scales: Scales,
        choices: Choices,
        provider: str,
        threads: int | None,
        facts: TensorFacts | None,
        memory: int,
    ) -> None:
        self._writer = writer
        self._scales = scales
        self._choices = choices
        self._make = partial(_sessions, writer, choices, provider, threads, _pieces(writer, facts))
        self._outputs = [output.name for output in writer.network.outputs]
        # By an input, the number of a piece, and the precisions and scales of all layers up to its end. The input is
        # kept too, since its ``id`` identifies it.
        self._kept = Kept[tuple[Feeds, Outputs]](memory)
        self._lock = Lock()
        self._pieces = self._make()

    def runs(self, plan: PrecisionPlan) -> bool:
        """Returns true if the session can run each layer in the plan's precision."""
        return all(precision in choices for precision, choices in zip(plan.precisions, self._choices, strict=True))

    def infer(self, plan: PrecisionPlan, feeds: Feeds, scales: Scales | None = None) -> Outputs:
        """Returns the outputs of a plan for a sample, by name; raises TrialFailed if the inference fails.

        The caller must not change sample and outputs, which may be cached. ``scales`` are the INT8 scales; None: the
        constructor's.
        """
        with self._lock:
            self._pieces = pieces = self._pieces or self._make()
        chosen = self._scales if scales is None else scales
        settings = [piece.settings(self._writer, plan, chosen) for piece in pieces]
        set_so_far = accumulate(b"".join(array.tobytes() for array in setting.values()) for setting in settings)
        states = [(id(feeds), number, behind) for number, behind in enumerate(set_so_far)]
        start, live = 0, Outputs()
        for number in range(len(pieces) - 1, 0, -1):
            kept = self._kept.get(states[number - 1])
            if kept is not None:
                start, live = number, kept[1]
                break
        for number in range(start, len(pieces)):
            live = pieces[number].run({**feeds, **live}, settings[number])
            if number < len(pieces) - 1:
                self._kept.put(states[number], (feeds, live), bytes_of(live))
        return {name: live[name] for name in self._outputs}

    def forget(self) -> None:
        """Empties the cache of tensors."""
        self._kept.clear()

    def close(self) -> None:
        """Closes the sessions and empties the cache; the next inference makes the sessions again."""
        self.forget()
        with self._lock:
            self._pieces = []


class _SwitchPiece:
    def __init__(self, written: WrittenSwitch, live: Collection[str], provider: str, threads: int | None) -> None:
        session = make_session(written, provider, threads, one_of_many=True, level=SAME_SUMS)
        self._engine = OnnxRuntimeEngine(session, {})
        self._reads = [value.name for value in session.get_inputs()]
        self._live = live or [value.name for value in session.get_outputs()]
        self._written = replace(written, model=onnx.ModelProto(), weights={})

    def settings(self, writer: PlanWriter, plan: PrecisionPlan, scales: Scales) -> Feeds:
        written, inputs = self._written, dict[str, np.ndarray]()
        if written.gates_input:
            rounded = writer.followed(plan.lowered) if written.followed else ()
            gates = [plan.precisions[layer] is precision for layer, precision in written.gates]
            inputs[written.gates_input] = np.array(gates + [tensor in rounded for tensor in written.followed])
        if written.scales_input:
            low, kind = writer.network.low, writer.network.base_type
            low_scales = np.array([scale_in(low, scales[tensor]) for tensor in written.scales], np.float32)
            inputs[written.scales_input] = low_scales if kind is None else kind.positive(low_scales)
        return inputs

    def run(self, tensors: Outputs, settings: Feeds) -> Outputs:
        inputs = {**tensors, **settings}
        after = {**tensors, **self._engine.infer({name: inputs[name] for name in self._reads})}
        return {name: after[name] for name in self._live}


def bytes_of(arrays: Mapping[str, np.ndarray]) -> int:
    """Returns the bytes of all arrays; other values, such as sequences, count 0."""
    return sum(int(getattr(array, "nbytes", 0)) for array in arrays.values())


def _sessions(
    writer: PlanWriter, choices: Choices, provider: str, threads: int | None, pieces: Sequence[Piece | None]
) -> list[_SwitchPiece]:
    live, sessions = Boundaries(writer.network).live, list[_SwitchPiece]()
    for piece in pieces:
        after = live[piece.stop - 1] if piece else ()
        sessions.append(_SwitchPiece(write_switch(writer, choices, piece), after, provider, threads))
        give_back_memory()
    return sessions


def _pieces(writer: PlanWriter, facts: TensorFacts | None) -> list[Piece | None]:
    network = writer.network
    if facts is None or writer.followed(network.quantizable):
        return [None]
    count = min(_PIECES, sum(macs(network, facts).values()) // _LEAST_MACS)
    if count < 2:
        return [None]
    pieces = cut(network, facts, max(PIECE_LAYERS, -(-len(network.quantizable) // count)))
    types = network.types
    declared = all(_is_declared(name, types, facts) for piece in pieces[1:] for name in piece.reads)
    if len(pieces) == 1 or not declared or not all(output.name in network.producers for output in network.outputs):
        return [None]
    return list(pieces)


def _is_declared(tensor: str, types: TensorTypes, facts: TensorFacts) -> bool:
    real, declared = facts.shapes[tensor], types.shapes.get(tensor)
    shape = real if declared is None else declared
    same_rank = types.dtypes.get(tensor) == facts.dtypes[tensor] and len(shape) == len(real)
    return same_rank and all(not isinstance(d, int) or d == size for d, size in zip(shape, real, strict=True))


class OnnxRuntimeEngine:
    """An ONNX Runtime session of one plan."""

    def __init__(self, session: ort.InferenceSession, ran: Mapping[int, str]) -> None:
        self._session = session
        self._names = [output.name for output in session.get_outputs()]
        self.ran = ran
        self.messages: tuple[str, ...] = ()

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs for a sample, by name."""
        try:
            return dict(zip(self._names, self._session.run(self._names, feeds), strict=True))
        except Exception as error:
            raise TrialFailed("inference failed", first_line(error)) from error

    def latency(self, feeds: Feeds) -> None:
        """Returns None: the emulation's time says nothing about an engine."""

    def __enter__(self) -> OnnxRuntimeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        del self._session


class OnnxRuntimeBuilder:
    """Builds ONNX Runtime sessions from plans; ``scales`` are those of the network's activations."""

    engine = "onnxruntime"
    typing = "strong"
    arithmetic = EMULATED

    def __init__(self, network: Network, scales: Scales, options: BuildOptions) -> None:
        self.network = network
        self.scales = scales
        self.writer = PlanWriter(network, scales, GraphTarget.ONNXRUNTIME, unquantized_round=options.unquantized_round)
        self._options = options
        use_libraries(options.operators)
        if options.device is not None:
            use_device(options.device, or_cpu=True)
        self.provider = usable_provider()
        versions = {
            "onnxruntime": ort.__version__,
            "device": self.provider,
            "processor": processor(),
            "numpy": np.__version__,
        }
        if options.operators:
            versions["operators"] = digests_of(options.operators)
        self.versions: Mapping[str, str] = versions

    def build(self, plan: PrecisionPlan) -> OnnxRuntimeEngine:
        """Builds the session of a plan."""
        session = make_session(self.writer.write(plan), self.provider, self._options.threads)
        return OnnxRuntimeEngine(session, self.ran(plan))

    def has_plain(self, plan: PrecisionPlan) -> bool:
        """Returns true if ``plain`` runs a plan exactly: all in INT8 or FP32, on a CPU with exact integer sums."""
        has_kernels = {*plan.precisions} <= {Precision.INT8, Precision.FP32}
        return has_kernels and self.provider == CPU and integer_sums_are_exact()

    def plain(self, plan: PrecisionPlan, *, integers: bool = True) -> OnnxRuntimeEngine:
        """Builds a session of the Q/DQ file that TensorRT would get, with ONNX Runtime's default optimisations.

        ``integers=False`` leaves out ONNX Runtime's INT8 kernels. Raises TrialFailed if ONNX Runtime refuses the file.
        """
        written = PlanWriter(self.network, self.scales, GraphTarget.TENSORRT).write(plan)
        return OnnxRuntimeEngine(
            make_session(written, threads=self._options.threads, integers=integers), self.ran(plan)
        )

    def switch(
        self,
        threads: int | None = None,
        facts: TensorFacts | None = None,
        memory: int = 0,
        more: Collection[Precision] = (),
    ) -> SwitchSession:
        """Builds the session that runs all plans; raises TrialFailed if ONNX Runtime refuses it.

        ``threads`` None: as in the build options. ``facts`` and ``memory`` are those of ``SwitchSession``, ``more``
        further precisions for layers.
        """
        choices, threads = choices_of(self.network, self._options.high, more), threads or self._options.threads
        return SwitchSession(self.writer, self.scales, choices, self.provider, threads, facts, memory)

    def ran(self, plan: PrecisionPlan) -> dict[int, str]:
        """Returns the precision in which each layer of a plan runs, by index."""
        return precisions_in(self.network, plan)

    def reference(self) -> OnnxRuntimeEngine:
        """Builds the session with every layer in FP32."""
        return self.build(self.network.free_plan())
