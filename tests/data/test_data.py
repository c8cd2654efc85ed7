"""Data sets from files, folders, functions and arrays, and the errors of bad ones."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from trt_bisect import BadInput, open_dataset
from trt_bisect.data.datasets import profile_of
from trt_bisect.data.feeds import TensorSpec

IMAGE = TensorSpec("image", np.dtype(np.float32), (1, 2, 3))
TOKENS = TensorSpec("ids", np.dtype(np.int64), (None, None))
ONE, BOTH = (IMAGE,), (IMAGE, TOKENS)


def image(*lead):
    return np.arange(np.prod([*lead, 2, 3]), dtype=np.float32).reshape(*lead, 2, 3)


@pytest.mark.parametrize("stacked", [image(4), image(4, 1)], ids=["on the batch axis", "on an axis of their own"])
def test_stacked_samples(stacked, tmp_path):
    np.savez(tmp_path / "d.npz", image=stacked)
    np.save(tmp_path / "d.npy", stacked)
    for file in ("d.npz", "d.npy"):
        found = [feeds["image"] for feeds in open_dataset(tmp_path / file, ONE)]
        assert [f.shape for f in found] == [(1, 2, 3)] * 4
        np.testing.assert_array_equal(np.concatenate(found), stacked.reshape(4, 2, 3))


def test_rows_that_fill_no_batch_are_left_out_with_a_note():
    """Of seven rows a network of batch three takes six."""
    spec = TensorSpec("x", np.dtype(np.float32), (3, 2))
    rows = np.arange(14, dtype=np.float32).reshape(7, 2)
    dataset = open_dataset({"x": rows}, [spec])
    assert [feeds["x"].tolist() for feeds in dataset] == [rows[:3].tolist(), rows[3:6].tolist()]
    together, note = dataset.notes
    assert "takes 3 rows of 'x' at a time, which are one input" in together
    (alone,) = open_dataset({"x": rows[:6]}, [spec]).notes
    assert alone == together
    assert open_dataset({"x": rows[:6].reshape(2, 3, 2)}, [spec]).notes == ()
    assert "1 row of 'x'" in note
    with pytest.raises(BadInput, match="2 rows"):
        open_dataset({"x": rows[:2]}, [spec])


def test_a_folder_with_one_file_a_sample(tmp_path):
    for i, length in enumerate((3, 5)):
        np.savez(tmp_path / f"{i}.npz", image=image(1) + i, ids=np.ones((1, length), np.int64))
    found = list(open_dataset(tmp_path, BOTH))
    assert [f["ids"].shape for f in found] == [(1, 3), (1, 5)]
    assert found[1]["image"][0, 0, 0] == 1.0


def test_polygraphys_saved_inputs(tmp_path):
    from polygraphy.json import save_json

    save_json([{"image": image(1)}, {"image": image(1) + 7}], str(tmp_path / "inputs.json"))
    found = list(open_dataset(tmp_path / "inputs.json", ONE))
    assert [f["image"][0, 0, 0] for f in found] == [0.0, 7.0]


def test_a_function_is_called_for_every_pass(tmp_path):
    """Of a file alone that is ``load_data``, as in Polygraphy's scripts."""
    script = tmp_path / "feeds.py"
    script.write_text(
        "import numpy as np\n"
        "def load_data():\n"
        "    for i in range(3):\n"
        "        yield {'image': np.full((1, 2, 3), i, np.float64)}\n"
    )
    data = open_dataset(f"{script}:load_data", ONE)
    for _ in range(2):
        found = list(data)
        assert [f["image"].max() for f in found] == [0.0, 1.0, 2.0]
        assert found[0]["image"].dtype == np.float32
    assert data.digest() == open_dataset(script, ONE).digest()


@given(st.integers(0, 5), st.floats(-10, 10, width=32))
def test_the_digest_tells_samples_apart(place, value):
    array = image(6)
    changed = array.copy()
    changed[place, 1, 1] = value
    same = np.array_equal(array, changed)
    assert (open_dataset({"image": array}, ONE).digest() == open_dataset({"image": changed}, ONE).digest()) == same


