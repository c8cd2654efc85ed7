"""A pass on similarity is doubted where the figures speak against it."""

import json

import numpy as np
import pytest

from trt_bisect.analyzer.doubts import (
    CLIPPED,
    CONSTANT,
    DISAGREE,
    ELSEWHERE,
    FROM_NOTHING,
    SHORT,
    VANISHED,
    constant_outputs,
    doubts,
    is_destroyed,
)
from trt_bisect.analyzer.judge import compare_arrays, make_rule
from trt_bisect.analyzer.metrics import AGREEMENT, BUILT_IN
from trt_bisect.evaluator.trial import MEASURED, OutputFigures, Trial

RULE = make_rule(BUILT_IN["cosine"], 0.9)


def on(reference, output):
    """The trial of outputs stacked on the first axis, one input each."""
    return Trial("", MEASURED, {"y": compare_arrays(list(reference), list(output), BUILT_IN)})


def kinds(reference, output, rule=RULE):
    return [doubt.kind for doubt in doubts(rule, on(reference, output))]


def rounded(values, scale):
    """INT8 as TensorRT rounds."""
    return np.clip(np.round(values / scale), -128, 127) * scale


def test_int8_with_a_good_range_raises_no_doubt(random):
    for make in (
        lambda: random.normal(size=(5, 1, 64, 40)),
        lambda: random.normal(0, 4, (20, 1, 10)),
        lambda: 1 / (1 + np.exp(-random.normal(0, 3, (3, 1, 6, 50)))),
    ):
        reference = make()
        largest = np.abs(reference).max()
        assert kinds(reference, rounded(reference, largest / 127)) == []
        assert kinds(reference, rounded(reference, 0.95 * largest / 127)) == []


def test_values_cut_off_at_the_largest_int8_value(random):
    """All values above 0.7 are clipped to it; 0.256 of a sigmoid is the issue's own case."""
    reference = random.uniform(0, 1, (4, 1, 20, 30))
    output = rounded(reference, 0.7 / 127)
    figures = compare_arrays(list(reference), list(output), BUILT_IN)
    large = reference >= 0.5 * reference.max()
    assert figures.reach == pytest.approx(0.7 / reference.max())
    assert figures.clipped == pytest.approx((reference > 1.05 * output.max()).sum() / large.sum())
    assert kinds(reference, output) == [CLIPPED]


def test_one_value_beyond_the_range_among_thousands_is_no_doubt(random):
    reference = np.minimum(random.uniform(0, 1, (1, 1, 5000)), 0.9)
    reference[0, 0, 7] = 1.05
    assert kinds(reference, rounded(reference, 0.93 / 127)) == []


def test_an_output_that_never_comes_near_its_largest_value(random):
    reference = random.normal(size=(4, 1, 20, 30))
    largest = np.abs(reference).max()
    for share, expected in ((0.7, [SHORT]), (0.85, [])):
        beyond = np.abs(reference) > share * largest
        output = np.where(beyond, share * largest * random.uniform(0.8, 1, reference.shape), reference)
        assert kinds(reference, output) == expected


DEAD, ALIVE, OTHER = np.zeros((1, 5), np.float32), *np.random.default_rng(0).normal(size=(2, 1, 5)).astype("f")
FIXED = {
    "dead": ([{"y": DEAD}], 1, 0),
    "alive": ([{"y": ALIVE}], 0, 0),
    "the same twice": ([{"y": ALIVE}, {"y": ALIVE.copy()}], 1, 0),
    "two": ([{"y": ALIVE}, {"y": OTHER}], 0, 0),
    "dead once": ([{"y": DEAD}, {"y": OTHER}], 0, 0),
    "the same class": ([{"y": each, "label": np.array([0])} for each in (ALIVE, OTHER)], 0, 1),
    "a class alone": ([{"label": np.array([0])}] * 2, 1, 0),
    "a class once": ([{"label": np.array([0])}], 0, 0),
    "a mask": ([{"mask": np.array([[False]])}] * 2, 1, 0),
    "one of two classes": ([{"label": np.array([2]), "z": np.array([k])} for k in range(2)], 0, 1),
    "the judged one of two classes": ([{"y": np.array([2]), "z": np.array([k])} for k in range(2)], 1, 0),
    "no row": ([{"y": DEAD[:0]}], 1, 0),
    "no row of integers": ([{"y": np.zeros((0, 3), np.int64)}] * 2, 1, 0),
    "no row once": ([{"y": DEAD[:0]}, {"y": DEAD + 1}], 0, 0),
    "one of two": ([{"y": each, "x": DEAD} for each in (ALIVE, OTHER)], 0, 1),
    "the judged one of two": ([{"y": DEAD, "x": each} for each in (ALIVE, OTHER)], 1, 0),
}


@pytest.mark.parametrize("case", FIXED)
def test_fp32_outputs_that_do_not_depend_on_the_input(case):
    references, doubted, noted = FIXED[case]
    outputs = ["y"] if "judged" in case else []
    found, notes = constant_outputs(make_rule(BUILT_IN["cosine"], 0.9, outputs=outputs), references)
    assert ([doubt.kind for doubt in found], len(notes)) == ([CONSTANT] * doubted, noted)
    assert all(("has no values" in doubt.text) is ("no row" in case) for doubt in found)


