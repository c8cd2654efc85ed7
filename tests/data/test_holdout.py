"""Samples held out of a data set, and doors through which they must not come back."""

import numpy as np
import pytest

from trt_bisect import BadInput
from trt_bisect.data.datasets import hold_out, open_dataset, split
from trt_bisect.data.feeds import TensorSpec

SPECS = (TensorSpec("x", np.dtype(np.float32), (None, 1)),)


def numbered(count):
    """A data set whose samples hold their own number."""
    return open_dataset({"x": np.arange(count, dtype=np.float32).reshape(count, 1, 1)}, SPECS)


def numbers(data):
    return [int(feeds["x"].item()) for feeds in data]


def test_fewer_than_twenty_samples_and_a_share_of_nothing_hold_nothing_out():
    few, many = numbered(19), numbered(50)
    assert split(few, 0.2) == (few, None)
    assert split(many, 0.0) == (many, None)
    assert split(many, 0.01) == (many, None)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.3, 1 / 3, 0.5, 0.7, 0.9])
def test_the_parts_are_the_whole_and_know_their_places(share):
    count = 137
    kept, unseen = split(numbered(count), share)
    assert sorted(numbers(kept) + numbers(unseen)) == list(range(count))
    assert (kept.length, unseen.length) == (len(numbers(kept)), len(numbers(unseen)))
    assert abs(unseen.length - share * count) < 1.0
    for part in (kept, unseen):
        assert [part.place(position) for position in range(part.length)] == numbers(part)
    gaps = np.diff(numbers(unseen))
    assert gaps.max() - gaps.min() <= 1  # spread evenly: no block is left out


def test_a_function_whose_samples_must_be_counted_is_split_as_an_array_is():
    def samples():
        return ({"x": np.full((1, 1), n, np.float32)} for n in range(23))

    kept, unseen = split(open_dataset(samples, SPECS), 0.2)
    assert numbers(kept) == [n for n in range(23) if n % 5 != 4]
    assert numbers(unseen) == [4, 9, 14, 19]
    assert numbers(unseen) == [4, 9, 14, 19]  # each iteration starts anew
    assert kept.length == 19
    assert kept.digest() == split(numbered(23), 0.2)[0].digest()


def test_a_sample_is_named_by_its_place_in_the_users_data():
    bad = np.zeros((30, 1, 1), np.float32)
    bad[5] = np.nan
    with pytest.raises(BadInput, match=r"sample 5\b"):
        split(open_dataset({"x": bad}, SPECS), 0.2)


def test_of_equal_samples_the_first_one_counts():
    """Four samples, six times each, make no 24; of 25, each twice, every fifth is held out and has no copy."""
    few = open_dataset({"x": np.tile(np.arange(4, dtype=np.float32), 6).reshape(24, 1, 1)}, SPECS)
    assert split(few, 0.2) == (few, None)
    twice = open_dataset({"x": np.repeat(np.arange(25, dtype=np.float32), 2).reshape(50, 1, 1)}, SPECS)
    held = hold_out(twice, 0.2, None)
    assert numbers(held.held_out) == [4, 9, 14, 19, 24]
    assert numbers(held.kept) == [n for n in range(25) if n % 5 != 4]
    assert [held.held_out.place(position) for position in range(5)] == [8, 18, 28, 38, 48]
    (note,) = held.notes()
    assert "25 samples" in note
    assert "5 of 25 samples" in note


def test_the_calibration_data_as_judged_data_lacks_what_is_held_out():
    held = hold_out(numbered(40), 0.2, None)
    assert held.without_held_out(numbered(40)) is held.kept
    other = numbered(41)
    assert held.without_held_out(other) is other
    assert "8 of 40 samples" in held.notes()[0]


def test_validation_data_holds_nothing_out_and_must_be_other_data():
    held = hold_out(numbered(40), 0.2, numbered(25))
    assert held.kept.length == 40
    assert held.held_out.length == 25
    assert held.notes() == []
    with pytest.raises(BadInput, match="used for calibration"):
        hold_out(numbered(40), 0.2, numbered(40))
    with pytest.raises(BadInput, match="used for calibration"):
        held.without_held_out(numbered(25))
