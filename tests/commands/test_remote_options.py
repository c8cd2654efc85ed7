"""A run that is sent elsewhere: its options there, and the commands that it suggests. No cluster is needed."""

import pickle
import shlex
from itertools import pairwise

from tests.support import networks
from trt_bisect.commands import regress_remote as remote


def done_elsewhere(keywords, folder):
    """The report of a run that is sent and then done here, in another folder."""
    there = folder.with_name("there")
    there.mkdir()
    return pickle.loads(remote.pickled(remote.WantedRun(folder, keywords)))(there)


def test_suggested_commands_of_a_remote_run_repeat_what_the_user_fixed(tmp_path):
    model = networks.planted(networks.chain(3), ("conv0", "conv1"))
    samples = networks.samples(model, 4)
    path = networks.save(model, tmp_path)
    (tmp_path / "plan.toml").write_text('[layers]\n"pool" = "fp32"\n')
    keywords = {
        "model": path, "calibration": samples, "engine": "onnxruntime", "calibrator": "minmax", "metric": "sqnr",
        "threshold": 60.0, "high": ["conv2"], "plan": tmp_path / "plan.toml", "one_scale": ["op:Gemm"],
        "explain": "none",
    }  # fmt: skip
    report = done_elsewhere(keywords, tmp_path / "run")
    fixed = {row.name: row.fixed for row in report.layers if row.fixed}
    assert fixed == {"conv2": "fp32", "pool": "fp32"}
    words = shlex.split(report.next.command)
    assert words[:2] == ["trt-bisect", "run"]
    given = dict(pairwise(words))
    assert given["--budget"] == "50%"
    assert given["--high"] == "conv2"
    assert given["--plan"] == str(tmp_path / "plan.toml")
    assert given["--one-scale"] == "op:Gemm"


def test_a_low_precision_travels_with_what_the_user_fixed(tmp_path):
    model = networks.chain(3)
    keywords = {
        "model": networks.save(model, tmp_path), "calibration": networks.samples(model, 4), "engine": "onnxruntime",
        "low": "fp16", "high": ["conv1"], "explain": "none",
    }  # fmt: skip
    report = done_elsewhere(keywords, tmp_path / "run")
    assert report.low == "fp16"
    assert [row.name for row in report.layers if row.fixed] == ["conv1"]
