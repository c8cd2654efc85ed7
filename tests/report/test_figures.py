"""Numbers as text: no exponent where a reader expects none."""

import pytest

from trt_bisect.analyzer.metrics import ACCURACY, figure_text, threshold_text
from trt_bisect.support.text import counted, duration, listed, number, percent

PERCENTAGES = (
    (0.0, None, "0%"), (1.0, None, "100%"), (0.9971, None, "99.71%"), (0.99999, None, "99.999%"),
    (0.99997812, None, "99.9978%"), (0.99999999, None, ">99.9999%"), (0.0000001, None, "<0.0001%"),
    (0.00024, None, "0.024%"), (0.0022, None, "0.22%"), (0.299759, None, "29.98%"), (-0.0513311, None, "-5.13%"),
    (12.6, None, "1260%"), (0.98999, 0.99, "98.999%"), (0.989999, 0.99, "98.9999%"), (0.99, 0.99, "99%"),
    (0.9500004, 0.95, "95.00%"),
)  # fmt: skip


@pytest.mark.parametrize(("share", "threshold", "text"), PERCENTAGES)
def test_a_percentage_is_written_in_one_way_and_on_its_side_of_the_threshold(share, threshold, text):
    assert percent(share, threshold) == text


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [(ACCURACY, 0.8474, "84.74%"), (ACCURACY, 1.0, "100%"), (ACCURACY, -17.4517, "-17.4517"), (ACCURACY, 35.2, "35.2"),
     ("cosine", -0.2, "-20%")],
)  # fmt: skip
def test_an_accuracy_that_is_no_share_is_no_percentage(metric, value, text):
    assert figure_text(metric, value) == threshold_text(metric, value) == text


@pytest.mark.parametrize(("threshold", "text"), [(0.995, "99.5%"), (0.9999985, "99.99985%"), (0.90666667, "90.6667%")])
def test_a_threshold_near_all_is_not_rounded_to_what_misses_it(threshold, text):
    assert threshold_text("cosine", threshold) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.42, "0.4 s"), (47.3, "47 s"), (89, "89 s"), (90, "2 min"), (1234, "21 min"), (5400, "1.5 h"), (40000, "11 h")],
)
def test_a_time_has_the_unit_that_a_person_would_take(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("value", "digits", "text"), [
    (1020.4, 3, "1020"), (19361.0, 3, "19400"), (-8740.2, 4, "-8740"), (0.00012345, 3, "0.000123"),
    (0.00001234, 3, "1.23e-05"), (2.5e9, 3, "2.5e+09"), (0.0, 3, "0"), (None, 3, "-"), (float("nan"), 3, "nan"),
])  # fmt: skip
def test_a_number_has_an_exponent_only_where_it_is_very_small_or_very_large(value, digits, text):
    assert number(value, digits) == text


@pytest.mark.parametrize(
    ("names", "expected"),
    [([], ""), (["a"], "'a'"), (["a", "b"], "'a' and 'b'"), (["a", "b", "c"], "'a', 'b' and 'c'")],
)
def test_names_in_a_sentence(names, expected):
    assert listed(names, 3) == expected
    assert listed([*names, *"wxyz"], 2).endswith(f"and {len(names) + 2} more")


def test_counts():
    assert [counted(count, "layer") for count in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
