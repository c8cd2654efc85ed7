"""The prices of plans in predicted time, on ResNet-18 and a table's GPU."""

import numpy as np
import pytest

from tests.support import networks
from tests.support.networks import save
from trt_bisect.model import cost as plan_time
from trt_bisect.model.cost import TimePrices
from trt_bisect.model.gpu_time import GPUS, seconds
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision

FP16, FP32 = Precision.FP16, Precision.FP32


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    network = load_network(save(networks.resnet18(4), tmp_path_factory.mktemp("resnet")))
    facts = facts_for(network, {"x": np.zeros((4, 3, 224, 224), np.float32)})
    return TimePrices(network, facts, GPUS["T4"])


def keeping(prices, names, high=FP32):
    return prices.full.keeping([prices.network.layer_named(name).index for name in names], high)


@pytest.mark.slow
def test_full_int8_costs_nothing_and_fp16_the_whole_speedup(prices):
    assert prices.price(prices.full) == 0.0
    assert prices.price(prices.in_all(FP16)) == pytest.approx(1.0)
    assert prices.price(prices.in_all(FP32)) > 2.0


def test_a_price_is_the_share_of_the_gain_in_time(prices):
    plan = keeping(prices, ["l1.1.c1"])
    times = [sum(seconds(one, GPUS["T4"]) for one in prices.engine.kernels(each)) for each in (plan, prices.full)]
    gain = prices.seconds(prices.in_all(FP16)) - times[1]
    assert prices.price(plan) == pytest.approx((times[0] - times[1]) / gain)
    k = prices.network.layer_named("l1.1.c1").index
    assert prices.layers([FP32, FP16])[k][FP32] == pytest.approx(prices.price(plan))


def test_neighbours_share_what_changes_types(prices):
    both = ["l1.1.c1", "l1.1.c2", "l1.1.add"]
    parts = [prices.price(keeping(prices, [name])) for name in both]
    assert prices.price(keeping(prices, both)) < sum(parts)
    added = [one.name for one in prices.added_reformats(keeping(prices, both))]
    assert added == ["l1.0.r2_out: fp32 to fp32", "l1.1.r2_out: fp32 to int8"]
    assert prices.added_reformats(prices.full) == ()


def test_the_kernels_that_take_longest(prices):
    (first, second) = prices.slowest(prices.in_all(FP32), 2)
    times = sorted(1e3 * seconds(one, GPUS["T4"]) for one in prices.engine.kernels(prices.in_all(FP32)))
    assert (first.ms, second.ms) == (times[-1], times[-2])
    assert first.name in {one.name for one in prices.engine.kernels(prices.in_all(FP32))}


def test_in_a_large_network_a_layer_costs_what_its_kernel_takes_longer(prices, monkeypatch):
    """The sum over all layers is the speedup, but for the changes of type: those of the input."""
    monkeypatch.setattr(plan_time, "MOST_LAYERS", 10)
    assert not prices.prices_plans
    costs = prices.layers([FP16])
    in_int8, in_fp16 = (
        sum(seconds(one, GPUS["T4"]) for one in prices.engine.kernels(plan) if one.kind == "reformat")
        for plan in (prices.full, prices.in_all(FP16))
    )
    gain = prices.seconds(prices.in_all(FP16)) - prices.seconds(prices.full)
    assert sum(by[FP16] for by in costs.values()) == pytest.approx(1.0 + (in_int8 - in_fp16) / gain, abs=1e-3)
