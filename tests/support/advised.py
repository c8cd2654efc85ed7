"""Runs networks for their advice, and lists the remedies in it."""

import trt_bisect
from tests.support import networks


def run(model, folder, count=8, **options):
    usual = {"engine": "onnxruntime", "calibrator": "minmax", "precision": "fp32", "output": folder / "run"}
    options = {**usual, **options}
    feeds = networks.samples(model, count)
    return trt_bisect.run(networks.save(model, folder), options.pop("calibration", feeds), feeds, **options)


def advice_on(report, culprit):
    return next(each for each in report.advice if each.culprit == culprit)


def named(advice):
    return [remedy.remedy for remedy in advice.remedies]


def offered(advice):
    """Returns the remedies that were not measured to miss the threshold; they come first in an advice."""
    found = [remedy.remedy for remedy in advice.remedies if remedy.tried is None or remedy.tried.meets]
    assert named(advice)[: len(found)] == found
    return found


def starved():
    model = networks.chain(5)
    networks.plant_between(model, "conv2", "conv3")
    return model
