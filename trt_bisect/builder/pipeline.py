"""Builders and engines of a pipeline, a user's function that runs several networks: one engine for each network."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from trt_bisect.builder.base import Builder, Engine, Latency, LayerTime, Outputs
from trt_bisect.builder.onnxruntime import Kept, OnnxRuntimeBuilder, SwitchSession, bytes_of
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import TrialFailed
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.merged import Part, prefix_of, split
from trt_bisect.model.network import Network, Pipeline
from trt_bisect.model.quantizer import Scales
from trt_bisect.precision import Precision, PrecisionPlan

MakeBuilder = Callable[[Part, Scales], Builder]


class PipelineEngine:
    """Runs a pipeline under a plan, with an engine for each of its networks.

    Attributes:
        messages: the engines' warnings, and the function's errors on samples.
    """

    def __init__(self, pipeline: Pipeline, builds: Iterable[tuple[Part, Callable[[], Engine]]]) -> None:
        self._pipeline = pipeline
        self._engines: list[tuple[Part, Engine]] = []
        with ExitStack() as stack:
            for part, build in builds:
                try:
                    self._engines.append((part, stack.enter_context(build())))
                except TrialFailed as failure:
                    raise TrialFailed(failure.outcome, _in_pipeline(failure.message, part)) from failure
            self._open = stack.pop_all()
        self.messages = tuple(message for _, engine in self._engines for message in engine.messages)

    @property
    def ran(self) -> dict[int, str]:
        """The precision in which each layer ran, by index in the list of all networks' layers."""
        return {part.layers[k]: ran for part, engine in self._engines for k, ran in engine.ran.items()}

    def infer(self, feeds: Feeds) -> Outputs:
        """Returns the outputs of the user's function for a sample, NaN if the function fails; raises TrialFailed if an
        engine fails.
        """
        outputs, reason = self._pipeline.run(feeds, {part.name: engine.infer for part, engine in self._engines})
        if reason and reason not in self.messages:
            self.messages = (*self.messages, reason)
        return outputs

    def latency(self, feeds: Feeds) -> Latency | None:
        """Returns the time for a sample; None if emulated.

        Mean and median are sums over the engines, times the calls per sample; there is no 99th percentile.
        """
        mean = median = 0.0
        runs: list[int] = []
        layers: list[LayerTime] = []
        computed: dict[str, str] = {}
        for part, engine in self._engines:
            time, calls, prefix = engine.latency(part.of(feeds)), self._pipeline.calls[part.name], prefix_of(part.name)
            if time is None:
                return None
            mean += calls * time.mean_ms
            median += calls * time.median_ms
            runs.append(time.runs)
            for layer in time.layers:
                names = tuple(prefix + name for name in layer.layers)
                layers.append(LayerTime(prefix + layer.name, names, calls * layer.milliseconds))
            computed.update({prefix + layer: kind for layer, kind in time.computed.items()})
        return Latency(mean, median, None, min(runs), tuple(layers), computed)

    def __enter__(self) -> PipelineEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


class PipelineBuilder:
    """Builds the engines of a pipeline, one for each of the networks that ``network`` merges, from one plan for all.

    ``make`` makes the builder of one of these networks from its scales.
    """

    def __init__(self, network: Network, scales: Scales, make: MakeBuilder) -> None:
        assert network.pipeline is not None
        self._pipeline = network.pipeline
        self.builders = [(part, make(part, part.of(scales))) for part in split(network)]
        _, first = self.builders[0]
        self.engine, self.typing, self.arithmetic = first.engine, first.typing, first.arithmetic
        self.versions = first.versions

    def build(self, plan: PrecisionPlan) -> PipelineEngine:
        """Builds the engines of a plan; raises TrialFailed if a build fails."""
        return self._engine(lambda part, builder: builder.build(part.plan(plan)))

    def reference(self) -> PipelineEngine:
        """Builds the engines with every layer in FP32; raises TrialFailed if a build fails."""
        return self._engine(lambda _, builder: builder.reference())

    def _engine(self, build: Callable[[Part, Any], Engine]) -> PipelineEngine:
        builds = ((part, partial(build, part, builder)) for part, builder in self.builders)
        return PipelineEngine(self._pipeline, builds)


