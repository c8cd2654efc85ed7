"""Every statement of a report follows from its figures: runs of many kinds, whole and stopped.

``test_contradictions`` has those of the samples and of planted networks.
"""

import json

import numpy as np
import pytest

import trt_bisect
from tests.answer.test_whose_figures import Dense
from tests.support import networks
from tests.support.editions import edition
from tests.support.progress_doubles import Said, Steps
from tests.support.statements import check_advice, check_statements
from trt_bisect import NothingMeasured
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.commands.run.live import StoppedRun
from trt_bisect.driver.search import Findings, Step
from trt_bisect.precision import int8_set
from trt_bisect.report.summary import _accumulates

pytestmark = pytest.mark.slow
HOW = {"engine": "onnxruntime", "history": "none", "explain": "none"}
ONE = {"calibrator": "minmax"}
"""No search for the calibrator: other kinds of runs have it."""


def checked(folder):
    """Checks the report in a folder; returns it as JSON types."""
    report = json.loads((folder / "report.json").read_text())
    check_statements(report)
    explanation = folder / "explanation.json"
    if explanation.exists():
        check_advice(report, json.loads(explanation.read_text()))
    return report


def pair():
    """A chain with two culprits that lose together."""
    return networks.planted(networks.chain(), ("conv0", "conv1"))


def random_score(offset=0.0):
    """Three layers and one score, which no input raises with an offset far below zero."""
    sketch, x = networks.Sketch(4), "x"
    for k in range(2):
        x = sketch.node("Relu", [sketch.dense(x, f"fc{k}", 16, 16)], f"act{k}")
    moved = sketch.node("Add", [sketch.dense(x, "fc2", 16, 1), sketch.constant("offset", np.float32(offset))], "moved")
    return sketch.model({"x": ["n", 16]}, {sketch.node("Sigmoid", [moved], "score"): ["n", 1]})


DRAWN = {
    f"drawn {seed}": (lambda seed=seed: networks.drawn(seed), {"threshold": 1 - 10.0 ** -(2 + seed % 4)})
    for seed in range(8)
}
KINDS = {
    **DRAWN,
    "pair in FP16": (pair, {"precision": "mixed", "explain": "tensors", **ONE}),
    "on FP16": (networks.residual, {"base": "fp16", "threshold": 0.99999, **ONE}),
    "many small losses": (lambda: networks.chain(12), {"threshold": 0.99999, "calibrator": "minmax"}),
    "attention": (lambda: networks.transformer(blocks=1), {"threshold": 0.9999}),
    "depthwise": (networks.depthwise, {"threshold": 0.9999, "effort": "quick"}),
    "within a budget": (pair, {"budget": "20%"}),
    "no recipe in a budget": (pair, {"budget": "0%", **ONE}),
    "by SQNR": (pair, {"metric": "sqnr", "threshold": 30, **ONE}),
    "one score": (random_score, {}),
    "no score is raised": (lambda: random_score(-8.0), {"threshold": 0.9999}),
    "fixed": (networks.chain, {"high": ["conv1"], "threshold": 0.9999}),
    "few": (networks.chain, {"samples": 1, "threshold": 0.9999, "count": 1}),
    "held out": (networks.residual, {"threshold": 0.9999, "count": 24}),
}


LONG_OR_ALIKE = {"attention", "depthwise", "many small losses", *(f"drawn {seed}" for seed in range(8) if seed != 1)}


@pytest.mark.parametrize("kind", edition([kind for kind in KINDS if kind not in LONG_OR_ALIKE], list(KINDS)))
def test_what_a_report_says_follows_from_its_figures(kind, tmp_path):
    make, options = KINDS[kind]
    options = {"count": 8, **options}
    path, data = networks.given(make(), tmp_path, options.pop("count"))
    trt_bisect.run(path, data, output=tmp_path / "run", **{**HOW, **options})
    checked(tmp_path / "run")


class OnceItIsSaid(Said):
    """Presses Ctrl-C as soon as something is said that begins with some words."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    def say(self, text):
        super().say(text)
        if text.startswith(self.words):
            self.words = "never again"
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """A network whose calibrators differ, 24 inputs of which some are held out, and the steps of a whole run."""
    given = Dense(17, tmp_path_factory.mktemp("dense"))
    data = {"x": np.concatenate([given.inputs, 0.9 * given.inputs[:8]])}
    counted = Steps()
    trt_bisect.run(given.path, data, threshold=0.9985, progress=counted, **HOW)
    return given.path, data, counted.count


STOPS = ["A recipe passes", 0.3, 0.6, 0.1, 0.5, 0.7, 0.9, 0.97]


@pytest.mark.parametrize("stop", edition(STOPS[:3], STOPS))
def test_what_a_stopped_report_says_follows_from_its_figures(dense, stop, tmp_path):
    """Full INT8 is that of the calibrator that is named, however early the run is stopped."""
    path, data, steps = dense
    progress = OnceItIsSaid(stop) if isinstance(stop, str) else Steps(int(stop * steps))
    with pytest.raises((StoppedRun, NothingMeasured)):
        trt_bisect.run(path, data, threshold=0.9985, output=tmp_path, progress=progress, **HOW)
    report = checked(tmp_path)
    if not isinstance(stop, str):
        return
    assert report["recipe"]["meets"]
    named = {"calibrator": report["ranges"]["origin"].replace("percentile ", "percentile=")}
    alone = trt_bisect.run(path, data, threshold=0.9985, **named, **HOW)
    assert alone.similarity.int8 == report["similarity"]["int8"]


@pytest.mark.parametrize(
    ("losses", "accumulates"),
    [
        ([0.003, 0.006, 0.009, 0.012], True),
        ([0.003, 0.006, 0.002, 0.009, 0.012], False),
        ([0.003, 0.006, 0.009], False),
        ([0.003, None, 0.012], False),
        ([], False),
    ],
)
def test_a_loss_accumulates_only_over_steps_that_are_small(losses, accumulates):
    """Of 0.01 allowed a suspect loses 0.005: after a fall of the curve a layer loses 0.007, though the curve rises by
    0.003 above its highest point before. A curve that meets the threshold accumulates nothing."""
    steps, before = [], 0.0
    for k, loss in enumerate(losses):
        steps.append(Step((k,), before, loss, int8_set(5, range(k + 1))))
        before = before if loss is None else loss
    findings = Findings(before, tuple(steps), (), ())
    assert _accumulates(make_rule(find_metric("cosine"), 0.99, 0.5), findings) == accumulates
