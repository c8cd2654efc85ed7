"""The jobs under ``samples/ci``: valid where a schema exists, and their shell really run in a checkout."""

import fcntl
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import check_jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from tests.support import networks
from trt_bisect.commands.suite import read_suite

REPOSITORY = Path(__file__).parents[2]
CI = REPOSITORY / "samples/ci"
MEASURE = "Measure and compare"
"""A step of the sample workflow."""
POOR = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "LANG": "C", "LOGNAME": "nobody"}
"""The environment that cron gives a job, without HOME."""
QUICK = """
[defaults]
repeats = 1
strategy = "bisect"
explain = "none"
samples = 4

[[network]]
name = "small"
model = "{0}/network.onnx"
calibration = "{0}/data.npz"
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with a small network and its data."""
    folder = tmp_path_factory.mktemp("small")
    model = networks.chain(2, 4)
    networks.save(model, folder)
    np.savez(folder / "data.npz", **networks.samples(model, 4))
    return folder


@pytest.fixture
def checkout(forks, small, tmp_path):
    """The samples as a checkout has them, with a small network in the suite, and what the job's install step makes."""
    shutil.copytree(CI, tmp_path / "samples/ci", ignore=shutil.ignore_patterns("nightly"))
    (tmp_path / "samples/small").symlink_to(small)
    (tmp_path / "samples/ci/trt-bisect.toml").write_text(QUICK.format("../small"))
    install(forks, tmp_path)
    return tmp_path


def install(forks, folder):
    (folder / ".venv/bin").mkdir(parents=True)
    forks.write_command(folder / ".venv/bin/trt-bisect")


def shell(text, folder, interpreter=("bash", "-e"), **variables):
    """Runs a step's shell as the services do: without a terminal, stopping at the first failure."""
    how = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "check": False}
    environment = {**POOR, "HOME": str(folder), **variables}
    return subprocess.run([*interpreter, "-c", text], cwd=folder, env=environment, **how)


def make_worse(folder):
    """Full INT8 no longer meets a target that no network can meet."""
    path = folder / "samples/ci/trt-bisect.toml"
    path.write_text(path.read_text() + "target = 1.0\n")


def validated(file, *arguments):
    checked = CliRunner().invoke(check_jsonschema.main, [*arguments, str(file)])
    assert checked.exit_code == 0, checked.output
    return YAML(typ="safe").load(file.read_text())


def test_the_suite_is_of_the_sample_networks():
    suite = read_suite(CI / "trt-bisect.toml")
    assert [task.name for task in suite.networks] == ["lenet", "lenet-planted", "text-detector"]
    assert suite.output == CI / "nightly"


def test_the_projects_own_workflow_runs_targets_that_there_are():
    workflow = validated(REPOSITORY / ".github" / "workflows" / "ci.yml", "--builtin-schema", "vendor.github-workflows")
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    targets = {line.partition(":")[0] for line in (REPOSITORY / "Makefile").read_text().splitlines()}
    assert {tuple(command.split()) for command in commands} == {("make", "test"), ("make", "package")}
    assert {command.split()[1] for command in commands} <= targets


@pytest.mark.subprocess
def test_github_actions(checkout):
    workflow = validated(CI / "github-actions.yml", "--builtin-schema", "vendor.github-workflows")
    steps = {step["name"]: step for step in workflow["jobs"]["regress"]["steps"] if "run" in step}
    assert set(steps) == {"Install", MEASURE}
    assert shell(steps["Install"]["run"], checkout, ("bash", "-n")).returncode == 0
    run, summary = steps[MEASURE]["run"], checkout / "step.md"
    told = {**workflow["env"], "GITHUB_STEP_SUMMARY": str(summary)}
    missing = shell(run, checkout, UPDATE="", **told)
    assert missing.returncode == 2
    assert "--update-baseline" in missing.stderr
    assert shell(run, checkout, UPDATE="--update-baseline", **told).returncode == 0
    make_worse(checkout)
    assert shell(run, checkout, UPDATE="", **told).returncode == 1
    assert summary.read_text().count("## trt-bisect: ") == 2
    uploaded = workflow["jobs"]["regress"]["steps"][-1]["with"]["path"].split()
    assert uploaded == ["samples/ci/nightly", workflow["env"]["BASELINE"]]
    assert all((checkout / path).is_dir() for path in uploaded)


