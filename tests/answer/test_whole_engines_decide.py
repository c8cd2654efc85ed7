"""Pieces of an NVIDIA engine propose, whole engines decide: invented similarities for both, which need not agree."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support import networks
from tests.support.editions import edition
from tests.support.records import texts
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.commands.run.build_report import RunTrials, blank_row, layer_rows, overruled
from trt_bisect.commands.run.live import curve_so_far
from trt_bisect.commands.run.search import CurveSearch
from trt_bisect.driver.curves import CULPRITS, FULL
from trt_bisect.driver.search import Question
from trt_bisect.errors import TrialFailed
from trt_bisect.evaluator.evaluators import BranchEvaluator, RebuildEvaluator
from trt_bisect.evaluator.trial import MEASURED, Attempt, OutputFigures, Trial, TrialStore
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.model.pieces import cut
from trt_bisect.options.concerns import BRANCH, MeasuringOptions
from trt_bisect.support.progress import Silent

RULE = make_rule(find_metric("cosine"), 0.99)
STEP = RULE.step


@dataclass
class Shown:
    """The curve as the report shows it."""

    layers: tuple
    findings: object
    notes: list

    @property
    def suspects(self):
        return tuple(row.name for row in self.layers if row.suspect)


@dataclass
class Wholes:
    """Builds whole engines whose similarity is ``invented`` for their INT8 layers; None fails to build."""

    invented: object
    engine, typing, arithmetic, versions = "tensorrt", "strong", MEASURED, {"tensorrt": "0"}

    def build(self, plan):
        similarity = self.invented(plan.int8)
        if similarity is None:
            raise TrialFailed("build failed", "no tactic")
        outputs = {"y": np.float64(similarity)}
        return nullcontext(SimpleNamespace(infer=lambda _: outputs, ran={}, messages=()))


@dataclass
class Pieces:
    """The stream, and the builder, of pieces whose similarity is ``invented``."""

    invented: object
    pieces: object
    is_exact = False

    @property
    def builder(self):
        return self

    def run(self, job, tell):
        plans = [plan for _, plan in job.branches] + [job.trunk] * job.trunk_wanted
        trials = {plan: Trial(plan.key(), MEASURED, inferences=1) for plan in plans}
        yield [Attempt(plan, trials[plan], [{"y": np.float64(self.invented(plan.int8))}]) for plan in plans]

    def ran(self, _):
        return {}


def compare(outputs):
    return {"y": OutputFigures({"cosine": float(outputs[0]["y"])})}


class Experiment:
    """A network of real layers; what its engines measure is invented."""

    def __init__(self, folder):
        model = networks.chain(depth=8)
        self.network = load_network(networks.save(model, folder))
        feeds = {"x": networks.samples(model, 1)["x"]}
        self.pieces = cut(self.network, facts_for(self.network, feeds), 1)
        self.ranges = Ranges({name: np.float32(0.1) for name in self.network.rounded_activations}, {}, "invented")

    def report(self, in_pieces, wholes, curve=FULL):
        """The curve of ``branch`` on an NVIDIA engine, as the report shows it."""
        network, store, builder = self.network, TrialStore(), Wholes(wholes)
        whole = RebuildEvaluator(network, builder, [{}], compare, store)
        evaluator = BranchEvaluator(whole, Pieces(in_pieces, self.pieces))
        question = Question(len(network.layers), network.quantizable, RULE.budget, RULE.step)
        facts = {"network": network, "rule": RULE, "question": question, "curve": curve, "whole": whole}
        experiment = SimpleNamespace(**facts, evaluator=evaluator, measured_in="pieces")
        found = CurveSearch(experiment, Silent()).curve()
        trials = RunTrials(store.trials, experiment)
        assert curve_so_far(trials) == (found, whole.measure(question.all_but(())))
        blank = [blank_row(layer, "fp32") for layer in network.layers]
        rows = layer_rows(blank, trials, found, dict.fromkeys(found.findings.suspects, "a suspect"))
        return Shown(rows, found.findings, overruled(found, network, RULE))

    def named(self, places):
        """The names of the quantizable layers at these places."""
        return tuple(self.network.layers[self.network.quantizable[place]].name for place in places)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Experiment(tmp_path_factory.mktemp("network"))


def additive(network, costs):
    """Each layer in INT8 costs its own share, whatever the others are in."""
    assert len(network.quantizable) >= 8
    of = dict(zip(network.quantizable, costs, strict=True))
    return lambda int8: 1.0 - sum(of[k] for k in int8)


COSTS = st.lists(st.sampled_from([0.0, 0.0, 0.0001, 0.004, 0.006, 0.1]), min_size=8, max_size=8)


@settings(max_examples=edition(8, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=COSTS, wholes=COSTS, curve=st.sampled_from([FULL, CULPRITS]))
def test_the_culprits_are_those_that_cost_a_step_on_whole_engines_whatever_pieces_say(bench, pieces, wholes, curve):
    extra = [0.0] * (len(bench.network.quantizable) - 8)
    report = bench.report(additive(bench.network, pieces + extra), additive(bench.network, wholes + extra), curve)
    missed = sum(wholes) > RULE.budget + 1e-9
    expected = bench.named(place for place, cost in enumerate(wholes) if cost >= STEP) if missed else ()
    assert report.suspects == expected
    assert report.findings.full == pytest.approx(sum(wholes), abs=1e-9)
    for row in report.layers:
        if row.suspect:
            place = bench.network.quantizable.index(row.index)
            assert row.whole["without"] - row.whole["with"] == pytest.approx(wholes[place])
            assert row.drop == pytest.approx(wholes[place])
            assert row.similarity == row.whole["with"]


def test_what_whole_engines_do_not_confirm_is_withdrawn_and_said(bench):
    """Pieces blame the third layer; whole engines the sixth."""
    cost = [0.0] * len(bench.network.quantizable)
    pieces, wholes = list(cost), list(cost)
    pieces[2], wholes[5] = 0.1, 0.1
    report = bench.report(additive(bench.network, pieces), additive(bench.network, wholes))
    (innocent,), (guilty,) = bench.named([2]), bench.named([5])
    assert report.suspects == (guilty,)
    assert any("withdrawn" in note and repr(innocent) in note for note in texts(report.notes))
    withdrawn = next(row for row in report.layers if row.name == innocent)
    assert withdrawn.whole == {"without": pytest.approx(1.0), "with": pytest.approx(1.0)}


def test_two_whole_engines_a_culprit_where_pieces_are_right(bench):
    """Beside them FP32, full INT8, and the plan without suspects."""
    cost = [0.0] * len(bench.network.quantizable)
    cost[2] = cost[5] = 0.1
    built = []
    invented = additive(bench.network, cost)

    def counted(int8):
        built.append(int8)
        return invented(int8)

    bench.report(invented, counted)
    assert len(built) == 3 + 2 * 2


def test_bisect_is_what_an_nvidia_engine_is_searched_by_and_branch_what_onnxruntime_is():
    ways = {"onnxruntime": "branch", "tensorrt": "bisect", "tensorrt-rtx": "bisect"}
    assert {engine: MeasuringOptions().strategy_on(engine) for engine in ways} == ways
    assert MeasuringOptions(strategy=BRANCH).strategy_on("tensorrt") == BRANCH
