"""Rule 5 of the design, asked is not done: where an engine ran a layer in another precision than its plan asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from trt_bisect.evaluator.trial import Trial
from trt_bisect.evaluator.trial_key import TrialKey
from trt_bisect.model.network import Network
from trt_bisect.precision import PrecisionPlan

NAMED = 5


def disobeyed(network: Network, trial: Trial) -> dict[int, tuple[str, str]]:
    """By index of the quantizable layers whose precision is known and not the plan's: what was asked, and what ran.

    It makes no difference which engines the plan was measured on.
    """
    asked = PrecisionPlan.from_key(TrialKey.from_text(trial.plan).plan).precisions
    return {
        k: (str(asked[k]), trial.ran[k])
        for k in network.quantizable
        if k in trial.ran and trial.ran[k] != str(asked[k])
    }


def obedience_notes(network: Network, trials: Iterable[Trial], deciding: Mapping[int, Trial | None]) -> list[str]:
    """What is to be said of trials whose precisions were not obeyed.

    Args:
        network: whose layers they are.
        trials: all of the run.
        deciding: by culprit, the trial that convicts it.
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
                f"the trial that convicts '{network.layers[culprit].name}' was not obeyed: it ran {others}; "
                "'--force-int8', or strong typing, asks more strictly"
            )
    return notes