class EmulatedPipelineBuilder(PipelineBuilder):
    """Builds the engines of a pipeline on ONNX Runtime, and for each network a session that runs all plans."""

    builders: list[tuple[Part, OnnxRuntimeBuilder]]  # type: ignore[assignment]

    def has_plain(self, plan: PrecisionPlan) -> bool:
        """Returns true if ``plain`` runs a plan exactly, as ``OnnxRuntimeBuilder.has_plain`` says."""
        return self.builders[0][1].has_plain(plan)

    def plain(self, plan: PrecisionPlan, *, integers: bool = True) -> PipelineEngine:
        """Builds the engine from the plan's Q/DQ files, as ``OnnxRuntimeBuilder.plain`` does."""
        return self._engine(lambda part, builder: builder.plain(part.plan(plan), integers=integers))

    def ran(self, plan: PrecisionPlan) -> dict[int, str]:
        """Returns the precision in which each layer of a plan runs, by index."""
        ran = {}
        for part, builder in self.builders:
            ran.update({part.layers[k]: precision for k, precision in builder.ran(part.plan(plan)).items()})
        return ran

    def switch(
        self,
        threads: int | None = None,  # noqa: ARG002 - the function is called by one thread: its networks take all
        facts: TensorFacts | None = None,
        memory: int = 0,
        more: Collection[Precision] = (),
    ) -> PipelineSession:
        """Builds for each network a session that runs all plans.

        ``threads`` is ignored, ``memory`` the most bytes of all caches; the others are those of
        ``OnnxRuntimeBuilder.switch``.
        """
        sessions = []
        for part, builder in self.builders:
            own = None if facts is None else TensorFacts(part.of(facts.shapes), part.of(facts.dtypes))
            sessions.append((part, builder.switch(None, own, memory // (2 * len(self.builders)), more)))
        return PipelineSession(self._pipeline, sessions, memory // 2)


class PipelineSession:
    """Runs a pipeline under any plan, with a session of all plans for each of its networks.

    Attributes:
        messages: the function's error on the last sample; empty without one.
    """

    def __init__(self, pipeline: Pipeline, sessions: list[tuple[Part, SwitchSession]], memory: int) -> None:
        self._pipeline, self._sessions = pipeline, sessions
        self._kept = Kept[Feeds](memory)
        self.messages: tuple[str, ...] = ()

    def runs(self, plan: PrecisionPlan) -> bool:
        """Returns true if the sessions can run each layer in the plan's precision."""
        return all(session.runs(part.plan(plan)) for part, session in self._sessions)

    def infer(self, plan: PrecisionPlan, feeds: Feeds, scales: Scales) -> Outputs:
        """Returns the outputs of the user's function for a sample under a plan, NaN if the function fails.

        Raises TrialFailed if a session fails.
        """
        engines = {}
        for part, session in self._sessions:
            own_scales, own_plan = part.of(scales), part.plan(plan)
            set_by = np.array(list(own_scales.values()), np.float32).tobytes()
            key = part.name, own_plan, set_by
            engines[part.name] = partial(self._infer, key, partial(session.infer, own_plan, scales=own_scales))
        outputs, reason = self._pipeline.run(feeds, engines)
        self.messages = (reason,) if reason else ()
        return outputs

    def _infer(self, key: tuple[object, ...], infer: Callable[[Feeds], Outputs], feeds: Feeds) -> Outputs:
        name, digest = key[0], digest_of_feeds(feeds)
        outputs = self._kept.get((*key, digest))
        if outputs is None:
            # Equal feeds are one object, by which SwitchSession keeps tensors; the function may change its own arrays.
            fed = self._kept.get((name, digest)) or _copied(feeds)
            outputs = infer(fed)
            self._kept.put((name, digest), fed, bytes_of(fed))
            self._kept.put((*key, digest), outputs, bytes_of(outputs))
        return _copied(outputs)

    def forget(self) -> None:
        """Empties the caches of tensors and outputs."""
        self._kept.clear()
        for _, session in self._sessions:
            session.forget()

    def close(self) -> None:
        """Closes the sessions and empties the caches."""
        self._kept.clear()
        for _, session in self._sessions:
            session.close()


def _in_pipeline(message: str, part: Part) -> str:
    for layer in part.network.layers:
        if layer.name in message:
            as_word = rf"(?<![\w/]){re.escape(layer.name)}(?![\w/])"
            message = re.sub(as_word, lambda _, name=layer.name: prefix_of(part.name) + name, message)  # type: ignore[misc]
    return message


def _copied(arrays: Feeds) -> Feeds:
    return {name: array.copy() for name, array in arrays.items()}


EmulatedBuilder: TypeAlias = OnnxRuntimeBuilder | EmulatedPipelineBuilder
AllPlans: TypeAlias = SwitchSession | PipelineSession
