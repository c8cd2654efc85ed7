from __future__ import annotations

from trt_bisect.answer.accuracy import TIE
from trt_bisect.answer.result import Answer, cost_of
from trt_bisect.model.cost import instead_of
from trt_bisect.precision import Precision
from trt_bisect.report.choices import FP16, FP32, INT8, RECIPE, Choice
from trt_bisect.report.model import Report
from trt_bisect.report.parts import PASSES, WITH_DOUBTS


def choices_of(report: Report, answer: Answer) -> tuple[Choice, ...]:
    """Returns FP32, FP16, full INT8 and the recipe with their figures, in this order; FP16 only if measured or
    predicted, the recipe only if it is not full INT8.

    Args:
        report: must have its verdict, latencies, predicted times and accuracies.
    """
    network, rule, accuracy = answer.experiment.network, answer.experiment.rule, report.accuracy
    engines, fp16 = answer.engines, answer.fp16

    def milliseconds(plan: str) -> float | None:
        measured = (report.latency or {}).get(plan)
        if measured is not None:
            return measured.median_ms
        predicted = None if report.predicted is None or report.latency else report.predicted.plans.get(plan)
        return None if predicted is None else predicted.ms

    def accurate(plan: str) -> float | None:
        return None if accuracy is None else getattr(accuracy, plan)

    in_fp32 = True if engines is None or network.base_type is not None else rule.meets(engines.base)
    choices = [Choice(FP32, in_fp32, None, accurate(FP32), milliseconds(FP32), None)]
    if fp16 is not None:
        meets: bool | None = rule.meets(fp16)
        if answer.by_accuracy and accuracy is not None:
            least, figure = accuracy.least, accuracy.fp16
            meets = None if figure is None or least is None else figure >= least - TIE
        held_out = None if answer.fp16_held_out is None else rule.meets(answer.fp16_held_out)
        figures = rule.similarity(fp16), accurate(FP16), milliseconds(FP16)
        choices.append(Choice(FP16, meets, *figures, 1.0, held_out))
    elif instead_of(network.low.precision) is Precision.FP16 and milliseconds(FP16) is not None:
        choices.append(Choice(FP16, None, None, None, milliseconds(FP16), 1.0))
    similarity = report.similarity
    passes = report.verdict in (PASSES, WITH_DOUBTS)
    held_out = None if answer.held_out is None or answer.by_accuracy else not answer.misses_held_out
    of_int8 = None if report.has_recipe else held_out
    is_fixed = any(layer.fixed is not None for layer in network.layers)
    cost = answer.recipe.space.cost(()) if is_fixed else 0.0
    choices.append(Choice(INT8, passes, similarity.int8, accurate(INT8), milliseconds(INT8), cost, of_int8))
    if report.has_recipe:
        figures = similarity.recipe, accurate(RECIPE), milliseconds(RECIPE)
        choices.append(Choice(RECIPE, answer.meets, *figures, cost_of(answer), held_out))
    return tuple(choices)
