"""``--config``: options from a TOML file, below those on the command line."""

from __future__ import annotations

import json
import shutil

import pytest


@pytest.fixture
def folder(tmp_path, lenet):
    """A folder with a network and data in it, which is not the current one."""
    place = tmp_path / "there"
    place.mkdir()
    shutil.copy(lenet / "lenet_planted.onnx", place / "net.onnx")
    shutil.copy(lenet / "calibration.npz", place / "data.npz")
    return place


def written(folder, text):
    path = folder / "options.toml"
    path.write_text(text)
    return path


def test_the_command_line_comes_before_the_file_and_paths_are_relative_to_it(command, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    config = written(
        folder,
        """
        calibration = "data.npz"
        output = "made"
        calibrator = "minmax"
        threshold = 0.9
        samples = 2
        memory = 64
        outputs = ["prob"]
        shapes = { data = [1, 1, 28, 28] }
        explain = "none"
        keep_mask_ranges = true
        """,
    )
    command("run", folder / "net.onnx", "--config", config, "--threshold", "0.95")
    report = json.loads((folder / "made/report.json").read_text())
    assert report["threshold"] == 0.95
    assert report["inputs"]["judged"] == 2
    assert "minmax" in json.dumps(report)


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("thresold = 0.9", "'thresold'", "'threshold'"),
        ("threshold = 'high'", "'threshold' is 'high'.", "number"),
        ("calibration = 'none.npz'", "none.npz", "folder of this file"),
        ("input = 'data.npz'\ninputs = 'data.npz'", "'input' and 'inputs'", "one of them"),
        (
            "engine = 'tpu'",
            "'engine' is 'tpu'.",
            "auto, onnxruntime, tensorrt, tensorrt-rtx",
        ),
        (
            "engine =",
            "",
            "TOML",
        ),
    ],
)
def test_a_bad_file_is_refused_before_anything_is_run(command, folder, text, problem, remedy):
    config = written(folder, text)
    code, _, err = command("run", folder / "net.onnx", "--config", config, "-o", folder / "made")
    said = err[err.index("trt-bisect:") :].splitlines()
    assert code == 2
    assert str(config) in said[0]
    assert problem in said[0]
    assert remedy in said[1]
    assert not (folder / "made").exists()


def test_each_command_knows_its_own_options(command, folder):
    config = written(folder, 'calibration = "data.npz"\nstrategy = "bisect"')
    code, _, err = command("recover", folder / "net.onnx", "--config", config)
    assert code == 2
    assert "'strategy'" in err


def test_the_order_of_before_still_works_with_a_note(command, folder):
    arguments = ["worst", folder / "net.onnx", "--calibration", folder / "data.npz", "--steps", "2"]
    code, old, err = command(*arguments, "--order", "ascending")
    assert (code, "--order" in err, "--direction higher" in err) == (0, True, True)
    code, new, err = command(*arguments, "--direction", "higher")
    assert (code, "--order" in err) == (0, False)
    assert old == new


def test_picture_options_are_the_same_in_a_file_and_on_the_command_line(tmp_path):
    from trt_bisect.cli.config import defaults
    from trt_bisect.jobs.options.measuring import RunOptions
    from trt_bisect.jobs.options.repeated import repeated
    from trt_bisect.jobs.options.tables import read_config, readers

    file = tmp_path / "options.toml"
    file.write_text('mean = [0.5, 0.25, 0]\nstd = 2\nresize = [480, 640]\nletterbox = true\ncolors = "bgr"\n')
    read = read_config(file, readers(RunOptions))
    given = RunOptions(**read)
    assert given.preprocessing().mean == (0.5, 0.25, 0.0)
    assert given.preprocessing().resize == (480, 640)
    assert defaults(read, RunOptions)["resize"] == "480x640"
    flags = repeated(given)
    assert flags["--mean"] == ("0.5,0.25,0",)
    assert flags["--std"] == ("2",)
    assert flags["--letterbox"] == ()
    typed = {info.name: info.kind.parse(flags[info.flag][0]) for info in RunOptions.declared() if flags.get(info.flag)}
    assert RunOptions(**typed, letterbox=True).preprocessing() == given.preprocessing()


def test_a_command_without_options_of_a_job_takes_its_own_parameters_from_a_file(command, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    config = written(folder, 'model = "net.onnx"\noutput = "made"\njson = true')
    code, out, _ = command("check", "--config", config)
    assert (code, json.loads(out)["model"]) == (0, str(folder / "net.onnx"))
    assert (folder / "made/check.json").is_file()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("engines", "quiet = 3", "'quiet' is 3."),
        ("history", "top = -1", "'top' is -1."),
        ("history", "add = 'runs'", "'add' is 'runs', no list."),
        ("view", "prot = 9000", "'prot'"),
        ("demo", "output = 1", "'output' is 1, no text."),
    ],
)
def test_the_file_of_such_a_command_is_checked(command, folder, name, text, problem):
    code, _, err = command(name, "--config", written(folder, text))
    assert (code, problem in err) == (2, True)
