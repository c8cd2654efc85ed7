"""The search for what an engine does otherwise than its file, among suspicions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np

from trt_bisect.builder.base import Outputs
from trt_bisect.builder.debug_tensors import EngineTensor
from trt_bisect.builder.onnxruntime import SwitchSession
from trt_bisect.commands.verify import suspicions as suspected
from trt_bisect.commands.verify.emulation import Emulation, Yardstick
from trt_bisect.commands.verify.kernel import Spoiled, of_tensors
from trt_bisect.commands.verify.suspicions import TYPES, Suspicion
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.evaluator.inferences import SHARE_KEPT
from trt_bisect.model.observe import facts_for
from trt_bisect.model.qdq import choices_of
from trt_bisect.model.session import CPU
from trt_bisect.precision import Precision
from trt_bisect.report.verification import Tried
from trt_bisect.support.machine import MEMORY
from trt_bisect.support.progress import Progress

_FEW, _CONFIRMED = 2, 3
"""The samples, the worst, on which suspicions are tried first, and the best ones, which are tried on all."""
_TOGETHER = 4
"""The best suspicions that are tried together."""
_SMALL = 0.3
"""A suspicion that leaves more of a difference does not reproduce it, however large its own floor is."""
_CLOSE = 2.0
"""Of suspicions of a kind that leave about as much, up to this factor, the first one counts; and the best one before
them."""
_ALIKE, _AS_LARGE = 0.3, (0.25, 4.0)
"""Roundings to a type depend on what an engine fuses. In a plan without INT8 they are reproduced if the engine's
difference and the emulation's have this cosine or more, and this ratio."""


@dataclass(frozen=True)
class Held:
    """The engine's outputs against its file, on some samples.

    Attributes:
        reference: the file's outputs.
        yard: the distance between outputs, in units of ``reference``.
    """

    file: Emulation
    reference: Sequence[Outputs]
    engine: Sequence[Outputs]
    yard: Yardstick

    @classmethod
    def on(cls, file: Emulation, reference: Sequence[Outputs], engine: Sequence[Outputs]) -> Held:
        """Returns the engine against its file; the outputs that ``engine`` has count."""
        return cls(file, reference, engine, Yardstick(reference, list(engine[0])))

    @property
    def values(self) -> int:
        """The number of values of the outputs."""
        return sum(np.size(values) for each in self.engine for values in each.values())

    @cached_property
    def distance(self) -> float:
        """The distance of the engine to its file."""
        return self.yard.apart(self.engine, self.reference)

    def worst(self, count: int) -> Held:
        """Returns the samples on which the two differ most."""
        pairs = zip(self.engine, self.reference, strict=True)
        apart = [self.yard.apart([first], [second]) for first, second in pairs]
        places = sorted(range(len(apart)), key=lambda k: -apart[k])[:count]
        file = replace(self.file, feeds=tuple(self.file.feeds[k] for k in places))
        return Held.on(file, [self.reference[k] for k in places], [self.engine[k] for k in places])


