"""Comparison of the precisions that plans requested with those that engines ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trt_bisect.evaluator.trial import Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan

NAMED = 5


def disobeyed(network: Network, trial: Trial) -> dict[int, tuple[str, str]]:
    """Returns, by layer index, the requested precision and the one that ran, where they differ.

    It makes no difference which engines the plan was measured on.
    """
    asked = PrecisionPlan.from_key(TrialKey.from_text(trial.plan).plan).precisions
    return {
        k: (str(asked[k]), trial.ran[k])
        for k in network.quantizable
        if k in trial.ran and trial.ran[k] != str(asked[k])
    }


def obedience_notes(network: Network, trials: Iterable[Trial], deciding: Mapping[int, Trial | None]) -> list[str]:
    """Returns the notes on trials whose precisions were not obeyed; empty if there are none.

    Args:
        network: the network.
        trials: all trials of the run.
        deciding: for each culprit, the trial that shows it to be one.
    """
    tried = [trial for trial in trials if trial.ran]
    wrong = [found for found in (disobeyed(network, trial) for trial in tried) if found]
    if not wrong:
        return []
    counted = Counter((k, *change) for found in wrong for k, change in found.items())
    named = [
        f"'{network.layers[k].name}' was asked for {asked} and ran in {ran} ({count} of {len(tried)} trials)"
        for (k, asked, ran), count in counted.most_common(NAMED)
    ]
    more = f", and {len(counted) - NAMED} more" if len(counted) > NAMED else ""
    notes = [f"the engine did not obey every precision: {'; '.join(named)}{more}"]
    for culprit, trial in deciding.items():
        found = disobeyed(network, trial) if trial is not None else {}
        if found:
            others = ", ".join(f"'{network.layers[k].name}' in {ran}" for k, (_, ran) in list(found.items())[:NAMED])
            notes.append(
                f"the engine did not obey the trial that makes '{network.layers[culprit].name}' a culprit: it ran "
                f"{others}; '--force-int8' or strong typing is stricter"
            )
    return notes
