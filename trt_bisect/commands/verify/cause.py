"""The search for the suspicion that explains an engine's difference from its file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from trt_bisect.builder.debug_tensors import ENGINE, EngineTensor
from trt_bisect.builder.pipeline import AllPlans
from trt_bisect.commands.verify import suspicions as suspected
from trt_bisect.commands.verify.emulation import Emulation, Held, Infer
from trt_bisect.commands.verify.kernel import KERNEL, WithErrors
from trt_bisect.commands.verify.suspicions import Suspicion
from trt_bisect.errors import BadInput, TrialFailed
from trt_bisect.evaluator.inferences import SHARE_KEPT, switch_session
from trt_bisect.model.observe import facts_for
from trt_bisect.report.verification import Tried
from trt_bisect.support.machine import MEMORY
from trt_bisect.support.progress import Progress

# samples (the worst) on which suspicions are ranked, and of the best suspicions then tried on all samples
_RANKED_ON, _TRIED_ON_ALL = 2, 3
_TOGETHER = 4  # layers, those that explain most, that are tried together
# a suspicion that leaves a larger share of the difference does not reproduce it, however large its own noise floor
_MOST_LEFT = 0.3
# suspicions of a kind that leave a difference within this factor of the best are equal: the first one counts
_EQUAL_WITHIN = 2.0
# Roundings to a type depend on what an engine fuses. In a plan without INT8, a type is taken for the cause if the
# differences of the engine and of the emulation from the file have at least this cosine, and their sizes at most this
# ratio.
_LEAST_COSINE, _LARGEST_RATIO = 0.3, 4.0


class Search:
    """Tries suspicions, which are ways in which an engine may differ from its file.

    Attributes:
        tried: suspicions that were emulated on all samples, in the order of trying.
        best: suspicion whose emulation is nearest to the engine; None before the first one.
    """

    def __init__(self, held: Held, progress: Progress) -> None:
        self._held, self._progress = held, progress
        self._shares = dict[Suspicion, tuple[float, float]]()
        self._ranked = list[Suspicion]()
        self._session: AllPlans | None = None
        self.tried = list[Tried]()
        self.best: Tried | None = None

    def run(self, given: Iterable[Sequence[Suspicion]], tensors: Iterable[EngineTensor], *, kernels: bool) -> None:
        """Tries suspicions, the simple and cheap first, until one reproduces the engine's outputs.

        Args:
            given: simple suspicions; those of a sequence are tried together.
            tensors: the engine's inner tensors, compared with the emulation; empty if they are not known.
            kernels: also try a wrong kernel for each layer.
        """
        self._progress.stage("Trying suspicions", None)
        for group, held in self._groups(given, tensors, kernels=kernels):
            self._try(group, held)
            if self.best is not None and self.best.reproduces:
                break

    def _groups(
        self, given: Iterable[Sequence[Suspicion]], tensors: Iterable[EngineTensor], *, kernels: bool
    ) -> Iterator[tuple[Iterable[Suspicion], Held]]:
        # the suspicions that are tried together, and the samples on which they are ranked
        file, few, one = self._held.file, self._held.worst(_RANKED_ON), self._held.worst(1)
        for group in given:
            yield group, one
        for row in tensors:
            if row.cause == ENGINE:
                layers = row.layers or (row.layer,)
                text = f"has a wrong kernel for {' + '.join(layers)}: given its own inputs, it gives another output"
                # It is no row of ``tried``: the tensors show it, and no emulation measured what it explains.
                self.best = Tried(KERNEL, text, 0.0, 1.0, True, layers)
                return
        yield [*self._pairs()], one
        if file.plan.lowered or file.builder.scales:
            self._session = switch_session(file.builder, facts_for(file.network, file.feeds[0]), MEMORY // SHARE_KEPT)
            yield suspected.on_layers(file), few
            together = self._ranked[:_TOGETHER]
            for other in together[1:]:
                both = together[0].and_also(other)
                yield [both], few
                if both in self._shares and self._shares[both] > self._shares[together[0]]:
                    together[0] = both
        if kernels:
            yield WithErrors(file).suspicions(few), few

    def _pairs(self) -> Iterator[Suspicion]:
        changing = [each for each in self._ranked if self._shares[each][0] != 0.0]
        best = next((each for each in changing if each.kind not in suspected.TYPES), None)
        for other in changing:
            if best is not None and other.kind != best.kind:
                yield best.and_also(other)
        best_of_kind = {each.kind: each for each in reversed(changing)}
        for valued, kind in product(changing, (suspected.CHANNEL_ORDER, suspected.LAYOUT)):
            if kind in best_of_kind and valued.kind in (suspected.INPUT_SCALE, suspected.INPUT_MEAN_STD):
                yield valued.and_also(best_of_kind[kind])

    def _try(self, suspicions: Iterable[Suspicion], held: Held) -> None:
        listed = []
        for each in suspicions:
            self._progress.step(each.text)
            row = self._emulated(each, held)
            if row is not None:
                self._shares[each] = row.explained, -row.left
                listed.append(each)
        self._ranked = sorted(listed, key=self._shares.__getitem__, reverse=True)
        rows = [self.best] if self.best else []
        for each in filter(self._ranked[:_TRIED_ON_ALL].__contains__, listed):
            row = self._emulated(each, self._held)
            if row is not None:
                rows.append(replace(row, explained=max(0.0, row.explained)))
                self.tried.append(rows[-1])
        if not rows:
            return
        least = min(rows, key=lambda row: (not row.reproduces, row.left))
        for row in rows:
            is_simple = row is self.best or row.kind == least.kind
            if is_simple and row.reproduces == least.reproduces and row.left <= _EQUAL_WITHIN * least.left:
                self.best = row
                break

    def _emulated(self, suspicion: Suspicion, held: Held) -> Tried | None:
        decides = held is self._held
        try:
            changed = suspicion.change(held.file)
            there = held.vector(changed.outputs(held.places, None if decides else self._switched(changed)))
            left = float(np.linalg.norm(held.of_engine - there))
            reproduces = decides and left <= _MOST_LEFT * held.distance and left <= held.floor(changed, there)
        except (TrialFailed, BadInput, ValueError, LookupError):
            return None
        explained = 1.0 - (left / held.distance) ** 2
        if suspicion.kind in suspected.TYPES and not reproduces and not held.file.plan.lowered:
            difference = there - held.of_file
            does = float(np.linalg.norm(difference))
            if does / _LARGEST_RATIO <= held.distance <= does * _LARGEST_RATIO:
                alike = float((held.of_engine - held.of_file) @ difference) / (does * held.distance)
                explained = max(0.0, alike) ** 2
                reproduces = decides and alike >= _LEAST_COSINE
        return Tried(suspicion.kind, suspicion.text, left, explained, reproduces, suspicion.layers)

    def _switched(self, changed: Emulation) -> Infer | None:
        of_file = changed.builder is self._held.file.builder and not changed.edits
        if self._session is None or not of_file or not self._session.runs(changed.plan):
            return None
        return partial(self._session.infer, changed.plan)
