"""The suite of networks: what it may hold, and that everything wrong in it is said before anything is run."""

import inspect
import os
import re
import shutil

import pytest
from hypothesis import example, given, strategies as st

from trt_bisect.commands.run.run import run
from trt_bisect.commands.suite import NETWORK_KEYS, NIGHT_KINDS, read_suite, stem_of
from trt_bisect.errors import BadInput


@pytest.fixture
def folder(tmp_path, lenet):
    """A folder with a network and data in it."""
    shutil.copy(lenet / "lenet.onnx", tmp_path / "net.onnx")
    shutil.copy(lenet / "calibration.npz", tmp_path / "data.npz")
    (tmp_path / "mine.py").write_text("def score(r, o):\n    return 1.0\n\n\ndef data():\n    return []\n")
    return tmp_path


def suite_of(folder, text):
    path = folder / "trt-bisect.toml"
    path.write_text(text)
    return read_suite(path)


def test_all_keys(folder):
    suite = suite_of(
        folder,
        """
        output = "nights"

        [defaults]
        engine = "onnxruntime"
        repeats = 5
        threshold = 0.98

        [[network]]
        name = "first"
        model = "net.onnx"
        calibration = "data.npz"
        input = "mine.py:data"
        threshold = 0.9
        memory = 3
        shapes = { data = [1, 1, 28, 28] }
        outputs = ["prob"]
        margin = "10%"
        target = 0.95
        target_recipe = 0.99
        latency_tolerance = 0.2

        [[network]]
        model = "net.onnx"
        metric = "mine.py:score"
        explain = "full"
        """,
    )
    assert suite.output == folder / "nights"
    first, second = suite.networks
    paths = {"model": folder / "net.onnx", "calibration": str(folder / "data.npz")}
    assert first.keywords == {
        **paths, "inputs": f"{folder / 'mine.py'}:data", "engine": "onnxruntime", "threshold": 0.9, "memory": 3,
        "shapes": {"data": (1, 1, 28, 28)}, "outputs": ("prob",), "margin": 0.1, "explain": "none",
    }  # fmt: skip
    assert first.targets == {"int8": 0.95, "recipe": 0.99}
    assert (first.tolerances.similarity, first.tolerances.latency, first.repeats) == (0.1, 0.2, 5)
    assert (second.name, second.stem, second.keywords["explain"]) == ("net", "net", "full")
    assert second.keywords["metric"] == f"{folder / 'mine.py'}:score"
    assert second.keywords["threshold"] == 0.98


def test_every_keyword_is_one_of_run():
    taken = {option.keyword for key, option in NETWORK_KEYS.items() if key not in (*NIGHT_KINDS, "name")}
    others = {"output", "history", "progress", "save_tensors", "tensorboard", "tensorboard_detail"}
    assert taken | others == set(inspect.signature(run).parameters)


NET = '[[network]]\nmodel = "net.onnx"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no network"),
        ("[[network]]", "[[network]] number 1 has no 'model'"),
        (NET + 'calibraton = "data.npz"', "number 1 has no key 'calibraton'.\nDid you mean 'calibration'"),
        (NET + "zzz = 1", "no key 'zzz'.\nThe keys are name, model"),
        ("outptu = 1\n" + NET, "no key 'outptu'.\nDid you mean 'output'"),
        ("output = 1\n" + NET, "'output' cannot be 1."),
        ("defaults = 1\n" + NET, "'defaults' is not a table"),
        ('[defaults]\nmodel = "net.onnx"\n' + NET, "[defaults] has no key 'model'"),
        ("[defaults]\nthreshold = 'x'\n" + NET, "[defaults]: 'threshold' cannot be 'x'"),
        (NET + 'threshold = "high"', "[[network]] 'net': 'threshold' cannot be 'high'.\n"),
        (NET + "threshold = 1.5", "[[network]] 'net': --threshold 1.5 of 'cosine'"),
        (NET + f"threshold = {'9' * 400}", "'threshold' cannot be 999"),
        (NET + 'metric = "mse"', "[[network]] 'net': Metric 'mse'"),
        (NET + 'metric = "fine"', "metric 'fine'"),
        (NET + "target = 99", "'target' 99 of 'cosine' is in percent; equal outputs give 1.\nGive 'target' 0.99."),
        (NET + "target_recipe = 9900", "'target_recipe' cannot be 9900"),
        (NET + "target = 'high'", "'target' cannot be 'high'.\n"),
        (NET + "similarity_tolerance = 10", "'similarity_tolerance' cannot be 10"),
        (NET + 'calibration = "gone.npz"\ntarget = 99', "'target' 99 of"),
        (NET + 'engine = "onnx"', "'engine' cannot be 'onnx'.\n"),
        (NET + 'strategy = ["bisect"]', "'strategy' cannot be ['bisect']"),
        (NET + "samples = 0", "'samples' cannot be 0.\n"),
        (NET + "repeats = 1000", "'repeats' cannot be 1000"),
        (NET + 'calibrator = "percentile=101"', "'calibrator' percentile cannot be 101"),
        (NET + "outputs = 3", "'outputs' cannot be 3."),
        (NET + "shapes = { x = [0] }", "'shapes' cannot be {'x': [0]}"),
        (NET + 'name = "a\\u001b[31mb"', "'name' cannot be 'a\\x1b[31mb'"),
        (NET + 'name = ""', "'name' cannot be ''."),
        (NET + NET, "two networks are called 'net'"),
        (NET + 'name = "A"\n' + NET + 'name = "a"', "two networks are called 'a'"),
        ("[[network]\n", "cannot be read"),
        ("a = " + "[" * 100_000, "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_its_table_and_key(folder, text, said):
    with pytest.raises(BadInput) as wrong:
        suite_of(folder, text)
    assert said in str(wrong.value)
    assert str(folder / "trt-bisect.toml") in str(wrong.value)
    assert wrong.value.remedy
    assert len(str(wrong.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[network]]\nmodel = "missing.onnx"', "[[network]] 'missing': 'model' names"),
        ('[defaults]\ncalibration = "gone.npz"\n' + NET, "[[network]] 'net': 'calibration' names"),
        (NET + 'metric = "mine.py:gone"', "'metric'"),
        (NET + 'calibration = "gone.npz"', "'calibration' names"),
        (NET + 'input = "gone.py:data"', "'input'"),
        (NET + 'input = "a\\u0000b"', "'input' names"),
        (NET + f'input = "{"x" * 5000}"', "does not exist"),
    ],
)
def test_a_file_that_is_not_there_is_an_error_of_its_network_alone(folder, text, said):
    (folder / "other.onnx").touch()
    broken, whole = suite_of(folder, f'{text}\n[[network]]\nmodel = "other.onnx"\ncalibration = "data.npz"').networks
    assert said in str(broken.missing)
    assert str(folder / "trt-bisect.toml") in str(broken.missing)
    assert len(str(broken.missing).splitlines()) == 2
    assert whole.missing is None


