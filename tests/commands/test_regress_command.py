"""``regress`` as a command, and nights that were interrupted or killed."""

import json

import numpy as np
import onnx
import pytest

from tests.support import networks
from tests.support.suites import NETWORK, ONCE, SUITE, calibrate_louder, only
from tests.support.waiting import wait_until
from trt_bisect.commands.regress import regress, run_network
from trt_bisect.history.store import HISTORY, History


def interrupted(suite, defaults=ONCE):
    """A night that was stopped in the second of its two networks; gives the first one's journal."""
    suite.write_text(defaults + NETWORK.replace('"chain"', '"second"'))

    def stopped(task, folder, progress):
        if task.name == "second":
            raise KeyboardInterrupt
        return run_network(task, folder, progress)

    with pytest.raises(KeyboardInterrupt):
        regress(suite, runner=stopped)
    return next((suite.parent / "nightly").glob("*/runs/chain/journal.jsonl"))


def test_an_interrupted_night_is_gone_on_with_where_it_was(suite):
    journal = interrupted(suite, SUITE)
    measured, run_again = journal.read_bytes(), []

    def noting(task, folder, progress):
        run_again.append(folder.relative_to(journal.parents[2]).as_posix())
        return run_network(task, folder, progress)

    night = regress(suite, runner=noting)
    assert night.folder == journal.parents[2]
    assert journal.read_bytes() == measured
    assert (night.number, night.exit_code) == (1, 0)
    assert run_again == ["runs/second", "repeats/second/2"]
    history = History(suite.parent / "nightly" / HISTORY)
    assert sorted(history.reports()["label"]) == ["chain", "chain", "second", "second"]


def test_a_run_that_was_killed_is_not_taken_for_a_finished_one(suite):
    journal = interrupted(suite)
    (journal.parent / "progress.json").write_text("{}")
    run_again = []

    def noting(task, folder, progress):
        run_again.append(task.name)
        return run_network(task, folder, progress)

    assert regress(suite, runner=noting).exit_code == 0
    assert run_again[0] == "chain"


@pytest.fixture
def night_command(command, suite, monkeypatch):
    """``trt-bisect regress`` in the suite's folder, as on a machine of its own."""
    monkeypatch.chdir(suite.parent)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return lambda *arguments: command("regress", *arguments)


def test_the_command(night_command, suite, monkeypatch, tmp_path):
    suite.write_text(ONCE)
    code, out, err = night_command()
    assert (code, out.splitlines()[0].split(":")[0]) == (0, "passed  chain")
    assert "no baseline" in err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    (tmp_path / "step.md").write_text("before\n")
    calibrate_louder(suite.parent)
    code, out, _ = night_command("--baseline", "latest", "--config", "trt-bisect.toml")
    assert code == 1
    assert "full INT8 is worse" in out
    assert "what differs: ranges (" in out
    assert (tmp_path / "step.md").read_text() == "before\n" + (suite.parent / "nightly/summary.md").read_text()
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "gone/step.md"))
    code, _, err = night_command("--update-baseline")
    assert code == 0
    assert "$GITHUB_STEP_SUMMARY" in err


def test_annotations_for_github(night_command, suite):
    suite.write_text(ONCE + "target = 0.9999999\n" + '[[network]]\nname = "50%, or: less"\nmodel = "gone.onnx"\n')
    code, out, _ = night_command("--annotations", "github")
    failed, missing = [line for line in out.splitlines() if line.startswith("::")]
    assert code == 1
    assert failed.startswith("::error title=INT8 of chain%3A failed::full INT8 measures ")
    assert missing.startswith("::error title=INT8 of 50%25%2C or%3A less%3A not measured::")
    assert "gone.onnx" in missing
    _, out, err = night_command("--annotations", "github", "--json")
    assert json.loads(out)["exit_code"] == 1
    assert len([line for line in err.splitlines() if line.startswith("::error ")]) == 2


def test_bad_use_is_two_lines_and_exit_code_2(night_command, suite, tmp_path):
    code, out, err = night_command("--baseline", "gone")
    assert (code, out, len(err.splitlines())) == (2, "", 2)
    assert "no baseline in 'gone'" in err
    suite.write_text('output = "trt-bisect.toml"\n' + SUITE)
    assert night_command()[0] == 2
    assert not (tmp_path / "nightly/x").exists()


def test_layer_names_that_mean_something_elsewhere(night_command, suite):
    """Markup, a table's bar, XML's and Markdown's signs in a layer's name are shown and obeyed by nobody."""
    suite.write_text(ONCE)
    model = onnx.load(suite.parent / "chain.onnx")
    hostile = "<b>|[red]`x`]]>&@me/../#1"
    model.graph.node[2].name = hostile
    networks.save(model, suite.parent, "chain.onnx")
    night_command()
    networks.scale_constant(model, "conv0.bias", lambda bias: np.where(np.arange(8) == 1, abs(bias) + 0.5, bias) * 1)
    networks.plant_between(model, "conv0", "conv1")
    networks.save(model, suite.parent, "chain.onnx")
    code, out, _ = night_command()
    assert code == 1
    assert hostile in out
    night = suite.parent / "nightly/summary.md"
    line = next(line for line in night.read_text().splitlines() if "new culprit" in line)
    assert r"'&lt;b&gt;\|\[red\]\`x\`\]\]&gt;&amp;&#64;me/\.\./\#1'" in line


@pytest.mark.subprocess
def test_kill_9_and_the_same_command(forks, suite):
    """Killed wherever it is after a while; the same command ends with the report of an undisturbed night."""
    suite.write_text(ONCE)
    process = forks.start("regress", "--config", suite)
    wait_until(lambda: list((suite.parent / "nightly").glob("*/runs/chain/journal.jsonl")))
    process.kill()
    process.wait()
    (record,) = (suite.parent / "nightly").glob("*/night.json")
    assert json.loads(record.read_text())["status"] == "running"
    done = forks.run("regress", "--config", suite)
    assert done.returncode == 0
    assert "Resuming" in done.stderr
    (folder,) = (suite.parent / "nightly").glob("2*")
    undisturbed = regress(suite, folder)
    assert only(undisturbed).changes == ()
