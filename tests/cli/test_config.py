"""``--config``: options from a TOML file, below those on the command line."""

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
    (folder / "options.toml").write_text(text)
    return folder / "options.toml"


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
        effort = "quick"
        letterbox = true
        """,
    )
    command("run", folder / "net.onnx", "--config", config, "--threshold", "0.95")
    report = json.loads((folder / "made/report.json").read_text())
    assert report["threshold"] == 0.95
    assert report["inputs"]["judged"] == 2
    assert "minmax" in json.dumps(report)


def test_a_file_has_a_table_for_each_command_and_each_panel(command, folder):
    config = written(
        folder,
        """
        calibration = "data.npz"
        calibrator = "minmax"
        [judgement]
        threshold = 0.5
        samples = 2
        [run]
        threshold = "95%"
        effort = "quick"
        [run.results]
        explain = "none"
        [compare]
        sort = "nothing"
        """,
    )
    command("run", folder / "net.onnx", "--config", config, "-o", folder / "made")
    report = json.loads((folder / "made/report.json").read_text())
    assert (report["threshold"], report["inputs"]["judged"]) == (0.95, 2)
    assert "explanation" not in report or report["explanation"] is None
    assert command("profile", folder / "net.onnx", "--config", config)[0] == 0, "profile judges nothing"
    code, _, err = command("compare", folder / "net.onnx", "--config", config)
    assert (code, "'nothing'" in err) == (2, True)


def test_picture_options_are_the_same_in_a_file_and_on_the_command_line(folder):
    from trt_bisect.cli.app import bound_to
    from trt_bisect.options.declare import repeated

    file = written(folder, 'mean = [0.5, 0.25, 0]\nstd = 2\nresize = [480, 640]\nletterbox = true\ncolors = "bgr"\n')
    given = bound_to(["run", "net.onnx", "--config", str(file)])[1]["options"]
    assert given.preprocessing().mean == (0.5, 0.25, 0.0)
    assert given.preprocessing().resize == (480, 640)
    flags = repeated(given)
    assert flags["--resize"] == ("480x640",)
    assert flags["--mean"] == ("0.5,0.25,0",)
    assert flags["--std"] == ("2",)
    assert flags["--letterbox"] == ()
    words = [word for flag, values in flags.items() for word in (flag, *values)]
    assert bound_to(["run", "net.onnx", *words])[1]["options"] == given


def test_a_command_without_options_of_a_job_takes_its_own_parameters_from_a_file(command, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    config = written(folder, 'model = "net.onnx"\noutput = "made"\njson = true')
    code, out, _ = command("check", "--config", config)
    assert (code, json.loads(out)["model"]) == (0, str(folder / "net.onnx"))
    assert (folder / "made/check.json").is_file()
