"""Changes between reports, on invented figures."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from tests.support.records import EMPTY
from trt_bisect.analyzer.doubts import bound_of
from trt_bisect.builder.base import Latency
from trt_bisect.report.answer import Goal, RecipeLayers
from trt_bisect.report.changes import (
    MODEL_OR_OPSET,
    Change,
    Tolerances,
    changes,
    compared_part,
    differences,
    missed_targets,
    sentence,
)
from trt_bisect.report.parts import ByPlan, JudgedInputs, LayerRow

USUAL = Tolerances()


def layer(similarity=0.999, loss=0.0001, culprit=False, outcome="measured", obeyed=None):
    return LayerRow(0, "", "Conv", None, True, similarity, loss, culprit, outcome, "int8", "int8", obeyed)


def report(int8=0.999, recipe=0.999, metric="cosine", threshold=0.99, high=(), meets=True, latency=None, layers=None):
    named = {"a": layer(), "b": layer()} if layers is None else layers
    rows = tuple(replace(row, name=name) for name, row in named.items())
    timed = latency and {plan: value and Latency.of([value]) for plan, value in latency.items()}
    figures = {"similarity": ByPlan(int8, recipe), "recipe": RecipeLayers(high, meets=meets), "latency": timed}
    return replace(EMPTY, metric=metric, threshold=threshold, layers=rows, **figures)


def on_part(part):
    return replace(report(), inputs=JudgedInputs(part=part))


def keys(now, *runs, tolerances=USUAL):
    return [change.key for change in changes(now, runs, tolerances, "higher")]


WAS = {"a": layer(loss=0.001), "b": layer(loss=0.0049)}
GROWN = {"a": layer(loss=0.02, culprit=True), "b": layer(loss=0.0051, culprit=True)}
UNTRIED, UNBUILT = (layer(None, None, outcome=outcome) for outcome in ("not tried", "build failed"))
BLAMED = layer(None, None, culprit=True, outcome="not finite")
KEPT = {"int8": 0.5, "recipe": 0.9999, "high": ("a",)}
FIGURES = {
    "equal": ({}, [{}, {}], {}),
    "a new culprit lost more than in any repeat": (
        {"layers": GROWN}, [{"layers": WAS}], {("culprit", "worse", "a"): True},
    ),
    "a culprit that a repeat had": (
        {"layers": GROWN}, [{"layers": WAS}, {"layers": {**WAS, "a": layer(loss=0.02, culprit=True)}}], {},
    ),
    "no longer a culprit": ({"layers": WAS}, [{"layers": GROWN}], {("culprit", "better", "a"): False}),
    "a culprit without a figure": (
        {"layers": {"a": BLAMED}}, [{"layers": {"a": UNTRIED}}], {("culprit", "worse", "a"): True},
    ),
    "a layer's own figures explain": (
        {"layers": {"a": layer(0.995, 0.004)}}, [{"layers": {"a": layer(0.999, 0.0)}}],
        {("loss", "worse", "a"): False, ("curve", "worse", "a"): False},
    ),
    "a build fails, another one no longer": (
        {"layers": {"a": UNBUILT, "b": layer()}}, [{"layers": {"a": layer(), "b": UNBUILT}}],
        {("outcome", "worse", "a"): True, ("outcome", "better", "b"): False},
    ),
    "a build that failed in a repeat": (
        {"layers": {"a": UNBUILT}}, [{"layers": {"a": layer()}}, {"layers": {"a": UNBUILT}}], {},
    ),
    "not tried is no failure": ({"layers": {"a": UNTRIED}}, [{"layers": {"a": layer()}}], {}),
    "the same recipe": ({**KEPT, "recipe": 0.991}, [KEPT], {("similarity", "worse", "recipe"): True}),
    "another recipe": ({**KEPT, "recipe": 0.991, "high": ("b",)}, [KEPT], {("recipe", "told", "recipe"): False}),
    "a recipe that misses": (
        {**KEPT, "recipe": 0.98, "high": ("a", "b"), "meets": False}, [KEPT], {("recipe", "worse", "recipe"): True},
    ),
    "within the threshold": ({"int8": 0.9985}, [{"int8": 0.9988}], {}),
    "a stricter threshold allows less": (
        {"int8": 0.9985, "threshold": 0.999}, [{"int8": 0.9988}], {("similarity", "worse", "int8"): True},
    ),
    "layers come and go": (
        {"layers": {"b": layer(), "c": layer()}}, [{}], {("layer", "told", "c"): False, ("layer", "told", "a"): False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FIGURES)
def test_what_has_changed_and_what_of_it_fails_a_night(case):
    now, before, expected = FIGURES[case]
    found = changes(report(**now), [report(**figures) for figures in before], USUAL, "higher")
    assert {change.key: change.fails() for change in found} == expected
    assert [change.now for change in found if change.kind == "layer"] in ([], ["new", "gone"])
    assert not any(change.fails(accepted=True) for change in found)


def bounded(counts):
    return replace(report(), bound=None if counts is None else bound_of(*counts))


@pytest.mark.parametrize(("key", "made", "now", "before", "effect"), [
    *(("part", on_part, *row) for row in [
        ("", [""], ""), ("a part", ["a part"], ""), ("a part", [""], "worse"), ("another", ["a part"], "worse"),
        ("", ["it"], "better"),
    ]),
    *(("bound", bounded, *row) for row in [
        ((100, 1), [(100, 0)], ""),  # one more miss may be an input near the threshold
        ((100, 2), [(100, 0)], "worse"),
        ((60, 0), [(100, 0)], "worse"),  # 4.87 %, beyond the 4.66 % of one miss in 100
        ((80, 0), [(100, 0)], ""), ((100, 2), [(100, 0), (100, 2)], ""), ((100, 3), [(100, 4)], ""),
        ((300, 0), [(100, 0)], "better"), ((5, 5), [(5, 5)], ""), (None, [(100, 0)], "worse"),
        (None, [(100, 0), None], ""), ((100, 9), [None], ""), (None, [None], ""),
    ]),
])  # fmt: skip
def test_another_part_or_bound_fails_until_it_is_accepted(key, made, now, before, effect):
    """A part of the network can be better than the whole. A bound on held-out inputs moves by more than a miss."""
    found = changes(made(now), [*map(made, before)], USUAL, "higher")
    assert [change.key for change in found] == ([(key, effect, "network")] if effect else [])
    assert [change.fails() for change in found] == ([effect == "worse"] if effect else [])
    assert not any(change.fails(accepted=True) for change in found)


def test_the_bound_is_part_of_what_is_compared_and_its_change_a_sentence():
    before, now = (compared_part(replace(report(), bound=bound_of(100, missed))) for missed in (0, 4))
    (change,) = changes(now, [before], USUAL, "higher")
    assert sentence(change, "cosine") == "the bound on held-out inputs that miss is worse: 8.92%, was 2.95%"


@pytest.mark.parametrize(
    ("now", "before", "effect"),
    [
        (0.9979, [0.999], "worse"),  # the threshold allows 0.01, a tenth of it is 0.001
        (0.9981, [0.999], ""),
        (0.9999, [0.999], ""),
        (1.0, [0.9989], "better"),
        (0.996, [0.999, 0.998, 0.9985], "worse"),  # beyond 0.998 by more than the tenth
        (0.994, [0.999, 0.995], ""),  # the repeats themselves differ by 0.004
        (0.9909, [0.999, 0.995], "worse"),
        (None, [0.999], "worse"),
        (None, [0.999, None], ""),
        (0.999, [None, None], "better"),
        (None, [None], ""),
    ],
)
def test_a_similarity_moves_when_it_leaves_the_range_by_more_than_the_pad(now, before, effect):
    found = keys(report(int8=now), *(report(int8=value) for value in before))
    assert found == ([("similarity", effect, "int8")] if effect else [])


@pytest.mark.parametrize(
    ("metric", "threshold", "before", "now", "effect"),
    [
        ("mse", 1.0, 0.5, 0.7, "worse"),
        ("mse", 1.0, 0.5, 0.3, "better"),
        ("mse", 1.0, 0.5, 0.55, ""),
        ("sqnr", 20.0, 25.0, 23.0, "worse"),  # noise over signal 0.0032 and 0.0050, of 0.01 allowed
        ("sqnr", 20.0, 25.0, 27.0, "better"),
        ("sqnr", 20.0, 60.0, 50.0, ""),  # 10 dB less of noise that nobody hears
    ],
)
def test_better_and_worse_are_the_metrics(metric, threshold, before, now, effect):
    runs = [report(before, before, metric, threshold)]
    found = keys(report(now, before, metric, threshold), *runs)
    assert found == ([("similarity", effect, "int8")] if effect else [])


@given(st.lists(st.floats(0.5, 1.0), min_size=1, max_size=4), st.floats(0.5, 1.0), st.floats(0.01, 2.0))
def test_what_a_repeat_has_shown_is_never_a_change(values, now, tolerance):
    runs = [report(int8=value) for value in values]
    found = keys(report(int8=now), *runs, tolerances=Tolerances(similarity=tolerance))
    if min(values) <= now <= max(values):
        assert found == []
    if now < min(values) - 0.01 * tolerance - (max(values) - min(values)) - 1e-9:
        assert found == [("similarity", "worse", "int8")]


def test_a_latency_moves_by_more_than_its_tolerance():
    def timed(**milliseconds):
        return report(latency=milliseconds)

    before = [timed(fp32=4.0, int8=1.0), timed(fp32=4.0, int8=1.02)]
    assert keys(timed(fp32=4.19, int8=1.069), *before) == []
    assert keys(timed(fp32=4.21, int8=1.071), *before) == [("latency", "worse", "fp32"), ("latency", "worse", "int8")]
    assert keys(timed(fp32=4.0, int8=0.9), *before) == [("latency", "better", "int8")]
    assert keys(timed(fp32=4.0, int8=None), *before) == [("latency", "worse", "int8")]
    assert keys(report(), *before) == keys(timed(int8=1.0), report()) == []


@pytest.mark.parametrize(("before", "now", "effect"), [
    ([True], False, "worse"), ([True, True], False, "worse"), ([True, False], False, ""), ([None], False, ""),
    ([True], None, ""), ([False], True, "better"), ([True], True, ""),
])  # fmt: skip
def test_a_precision_that_is_no_longer_obeyed(before, now, effect):
    runs = [report(layers={"a": layer(obeyed=value)}) for value in before]
    found = keys(report(layers={"a": layer(obeyed=now)}), *runs)
    assert found == ([("obeyed", effect, "a")] if effect else [])


def test_targets_hold_whatever_the_baseline_says():
    assert missed_targets(report(0.98), {"int8": 0.98}, "higher") == ()
    assert Change("target", "worse", "int8", (0.9,), 0.5).fails(accepted=True)
    assert missed_targets(report(0.97), {"int8": 0.98, "recipe": 0.99}, "higher") == (
        Change("target", "worse", "int8", (0.98,), 0.97),
    )
    assert [c.now for c in missed_targets(report(None), {"int8": 0.5}, "higher")] == [None]
    assert missed_targets(report(0.4, metric="mse", threshold=1.0), {"int8": 0.5}, "higher") == ()
    assert len(missed_targets(report(0.6, metric="mse", threshold=1.0), {"int8": 0.5}, "higher")) == 1


MADE_OF = {
    "model": "aaaaaaaaaaaa", "ranges": "b" * 64, "inputs": ["c" * 64, "d" * 64], "engine": "tensorrt",
    "typing": "weak", "force_int8": False, "metric": "",
    "versions": {"tensorrt": "10.3", "device": "Orin", "driver": "CUDA 12.6", "trt_bisect": "0.1.0"},
}  # fmt: skip


def made_of(parts, **settings):
    return replace(report(), made_of=parts, **settings)


@pytest.mark.parametrize(("parts", "settings", "told"), [
    ({"model": "eeeeeeeeeeee"}, {}, ("model", "aaaaaaaa", "eeeeeeee")),
    ({"inputs": ["c" * 64]}, {}, ("data (the judged inputs)", "cccccccc and 1 more", "cccccccc")),
    ({"versions": {**MADE_OF["versions"], "tensorrt": "10.7"}}, {}, ("TensorRT", "10.3", "10.7")),
    ({"versions": {**MADE_OF["versions"], "device": "Thor"}}, {}, ("GPU or processor", "Orin", "Thor")),
    ({"versions": {**MADE_OF["versions"], "driver": "CUDA 13"}}, {}, ("driver", "CUDA 12.6", "CUDA 13")),
    ({"force_int8": True}, {}, ("option force-int8", "False", "True")),
    ({"metric": "f" * 64}, {}, ("the metric's function", "none", "ffffffff")),
    ({}, {"threshold": 0.9}, ("option threshold", "0.99", "0.9")),
    # The fingerprint has none of these: no engine changes.
    ({}, {"goal": Goal(costs="time on H200")}, ("costs", "multiply-adds", "time on H200")),
    ({}, {"goal": Goal(most=0.05)}, ("option budget", "none", "5%")),
    ({}, {"goal": Goal(drop="1%")}, ("option drop", "none", "1%")),
])  # fmt: skip
def test_what_differs_is_named(parts, settings, told):
    (found,) = differences(made_of(MADE_OF), made_of({**MADE_OF, **parts}, **settings))
    assert (found.what, found.before, found.now) == told


def test_a_file_that_was_read_for_another_base_may_be_the_same():
    """FP16 around INT8 needs opset 19, and the file may have 17."""
    found = differences(made_of(MADE_OF), made_of({**MADE_OF, "base": "fp16", "model": "eeee"}))
    assert {each.what for each in found} == {MODEL_OR_OPSET, "option base"}


def test_what_differs_is_not_known_of_older_reports():
    now = made_of(MADE_OF)
    assert differences(made_of({}), now) is None
    assert differences(now, made_of({})) is None
    assert differences(made_of({"model": "a", "versions": None}), made_of({"model": "a", "versions": {}})) == ()
    assert differences(now, made_of(MADE_OF)) == ()
