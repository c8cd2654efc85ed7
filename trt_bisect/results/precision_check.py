"""Comparison of the precisions that plans requested with those that engines ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from trt_bisect.builder.base import IN_REGION, ON_DLA, UNPROVEN
from trt_bisect.evaluator.trial import Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan

NAMED = 5
_NOT_TOLD = ""
_WHY_UNPROVEN = {
    IN_REGION: "the engine compiled them with others into one region, in which TensorRT may ignore what was asked for",
    ON_DLA: "they ran on the DLA, in INT8 or FP16",
    _NOT_TOLD: "the engine does not report them, or fused them with layers of another precision",
}


def disobeyed(network: Network, trial: Trial) -> dict[int, tuple[str, str]]:
    """Returns, by layer index, the requested precision and the one that ran, where they differ.

    It makes no difference which engines the plan was measured on. Layers of ``unproven`` are not among them.
    """
    asked = PrecisionPlan.from_key(TrialKey.from_text(trial.plan).plan).precisions
    return {
        k: (str(asked[k]), trial.ran[k])
        for k in network.quantizable
        if k in trial.ran and trial.ran[k] not in UNPROVEN and trial.ran[k] != str(asked[k])
    }


def unproven(network: Network, trial: Trial) -> dict[int, str]:
    """Returns, by layer index, one of ``UNPROVEN`` or an empty text for layers whose precision a trial does not show.

    None of a trial of which nothing is known: it failed, or its engine says nothing at all.
    """
    if not trial.ran:
        return {}
    ran = {k: trial.ran.get(k, _NOT_TOLD) for k in network.quantizable}
    return {k: said for k, said in ran.items() if said in _WHY_UNPROVEN}


def obedience_notes(network: Network, trials: Iterable[Trial], deciding: Mapping[int, Trial | None]) -> list[str]:
    """Returns the notes on trials whose precisions were not obeyed, or may not have been; empty if there are none.

    Args:
        network: the network.
        trials: all trials of the run.
        deciding: for each culprit, the trial that shows it to be one.
    """
    tried = [trial for trial in trials if trial.ran and TrialKey.from_text(trial.plan).has_plan]
    notes = [*_disobeyed_notes(network, tried), *_unproven_notes(network, tried)]
    for culprit, trial in deciding.items():
        notes += [] if trial is None else _deciding_notes(network, culprit, trial)
    return notes


def dla_notes(network: Network, full: Trial) -> list[str]:
    """Returns a note on the layers that the DLA took in full INT8, and on those that fell back to the GPU.

    Empty if it took none, or if the engine has no DLA.
    """
    took = [k for k in network.quantizable if full.ran.get(k) == ON_DLA]
    fell_back = [k for k in network.quantizable if k in full.ran and full.ran[k] != ON_DLA]
    if not took:
        return []
    rest = f"; {_names(network, fell_back)} ran on the GPU" if fell_back else ""
    return [f"in full INT8 the DLA took {len(took)} of {len(network.quantizable)} layers that can be in INT8{rest}"]


def _disobeyed_notes(network: Network, tried: Sequence[Trial]) -> list[str]:
    counted = Counter((k, *change) for trial in tried for k, change in disobeyed(network, trial).items())
    if not counted:
        return []
    named = [
        f"'{network.layers[k].name}' was asked for {asked} and ran in {ran} ({count} of {len(tried)} trials)"
        for (k, asked, ran), count in counted.most_common(NAMED)
    ]
    more = f", and {len(counted) - NAMED} more" if len(counted) > NAMED else ""
    return [f"the engine did not obey every precision: {'; '.join(named)}{more}"]


def _unproven_notes(network: Network, tried: Sequence[Trial]) -> list[str]:
    """Returns a note for each reason why the precision of layers is unproven, with the layers."""
    notes = []
    found = [unproven(network, trial) for trial in tried]
    for said, why in _WHY_UNPROVEN.items():
        layers = sorted({k for of_trial in found for k, one in of_trial.items() if one == said})
        count = sum(said in of_trial.values() for of_trial in found)
        if layers:
            names = _names(network, layers)
            notes.append(f"in {count} of {len(tried)} trials it is unproven in which precision {names} ran: {why}")
    return notes


def _deciding_notes(network: Network, culprit: int, trial: Trial) -> list[str]:
    name, found, unknown = network.layers[culprit].name, disobeyed(network, trial), unproven(network, trial)
    notes = []
    if found:
        others = ", ".join(f"'{network.layers[k].name}' in {ran}" for k, (_, ran) in list(found.items())[:NAMED])
        notes.append(
            f"the engine did not obey the trial that makes '{name}' a culprit: it ran "
            f"{others}; '--force-int8' or strong typing is stricter"
        )
    if culprit in unknown:
        notes.append(f"that '{name}' ran in INT8 in the trial that makes it a culprit is unproven")
    return notes


def _names(network: Network, layers: Collection[int]) -> str:
    named = ", ".join(f"'{network.layers[k].name}'" for k in [*layers][:NAMED])
    return f"{named} and {len(layers) - NAMED} more" if len(layers) > NAMED else named
