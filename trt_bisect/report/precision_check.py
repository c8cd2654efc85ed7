"""Compares the precisions that plans requested with those that engines ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from trt_bisect.builder.base import IN_REGION, ON_DLA, UNPROVEN
from trt_bisect.evaluator.speed import Latencies
from trt_bisect.evaluator.trial import Trial, TrialKey
from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan
from trt_bisect.report.parts import LayerRow
from trt_bisect.support.text import DLA, FLOAT_KERNELS, OBEDIENCE, Note, listed, noted

NAMED = 5
_NOT_TOLD = ""
_QDQ = (
    "With explicit Q/DQ the graph settles the precision: build recipe/network.qdq.onnx, or use '--typing strong' "
    "(TensorRT 10 and later)."
)
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_WHY_UNPROVEN = {
    IN_REGION: "the engine compiled them with others into one region, in which TensorRT may ignore what was asked for",
    ON_DLA: "they ran on the DLA, in INT8 or FP16",
    _NOT_TOLD: "the engine does not report them, or fused them with layers of another precision",
}


def disobeyed(network: Network, trial: Trial) -> dict[int, tuple[str, str]]:
    """Returns by layer index the requested precision and the one that ran, if both are known and differ."""
    precisions = _plan_of(trial).precisions
    return {
        k: (str(precisions[k]), trial.ran[k])
        for k in network.quantizable
        if k in trial.ran and trial.ran[k] not in UNPROVEN and trial.ran[k] != str(precisions[k])
    }


def unproven(network: Network, trial: Trial) -> dict[int, str]:
    """Returns by layer index the reason why a trial does not show the layer's precision: ``region``, ``dla``, or empty
    if the engine does not report it.

    The result is empty if the trial failed or reports no precision.
    """
    if not trial.ran:
        return {}
    ran = {k: trial.ran.get(k, _NOT_TOLD) for k in network.quantizable}
    return {k: reason for k, reason in ran.items() if reason in _WHY_UNPROVEN}


def obedience_doubts(layers: Mapping[int, Layer | LayerRow], trial: Trial, *, weak: bool = True) -> tuple[str, ...]:
    """Returns at most one doubt on a pass: the engine ran layers in another precision than the plan's low one, or
    reports no precisions.

    Args:
        layers: by index.
        trial: a trial with an engine of the whole network.
        weak: the engine has weak typing.
    """
    if trial.failed:
        return ()
    plan = _plan_of(trial)
    low, lowered = str(plan.low), plan.lowered & layers.keys()
    reported = {k: trial.ran[k] for k in sorted(lowered) if k in trial.ran}
    not_low = {k: ran for k, ran in reported.items() if ran not in (low, ON_DLA)}
    if not lowered or (reported and not not_low):
        return ()
    if not reported:
        return (
            f"The engine reports the precision of no layer: how many of the {len(lowered)} layers ran in {low.upper()} "
            f"is unknown. {_QDQ}",
        )
    where = [
        f"{_names(layers, [k for k, ran in not_low.items() if ran == kind])} "
        f"ran in {'a region of unknown precision' if kind == IN_REGION else kind.upper()}"
        for kind in dict.fromkeys(not_low.values())
    ]
    if not weak:
        return (f"{ran_low(layers, trial)}: {'; '.join(where)}.",)
    matmuls = sum(layers[k].op_type in _PRODUCTS for k in not_low)
    why = "TensorRT chooses the faster precision; '--typing weak-int8' forbids this." if low == "int8" else ""
    if 2 * matmuls > len(not_low):
        why = "With weak typing TensorRT runs a transformer's MatMuls in float (NVIDIA/TensorRT issues 2441 and 2658)."
    return (" ".join(filter(None, (f"{ran_low(layers, trial)}: {'; '.join(where)}.", why, _QDQ))),)


def ran_low(layers: Mapping[int, Layer | LayerRow], trial: Trial) -> str:
    """Returns how many of a plan's low layers ran in low precision, as text: ``7 of 9 layers ran in INT8``."""
    plan = _plan_of(trial)
    low, lowered = str(plan.low), plan.lowered & layers.keys()
    return f"{sum(trial.ran.get(k) == low for k in lowered)} of {len(lowered)} layers ran in {low.upper()}"


