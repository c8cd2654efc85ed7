"""One pass over the calibration data gives all ranges; samples held out reach neither calibration nor the search."""

from contextlib import contextmanager

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.quantized import plain_session
from trt_bisect.calibration.collect import CANDIDATES, Magnitudes
from trt_bisect.calibration.histogram import Calibrator
from trt_bisect.errors import BadInput
from trt_bisect.model.network import load_network
from trt_bisect.options.concerns import RunOptions
from trt_bisect.preparation import given_data, preparation as stages
from trt_bisect.preparation.experiment import Setup
from trt_bisect.support.progress import Silent

HELD_OUT = [4, 9, 14, 19, 24]


@pytest.fixture
def network(tmp_path):
    return networks.save(networks.chain(3), tmp_path)


@pytest.fixture
def passes(monkeypatch):
    """The digest of the network of each pass over calibration data."""
    done, real = [], given_data.magnitudes

    def counted(network, *given, **options):
        done.append(network.digest())
        return real(network, *given, **options)

    monkeypatch.setattr(given_data, "magnitudes", counted)
    return done


def data(count=8):
    return networks.samples(networks.chain(3), count)


@contextmanager
def prepared(network, calibration, folder=None, dataset=None, inputs=None, **options):
    """The setup and the experiment of a run."""
    if folder is not None:
        folder.mkdir(exist_ok=True)
    asked = RunOptions(calibration=calibration, inputs=inputs, dataset=dataset, engine="onnxruntime", **options)
    setup = Setup(asked, load_network(network), folder, Silent())
    with stages.prepared(setup) as experiment:
        yield setup, experiment


def scales(ranges, names=None):
    return {name: ranges.scales[name].tobytes() for name in names or ranges.scales}


def test_auto_begins_with_entropy_and_has_all_candidates_from_one_pass(network, passes):
    with prepared(network, data()) as (setup, experiment):
        assert experiment.ranges.origin == "entropy"
        assert [ranges.origin for ranges in setup.data.candidates] == [str(each) for each in CANDIDATES]
        assert setup.data.candidates[0] == experiment.ranges
        loaded, samples = load_network(network), networks.feeds(data()["x"])
        for calibrator, ranges in zip(CANDIDATES, setup.data.candidates, strict=True):
            alone = trt_bisect.calibrate(loaded, samples, calibrator.method, calibrator.percentile)
            assert scales(ranges, loaded.rounded_activations) == scales(alone, loaded.rounded_activations)
            assert ranges.scales.keys() == alone.scales.keys()
    assert len(passes) == 1


def test_a_convolution_before_its_relu_has_the_scale_of_the_relu_unless_typing_is_weak(network, monkeypatch):
    """ReLU(round(x / s) * s) = round(ReLU(x) / s) * s. Weak typing is given the scales of all tensors as calibrated."""
    loaded, samples = load_network(network), networks.feeds(data()["x"])
    alone = trt_bisect.calibrate(loaded, samples)
    relus = {node.input[0]: node.output[0] for node in loaded.skeleton.graph.node if node.op_type == "Relu"}
    assert relus
    assert all(alone.scales[conv] != alone.scales[relu] for conv, relu in relus.items())
    with prepared(network, data()) as (_, experiment):
        assert all(experiment.ranges.scales[conv] == alone.scales[relu] for conv, relu in relus.items())
    monkeypatch.setattr(given_data, "typing_of", lambda *_: "weak")
    with prepared(network, data()) as (_, experiment):
        assert scales(experiment.ranges) == scales(alone)


@pytest.mark.parametrize(
    ("asked", "origin"), [({"calibrator": "mse"}, "mse"), ({"calibrator": "percentile=99.5"}, "percentile 99.5")]
)
def test_a_calibrator_that_the_user_names_is_kept(network, asked, origin):
    with prepared(network, data(), **asked) as (setup, experiment):
        assert experiment.ranges.origin == origin
        assert len(setup.data.candidates) == len(CANDIDATES)


def test_a_resumed_run_does_not_calibrate_again_whatever_calibrator_it_names(network, tmp_path, passes):
    folder = tmp_path / "run"
    with prepared(network, data(), folder) as (setup, _):
        before = setup.data.candidates
    assert len(passes) == 1
    with prepared(network, data(), folder) as (setup, experiment):
        assert [scales(each) for each in setup.data.candidates] == [scales(each) for each in before]
        assert scales(setup.data.magnitudes.ranges(Calibrator("mse"))) == scales(before[-1])
        assert experiment.ranges.origin == "entropy"
    with prepared(network, data(), folder, calibrator="percentile=99") as (_, experiment):
        assert experiment.ranges.origin == "percentile 99"
    assert len(passes) == 1
    with prepared(network, data(9), folder) as (setup, _):
        assert setup.data.magnitudes.histograms["x"].values == 9 * 3 * 16 * 16
    assert len(passes) == 2


