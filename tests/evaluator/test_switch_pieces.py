"""The session that switches precisions, cut into pieces whose tensors are kept, against the same in one piece."""

import numpy as np
import pytest

from tests.evaluator.test_switch import MAKERS
from tests.support import networks
from trt_bisect.builder import onnxruntime as switch_module
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.cost import macs
from trt_bisect.model.layers import TensorFacts
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.precision import Precision, int8_set

ROOM = 1 << 20


@pytest.fixture(autouse=True)
def small_networks_are_cut_too(monkeypatch):
    monkeypatch.setattr(switch_module, "_LEAST_MACS", 1)


@pytest.fixture(scope="module", params=sorted(MAKERS))
def prepared(request, tmp_path_factory):
    return opened(MAKERS[request.param](), tmp_path_factory.mktemp(request.param))


def opened(model, folder, high=Precision.FP32, **options):
    network = load_network(networks.save(model, folder))
    samples = networks.samples(model, 3)["x"]
    feeds = [{"x": samples[place : place + 1]} for place in range(3)]
    builder = OnnxRuntimeBuilder(
        network, calibrate(network, feeds, "minmax").scales, BuildOptions(high=high, **options)
    )
    return network, feeds, builder, facts_for(network, feeds[0])


def walk(network, scales, random, steps, high=Precision.FP32):
    """Plans that each differ from the one before in one layer, with scales that change now and then."""
    low = set(network.quantizable)
    for _ in range(steps):
        low ^= {int(random.choice(network.quantizable))}
        if random.random() < 0.2:
            moved = str(random.choice(sorted(scales)))
            scales = {**scales, moved: np.float32(scales[moved] * 0.9)}
        yield int8_set(len(network.layers), low, high), scales


def sessions_run(switch, monkeypatch):
    """Returns a list to which each piece that runs adds its number."""
    ran = []
    for number, piece in enumerate(switch._pieces):
        run = piece.run
        monkeypatch.setattr(piece, "run", lambda *given, run=run, number=number: ran.append(number) or run(*given))
    return ran


@pytest.mark.parametrize("memory", [0, 8192, ROOM])
def test_the_outputs_are_those_of_one_session_whatever_is_kept(prepared, random, memory):
    network, inputs, builder, facts = prepared
    whole, pieces = builder.switch(1), builder.switch(1, facts, memory)
    assert len(pieces._pieces) >= 3
    scales = calibrate(network, inputs, "minmax").scales
    for plan, moved in walk(network, scales, random, 40):
        feeds = inputs[random.integers(3)]
        one, many = whole.infer(plan, feeds, moved), pieces.infer(plan, feeds, moved)
        assert list(one) == list(many)
        assert np.array_equal(one["y"], many["y"])
        assert pieces._kept._bytes <= memory


def test_a_plan_runs_from_the_first_piece_in_which_it_differs(prepared, monkeypatch):
    network, inputs, builder, facts = prepared
    switch = builder.switch(1, facts, ROOM)
    ran, last = sessions_run(switch, monkeypatch), len(switch._pieces) - 1
    full = int8_set(len(network.layers), network.quantizable)
    switch.infer(full, inputs[0])
    assert ran == [*range(last + 1)]
    for high, expected in ((network.quantizable[-1], [last]), (network.quantizable[0], [*range(last + 1)])):
        ran.clear()
        switch.infer(int8_set(len(network.layers), {*network.quantizable} - {high}), inputs[0])
        assert ran == expected
    ran.clear()
    switch.infer(full, inputs[1])
    assert ran == [*range(last + 1)], "another input"
    ran.clear()
    switch.infer(full, inputs[0])
    assert ran == [last], "the first one was kept"


def test_a_scale_counts_from_the_first_piece_that_reads_it(prepared, monkeypatch):
    network, inputs, builder, facts = prepared
    switch = builder.switch(1, facts, ROOM)
    ran, last = sessions_run(switch, monkeypatch), len(switch._pieces) - 1
    scales = calibrate(network, inputs, "minmax").scales
    full = int8_set(len(network.layers), network.quantizable)
    read = switch._pieces[last]._written.scales
    before = {tensor for piece in switch._pieces[:last] for tensor in piece._written.scales}
    tensor = next(tensor for tensor in read if tensor not in before)
    switch.infer(full, inputs[0], scales)
    ran.clear()
    switch.infer(full, inputs[0], {**scales, tensor: np.float32(scales[tensor] * 2)})
    assert ran == [last]


def test_arrays_of_an_input_that_is_gone_are_not_mistaken_for_those_of_another(prepared):
    """Python gives a new dictionary the id of one that is gone."""
    network, inputs, builder, facts = prepared
    switch, whole = builder.switch(1, facts, ROOM), builder.switch(1)
    full = int8_set(len(network.layers), network.quantizable)
    for place in range(3):
        feeds = {"x": inputs[place]["x"] + np.float32(place)}
        assert np.array_equal(switch.infer(full, feeds)["y"], whole.infer(full, feeds)["y"])
        del feeds


def test_fp16_as_the_high_precision(tmp_path, random):
    network, inputs, builder, facts = opened(networks.residual(), tmp_path, Precision.FP16)
    whole, pieces = builder.switch(1), builder.switch(1, facts, ROOM)
    scales = calibrate(network, inputs, "minmax").scales
    for plan, moved in walk(network, scales, random, 10, Precision.FP16):
        assert np.array_equal(whole.infer(plan, inputs[0], moved)["y"], pieces.infer(plan, inputs[0], moved)["y"])


def test_a_network_whose_unquantized_layers_round_is_not_cut(tmp_path):
    """A tensor that is rounded where it is made has two versions, one of them for an output of the network."""
    *_, builder, facts = opened(networks.transformer(), tmp_path, unquantized_round=True)
    assert len(builder.switch(1, facts, ROOM)._pieces) == 1


def test_a_network_whose_file_gives_tensors_other_shapes_is_not_cut(tmp_path):
    """ONNX Runtime refuses an input of a piece whose sizes are not the declared ones."""
    *_, builder, facts = opened(networks.residual(), tmp_path)
    larger = {name: tuple(size + 1 for size in shape) for name, shape in facts.shapes.items()}
    assert len(builder.switch(1, facts, ROOM)._pieces) > 1
    assert len(builder.switch(1, TensorFacts(larger, facts.dtypes), ROOM)._pieces) == 1


def test_a_network_is_cut_only_where_its_pieces_take_longer_than_calls(prepared, monkeypatch):
    network, _, builder, facts = prepared
    work = sum(macs(network, facts).values())
    for least, is_cut in ((work // 3, True), (work // 2 + 1, False)):
        monkeypatch.setattr(switch_module, "_LEAST_MACS", least)
        assert (len(builder.switch(1, facts, ROOM)._pieces) > 1) == is_cut


def test_closed_sessions_are_made_again(prepared, monkeypatch):
    network, inputs, builder, facts = prepared
    switch, full = builder.switch(1, facts, ROOM), int8_set(len(network.layers), network.quantizable)
    before, sessions = switch.infer(full, inputs[0])["y"], list(switch._pieces)
    switch.close()
    assert (switch._pieces, switch._kept._bytes) == ([], 0)
    assert np.array_equal(switch.infer(full, inputs[0])["y"], before)
    assert len(switch._pieces) == len(sessions)
    ran = sessions_run(switch, monkeypatch)
    switch.infer(full, inputs[0])
    assert ran == [len(sessions) - 1], "they were made once"