def test_an_output_with_noise_as_large_as_itself_and_the_right_class_is_not_destroyed(random):
    """The noise lowers all values but the largest, to an SQNR of 0 dB."""
    reference = random.normal(size=(6, 10))
    reference[range(6), range(6)] += 8.0
    noise = np.abs(random.normal(size=(6, 10)))
    noise[range(6), range(6)] = 0.0
    noise *= np.linalg.norm(reference, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    trial = on(reference, reference - noise)
    assert is_destroyed(RULE, trial)
    assert not is_destroyed(make_rule(BUILT_IN["top1"], 0.99), trial)


def shares(classes, sure, count=5):
    """Rows of probabilities: ``sure`` for the class of the row, the rest is spread."""
    rows = np.full((len(classes), count), (1 - sure) / (count - 1))
    rows[np.arange(len(classes)), classes] = sure
    return rows


@pytest.mark.parametrize(("error", "found"), [(0.2, []), (0.3, [FROM_NOTHING])])
def test_values_on_inputs_on_which_fp32_has_none(random, error, found):
    """Three of eight inputs are background; the others keep their values, of norm 4."""
    reference = random.normal(size=(8, 50))
    reference *= 4.0 / np.linalg.norm(reference, axis=1, keepdims=True)
    reference[[1, 4, 6]] = 0.0
    output = reference.copy()
    output[4, 7] = 4.0 * error
    assert kinds(reference, output) == found
    text = [doubt.text for doubt in doubts(RULE, on(reference, output))]
    assert all("an error of 30% of FP32's median norm" in line for line in text)


def test_infinite_values_on_an_input_without_others_give_no_doubt_and_no_warning_of_numpy(random, recwarn):
    reference = random.normal(size=(6, 50))
    reference[2] = 0.0
    reference[2, 3] = -np.inf
    assert kinds(reference, reference.copy()) == []
    assert not recwarn.list


@pytest.mark.parametrize(
    ("key", "mean", "found"), [("mean_oks", 0.76, []), ("mean_oks", 0.53, [ELSEWHERE]), ("mean_iou", 0.7, [ELSEWHERE])]
)
def test_detections_that_are_all_kept_and_lie_elsewhere(key, mean, found):
    trial = Trial("", MEASURED, {"task pose": OutputFigures({AGREEMENT.name: 1.0, key: mean})})
    assert [doubt.kind for doubt in doubts(make_rule(AGREEMENT, 0.99), trial)] == found


def test_a_class_that_int8_never_predicts():
    classes = np.arange(40) % 4
    reference = shares(classes, 0.9)[:, None]
    output = reference.copy()
    output[classes == 2] = shares(np.full(10, 1), 0.4)[:, None]
    rule = make_rule(BUILT_IN["cosine"], 0.3)
    found = doubts(rule, on(reference, output))
    assert [doubt.kind for doubt in found] == [VANISHED]
    assert "class 2:" in found[0].text
    output[classes.tolist().index(2)] = shares([2], 0.35)
    assert VANISHED not in kinds(reference, output, rule)


def test_a_class_with_a_close_call_does_not_vanish():
    classes = np.arange(40) % 4
    reference = shares(classes, 0.9)[:, None]
    reference[classes == 2] = [0.1, 0.35, 0.45, 0.05, 0.05]
    output = reference.copy()
    output[classes == 2] = [0.1, 0.45, 0.35, 0.05, 0.05]
    assert kinds(reference, output) == []


def test_a_single_pixel_of_a_class_does_not_count():
    reference = np.moveaxis(shares(np.zeros(400, int), 0.9).reshape(1, 1, 20, 20, 5), -1, 2).copy()
    reference[0, 0, :, 3, 3] = shares([4], 0.9)[0]
    output = reference.copy()
    output[0, 0, :, 3, 3] = shares([0], 0.9)[0]
    assert kinds(reference, output) == []


def test_metrics_that_disagree(random):
    """Noise as large as the signal, on an offset of 100 signals."""
    reference = random.normal(size=(3, 1, 400))
    (doubt,) = doubts(RULE, on(reference + 100, reference + 100 + random.normal(size=(3, 1, 400))))
    assert (doubt.kind, "offset" in doubt.text) == (DISAGREE, True)


def test_a_trial_that_misses_is_not_doubted(random):
    reference = random.normal(size=(3, 1, 40))
    assert doubts(RULE, on(reference, 0.5 * np.roll(reference, 1))) == ()


def test_the_journal_keeps_what_doubts_need_and_older_trials_have_none(random):
    reference = random.uniform(0, 1, (4, 1, 20, 30))
    trial = on(reference, rounded(reference, 0.7 / 127))
    read = Trial.from_json(json.loads(json.dumps(trial.to_json())))
    assert doubts(RULE, read) == doubts(RULE, trial) != ()
    old = trial.to_json()
    for name in ("reach", "clipped", "vanished"):
        del old["outputs"]["y"][name]
    assert doubts(RULE, Trial.from_json(old)) == ()