def test_a_share_is_read_alike_wherever_it_stands(folder):
    shares = ("0.995", '"99.5%"', '"0.995"', '" 99.5 %"')
    for written in shares:
        text = (
            f"{NET}threshold = {written}\ntarget = {written}\ntarget_recipe = {written}\nlatency_tolerance = {written}"
        )
        (task,) = suite_of(folder, text).networks
        assert task.targets == {"int8": 0.995, "recipe": 0.995}
        assert (task.keywords["threshold"], task.tolerances.latency) == (0.995, 0.995)
    (decibels,) = suite_of(folder, NET + 'metric = "sqnr"\nthreshold = 20\ntarget = 30').networks
    assert decibels.targets == {"int8": 30.0}


def test_a_suite_in_another_encoding_or_that_is_not_there(folder):
    text = NET + 'name = "ä"\n'
    path = folder / "trt-bisect.toml"
    path.write_bytes(text.encode("utf-8-sig"))
    assert read_suite(path).networks[0].name == "ä"
    for encoding in ("utf-16", "utf-16-le", "utf-32", "latin-1"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(BadInput, match="is not in UTF-8") as refused:
            read_suite(path)
        assert refused.value.remedy.startswith("Save it in UTF-8")
    for path in (folder / "gone.toml", folder):
        with pytest.raises(BadInput, match=re.escape(f"'{path}'")):
            read_suite(path)


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), min_size=1), max_size=6))
@example(["../x", "..", "/etc/passwd", "a/b", "a-b", "...", "x" * 300, "repeats", "ä"])
def test_names_stay_in_the_night_and_apart(tmp_path_factory, names):
    different = dict.fromkeys(names)
    stems = [stem_of(name) for name in different]
    for stem in stems:
        assert os.path.basename(stem) == stem  # noqa: PTH119
        assert stem.isascii()
        assert not stem.startswith((".", "-"))
        assert len(stem) <= 100
    assert len(set(stems)) == len(different)


def test_a_plain_name_is_its_own_folder(folder):
    suite = suite_of(folder, NET + 'name = "resnet-50_v1.5"\n' + NET + 'name = "../../up"')
    assert suite.networks[0].stem == "resnet-50_v1.5"
    assert suite.networks[1].stem.startswith("up-")


def test_the_digest_is_of_what_is_asked_for_and_of_the_files(folder):
    def digest(more="threshold = 0.9"):
        return suite_of(folder, f'{NET}calibration = "data.npz"\n{more}').digest()

    digests = [digest(), digest("# a comment\nthreshold = 0.90")]
    assert digests[0] not in (digest("threshold = 0.91"), digest("threshold = 0.9\ntarget = 0.5"))
    (folder / "net.onnx.data").write_bytes(b"weights")
    digests.append(digest())
    os.utime(folder / "data.npz", (1, 1))
    digests.append(digest())
    (folder / "other.txt").touch()
    digests.append(digest())
    assert [digests.index(each) for each in digests] == [0, 0, 2, 3, 3]