class Search:
    """The suspicions that were tried on an engine.

    Attributes:
        tried: what was found, in the order of trying.
    """

    def __init__(self, held: Held, progress: Progress) -> None:
        self._held, self._few, self._one = held, held.worst(_FEW), held.worst(1)
        self._progress = progress
        self._rank: dict[str, float] = {}
        self.tried: list[Tried] = []
        self.best: Tried | None = None

    def run(
        self,
        told: Sequence[Suspicion],
        simple: Sequence[Suspicion],
        tensors: Sequence[EngineTensor],
        *,
        kernels: bool,
    ) -> Tried | None:
        """Tries suspicions, the simple and cheap first, until one reproduces the engine's outputs; returns the best.

        Args:
            told: those that the engine's layer info tells.
            simple: those on inputs, outputs, the arithmetic of all layers, and scales.
            tensors: the engine's own tensors.
            kernels: also tries a wrong kernel for each layer.
        """
        self._progress.stage("Trying suspicions", None)
        for group, held in chain([(told, self._few)], self._groups(simple, tensors, kernels=kernels)):
            self._attempt(group, held)
            if self.best is not None and self.best.reproduces:
                break
        return self.best

    def _groups(
        self, simple: Sequence[Suspicion], tensors: Sequence[EngineTensor], *, kernels: bool
    ) -> Iterator[tuple[Iterable[Suspicion], Held]]:
        """Yields suspicions that are tried together, and the samples on which they are tried first."""
        file = self._held.file
        yield simple, self._one
        for suspicion in of_tensors(tensors):
            self.best = Tried(suspicion.kind, suspicion.text, 0.0, 1.0, True, suspicion.layers)
            self.tried.append(self.best)
            return
        yield self._pairs(simple), self._one
        if file.plan.lowered or file.scales:
            layers = [*suspected.on_layers(file.writer.network, file.plan)]
            yield layers, self._few
            ranked = self._ranked(layers)
            for other in ranked[1:_TOGETHER]:
                more = ranked[0].and_also(other)
                yield [more], self._held
                ranked[0] = min(ranked[0], more, key=lambda each: self._rank.get(each.text, math.inf))
        if kernels:
            few = self._few
            yield Spoiled(file).suspicions(few.file, few.yard.vector(few.engine), few.yard), few

    def _ranked(self, suspicions: Iterable[Suspicion]) -> list[Suspicion]:
        return sorted(suspicions, key=lambda each: self._rank.get(each.text, math.inf))

    def _pairs(self, simple: Sequence[Suspicion]) -> Iterator[Suspicion]:
        """Yields the best one with each other, and orders of axes with values, which alone may explain nothing."""
        with_effect = [each for each in self._ranked(simple) if self._rank.get(each.text) != 1.0]
        for other in with_effect[1:]:
            if other.kind != with_effect[0].kind:
                yield with_effect[0].and_also(other)
        for kind in (suspected.CHANNEL_ORDER, suspected.LAYOUT):
            moved = next((each for each in simple if each.kind == kind and each in with_effect), None)
            for valued in with_effect if moved else ():
                if moved and valued.kind in (suspected.INPUT_SCALE, suspected.INPUT_MEAN_STD):
                    yield valued.and_also(moved)

    def _attempt(self, suspicions: Iterable[Suspicion], held: Held) -> None:
        """Tries suspicions on some samples, and the best of them on all."""
        rows: dict[Suspicion, Tried] = {}
        for each in suspicions:
            self._progress.step(each.text)
            row = self._row(each, self._held if each.whole else held)
            if row is not None:
                rows[each] = row
        chosen = self._ranked(rows)[:_CONFIRMED]
        for each in chosen:
            rows[each] = self._row(each, self._held, decides=True) or rows[each]
        self.tried += rows.values()
        candidates = [*([self.best] if self.best else []), *(row for each, row in rows.items() if each in chosen)]
        if candidates:
            least = min(candidates, key=lambda row: (not row.reproduces, row.left))
            simpler = [row for row in candidates if row is self.best or row.kind == least.kind]
            for row in simpler:
                if row.reproduces == least.reproduces and row.left <= _CLOSE * least.left:
                    self.best = row
                    break

    @cached_property
    def _switch(self) -> SwitchSession | None:
        """The session of all plans of the file; None if ONNX Runtime refuses it."""
        file = self._held.file
        network = file.writer.network
        choices, facts = choices_of(network, Precision.FP32), facts_for(network, file.feeds[0])
        try:
            return SwitchSession(file.writer, file.scales, choices, CPU, None, facts, MEMORY // SHARE_KEPT)
        except TrialFailed:
            return None

    def _row(self, suspicion: Suspicion, held: Held, *, decides: bool = False) -> Tried | None:
        """Emulates a suspicion on some samples; None where that cannot be done."""
        yard, distance = held.yard, held.distance
        of_layers = suspicion.kind in (suspected.LAYERS_HIGH, suspected.LAYERS_LOW) and bool(suspicion.layers)
        try:
            changed = suspicion.change(held.file)
            session = self._switch if of_layers and not decides else None
            if session is not None and session.runs(changed.plan):
                there = [session.infer(changed.plan, feeds) for feeds in changed.feeds]
            else:
                there = changed.outputs()
            left = yard.apart(held.engine, there)
            reproduces = decides and left <= _SMALL * distance and left <= yard.floor(changed, there)
        except (TrialFailed, BadInput, ValueError, KeyError):
            return None
        rank = left / distance if distance else 1.0
        explained = max(0.0, 1.0 - rank**2)
        if suspicion.kind in TYPES and not reproduces and not held.file.plan.lowered:
            does = yard.apart(there, held.reference)
            if does and _AS_LARGE[0] <= distance / does <= _AS_LARGE[1]:
                alike = max(0.0, (distance**2 + does**2 - left**2) / (2 * distance * does))
                reproduces = decides and alike >= _ALIKE
                explained, rank = alike**2, math.sqrt(max(0.0, 1.0 - alike**2))
        if not decides:
            self._rank[suspicion.text] = rank
        return Tried(suspicion.kind, suspicion.text, left, explained, reproduces, suspicion.layers)
