"""Folders of pictures: the values that the network is fed, computed here another way."""

import numpy as np
import pytest
from PIL import Image

from trt_bisect import BadInput, open_dataset
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.data.preprocessing import Preprocessing, preprocessing
from trt_bisect.options.concerns import RunOptions
from trt_bisect.options.declare import declared, read_config


def takes(*shape, dtype=np.float32):
    """The only input of a network."""
    return (TensorSpec("x", np.dtype(dtype), shape),)


NCHW, ANY_SIZE = takes(1, 3, 4, 6), takes(None, 3, None, None)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)


@pytest.fixture
def folder(tmp_path, pixels):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(255 - pixels).save(tmp_path / "b.png")
    return tmp_path


def fed(folder, specs, **asked):
    return [feeds["x"] for feeds in open_dataset(folder, specs, pictures=preprocessing(asked))]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, lambda rgb: rgb / 255.0),
        (IMAGENET, lambda rgb: (rgb / 255.0 - IMAGENET["mean"]) / IMAGENET["std"]),
        ({"mean": "123.675,116.28,103.53", "std": "58.395,57.12,57.375"},
         lambda rgb: (rgb - (123.675, 116.28, 103.53)) / (58.395, 57.12, 57.375)),
        ({"colors": "bgr", "scale": 1, "mean": (1, 2, 3)}, lambda rgb: rgb[..., ::-1] - (1.0, 2.0, 3.0)),
    ],
    ids=["no option", "ImageNet", "in pixels, without a scale", "BGR, the mean in its order"],
)  # fmt: skip
def test_the_values_that_options_make_stand_in_nchw(folder, pixels, asked, expected):
    first, second = fed(folder, NCHW, **asked)
    assert first.dtype == np.float32
    for found, picture in ((first, pixels), (second, 255 - pixels)):
        np.testing.assert_allclose(found[0], expected(picture).transpose(2, 0, 1), rtol=1e-5, atol=1e-6)


def test_nhwc_and_uint8(folder, pixels):
    [first, _] = fed(folder, takes(1, 4, 6, 3, dtype=np.uint8))
    np.testing.assert_array_equal(first[0], pixels)