BAD = {
    "wrong name": ({"picture": image(2)}, "no input 'picture'"),
    "wrong rank": ({"image": np.zeros((2, 2), np.float32)}, "shape"),
    "wrong size": ({"image": np.zeros((2, 2, 4), np.float32)}, "shape"),
    "wrong dtype": ({"image": np.zeros((2, 2, 3), np.int64)}, "dtype int64"),
    "text": ({"image": np.full((2, 2, 3), "a")}, "dtype"),
    "NaN": ({"image": np.full((2, 2, 3), np.nan, np.float32)}, "NaN"),
    "empty": ({"image": np.zeros((0, 2, 3), np.float32)}, "no samples"),
    "nothing": ({}, "no samples"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_named(case, tmp_path):
    arrays, said = BAD[case]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(BadInput, match=said) as caught:
        list(open_dataset(tmp_path / "bad.npz", ONE))
    assert "bad.npz" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize("value", [-1, 256])
def test_integers_that_the_type_of_the_input_has_not_are_refused(value):
    """NumPy would wrap them: 255 and 0."""
    spec = TensorSpec("pixels", np.dtype(np.uint8), (1, 3))
    values = np.array([[0, 255, 7], [1, 2, value]], np.int64)
    dataset = open_dataset({"pixels": values}, [spec])
    assert next(iter(dataset))["pixels"].tolist() == [[0, 255, 7]]
    with pytest.raises(
        BadInput, match=f"'pixels' holds values from {min(value, 1)} to {max(value, 2)}; uint8 has 0 to 255"
    ):
        list(dataset)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_compressed_file_is_bad_input_or_reads(seed, tmp_path):
    path = tmp_path / "d.npz"
    random = np.random.default_rng(seed)
    np.savez_compressed(path, image=random.normal(size=(20, 2, 3)).astype(np.float32))
    content = bytearray(path.read_bytes())
    for place in random.integers(0, len(content), 4):
        content[place] ^= int(random.integers(1, 256))
    path.write_bytes(content)
    said = ""
    try:
        shapes = {feeds["image"].shape for feeds in open_dataset(path, ONE)}
    except BadInput as error:
        shapes, said = {(1, 2, 3)}, str(error)
    assert shapes == {(1, 2, 3)}
    assert len(said.splitlines()) in (0, 2)


def test_a_header_that_breaks_off_is_bad_input(tmp_path):
    path = tmp_path / "d.npy"
    np.save(path, image(4))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"}", b" ", 1))
    with pytest.raises(BadInput, match=r"d\.npy"):
        open_dataset(path, ONE)


def test_different_numbers_of_samples():
    with pytest.raises(BadInput, match="different numbers"):
        open_dataset({"image": image(2), "ids": np.ones((3, 1, 4), np.int64)}, BOTH)


def test_a_missing_input_is_named():
    with pytest.raises(BadInput, match="lacks 'ids'"):
        list(open_dataset({"image": image(2)}, BOTH))


@pytest.mark.parametrize(
    "name",
    ["no.npz", "broken.npz", "pickle.npy", "notes.txt", "empty", "broken.json", "no:thing", "https://a.org/d.npz"],
)
def test_bad_sources_are_named(name, tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    source = name if ":" in name else str(tmp_path / name)
    with pytest.raises(BadInput) as caught:
        list(open_dataset(source, ONE))
    assert name in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_profile_sizes_are_the_values_of_inputs_that_may_hold_sizes():
    """Integers with one axis at most: sizes for a Reshape, k of a TopK; pixels and ids of many tokens are none."""
    samples = [
        {"sizes": np.array(sizes), "k": np.int32(k).reshape(()), "ids": np.zeros((1, 9), np.int64), "x": np.zeros(2)}
        for sizes, k in (((8, 16), 3), ((4, 32), 5))
    ]
    assert profile_of(samples).sizes == {"sizes": ((4, 16), (8, 16), (8, 32)), "k": ((3,), (3,), (5,))}


def test_profile_shapes_span_all_samples():
    shapes = [(1, 5, 7), (1, 9, 3), (2, 6, 6)]
    assert profile_of({"x": np.zeros(shape)} for shape in shapes).shapes == {"x": ((1, 5, 3), (1, 5, 7), (2, 9, 7))}


SPEC = TensorSpec("x", np.dtype(np.float32), (1, 3))


def test_an_archive_with_labels_is_read_without_them(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.ones((4, 3), np.float32), labels=np.arange(4))
    data = open_dataset(tmp_path / "data.npz", (SPEC,))
    assert [sorted(feeds) for feeds in data] == [["x"]] * 4
    assert "'labels'" in data.notes[0]


def test_what_cannot_be_read_is_named(tmp_path):
    np.savez(tmp_path / "whole.npz", x=np.ones((40, 3), np.float32))
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInput, match=r"cut\.npz' is truncated"):
        open_dataset(tmp_path / "cut.npz", (SPEC,))


def test_a_folder_names_the_file_that_does_not_fit(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((1, 3), np.float32))
    np.save(tmp_path / "b.npy", np.ones((1, 4), np.float32))
    with pytest.raises(BadInput, match=r"b\.npy"):
        list(open_dataset(tmp_path, (SPEC,)))
