"""Nights of ``regress`` on real networks with real regressions planted."""

import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.suites import (
    NETWORK,
    ONCE,
    SUITE,
    Remembered,
    calibrate_louder,
    differing,
    failing,
    only,
    save_suite,
)
from trt_bisect.commands.regress import LATEST, regress
from trt_bisect.errors import BadInput

REMEMBERED, DATA = Remembered(), ("calibration", "inputs")


def nightly(suite, baseline=LATEST, **how):
    """A night whose networks are measured once for all nights of this module."""
    return regress(suite, baseline, runner=REMEMBERED, **how)


@pytest.fixture(scope="module")
def first_night(tmp_path_factory):
    """The first night of a suite, whose folder is not to be changed."""
    return regress(save_suite(tmp_path_factory.mktemp("first")))


@pytest.fixture
def a_night_before(first_night, suite):
    shutil.copytree(first_night.folder.parent, suite.parent / "nightly")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run on the suite's network and data, which is not to be changed."""
    folder = save_suite(tmp_path_factory.mktemp("alone")).parent
    data = (folder / "calibration.npz", folder / "inputs.npz")
    trt_bisect.run(folder / "chain.onnx", *data, output=folder / "run", calibrator="minmax")
    return folder / "run"


def test_the_same_suite_twice_is_unchanged(suite, first_night, a_night_before):
    first = first_night
    assert (first.exit_code, first.accepted, first.baseline) == (0, True, "")
    assert sorted(path.name for path in (first.folder / "repeats/chain").iterdir()) == ["2"]
    second = regress(suite)
    result = only(second)
    assert (second.exit_code, result.changes, result.noise, result.differs) == (0, (), (), ())
    assert second.baseline.startswith("nightly run 1 ")
    assert not (second.folder / "repeats").exists()
    assert (second.folder / "runs/chain/report.html").is_file()
    one, other = (night.folder / "baseline/chain.json" for night in (first, second))
    assert one.read_bytes() == other.read_bytes()
    record = json.loads(one.read_text())
    assert (record["repeats"], len(record["runs"])) == (2, 1)


def test_a_planted_culprit_is_found_and_told(suite, a_night_before):
    model = networks.planted(networks.chain(3), ("conv0", "conv1"))
    networks.save(model, suite.parent, "chain.onnx")
    night = nightly(suite)
    assert night.exit_code == 1
    assert ("culprit", "conv1") in failing(night)
    assert ("similarity", "int8") in failing(night)
    assert {"model", "ranges"} <= differing(night)
    assert "data (the judged inputs)" not in differing(night)
    assert (night.folder / "repeats/chain/2/report.json").is_file()
    summary = (night.folder / "summary.md").read_text()
    assert "new culprit 'conv1'" in summary
    assert "--update-baseline" in summary
    record = json.loads((night.folder / "regression.json").read_text())
    assert record["networks"][0]["tonight"]["culprits"] == ["conv1"]
    assert record["exit_code"] == 1


def test_other_samples_and_options(suite, a_night_before):
    data = networks.samples(networks.chain(3), 2, seed=6)
    np.savez(suite.parent / "inputs.npz", **data)
    suite.write_text(SUITE + 'precision = "fp16"\nthreshold = 0.98\n')
    night = nightly(suite)
    options = {"option precision", "option base", "option threshold"}
    converted = {"model, or its opset"}  # from opset 17 to 19: Q/DQ pairs on tensors in FP16 need it
    assert differing(night) == options | converted | {"data (the judged inputs)"}
    assert only(night).changes == ()


def test_another_metric_cannot_be_compared_and_is_accepted(suite, a_night_before):
    suite.write_text(ONCE + 'metric = "sqnr"\n')
    night = nightly(suite)
    assert night.exit_code == 3
    assert "'sqnr'" in only(night).message
    assert "'cosine'" in only(night).message
    assert nightly(suite, update_baseline=True).exit_code == 0
    assert nightly(suite).exit_code == 0