def test_one_channel_is_grey(tmp_path):
    Image.fromarray(np.full((5, 5), 51, np.uint8)).save(tmp_path / "a.png")
    [found] = fed(tmp_path, takes(1, 1, 5, 5))
    np.testing.assert_allclose(found, 0.2, rtol=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparent_colours_is_read_without_a_warning(tmp_path):
    colours = np.arange(12, dtype=np.uint8).reshape(4, 3)
    image = Image.fromarray(np.array([[0, 1], [2, 3]], np.uint8), "P")
    image.putpalette(colours.tobytes())
    image.save(tmp_path / "a.png", transparency=bytes([0, 255, 255, 128]))
    [found] = fed(tmp_path, takes(1, 3, 2, 2), scale=1)
    np.testing.assert_array_equal(found[0], colours.reshape(2, 2, 3).transpose(2, 0, 1))


def test_pictures_are_made_the_size_of_the_input(tmp_path):
    Image.new("RGB", (60, 40), (10, 20, 30)).save(tmp_path / "a.jpg", quality=100, subsampling=0)
    [found] = fed(tmp_path, NCHW, scale=1)
    np.testing.assert_allclose(found[0].mean(axis=(1, 2)), [10, 20, 30], atol=1.5)


def test_a_letterbox_keeps_the_shape_and_pads_with_grey(tmp_path):
    Image.new("RGB", (8, 4), (255, 255, 255)).save(tmp_path / "wide.png")
    [found] = fed(tmp_path, takes(1, 3, 16, 16), letterbox=True, scale=1)
    expected = np.full((16, 16), 114.0)
    expected[4:12] = 255.0
    np.testing.assert_array_equal(found[0, 0], expected)


def test_a_dynamic_input_takes_each_picture_in_its_own_size(folder):
    Image.new("RGB", (3, 2)).save(folder / "c.png")
    assert [x.shape for x in fed(folder, ANY_SIZE)] == [(1, 3, 4, 6), (1, 3, 4, 6), (1, 3, 2, 3)]
    assert {x.shape for x in fed(folder, ANY_SIZE, resize="8x12")} == {(1, 3, 8, 12)}


def test_a_fixed_batch_needs_pictures_of_one_size(folder):
    specs = takes(2, 3, None, None)
    assert [x.shape for x in fed(folder, specs)] == [(2, 3, 4, 6)]
    Image.new("RGB", (3, 2)).save(folder / "aa.png")
    with pytest.raises(BadInput, match="--resize"):
        fed(folder, specs)
    assert [x.shape for x in fed(folder, specs, resize=8)] == [(2, 3, 8, 8)]


def test_folders_of_classes_and_a_fixed_batch(tmp_path):
    for place in range(5):
        (tmp_path / f"class{place % 2}").mkdir(exist_ok=True)
        Image.new("RGB", (6, 4), (place, 0, 0)).save(tmp_path / f"class{place % 2}" / f"{place}.png")
    data = open_dataset(tmp_path, takes(2, 3, 4, 6), pictures=Preprocessing(scale=1.0))
    assert [list(feeds["x"][:, 0, 0, 0]) for feeds in data] == [[0, 2], [4, 1]]
    assert data.length == 2
    assert any("left out" in note for note in data.notes)


def test_a_photograph_lying_on_its_side_is_turned(tmp_path, pixels):
    image = Image.fromarray(pixels)
    turned = image.getexif()
    turned[0x0112] = 6  # EXIF: to be turned by 90 degrees clockwise
    image.save(tmp_path / "a.png", exif=turned)
    [found] = fed(tmp_path, takes(1, 3, 6, 4, dtype=np.uint8))
    np.testing.assert_array_equal(found[0], np.rot90(pixels, -1).transpose(2, 0, 1))


def test_options_of_version_0_2_are_named_and_not_taken(folder):
    old = folder / "preprocessing.toml"
    old.write_text("scale = 255.0\nmean = [0.485, 0.456, 0.406]\n")
    with pytest.raises(BadInput) as refused:
        fed(folder, NCHW)
    assert f"--config {old}" in str(refused.value)
    taken = read_config(old, "run", ("run",), declared(RunOptions))
    assert RunOptions(**taken).preprocessing() == Preprocessing(scale=255.0, mean=(0.485, 0.456, 0.406))
    fed(folder, NCHW, **taken)


def test_samples_are_named_by_their_files(folder):
    kept = open_dataset(str(folder), NCHW)
    assert [kept.label(place) for place in range(2)] == [str(folder / "a.png"), str(folder / "b.png")]
    two = takes(2, 3, 4, 6)
    assert open_dataset(str(folder), two).label(0) == f"{folder / 'a.png'} to b.png"


def test_one_picture_is_one_sample(folder, pixels):
    [found] = fed(folder / "a.png", NCHW)
    np.testing.assert_allclose(found[0, 0], pixels[:, :, 0] / 255.0, rtol=1e-6)


@pytest.mark.parametrize(("asked", "specs", "words"), [
    ({"scale": 1 / 255}, NCHW, "--scale 255"), ({"std": 0}, NCHW, "--std"), ({"mean": (1, 2)}, NCHW, "--mean"),
    ({"mean": "a,b"}, NCHW, "0.485,0.456,0.406"), ({"resize": "7x7"}, NCHW, "7x7"),
    ({"resize": "big"}, NCHW, "480x640"), ({"colors": "gray"}, NCHW, "3 channels"),
    ({"colors": "cmyk"}, NCHW, "rgb, bgr, gray"), ({}, takes(1, 5), "no pictures"),
    ({}, (*NCHW, TensorSpec("y", NCHW[0].dtype, (1, 5))), "module:function"),
    ({"mean": 1}, takes(1, 3, 4, 6, dtype=np.uint8), "Leave out --mean."),
])  # fmt: skip
def test_what_cannot_be_done(folder, asked, specs, words):
    with pytest.raises(BadInput) as refused:
        fed(folder, specs, **asked)
    assert words in str(refused.value)


def test_damaged_pictures_are_named_all_at_once(folder):
    (folder / "c.png").write_bytes((folder / "a.png").read_bytes()[:40])
    with pytest.raises(BadInput, match=r"c\.png"):
        fed(folder, NCHW)
    (folder / "e.jpg").write_text("no picture")
    with pytest.raises(BadInput, match=r"2 pictures.*c\.png' and '.*e\.jpg") as refused:
        fed(folder, NCHW)
    assert "a.png" not in str(refused.value)


def test_of_sixteen_bits_the_upper_eight_are_taken(tmp_path):
    """Grey ones: Pillow reads colours of 16 bits so by itself. Fractions are not cut off silently."""
    deep = np.random.default_rng(0).integers(0, 65536, (4, 6)).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    (array,) = fed(tmp_path, NCHW)
    for channel in range(3):
        np.testing.assert_allclose(array[0, channel], (deep // 256) / 255.0, rtol=1e-6)
    Image.fromarray(deep.astype(np.float32)).save(tmp_path / "fractions.tiff")
    with pytest.raises(BadInput, match="'F'"):
        fed(tmp_path, NCHW)