@pytest.mark.subprocess
def test_gitlab(checkout):
    arguments = ("--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci")
    job = validated(CI / "gitlab-ci.yml", *arguments)["int8-nightly"]
    assert shell("\n".join(job["before_script"]), checkout, ("bash", "-n")).returncode == 0
    (script,) = job["script"]
    told = job["variables"]
    assert shell(script, checkout, **{**told, "UPDATE": "--update-baseline"}).returncode == 0
    make_worse(checkout)
    assert shell(script, checkout, **told).returncode == 1
    junit = checkout / job["artifacts"]["reports"]["junit"]
    assert 'failures="1"' in junit.read_text()
    assert all((checkout / path).exists() for path in job["artifacts"]["paths"])


@pytest.mark.subprocess
def test_jenkins(checkout):
    text = (CI / "Jenkinsfile").read_text()
    plain = re.sub(r"'''.*?'''|'[^']*'|//[^\n]*", "", text, flags=re.DOTALL)
    assert all(plain.count(one) == plain.count(other) for one, other in ("{}", "()"))
    told = dict(re.findall(r"(\w+) = '([^']*)'", text))
    install_step, measure = re.findall(r"sh '''(.*?)'''", text, re.DOTALL)
    as_jenkins = ("sh", "-xe")
    assert shell(install_step, checkout, ("sh", "-n")).returncode == 0
    assert shell(measure, checkout, as_jenkins, UPDATE="false", **told).returncode == 0
    make_worse(checkout)
    assert shell(measure, checkout, as_jenkins, UPDATE="false", **told).returncode == 1
    accepting = shell(measure, checkout, as_jenkins, UPDATE="true", **told)
    assert (accepting.returncode, "new baseline" in accepting.stdout) == (1, True)  # the target is missed as before
    (junit,) = re.findall(r"testResults: '([^']*)'", text)
    assert (checkout / junit).is_file()
    (archived,) = re.findall(r"artifacts: '([^']*)'", text)
    assert all(list(checkout.glob(pattern.strip())) for pattern in archived.split(","))


@pytest.fixture
def board(forks, small, tmp_path):
    """A home with ``int8`` in it."""
    folder = tmp_path / "int8"
    folder.mkdir()
    shutil.copy(CI / "jetson-nightly.sh", folder)
    (folder / "trt-bisect.toml").write_text(QUICK.format(small))
    install(forks, folder)
    return tmp_path


def cron(home):
    """Runs the crontab's line as cron does."""
    lines = [line for line in (CI / "jetson.crontab").read_text().splitlines() if line and line[0] not in "#"]
    settings = dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))
    (entry,) = [line for line in lines if not re.match(r"\w+=", line)]
    minute, hour, *others, job = entry.split(None, 5)
    assert 0 <= int(minute) < 60
    assert 0 <= int(hour) < 24
    assert others == ["*", "*", "*"]
    return shell(job, home, (settings["SHELL"],))


@pytest.mark.subprocess
def test_cron_on_a_board(board):
    first = cron(board)
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    home = board / "int8"
    assert [path.name for path in (home / "baseline").iterdir()] == ["small.json"]
    old = home / "log/2020-01-01T000000Z.log"
    old.touch()
    os.utime(old, (0, 0))
    stale, kept = home / "nightly/2020-01-01T000000Z", next(home.glob("nightly/*/night.json")).parent
    stale.mkdir()
    os.utime(stale, (0, 0))
    second = cron(board)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert not old.exists()
    assert not stale.exists()
    assert kept.exists()
    assert len(list(home.glob("nightly/*/night.json"))) == 2
    suite = home / "trt-bisect.toml"
    suite.write_text(suite.read_text() + "target = 1.0\n")
    worse = cron(board)
    assert worse.returncode == 1
    assert "the target is 100%" in worse.stdout
    assert json.loads((home / "nightly/regression.json").read_text())["status"] == "failed"


@pytest.mark.subprocess
def test_cron_leaves_last_nights_run_alone(board):
    (board / "int8/log").mkdir()
    with (board / "int8/log/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = cron(board)
    assert (refused.returncode, refused.stdout.count("going on")) == (2, 1)
    assert not (board / "int8/nightly").exists()


@pytest.mark.subprocess
def test_cron_without_a_home_or_a_suite(board):
    (board / "int8/trt-bisect.toml").unlink()
    lost = cron(board)
    assert lost.returncode == 2
    assert "trt-bisect.toml'" in lost.stdout
    shutil.rmtree(board / "int8")
    assert cron(board).returncode == 127  # cron finds no script