def test_a_metric_of_the_users_own_of_which_less_is_better(suite):
    (suite.parent / "mine.py").write_text(
        "import numpy as np\n\n\ndef error(r, o):\n    return float(np.abs(r - o).max())\n\n\n"
        "error.higher_is_better = False\n"
    )
    suite.write_text(ONCE + 'metric = "mine.py:error"\nthreshold = 0.5\n')
    assert nightly(suite).exit_code == 0
    assert only(nightly(suite)).changes == ()
    calibrate_louder(suite.parent)
    night = nightly(suite)
    assert ("similarity", "int8") in failing(night)
    before, now = only(night).changes[0].before, only(night).changes[0].now
    assert now > max(before) + 0.05  # a tenth of what the threshold allows


def test_a_target_holds_whatever_the_baseline_says(suite):
    suite.write_text(ONCE + "target = 0.999999\n")
    first = nightly(suite)
    assert (first.exit_code, first.accepted) == (1, False)
    assert failing(first) == [("target", "int8")]
    assert not (first.folder / "baseline").exists()
    second = nightly(suite, update_baseline=True)
    assert (second.exit_code, second.accepted, second.baseline) == (1, True, "")
    third = nightly(suite)
    assert third.exit_code == 1
    assert third.baseline.startswith("nightly run 2 ")
    assert not (third.folder / "baseline").exists()
    assert "--update-baseline" not in (third.folder / "summary.md").read_text()


def test_update_baseline_keeps_a_folder_for_git(suite, tmp_path):
    kept = tmp_path / "baseline"
    with pytest.raises(BadInput, match=re.escape(f"'{kept}'")):
        nightly(suite, kept)
    assert not kept.exists()
    made = nightly(suite, kept, update_baseline=True)
    assert (made.exit_code, made.accepted) == (0, True)
    text = (kept / "chain.json").read_text()
    assert next(line for line in text.splitlines() if '"conv1"' in line).count(",") >= 5
    night = nightly(suite, kept)
    assert (night.exit_code, night.baseline, night.accepted) == (0, str(kept), False)
    assert not (night.folder / "baseline").exists()
    suite.write_text(SUITE.replace('name = "chain"', 'name = "other"'))
    renamed = nightly(suite, kept, update_baseline=True)
    assert renamed.gone == ("chain",)
    assert [path.name for path in kept.iterdir()] == ["other.json"]


def test_a_run_a_report_and_a_night_as_baseline(suite, alone, first_night, tmp_path):
    for baseline in (alone, alone / "report.json"):
        night = nightly(suite, baseline)
        assert (night.exit_code, only(night).differs) == (0, ())
        with pytest.raises(BadInput, match="nightly run"):
            nightly(suite, baseline, update_baseline=True)
    assert only(nightly(suite, first_night.folder)).changes == ()
    stopped = json.loads((alone / "report.json").read_text())
    del stopped["made_of"]
    (tmp_path / "stopped.json").write_text(json.dumps(stopped))
    night = nightly(suite, tmp_path / "stopped.json")
    assert only(night).differs is None
    assert "not known" in (night.folder / "junit.xml").read_text()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"schema": 99}',
        '{"schema": 1, "layers": [], "culprits": [], "notes": [], "recipe": 3}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_no_report(suite, tmp_path, content):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(BadInput, match=r"report\.json"):
        nightly(suite, tmp_path / "report.json")
    assert not list((tmp_path / "nightly").glob("*/night.json"))


@pytest.mark.parametrize("change", [None, {"runs": []}, {"runs": [{}]}, {"kind": "x"}, {"runs": 3}, "text"])
def test_a_folder_of_other_json_is_no_baseline_and_left_alone(suite, first_night, tmp_path, change):
    kept = tmp_path / "kept"
    shutil.copytree(first_night.folder / "baseline", kept)
    path = kept / "chain.json"
    record = json.loads(path.read_text())
    if change == "text":
        change = {"runs": [{**record["runs"][0], "similarity": {"int8": "high"}}]}
    path.write_text("{" if change is None else json.dumps({**record, **change}))
    before = path.read_bytes()
    for update in (False, True):
        with pytest.raises(BadInput, match=r"chain\.json'"):
            nightly(suite, kept, update_baseline=update)
    assert path.read_bytes() == before


