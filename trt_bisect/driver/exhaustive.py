"""The seed's loop: one plan a quantizable layer, each culprit kept high before the next layer is judged."""

from __future__ import annotations

from trt_bisect.driver.search import Findings, Question, Search, Step, added, standing


def exhaustive(question: Question, watched: list[Step] | None = None) -> Search[Findings]:
    """Measures prefix(k) for every quantizable layer k.

    Where full INT8 is good no layer is a culprit. A layer whose plan cannot be measured is kept high, as a culprit is,
    so that the plans after it can be. A layer is held against the largest loss so far, not against the last one. The
    steps are added to ``watched`` as they are settled.
    """
    full = yield question.all_but(())
    judged = not question.meets(full)
    before = yield question.prefix(-1)
    base = 0.0 if before is None else before
    steps: list[Step] = [] if watched is None else watched
    culprits: list[int] = []
    set_aside: list[int] = []
    for k in question.quantizable:
        plan = question.prefix(k, culprits + set_aside)
        loss = yield plan
        culprit = judged and loss is not None and added(base, loss) >= question.step
        steps.append(Step((k,), base, loss, plan, culprit))
        if loss is None:
            set_aside.append(k)
        elif culprit:
            culprits.append(k)
        else:
            base = standing(base, loss)
    return Findings(full, tuple(steps), tuple(culprits), tuple(set_aside))