def float_kernel_notes(network: Network, full: Trial, restored: Trial, latencies: Latencies | None) -> list[Note]:
    """Returns notes on layers that round to the low precision but compute in float, under full INT8 (``full``) and the
    recipe (``restored``). ``latencies``: None if not measured.
    """
    low, notes = str(network.low.precision), []
    for name, trial in {restored.plan: ("recipe", restored), full.plan: ("int8", full)}.values():
        timed = (latencies or {}).get(name)
        computed = {} if timed is None else timed.computed
        rounded = [k for k in network.quantizable if trial.ran.get(k) == low]
        others = {k: computed.get(network.layers[k].name, low) for k in rounded}
        floats = [k for k, kernel in others.items() if kernel not in (low, *UNPROVEN)]
        # TensorRT fused their Q/DQ pairs into a float kernel.
        if floats:
            plan = "the recipe" if name == "recipe" else f"full {network.low.title}"
            kinds = " and ".join(sorted({others[k].upper() for k in floats}))
            text = (
                f"in {plan}, kernels in {kinds} compute {len(floats)} of {len(rounded)} layers, which round like "
                f"{network.low.title} without a gain in speed: {_names(network.layers, floats)}"
            )
            notes.append(Note(FLOAT_KERNELS, text, tuple(network.layers[k].name for k in floats)))
    return notes


def _plan_of(trial: Trial) -> PrecisionPlan:
    return PrecisionPlan.from_key(TrialKey.from_text(trial.plan).plan)


def obedience_notes(network: Network, trials: Iterable[Trial], deciding: Mapping[int, Trial | None]) -> list[Note]:
    """Returns notes on precisions that engines did not obey or do not report.

    ``deciding``: by a culprit's layer index, the trial that makes it a culprit; None if not known.
    """
    tried = [trial for trial in trials if trial.ran and TrialKey.from_text(trial.plan).has_plan]
    shown = {culprit: trial for culprit, trial in deciding.items() if trial is not None}
    of_culprits = (note for culprit, trial in shown.items() for note in _deciding_notes(network, culprit, trial))
    return noted(OBEDIENCE, [*_disobeyed_notes(network, tried), *_unproven_notes(network, tried), *of_culprits])


def dla_notes(network: Network, full: Trial) -> list[Note]:
    """Returns a note on the layers that the DLA ran in full INT8; empty if it ran none."""
    took = [k for k in network.quantizable if full.ran.get(k) == ON_DLA]
    fell_back = [k for k in network.quantizable if k in full.ran and full.ran[k] != ON_DLA]
    if not took:
        return []
    on_gpu = f"; {_names(network.layers, fell_back)} ran on the GPU" if fell_back else ""
    text = f"in full INT8 the DLA took {len(took)} of {len(network.quantizable)} layers that can be in INT8{on_gpu}"
    return [Note(DLA, text)]


def _disobeyed_notes(network: Network, tried: Sequence[Trial]) -> Iterator[str]:
    counts = Counter((k, *change) for trial in tried for k, change in disobeyed(network, trial).items())
    named = [
        f"'{network.layers[k].name}' was asked for {precision} and ran in {ran} ({count} of {len(tried)} trials)"
        for (k, precision, ran), count in counts.most_common(NAMED)
    ]
    more = f", and {len(counts) - NAMED} more" if len(counts) > NAMED else ""
    if named:
        yield f"the engine did not obey every precision: {'; '.join(named)}{more}"


def _unproven_notes(network: Network, tried: Sequence[Trial]) -> Iterator[str]:
    of_trials = [unproven(network, trial) for trial in tried]
    for reason, why in _WHY_UNPROVEN.items():
        layers = sorted({k for of_trial in of_trials for k, shown in of_trial.items() if shown == reason})
        count = sum(reason in of_trial.values() for of_trial in of_trials)
        if layers:
            names = _names(network.layers, layers)
            yield f"in {count} of {len(tried)} trials the precision of {names} is unproven: {why}"


def _deciding_notes(network: Network, culprit: int, trial: Trial) -> Iterator[str]:
    name, differing = network.layers[culprit].name, disobeyed(network, trial)
    if differing:
        others = ", ".join(f"'{network.layers[k].name}' in {ran}" for k, (_, ran) in list(differing.items())[:NAMED])
        yield (
            f"the engine did not obey the trial that makes '{name}' a culprit: it ran "
            f"{others}; '--typing weak-int8' or strong typing is stricter"
        )
    if culprit in unproven(network, trial):
        yield f"in the trial that makes '{name}' a culprit, the precision of the layer is unproven"


def _names(layers: Mapping[int, Layer | LayerRow] | Sequence[Layer], indices: Collection[int]) -> str:
    return listed([layers[k].name for k in indices], NAMED)
