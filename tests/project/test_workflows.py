"""The commands of ``docs/workflows.md``, run on LeNet with few digits, in the order in which they stand there."""

from __future__ import annotations

import re
import shlex
from string import Template

import numpy as np
import pytest

from tests.conftest import SAMPLES

PAGE = SAMPLES.parent / "docs" / "workflows.md"
DIGITS = 4


def steps():
    """The commands of the steps, without the program's name, and their exit codes."""
    text = PAGE.read_text(encoding="utf-8")
    given = re.search(r"^# LeNet\n(.*)$", text, re.MULTILINE)
    values = dict(word.split("=", 1) for word in shlex.split(given[1]))
    rows = re.findall(r"^ *trt-bisect (.*\S) +# exit code (\d)$", text, re.MULTILINE)
    return [(shlex.split(Template(command).substitute(values)), int(code)) for command, code in rows]


@pytest.fixture(scope="module")
def folder(lenet, tmp_path_factory):
    """A folder with ``samples/lenet``, its digits cut down: with fewer calibration data the accuracy is another."""
    place = tmp_path_factory.mktemp("workflows")
    few = place / "samples" / "lenet"
    few.mkdir(parents=True)
    for path in lenet.iterdir():
        (few / path.name).symlink_to(path)
    with np.load(lenet / "digits.npz") as digits:
        cut = {name: digits[name][:DIGITS] for name in digits.files}
    labels = np.load(lenet / "labels.npy")[:DIGITS]
    for name in ("digits.npz", "labels.npy", "calibration.npz"):
        (few / name).unlink()
    (few / "calibration.npz").symlink_to(SAMPLES / "lenet" / "calibration.npz")
    np.savez(few / "digits.npz", **cut)
    np.save(few / "labels.npy", labels)
    return place


def test_every_command_ends_as_the_page_says(folder, command, monkeypatch):
    monkeypatch.chdir(folder)
    ended = []
    for words, expected in steps():
        code, _, err = command(*words)
        ended.append((words, code, expected, err if code != expected else ""))
    assert len(ended) >= 20
    assert [each for each in ended if each[1] != each[2]] == []
    for name in (
        "lenet-run/report.html",
        "lenet-run/recipe/plan.json",
        "lenet-two/matched.csv",
        "lenet-worst/worst.npz",
    ):
        assert (folder / name).is_file()
    assert not (folder / "lenet-scoped" / "tensors").exists()
