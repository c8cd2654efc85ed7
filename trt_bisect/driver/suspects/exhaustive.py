"""The exhaustive search: one plan for each quantizable layer, each suspect kept high before the next is judged."""

from __future__ import annotations

from dataclasses import replace

from trt_bisect.driver.suspects.search import Findings, LossSoFar, Question, Search, Step


def exhaustive(question: Question, watched: list[Step] | None = None) -> Search[Findings]:
    """Measures prefix(k) for every quantizable layer k.

    No layer is a suspect if full INT8 is good. A layer whose plan cannot be measured is kept high like a suspect, so
    that the plans after it can be measured. A loss is compared with the largest one before, see ``LossSoFar``.

    Args:
        question: the network and the losses that are tolerated.
        watched: steps are added to it as soon as they are settled.
    """
    full = yield question.all_but(())
    judged = not question.meets(full)
    so_far = LossSoFar.at((yield question.prefix(-1)))
    steps: list[Step] = [] if watched is None else watched
    suspects: list[int] = []
    set_aside: list[int] = []
    for k in question.quantizable:
        plan = question.prefix(k, suspects + set_aside)
        loss = yield plan
        step = so_far.step((k,), loss, plan)
        step = replace(step, suspect=judged and step.rise >= question.step)
        steps.append(step)
        if loss is None:
            set_aside.append(k)
        elif step.suspect:
            suspects.append(k)
        else:
            so_far = so_far.then(loss)
    return Findings(full, tuple(steps), tuple(suspects), tuple(set_aside))
