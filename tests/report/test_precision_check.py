"""Asked is not done: what the report says where the engine ran other precisions than the plan's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.records import texts
from trt_bisect.evaluator.trial import Trial
from trt_bisect.report.precision_check import disobeyed, dla_notes, obedience_doubts, obedience_notes, unproven

LAYERS = [SimpleNamespace(name=name) for name in ("conv1", "relu1", "conv2", "fc")]
NETWORK = SimpleNamespace(layers=LAYERS, quantizable=(0, 2, 3))


def measured(ran, plan="8*4"):
    return Trial(plan, "measured", ran=ran)


def test_only_quantizable_layers_that_are_told_of_can_disobey():
    trial = measured({0: "fp32", 1: "fp32", 3: "int8"}, "8*3.f*1")
    assert disobeyed(NETWORK, trial) == {0: ("int8", "fp32"), 3: ("fp32", "int8")}
    assert disobeyed(NETWORK, replace(trial, plan="switch 8*3.f*1")) == disobeyed(NETWORK, trial)


def test_engines_that_obey_or_say_nothing_are_not_mentioned():
    trials = [measured({0: "int8", 2: "int8", 3: "fp32"}, "8*3.f*1"), Trial("8*4", "build failed")]
    assert obedience_notes(NETWORK, trials, {2: trials[0], 3: None}) == []


def test_a_culprit_is_not_convicted_in_silence():
    good = measured({0: "int8", 2: "fp32", 3: "fp32"}, "8*1.f*3")
    bad = measured({0: "int8", 2: "fp32", 3: "fp32"}, "8*3.f*1")
    worse = measured({0: "int8", 2: "fp32", 3: "int8"})
    everywhere, culprit = texts(obedience_notes(NETWORK, [good, bad, worse], {0: good, 2: bad}))
    assert "'conv2' was asked for int8 and ran in fp32 (2 of 3 trials)" in everywhere
    assert "'conv2' a culprit: it ran 'conv2' in fp32; '--typing weak-int8'" in culprit


def test_few_layers_are_named():
    layers = [SimpleNamespace(name=f"conv{i}") for i in range(9)]
    network = SimpleNamespace(layers=layers, quantizable=tuple(range(9)))
    (note,) = texts(obedience_notes(network, [Trial("8*9", "measured", ran=dict.fromkeys(range(9), "fp16"))], {}))
    assert note.count("was asked for") == 5
    assert note.endswith(", and 4 more")


def test_layers_in_a_region_are_unproven_and_neither_obeyed_nor_disobeyed():
    inside = measured({0: "int8", 2: "region", 3: "region"}, "8*3.f*1")
    assert disobeyed(NETWORK, inside) == {}
    assert unproven(NETWORK, inside) == {2: "region", 3: "region"}
    told = measured({0: "int8", 2: "int8", 3: "int8"})
    region, culprit = texts(obedience_notes(NETWORK, [inside, told], {2: inside, 0: told}))
    assert "1 of 2 trials" in region
    assert "'conv2' and 'fc'" in region
    assert "'conv1'" not in region
    assert "'conv2'" in culprit


def test_what_an_engine_does_not_tell_of_is_unproven_too():
    trial = measured({0: "dla", 2: "int8"})
    assert unproven(NETWORK, trial) == {0: "dla", 3: ""}
    assert len(obedience_notes(NETWORK, [trial], {})) == 2
    assert unproven(NETWORK, Trial("8*4", "measured")) == {}, "of an engine that says nothing there is no such list"


def test_what_the_dla_took_and_what_fell_back():
    (note,) = texts(dla_notes(NETWORK, measured({0: "dla", 1: "fp32", 2: "int8", 3: "fp16"})))
    assert "1 of 3 layers" in note
    assert "'conv2' and 'fc'" in note
    assert dla_notes(NETWORK, measured({0: "int8", 2: "int8"})) == []


OPS = {0: "Conv", 2: "Conv", 3: "MatMul"}
ASKED = {k: SimpleNamespace(name=NETWORK.layers[k].name, op_type=op) for k, op in OPS.items()}


@pytest.mark.parametrize(
    ("ran", "low"), [("int8 int8 fp32", 2), ("fp16 fp16 fp16", 0), ("int8 int8 region", 2), ("int8 dla fp32", 1)]
)
def test_a_pass_whose_low_layers_ran_in_something_else_is_doubted(ran, low):
    (doubt,) = obedience_doubts(ASKED, Trial("8*4", "measured", ran=dict(zip(ASKED, ran.split(), strict=True))))
    assert doubt.startswith(f"{low} of 3 layers ")
    assert "'fc'" in doubt


@pytest.mark.parametrize(
    "trial",
    [
        measured({0: "int8", 1: "fp32", 2: "int8", 3: "int8"}),
        measured({0: "int8", 3: "int8"}, "inputs a b whole 8*4"),
        measured({0: "dla", 2: "dla", 3: "int8"}),
        measured({0: "int8", 2: "int8", 3: "fp32"}, "8*1.f*3"),
        Trial("f*4", "measured"),
        Trial("8*4", "build failed"),
        measured({0: "fp16", 2: "fp16", 3: "fp16"}, "h:h*4"),
    ],
    ids=["obeyed", "fused", "on the DLA", "a high layer in INT8", "nothing asked", "failed", "low is FP16"],
)
def test_other_trials_are_not_doubted(trial):
    assert obedience_doubts(ASKED, trial) == ()


def test_matmuls_that_stay_in_float_need_pairs():
    ran = {0: "int8", 2: "int8", 3: "fp32"}
    (of_matmul,) = obedience_doubts(ASKED, Trial("8*4", "measured", ran=ran))
    (of_conv,) = obedience_doubts(ASKED, measured({**ran, 2: "fp32"}))
    assert "MatMul" in of_matmul
    assert "MatMul" not in of_conv


def test_an_engine_that_tells_of_no_low_layer_is_doubted():
    for ran in ({}, {1: "fp32"}):
        (doubt,) = obedience_doubts(ASKED, Trial("8*4", "measured", ran=ran))
        assert "precision of no layer" in doubt
