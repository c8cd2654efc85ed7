"""Faults that the fuzzer and the broken runs of ``benchmarks.reliability`` found, each in its smallest form."""

import errno
import json
import os
import resource
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.records import record_of
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.data import feeds
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.errors import BadInput
from trt_bisect.evaluator.accuracy import read_labels
from trt_bisect.evaluator.trial import OutputFigures, Trial
from trt_bisect.model import operators
from trt_bisect.model.network import load_network
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.preparation.workspace import working_in
from trt_bisect.report.model import read_report
from trt_bisect.report.parts import REPORT
from trt_bisect.runs.cached_inputs import RANGES, load_inputs, save_inputs
from trt_bisect.runs.journal import Journal
from trt_bisect.support.files import write_whole
from trt_bisect.support.progress import Silent


def written(model, tmp_path):
    path = tmp_path / "network.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def recursive_function(model):
    body = [helper.make_node("again", ["a"], ["b"], domain="own")]
    model.functions.append(helper.make_function("own", "again", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    model.graph.node[0].op_type, model.graph.node[0].domain = "again", "own"
    model.opset_import.append(helper.make_opsetid("own", 1))


def normalize(model, **shapes):
    """Adds a normalization after the first convolution, with constants of these shapes."""
    model.graph.initializer.extend(numpy_helper.from_array(np.ones(s, np.float32), name) for name, s in shapes.items())
    out = model.graph.node[0].output[0]
    model.graph.node[1].input[0] = "normed"
    model.graph.node.insert(1, helper.make_node("BatchNormalization", [out, *shapes], ["normed"]))


SPOILED = {
    "recursive function": recursive_function,
    "claimed shape": lambda model: model.graph.initializer[0].dims.__setitem__(0, 1 << 40),
    "circle": lambda model: model.graph.node[0].input.__setitem__(0, model.graph.node[3].output[0]),
    "no inputs": lambda model: model.graph.node[0].ClearField("input"),
    "channels that the convolution has not": lambda model: normalize(
        model, **dict.fromkeys(("gamma", "beta", "mean", "variance"), 5)
    ),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_a_network_that_is_not_valid_is_refused_in_two_lines(spoil, command, tmp_path):
    model = networks.chain(3, 4)
    spoil(model)
    path = written(model, tmp_path)
    code, _, err = command("layers", path)
    assert code == 2
    assert len(err.splitlines()) == 2
    assert str(path) in err.splitlines()[0]
    code, _, err = command("check", path)
    assert code in (0, 1, 2)
    assert "itself" not in err


def test_an_error_of_our_own_on_a_sound_network_is_not_blamed_on_it(tmp_path):
    path = written(networks.chain(2, 4), tmp_path)
    with pytest.raises(KeyError), operators.refusing_invalid(path):
        raise KeyError("ours")
    with pytest.raises(BadInput, match="more memory"), operators.refusing_invalid(path):
        raise MemoryError
    path.write_bytes(b"\x08\x07")
    with pytest.raises(BadInput, match="not valid"), operators.refusing_invalid(path):
        raise KeyError("the file's")


def test_a_normalization_of_an_odd_shape_is_not_folded(tmp_path):
    """The checker and ONNX Runtime take it; whether it can be run is for the engine to say."""
    model = networks.chain(3, 4)
    normalize(model, gamma=(4,), beta=(4, 1), mean=(4,), variance=(4,))
    layers = load_network(written(model, tmp_path)).layers
    assert [layer.op_type for layer in layers[:3]] == ["Conv", "BatchNormalization", "Relu"]


LARGE = dict.fromkeys(("Expand", "Tile", "ConstantOfShape"), ([1 << 15, 1 << 15], 4)) | {"Range": ([1 << 28], 8)}


@pytest.mark.parametrize("op", LARGE)
@pytest.mark.parametrize("shapes_are_known", [True, False])
def test_a_few_bytes_that_stand_for_gigabytes_are_not_computed(op, shapes_are_known, tmp_path, monkeypatch):
    if not shapes_are_known:
        monkeypatch.setattr("trt_bisect.model.prepare.infer_shapes", lambda model: model)
    size, item = LARGE[op]
    model = networks.chain(2, 4)
    inputs = {"size": np.array(size)}
    if op in ("Expand", "Tile"):
        inputs = {"small": np.ones([1] * len(size), np.float32), **inputs}
    elif op == "Range":
        inputs = {"from": np.array(0), "to": np.array(size[0]), "by": np.array(1)}
    model.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in inputs.items())
    model.graph.node.append(helper.make_node(op, list(inputs), ["large"], name="maker"))
    model.graph.node.append(helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.INT64 if op == "Range" else 1, []))
    mib = int(np.prod(size)) * item >> 20
    with pytest.raises(BadInput, match=f"{mib:,} MiB: {op} 'maker'"):
        load_network(written(model, tmp_path))


def test_a_constant_without_axes_is_rounded():
    half = Quantizer(np.array(0.5, np.float32), np.array(0, np.int8), None)
    assert half.round_trip(np.array(1.3, np.float32)) == 1.5


@pytest.mark.parametrize("axis", [7, -7, 0])
def test_a_pair_whose_scales_do_not_fit_is_left_to_the_engine(axis, tmp_path):
    model = networks.chain(2, 4)
    scale = numpy_helper.from_array(np.full(3, 0.1, np.float32), "s")
    model.graph.initializer.append(scale)
    model.graph.node[0].input[1] = "d"
    pair = [
        helper.make_node("QuantizeLinear", ["conv0.weight", "s"], ["q"], axis=axis),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"], axis=axis),
    ]
    nodes = [*pair, *model.graph.node]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    network = load_network(written(model, tmp_path))
    assert not network.has_pairs


def test_names_with_line_breaks_make_no_third_line(command, tmp_path):
    model = networks.chain(2, 4)
    model.graph.input[0].name = model.graph.node[0].input[0] = "a\nb\x1b[2J"
    np.savez(tmp_path / "data.npz", y=np.zeros(3))
    path = written(model, tmp_path)
    code, _, err = command("run", path, "--calibration", tmp_path / "data.npz", "-o", tmp_path / "out")
    assert code == 2
    assert err[err.index("trt-bisect:") :].count("\n") == 2
    assert "'a b?[2J'" in err


def test_a_message_has_an_end(command, tmp_path):
    (tmp_path / "odd.toml").write_text(f'[[network]]\nname = "{"x" * 5000}"\n')
    code, _, err = command("regress", "--config", tmp_path / "odd.toml")
    assert code == 2
    assert max(map(len, err.splitlines())) < 1100


SPECS = (TensorSpec("x", np.dtype(np.float32), (None, 4)),)


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_refused_unread(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((1 << 16, 4), np.float32))
    assert len(list(open_dataset(path, SPECS))) == 1 << 16
    monkeypatch.setattr(feeds, "_SUSPICIOUS_BYTES", 1 << 19)
    with pytest.raises(BadInput, match=r"unpacks from .* bytes to 1,048,704"):
        open_dataset(path, SPECS)


def test_data_in_the_clothes_of_another_kind(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "odd.json").write_text('{"array": {}, "polygraphy_class": "ndarray"}')
    for name, said in (("array.npz", "not an archive"), ("deep.json", "recursion"), ("odd.json", "attribute")):
        with pytest.raises(BadInput, match=said):
            open_dataset(tmp_path / name, SPECS)
    (tmp_path / "labels.npy").write_bytes(b"\x93NUMPY\x01\x00\x06\x00{'a':\n")
    with pytest.raises(BadInput, match=r"labels\.npy"):
        read_labels(tmp_path / "labels.npy")


def test_a_report_without_its_figures_is_none(recorded, tmp_path):
    found = json.loads((recorded("fronted") / "runs/fronted" / REPORT).read_text())
    file = tmp_path / REPORT
    for part, spoiled in (
        ("goal", {**found["goal"], "most": [1]}),
        ("similarity", {**found["similarity"], "int8": [1]}),
        ("similarity", {**found["similarity"], "recipe": [1]}),
        ("similarity", {}),
        ("accuracy", {}),
        ("front", [{**found["front"][0], "figure": "much"}]),
        ("front", [{}]),
    ):
        file.write_text(json.dumps({**found, part: spoiled}))
        assert read_report(file) is None


def sound(plan):
    return Trial(plan, "measured", {"y": OutputFigures({"cosine": 0.5})})


@contextmanager
def room_for(size):
    """No file can grow beyond this size."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def test_trials_in_a_journal_that_somebody_altered_are_measured_again(tmp_path):
    with Journal(tmp_path, "run", {}) as journal:
        journal.keep(sound("good"), sound("bad"), sound("worse"))
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    lines[2] = lines[2].replace('"infer_seconds": 0.0', '"infer_seconds": {}')
    lines[3] = lines[3].replace("0.5", '"0.5"')
    (tmp_path / "journal.jsonl").write_text("\n".join(lines) + "\n")
    with Journal(tmp_path, "run", {}) as journal:
        assert journal.trials == {"good": sound("good")}
        assert journal.under("another", {}) is journal.under("another", {})


def test_a_journal_that_met_a_full_disk_takes_the_next_trial_whole(tmp_path):
    """The limit of a file's size stands for the disk: it too lets a part of a write through."""
    with Journal(tmp_path, "run", {}) as journal:
        journal.keep(sound("first"))
        before = (tmp_path / "journal.jsonl").stat().st_size
        with room_for(before + 20), pytest.raises(BadInput, match=os.strerror(errno.EFBIG)):
            journal.keep(sound("lost"))
        assert (tmp_path / "journal.jsonl").stat().st_size == before
        assert journal.find("lost") is None
        journal.keep(sound("next"))
    with Journal(tmp_path, "run", {}) as journal:
        assert list(journal.trials) == ["first", "next"]


def test_a_run_that_was_stopped_chooses_as_one_that_was_not(lenet, tmp_path):
    """Part of a family is known, or a whole engine's trial that came later: neither changes how a plan is measured."""

    def found():
        arguments = (lenet / "lenet_planted.onnx", lenet / "calibration.npz")
        options = {"effort": "thorough", "front": True, "explain": "none", "output": tmp_path / "run"}
        record = record_of(trt_bisect.run(*arguments, **options))
        return {name: record[name] for name in record.keys() - {"started", "seconds", "builds", "peak_bytes"}}

    whole = found()
    journal = tmp_path / "run/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in edition((14,), (12, 14, 30)):
        journal.write_bytes(b"".join(lines[:kept]))
        assert found() == whole
        assert len(journal.read_bytes().splitlines()) == len(lines)


def test_a_file_that_finds_no_room_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "report.json"
    write_whole(path, b"old")
    with room_for(1000), pytest.raises(BadInput, match=rf"report\.json'.* {os.strerror(errno.EFBIG)}"):
        write_whole(path, bytes(2000))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"report.json": b"old"}


