"""The seed's loop: one plan a quantizable layer, each culprit kept high before the next layer is judged."""

from __future__ import annotations

from dataclasses import replace

from trt_bisect.driver.culprits.search import Findings, Question, Search, Standing, Step


def exhaustive(question: Question, watched: list[Step] | None = None) -> Search[Findings]:
    """Measures prefix(k) for every quantizable layer k.

    Where full INT8 is good no layer is a culprit. A layer whose plan cannot be measured is kept high, as a culprit is,
    so that the plans after it can be. A layer is held against the largest loss so far, not against the last one. The
    steps are added to ``watched`` as they are settled.
    """
    full = yield question.all_but(())
    judged = not question.meets(full)
    standing = Standing.at((yield question.prefix(-1)))
    steps: list[Step] = [] if watched is None else watched
    culprits: list[int] = []
    set_aside: list[int] = []
    for k in question.quantizable:
        plan = question.prefix(k, culprits + set_aside)
        loss = yield plan
        step = standing.step((k,), loss, plan)
        step = replace(step, culprit=judged and step.rise >= question.step)
        steps.append(step)
        if loss is None:
            set_aside.append(k)
        elif step.culprit:
            culprits.append(k)
        else:
            standing = standing.then(loss)
    return Findings(full, tuple(steps), tuple(culprits), tuple(set_aside))
