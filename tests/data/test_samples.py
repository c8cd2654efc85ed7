"""Samples as people have them, from lists, data loaders and rows, become the same feeds as plain arrays."""

from collections import UserDict

import numpy as np
import pytest
from PIL import Image

from trt_bisect import BadInput, open_dataset
from trt_bisect.data.feeds import TensorSpec

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
X = TensorSpec("x", F32, (1, 2, 3))
IDS, MASK = TensorSpec("ids", I64, (None, None)), TensorSpec("mask", I64, (None, None))
ROWS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)


class Tensor:
    """A stand-in for PyTorch's tensors: NumPy reads them only after ``detach`` and ``cpu``."""

    def __init__(self, array, ready=False):
        self.values, self.ready, self.shape = array, ready, array.shape

    def detach(self):
        return Tensor(self.values)

    def cpu(self):
        return Tensor(self.values, ready=True)

    def __array__(self, dtype=None, copy=None):
        assert self.ready, "Can't convert a tensor that requires grad, or is on a GPU"
        return self.values


class Loader:
    """A data loader as PyTorch's: batches as lists of tensors, the last one smaller, in another order each time."""

    dataset, batch_size = ROWS, 3

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        order = np.roll(np.arange(4), self.passes - 1)
        for begin in (0, 3):
            rows = ROWS[order[begin : begin + 3]]
            yield [Tensor(rows), Tensor(np.arange(len(rows)))]


class MapStyle:
    """A data set as PyTorch's: places and a length, no iterator."""

    def __len__(self):
        return 4

    def __getitem__(self, place):
        return Tensor(ROWS[place]), place  # raises no IndexError, as many do not


def generator():
    yield from ({"x": row} for row in ROWS)


FOUR = {
    "dictionaries": [{"x": row[None]} for row in ROWS], "without batch axis": [{"x": row} for row in ROWS],
    "with a label": [{"x": row, "label": 3} for row in ROWS], "mappings": [UserDict(x=row) for row in ROWS],
    "tuples": [(row, 7) for row in ROWS], "dictionary and label": [({"x": row}, 7) for row in ROWS],
    "arrays": list(ROWS), "tensors": [Tensor(row) for row in ROWS],
    "rows of lists": [{"x": row.tolist()} for row in ROWS], "batches": [{"x": ROWS[:2]}, {"x": ROWS[2:]}],
    "generator": generator(), "function": generator, "data loader": Loader(), "data set by place": MapStyle(),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOUR)
def test_the_same_four_samples(kind):
    data = open_dataset(FOUR[kind], (X,))
    for _ in range(2):
        found = [feeds["x"] for feeds in data]
        assert [x.shape for x in found] == [(1, 2, 3)] * 4
        np.testing.assert_array_equal(np.concatenate(found), ROWS)


def test_a_shuffling_loader_is_read_once():
    loader = Loader()
    data = open_dataset(loader, (X,))
    assert data.digest() == open_dataset([{"x": row} for row in ROWS], (X,)).digest()
    assert [feeds["x"][0, 0, 0] for feeds in data] == [0, 6, 12, 18]
    assert loader.passes == 1


def test_a_list_that_is_read_once_may_be_read_again():
    """``worst`` on NVIDIA engines does this: once for the shapes, once for the samples."""
    data = open_dataset([{"x": row} for row in ROWS], (X,), once=True)
    assert len(list(data)) == len(list(data)) == data.length == 4


def test_stacked_tensors():
    assert len(list(open_dataset({"x": Tensor(ROWS)}, (X,)))) == len(list(open_dataset(Tensor(ROWS), (X,)))) == 4


def test_rows_of_a_tokenizer():
    rows = [{"ids": [5, 6, 7], "mask": [1, 1, 0], "text": "some"}, {"ids": [5, 6], "mask": [1, 1], "text": "words"}]
    found = list(open_dataset(rows, (IDS, MASK)))
    assert [feeds["ids"].shape for feeds in found] == [(1, 3), (1, 2)]
    assert found[0]["mask"].tolist() == [[1, 1, 0]]
    assert found[0]["ids"].dtype == np.int64


def test_tuples_follow_the_order_of_the_inputs():
    [feeds] = open_dataset([(np.array([1, 2]), np.array([1, 1]), "label")], (IDS, MASK))
    assert feeds["ids"].tolist() == [[1, 2]]
    assert feeds["mask"].tolist() == [[1, 1]]


def test_rows_with_pictures():
    spec = TensorSpec("image", F32, (1, 3, 2, 2))
    rows = [{"image": Image.new("RGB", (4, 4), (255, 0, 51)), "label": 1}]
    [feeds] = open_dataset(rows, (spec,))
    np.testing.assert_allclose(feeds["image"][0, :, 0, 0], [1.0, 0.0, 0.2], rtol=1e-6)


def test_polygraphys_data_loader():
    from polygraphy.common import TensorMetadata
    from polygraphy.comparator import DataLoader

    loader = DataLoader(iterations=3, input_metadata=TensorMetadata().add("x", np.float32, (1, 2, 3)))
    assert len(list(open_dataset(loader, (X,)))) == 3


def test_a_label_in_place_of_an_input_is_refused():
    with pytest.raises(BadInput, match="sample 0"):
        list(open_dataset([(ROWS[0], 3)], (X, IDS)))


def test_a_column_of_another_name_is_told():
    with pytest.raises(BadInput) as refused:
        list(open_dataset([{"image": ROWS[0], "label": 1}], (X,)))
    assert "'x'" in str(refused.value)
    assert "'image'" in str(refused.value)
