"""The search for the curve: a driver asks for plans, and an evaluator measures them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trt_bisect.driver.curves import ADAPTIVE, CULPRITS, search_for
from trt_bisect.driver.search import Findings, Loss, Search, Step, drive, next_plans
from trt_bisect.evaluator.evaluators import SwitchEvaluator
from trt_bisect.evaluator.trial import UNTRIED, Trial
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.experiment import Experiment
from trt_bisect.support.progress import Progress

NOTHING_FOUND = Findings(None, (), (), ())


@dataclass(frozen=True)
class Curve:
    """The measured curve and its suspects; ``nothing`` is the trial of the plan without INT8."""

    findings: Findings = NOTHING_FOUND
    nothing: Trial = UNTRIED


@dataclass(frozen=True)
class CurveSearch:
    """Measures the curve of a network, by the plans that the driver asks for."""

    experiment: Experiment
    progress: Progress

    def curve(self) -> Curve:
        """Measures the plans of the curve, and returns the curve and its suspects."""
        experiment, evaluator = self.experiment, self.experiment.evaluator
        count = len(experiment.question.quantizable)
        few = math.ceil(math.log2(max(count, 2))) + 4  # of a bisection with one suspect; the bar grows with more
        self.progress.stage("Measuring plans", few if experiment.curve == CULPRITS else count + 2)
        has_workers = not isinstance(evaluator, SwitchEvaluator) and evaluator.has_workers
        findings = self._by_workers() if has_workers else self._one_by_one()
        nothing = evaluator.measure(experiment.question.prefix(-1))
        if isinstance(evaluator, SwitchEvaluator):
            evaluator.close()
        return Curve(findings, nothing)

    def _one_by_one(self) -> Findings:
        experiment, watched, announced = self.experiment, list[Step](), set[int]()
        is_large = experiment.curve == ADAPTIVE

        def measure(plan: PrecisionPlan) -> Loss:
            for step in watched if is_large else ():
                if step.suspect and not announced.issuperset(step.layers):
                    announced.update(step.layers)
                    self.progress.say(f"Suspect: {self._name(step.layers[0])}")
            self.progress.step(self._last_low(plan))
            return experiment.rule.loss(experiment.evaluator.measure(plan))

        return drive(search_for(experiment.curve, experiment.question, watched), measure)

    def _by_workers(self) -> Findings:
        # workers also measure the plans that the driver will probably ask for next
        experiment, whole, losses = self.experiment, self.experiment.whole, dict[PrecisionPlan, Loss]()

        def search() -> Search[Findings]:
            return search_for(experiment.curve, experiment.question)

        def on_plan(plan: PrecisionPlan) -> None:
            self.progress.step(f"{self._last_low(plan)} ({whole.workers} workers)")

        def measure(plan: PrecisionPlan) -> Loss:
            if plan not in losses:
                plans = next_plans(search(), losses, whole.workers)
                for measured, trial in zip(plans, whole.measure_all(plans, on_plan), strict=True):
                    losses[measured] = experiment.rule.loss(trial)
            return losses[plan]

        return drive(search(), measure)

    def _last_low(self, plan: PrecisionPlan) -> str:
        last = max(plan.lowered, default=-1)
        return self._name(last) if last >= 0 else "FP32"

    def _name(self, layer: int) -> str:
        return self.experiment.network.layers[layer].name