def test_kept_inputs_are_those_that_were_kept(tmp_path):
    """A run that was killed between its two files has left its inputs beside the other run's notes."""
    ours, theirs = ([{"file": np.full((1, 4), value, np.float32)}] for value in (1, 2))
    save_inputs(tmp_path, "theirs", theirs, {})
    foreign = (tmp_path / "inputs.npz").read_bytes()
    save_inputs(tmp_path, "ours", ours, {"places": [3]})
    feeds, about = load_inputs(tmp_path, "ours")
    np.testing.assert_array_equal(feeds[0]["file"], ours[0]["file"])
    assert about == {"places": [3]}
    (tmp_path / "inputs.npz").write_bytes(foreign)
    assert load_inputs(tmp_path, "ours") is None
    with zipfile.ZipFile(tmp_path / "inputs.npz", "w"):
        pass
    assert load_inputs(tmp_path, "ours") is None


def test_kept_inputs_keep_their_shapes_and_types(tmp_path):
    """An input of no axis is an array still."""
    values = (np.float32(2.5), np.float16(0.5), np.int64(7), np.int32(-1), np.uint8(3), np.bool_(True))
    sample = {str(value.dtype): np.asarray(value) for value in values}
    sample |= {"text": np.array("a", object), "vector": np.arange(3.0)}
    save_inputs(tmp_path, "key", [sample, sample], {})
    feeds, _ = load_inputs(tmp_path, "key")
    assert len(feeds) == 2
    for name, array in sample.items():
        assert all(isinstance(read[name], np.ndarray) for read in feeds)
        np.testing.assert_array_equal(feeds[1][name], array)
        assert (feeds[1][name].shape, feeds[1][name].dtype.kind in "OU") == (array.shape, name == "text")


