"""The goals of ``run``: the inputs that a recipe holds on, another goal's folder, moved scales."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.goal_cases import QUICK, planted
from tests.support.progress_doubles import StopsAt
from tests.support.records import kinds
from trt_bisect.commands.run.live import StoppedRun
from trt_bisect.report.parts import SO_FAR
from trt_bisect.report.words import NO_RECIPE
from trt_bisect.runs.progress_file import RUNNING
from trt_bisect.support.codec import write


def test_a_threshold_that_nothing_meets_is_exit_code_1(tmp_path, command):
    """In FP16 the planted range overflows in every plan."""
    model = networks.planted(networks.chain(2), ("conv0", "conv1"), factor=3e6)
    path = networks.save(model, tmp_path)
    np.savez(tmp_path / "data.npz", **networks.samples(model))
    asked = (
        "run", path, "--calibration", tmp_path / "data.npz", "--precision", "fp16", "-o", tmp_path / "run",
        "--engine", "onnxruntime", "--calibrator", "minmax", "--explain", "none",
    )  # fmt: skip
    assert command(*asked, "--as-is")[0] == 1
    report = trt_bisect.Report.load(tmp_path / "run")
    assert not report.recipe.meets
    assert NO_RECIPE in kinds(report.lines)
    assert command(*asked)[0] == 1
    changed = trt_bisect.Report.load(tmp_path / "run")
    assert changed.recipe.meets, "smoothed channels take the range away"
    assert "smoothed" in changed.answer.changes
    assert NO_RECIPE not in kinds(changed.lines)


OTHER = ({"threshold": 0.99999}, False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run that was killed with a recipe, with the same times for all layers beside it; not to be
    changed."""
    place = tmp_path_factory.mktemp("killed")
    path, data, bad = planted("chain-1", place)
    report = trt_bisect.run(path, data, output=place / "run", **QUICK)
    layers = [row.name for row in report.layers if row.quantizable]
    (place / "times.csv").write_text("\n".join(["layer,int8,fp16,fp32", *(f"{name},1,2,3" for name in layers)]))
    write(place / "run" / SO_FAR, replace(report, state=RUNNING))
    (place / "run" / "report.json").unlink()
    return place, path, data, bad


@pytest.mark.parametrize(
    ("goal", "is_kept"),
    [({}, True), ({"front": True}, True), ({"budget": 0.9}, False), ({"cost": "times.csv"}, False), OTHER],
    ids=lambda value: next(iter(value), "none") if isinstance(value, dict) else None,
)
def test_a_recipe_of_another_goal_does_not_keep_the_report_so_far(killed, tmp_path, monkeypatch, goal, is_kept):
    """The report so far of a run that was killed: the same question keeps its recipe, another one does not."""
    place, path, data, bad = killed
    plans = []

    class Looks(StopsAt):
        def stage(self, title, total):
            plans.append(Path("run/recipe/plan.json").exists())
            super().stage(title, total)

    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoppedRun) as stop:
        trt_bisect.run(path, data, output="run", progress=Looks("Full INT8 with each calibrator"), **{**QUICK, **goal})
    assert plans[-1] is is_kept
    assert (set(stop.value.report.recipe.high) == bad) is is_kept
