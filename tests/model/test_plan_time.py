"""The costs of plans in predicted time, on ResNet-18 and a table's GPU."""

import numpy as np
import pytest

from tests.support import networks
from trt_bisect.model import cost as plan_time
from trt_bisect.model.cost import TimeCosts
from trt_bisect.model.gpu_time import GPUS, seconds
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision

FP16, FP32 = Precision.FP16, Precision.FP32


@pytest.fixture(scope="module")
def costs():
    network = load_network(networks.resnet18(4))
    facts = facts_for(network, {"x": np.zeros((4, 3, 224, 224), np.float32)})
    return TimeCosts(network, facts, GPUS["T4"])


def keeping(costs, names, high=FP32):
    return costs.full.keeping([costs.network.layer_named(name).index for name in names], high)


@pytest.mark.slow
def test_full_int8_costs_nothing_and_fp16_the_whole_speedup(costs):
    assert costs.cost(costs.full) == 0.0
    assert costs.cost(costs.in_all(FP16)) == pytest.approx(1.0)
    assert costs.cost(costs.in_all(FP32)) > 2.0


def test_a_cost_is_the_share_of_the_gain_in_time(costs):
    plan = keeping(costs, ["l1.1.c1"])
    times = [sum(seconds(one, GPUS["T4"]) for one in costs.engine.kernels(each)) for each in (plan, costs.full)]
    gain = costs.seconds(costs.in_all(FP16)) - times[1]
    assert costs.cost(plan) == pytest.approx((times[0] - times[1]) / gain)
    k = costs.network.layer_named("l1.1.c1").index
    assert costs.layers([FP32, FP16])[k][FP32] == pytest.approx(costs.cost(plan))


def test_neighbours_share_what_changes_types(costs):
    both = ["l1.1.c1", "l1.1.c2", "l1.1.add"]
    parts = [costs.cost(keeping(costs, [name])) for name in both]
    assert costs.cost(keeping(costs, both)) < sum(parts)
    added = [one.name for one in costs.added_reformats(keeping(costs, both))]
    assert added == ["l1.0.r2_out: fp32 to fp32", "l1.1.r2_out: fp32 to int8"]
    assert costs.added_reformats(costs.full) == ()


def test_the_kernels_that_take_longest(costs):
    (first, second) = costs.slowest(costs.in_all(FP32), 2)
    times = sorted(1e3 * seconds(one, GPUS["T4"]) for one in costs.engine.kernels(costs.in_all(FP32)))
    assert (first.ms, second.ms) == (times[-1], times[-2])
    assert first.name in {one.name for one in costs.engine.kernels(costs.in_all(FP32))}


def test_in_a_large_network_a_layer_costs_what_its_kernel_takes_longer(costs, monkeypatch):
    """The sum over all layers is the speedup, but for the changes of type: those of the input."""
    monkeypatch.setattr(plan_time, "MOST_LAYERS", 10)
    assert not costs.by_plan
    by_layer = costs.layers([FP16])
    in_int8, in_fp16 = (
        sum(seconds(one, GPUS["T4"]) for one in costs.engine.kernels(plan) if one.kind == "reformat")
        for plan in (costs.full, costs.in_all(FP16))
    )
    gain = costs.seconds(costs.in_all(FP16)) - costs.seconds(costs.full)
    assert sum(by[FP16] for by in by_layer.values()) == pytest.approx(1.0 + (in_int8 - in_fp16) / gain, abs=1e-3)