def test_histograms_that_were_cut_off_are_made_again(network, tmp_path, passes):
    folder = tmp_path / "run"
    with prepared(network, data(), folder) as (setup, _):
        before = setup.data.magnitudes.histograms["x"].counts
    kept = folder / "magnitudes.npz"
    kept.write_bytes(kept.read_bytes()[:-100])
    with prepared(network, data(), folder) as (setup, _):
        assert len(passes) == 1  # the ranges themselves are whole
        assert np.array_equal(setup.data.magnitudes.histograms["x"].counts, before)
    assert len(passes) == 2


def test_remedies_and_goals_use_the_same_pass(tmp_path, passes):
    model = networks.planted(networks.chain(3), ("conv0", "conv1"))
    path = networks.save(model, tmp_path, "planted.onnx")
    asked = {"calibration": data(), "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "effort": "quick"}
    report = trt_bisect.run(path, explain="remedies", **asked)
    assert report.culprits
    chosen = {row.calibrator for row in report.answer.calibrators if row.chosen}
    others = {str(each.calibrator) for each in report.explanation.tried if each.calibrator and not each.culprits}
    assert chosen | others >= {str(each) for each in CANDIDATES}
    assert passes.count(passes[0]) == 1, "the others are of changed networks"
    assert trt_bisect.run(path, front=True, explain="none", **asked).recipe.meets
    assert passes.count(passes[0]) == 2


def test_given_ranges_have_no_candidates(network):
    given = trt_bisect.calibrate(load_network(network), networks.feeds(data()["x"]))
    with prepared(network, given, inputs=data(1)) as (setup, _):
        assert setup.data.candidates == ()
        assert setup.data.magnitudes is None
        assert setup.data.held_out is None


def many():
    """25 samples: number 4, which is held out, is a hundred times as loud, number 6 ten times."""
    samples = data(25)
    samples["x"][4] *= 100
    samples["x"][6] *= 10
    return samples


def largest(samples):
    return float(np.abs(samples["x"]).max())


@pytest.mark.parametrize("again", ["none", "dataset", "inputs"])
def test_what_is_held_out_is_neither_calibrated_with_nor_judged(network, again):
    doors = {} if again == "none" else {again: many()}
    with prepared(network, many(), calibrator="minmax", samples=1, **doors) as (setup, experiment):
        kept = np.delete(many()["x"], HELD_OUT, axis=0)
        assert experiment.ranges.scales["x"] == np.float32(np.abs(kept).max()) / np.float32(127)
        assert [feeds["x"].tobytes() for feeds in setup.data.held_out] == [many()["x"][n].tobytes() for n in HELD_OUT]
        assert experiment.about.searched == 20
        assert any("5 of 25 samples" in note.text for note in setup.notes)
        (place,) = experiment.about.places
        assert np.array_equal(experiment.feeds[0]["x"][0], many()["x"][place])  # numbered as the user's data


def test_without_holdout_and_with_other_data(network):
    with prepared(network, many(), calibrator="minmax", validation=0.0) as (setup, experiment):
        assert setup.data.held_out is None
        assert experiment.ranges.scales["x"] == np.float32(largest(many())) / np.float32(127)
    with prepared(network, many(), calibrator="minmax", dataset=data(30)) as (setup, experiment):
        assert setup.data.held_out.length == 5
        assert experiment.about.searched == 30
    assert RunOptions().validation == 0.2


def test_validation_data_is_what_stays_unseen(network):
    with prepared(network, many(), validation=data(3), calibrator="minmax") as (setup, experiment):
        assert setup.data.held_out.length == 3
        assert experiment.ranges.scales["x"] == np.float32(largest(many())) / np.float32(127)
    with pytest.raises(BadInput, match="validation data"), prepared(network, many(), validation=many()):
        pass


def test_labels_follow_their_samples(lenet):
    """Labels of the calibration data: those of the samples held out, which are wrong here, are left out with them."""
    images = np.load(lenet / "digits.npz")["data"][:20]
    held = np.arange(20) % 5 == 4
    true = np.load(lenet / "labels.npy")[:20]
    labels = np.where(held, (true + 1) % 10, true)
    session = plain_session(lenet / "lenet.onnx")
    outputs = [session.run(None, {"data": image[np.newaxis]})[0] for image in images]
    right = np.array([output.argmax() for output in outputs]) == labels
    asked = {"engine": "onnxruntime", "labels": labels, "drop": 1.0, "explain": "none"}
    report = trt_bisect.run(lenet / "lenet.onnx", images, dataset=images, **asked)
    assert report.accuracy.fp32 == right[~held].mean() > 0.9


def test_ranges_kept_by_an_older_rule_for_thresholds_are_computed_anew(tmp_path, network, monkeypatch):
    computed, real = [], Magnitudes.ranges

    def counted(seen, *given, **options):
        computed.append(1)
        return real(seen, *given, **options)

    monkeypatch.setattr(Magnitudes, "ranges", counted)
    counts = []
    for rule in (1, 1, 2):
        monkeypatch.setattr(given_data, "THRESHOLDS", rule)
        with prepared(network, data(), tmp_path / "run", calibrator="entropy"):
            counts.append(len(computed))
    assert counts[0] == counts[1] < counts[2]
