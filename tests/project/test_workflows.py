"""The commands of ``docs/workflows.md``, run on LeNet with few digits, in the order in which they stand there."""

import re
import shlex
import shutil
from string import Template

import numpy as np
import pytest

from tests.conftest import SAMPLES

PAGE = SAMPLES.parent / "docs" / "workflows.md"
DIGITS, CALIBRATIONS = 4, {"calibration": 10, "labelled": 50}
QUICK = ("--explain", "none", "--effort", "quick")


def steps():
    """The commands of the steps, without the program's name, and their exit codes."""
    text = PAGE.read_text(encoding="utf-8")
    given = re.search(r"^# LeNet\n(.*)$", text, re.MULTILINE)
    values = dict(word.split("=", 1) for word in shlex.split(given[1]))
    rows = re.findall(r"^ *trt-bisect (.*\S) +# exit code (\d)$", text, re.MULTILINE)
    return [(shlex.split(Template(command).substitute(values)), int(code)) for command, code in rows]


@pytest.fixture(scope="module")
def folder(lenet, tmp_path_factory):
    """A folder with ``samples/lenet``, its digits and calibration data cut down.

    Runs that judge by labels take ``labelled.npz``: ranges of fewer samples lose no label.
    """
    place = tmp_path_factory.mktemp("workflows")
    few = place / "samples/lenet"
    shutil.copytree(lenet, few, symlinks=True)
    for name, counts in (("digits", {"digits": DIGITS}), ("calibration", CALIBRATIONS)):
        data = np.load(SAMPLES / f"lenet/{name}.npz")["data"]
        for file, count in counts.items():
            np.savez(few / f"{file}.npz", data=data[:count])
    np.save(few / "labels.npy", np.load(SAMPLES / "lenet/labels.npy")[:DIGITS])
    return place


@pytest.mark.slow
def test_every_command_ends_as_the_page_says(folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    ended = []
    for words, expected in steps():
        less = QUICK if words[0] == "run" else ()  # no step reads what is left out
        if "--drop" in words:
            words[words.index("--calibration") + 1] = "samples/lenet/labelled.npz"
        elif "--calibration" in words and less:
            less = (*less, "--calibrator", "minmax")
        code, _, err = command(*words, *less)
        ended.append((words, code, expected, err if code != expected else ""))
    assert len(ended) >= 20
    assert [each for each in ended if each[1] != each[2]] == []
    written = "lenet-run/report.html lenet-run/recipe/plan.json lenet-two/matched.csv lenet-worst/worst.npz"
    assert all((folder / name).is_file() for name in written.split())
    assert not (folder / "lenet-scoped" / "tensors").exists()
