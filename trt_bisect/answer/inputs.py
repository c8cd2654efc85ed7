"""The inputs that the answer is measured on: all that were given, and those that the search never sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from trt_bisect.analyzer.doubts import constant_outputs
from trt_bisect.builder.base import Outputs
from trt_bisect.data.array_files import Spill
from trt_bisect.data.datasets import digest_of_feeds
from trt_bisect.data.feeds import Feeds
from trt_bisect.evaluator.each_input import GivenInputs
from trt_bisect.model.session import give_back_arena
from trt_bisect.preparation.experiment import Experiment, Setup
from trt_bisect.support.text import DATA, OUTPUTS, Note, noted


@dataclass(frozen=True)
class AnswerInputs:
    """The inputs of the answer.

    Attributes:
        given: all inputs given; the first ones are those that the curve is judged on.
        counting: the places of those that count; on the others FP32's output is almost zero.
        first: the places of the inputs that the curve is judged on.
        spill: keeps what does not fit in memory.
    """

    given: GivenInputs
    counting: tuple[int, ...]
    first: tuple[int, ...]
    spill: Spill


@contextmanager
def answer_inputs(setup: Setup, experiment: Experiment) -> Iterator[AnswerInputs]:
    """Runs FP32 on all inputs given that it was not run on before.

    Args:
        setup: the setup of ``experiment``.
        experiment: gives the inputs; those that its curve is judged on come first.

    Raises:
        BadInput: a sample cannot be used.
        TrialFailed: FP32 does not run on an input.
    """
    with Spill(setup.options.memory_bytes // 2) as spill:
        feeds, names = _distinct(experiment, spill)
        known, others = experiment.references, feeds[len(experiment.references) :]
        if others:
            setup.progress.stage("FP32 on all inputs", len(others))
        references = [*known, *_references(setup, experiment, others, spill)]
        setup.notes += noted(OUTPUTS, constant_outputs(experiment.rule, references)[1])
        given = GivenInputs(feeds, references, [name for _, name in names], [source for source, _ in names])
        counting = _counting(experiment, given)
        give_back_arena()
        yield AnswerInputs(given, counting, tuple(range(len(experiment.feeds))), spill)


def _distinct(experiment: Experiment, spill: Spill) -> tuple[list[Feeds], list[tuple[str, str]]]:
    """The inputs without repetitions; for each the name of its data set, and its own."""
    source = experiment.about.source
    places = experiment.about.places or range(len(experiment.feeds))
    feeds = list(experiment.feeds)
    label = {data.source: data.label for data in experiment.more}.get(source, f"{source} {{}}".format)
    names = [(source, label(index)) for index in places]
    known = {digest_of_feeds(sample) for sample in feeds}
    for data in experiment.more:
        for position, sample in enumerate(data):
            digest = digest_of_feeds(sample)
            if digest not in known:
                known.add(digest)
                feeds.append(spill.kept(sample))
                names.append((data.source, data.label(data.place(position))))
    return feeds, names


def _references(setup: Setup, experiment: Experiment, feeds: Sequence[Feeds], spill: Spill) -> list[Outputs]:
    references: list[Outputs] = []
    if not feeds:
        return references
    with setup.reference_engine(experiment.builder) as engine:
        for input_index, sample in enumerate(feeds):
            setup.progress.step(f"input {input_index}")
            references.append(spill.kept(engine.infer(sample)))
    return references


def _counting(experiment: Experiment, given: GivenInputs) -> tuple[int, ...]:
    """The places of the inputs on which an output counts: FP32's is not almost zero."""
    compare = experiment.comparison_with(given.references, deciding=True)
    places = range(len(given))
    judged = experiment.rule.judged_of
    return tuple(k for k in places if judged(compare.at(k, given.references[k]))) or tuple(places)


def unseen_inputs(setup: Setup, experiment: Experiment, inputs: AnswerInputs) -> GivenInputs | None:
    """Runs FP32 on the inputs that neither calibration nor search sees.

    Those equal to given ones, or to samples of the calibration, do not count, and are noted.

    Returns:
        None if there are none.
    """
    unseen, holdout = setup.data.unseen, setup.data.holdout
    if unseen is None or holdout is None:
        return None
    given = set(map(digest_of_feeds, inputs.given.feeds)).union(holdout.kept.digests if holdout.named else ())
    new: dict[str, tuple[int, Feeds]] = {}
    copies = 0
    for position, sample in enumerate(unseen):
        digest = digest_of_feeds(sample)
        copies += digest in given
        if digest not in given and digest not in new:
            new[digest] = position, inputs.spill.kept(sample)
    if copies:
        text = f"{copies} held-out samples of {unseen.source} equal other samples, and do not count"
        setup.notes.append(Note(DATA, text))
    if not new:
        return None
    setup.progress.stage("FP32 on held-out inputs", len(new))
    feeds = [sample for _, sample in new.values()]
    labels = [unseen.label(unseen.place(position)) for position, _ in new.values()]
    references = _references(setup, experiment, feeds, inputs.spill)
    return GivenInputs(feeds, references, labels, [unseen.source] * len(labels))