def test_of_several_networks_the_runs_own_is_compared(suite, alone, tmp_path):
    networks.save(networks.chain(4), tmp_path, "other.onnx")
    suite.write_text(ONCE + NETWORK.replace("chain", "other"))
    night = nightly(suite, alone)
    assert [result.baseline is not None for result in night.networks] == [True, False]
    suite.write_text(suite.read_text().replace('"chain.onnx"', '"other.onnx"'))
    with pytest.raises(BadInput, match="none of the suite"):
        nightly(suite, alone)


def test_networks_that_fail_do_not_cost_the_others(suite):
    """A file that is none, data that are not there, and a bug."""
    (suite.parent / "broken.onnx").write_bytes(b"no network")
    tables = [NETWORK.replace('"chain"', '"bad"').replace('"chain.onnx"', '"broken.onnx"')]
    tables += [NETWORK.replace('"chain"', f'"{name}"').replace(f'"{name}.npz"', '"gone.npz"') for name in DATA]
    tables.append(NETWORK.replace('"chain"', '"bug"'))
    suite.write_text(ONCE + "".join(tables))

    def buggy(task, folder, progress):
        if task.name == "bug":
            raise KeyError("a bug")
        return REMEMBERED(task, folder, progress)

    night = regress(suite, runner=buggy)
    assert [result.status for result in night.networks] == ["passed", *["error"] * 4]
    assert night.exit_code == 3
    broken, *missing, bug = (result.message for result in night.networks[1:])
    problem, _, remedy = broken.partition(" Check that ")
    assert "broken.onnx" in problem
    assert (problem[-1], bool(remedy)) == (".", True), "two sentences, in one line"
    assert all("gone.npz" in message for message in missing)
    assert "KeyError at test_regress.py" in bug
    cases = ElementTree.parse(suite.parent / "nightly/junit.xml").getroot()
    found = [(case.get("name"), case.get("errors")) for case in cases]
    assert found == [("chain", "0"), *((name, "1") for name in ("bad", *DATA, "bug"))]
    assert [path.name for path in (night.folder / "baseline").iterdir()] == ["chain.json"]
    again = regress(suite, runner=buggy)
    assert again.exit_code == 3
    assert again.baseline.startswith("nightly run 1 ")
    assert regress(suite, runner=buggy).baseline.startswith("nightly run 2 ")


def test_the_baseline_is_per_network(suite):
    """A night in which a network failed keeps its baseline, and renews those of the others."""
    good = (suite.parent / "chain.onnx").read_bytes()
    networks.save(networks.chain(4), suite.parent, "other.onnx")
    second = NETWORK.replace("chain", "other")
    suite.write_text(ONCE + second)
    assert nightly(suite).exit_code == 0
    networks.save(networks.planted(networks.chain(3), ("conv0", "conv1")), suite.parent, "chain.onnx")
    for _ in range(2):
        planted = nightly(suite)
        assert [result.status for result in planted.networks] == ["failed", "passed"]
        assert planted.networks[0].baseline.measured.startswith("nightly run 1 ")
    assert planted.baseline.startswith("nightly run 1 (")
    assert " and nightly run 2 (" in planted.baseline
    (suite.parent / "chain.onnx").write_bytes(good)
    assert nightly(suite).exit_code == 0
    assert nightly(suite).baseline.startswith("nightly run 4 (")


def test_a_network_of_a_first_night_that_fails_has_no_baseline_and_the_others_have(suite):
    networks.save(networks.chain(4), suite.parent, "other.onnx")
    second = NETWORK.replace("chain", "other")
    suite.write_text(ONCE + "target = 0.9999999\n" + second)
    first = nightly(suite)
    assert [result.status for result in first.networks] == ["failed", "passed"]
    assert "tonight's figures are the baseline of 'other'" in (first.folder / "summary.md").read_text().replace(
        "\\", ""
    )
    assert [result.baseline is None for result in nightly(suite).networks] == [True, False]
