"""A suite on a real Ray cluster: the night is as it is here."""

import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.errors import EngineUnavailable
from trt_bisect.history.store import HISTORY, History

SUITE = '[defaults]\nrepeats = 2\nmetric = "sqnr"\ncalibrator = "minmax"\nexplain = "none"\n' + "".join(
    f'[[network]]\nname = "{name}"\nmodel = "{name}.onnx"\ncalibration = "data.npz"\n'
    for name in ("planted", "broken", "sound")
)


@pytest.fixture
def suite(tmp_path):
    def make(name):
        folder = tmp_path / name
        folder.mkdir()
        planted = networks.planted(networks.residual(1), ("block0.conv1", "block0.conv2"))
        networks.save(planted, folder, "planted.onnx")
        networks.save(networks.residual(1), folder, "sound.onnx")
        (folder / "broken.onnx").write_bytes(b"no network")
        np.savez(folder / "data.npz", **networks.samples(planted, 4))
        (folder / "trt-bisect.toml").write_text(SUITE)
        return folder / "trt-bisect.toml"

    return make


def told(regression):
    """Returns the record of a night without times and places."""

    def found(run):
        return run and (run.similarity, run.recipe, run.culprits)

    results = regression.networks
    return [(each.name, each.status, found(each.tonight), each.message.split("'")[0]) for each in results]


def test_a_night_on_a_cluster_is_as_here(suite, ray_nodes):
    here = trt_bisect.regress(suite("here"))
    config = suite("there")
    there = trt_bisect.regress(config, cluster=ray_nodes.address)
    assert told(there) == told(here)
    assert there.exit_code == here.exit_code == 3
    assert all(result.seconds > 0 for result in there.networks if result.tonight)
    for night in (here, there):
        reports = sorted(str(path.relative_to(night.folder)) for path in night.folder.rglob("report.json"))
        of_runs = ("repeats/planted/2", "repeats/sound/2", "runs/planted", "runs/sound")
        assert reports == [f"{run}/report.json" for run in of_runs]
    with History(config.parent / "nightly" / HISTORY) as kept:
        assert sorted(report.label for report in kept.past()) == ["planted", "planted", "sound", "sound"]
    (config.parent / "broken.onnx").write_bytes((config.parent / "sound.onnx").read_bytes())
    second = trt_bisect.regress(config, cluster=ray_nodes.address, update_baseline=True)
    assert (second.exit_code, len(list(second.folder.rglob("report.json")))) == (0, 6)
    (config.parent / "sound.onnx").write_bytes((config.parent / "planted.onnx").read_bytes())
    third = trt_bisect.regress(config, cluster=ray_nodes.address)
    assert third.exit_code == 1
    assert [result.name for result in third.networks if result.failures] == ["sound"]


def test_a_night_whose_cluster_is_gone_goes_on_here(suite, ray_nodes, monkeypatch):
    """The first run has ended when the cluster goes; it is not done again."""
    from trt_bisect.commands import regress_remote as suite_elsewhere

    whole = suite_elsewhere.run_elsewhere

    def cut_off(cluster, jobs, say):
        yield next(whole(cluster, jobs[:1], say))
        raise EngineUnavailable("The cluster does not answer any more.")

    config = suite("night")
    monkeypatch.setattr(suite_elsewhere, "run_elsewhere", cut_off)
    with pytest.raises(EngineUnavailable):
        trt_bisect.regress(config, cluster=ray_nodes.address)
    (report,) = (config.parent / "nightly").rglob("report.json")
    written = report.stat().st_mtime_ns
    night = trt_bisect.regress(config)
    assert (night.number, report.stat().st_mtime_ns) == (1, written)
    assert json.loads(report.read_text())["culprits"] == ["block0.conv2"]
    assert report.is_relative_to(night.folder)


def test_a_cluster_that_is_none_is_refused_before_the_night_begins(suite, command):
    config = suite("night")
    code, _, err = command("regress", "--config", config, "--cluster", "nonsense")
    assert code == 2
    assert "'nonsense'" in err.splitlines()[0]
    assert [path for path in (config.parent / "nightly").iterdir() if path.is_dir()] == [], "no night has begun"