def test_kept_ranges_that_somebody_altered_are_not_used(tmp_path):
    RANGES.save(tmp_path, "key", Ranges({"x": np.float32(0.25)}, {}, "entropy"))
    assert RANGES.load(tmp_path, "key").scales == {"x": np.float32(0.25)}
    text = (tmp_path / "ranges.json").read_text()
    (tmp_path / "ranges.json").write_text(text.replace("0000803e", "0000003f"))
    assert RANGES.load(tmp_path, "key") is None


def test_a_folder_is_locked_as_long_as_a_run_works_in_it(tmp_path):
    with working_in(tmp_path, Silent()):
        progress = (tmp_path / "progress.json").read_bytes()
        with pytest.raises(BadInput, match="Another run"), working_in(tmp_path, Silent()):
            pass
        assert (tmp_path / "progress.json").read_bytes() == progress
    with working_in(tmp_path, Silent()):
        pass


def test_what_killed_writers_left_is_cleared_and_nothing_else(tmp_path):
    (tmp_path / "recipe").mkdir()
    for name in (".report.json-123", ".notes", ".env-local", "report.json-5", "recipe/.plan.json-7"):
        (tmp_path / name).write_text("")
    (tmp_path / "recipe/.network.qdq.onnx-9").mkdir()
    with working_in(tmp_path, Silent()):
        pass
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == [".env-local", ".notes", "recipe", "report.json-5"]


@pytest.mark.subprocess
def test_a_full_disk_under_the_standard_output(tmp_path, lenet):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "from trt_bisect.cli import main; main()", "layers", str(lenet / "lenet.onnx")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert len(done.stderr.splitlines()) == 2
