"""The adaptive curve of networks: it names what the full curve names, and has no figure that was not measured."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.editions import edition
from tests.support.progress_doubles import Said
from tests.support.records import kinds
from trt_bisect.options.concerns import RunOptions
from trt_bisect.report.parts import NOT_TRIED
from trt_bisect.runs.journal import JOURNAL
from trt_bisect.support.text import ADAPTIVE_CURVE

DEEP = {
    "chain": (partial(networks.chain, depth=32), [("conv9", "conv10"), ("conv23", "conv24")]),
    "residual": (partial(networks.residual, blocks=6), [("block3.conv1", "block3.conv2")]),
}


@pytest.fixture(scope="module", params=edition(("residual",), tuple(DEEP)))
def deep(request, tmp_path_factory):
    """A deep network with planted culprits: its file, its data, and the options of its runs."""
    make, pairs = DEEP[request.param]
    model, folder = make(), tmp_path_factory.mktemp(request.param)
    for maker, reader in pairs:
        networks.plant_between(model, maker, reader)
    np.savez(folder / "data.npz", **networks.samples(model, 4))
    options = {"calibrator": "minmax", "engine": "onnxruntime", "metric": "sqnr", "threshold": 20.0, "explain": "none"}
    return networks.save(model, folder), folder / "data.npz", {**options, "strategy": "auto"}


@pytest.fixture(scope="module")
def both(deep, tmp_path_factory):
    """The folder, the report and the shown lines of an adaptive run, and the report with the full curve."""
    network, data, options = deep
    folder, said = tmp_path_factory.mktemp("adaptive"), Said()
    adaptive = trt_bisect.run(network, data, **options, curve="adaptive", output=folder, progress=said)
    full = trt_bisect.run(network, data, **options, curve="full")
    return SimpleNamespace(folder=folder, adaptive=adaptive, lines=said.lines, full=full)


def named(report):
    return [row.name for row in report.layers if row.culprit or row.suspect]


def test_it_names_what_the_full_curve_names(both):
    adaptive, full = both.adaptive, both.full
    assert adaptive.culprits == full.culprits
    assert full.culprits
    assert set(named(full)) <= set(named(adaptive))


def test_a_boundary_that_was_not_measured_has_no_figure_and_the_note_counts_them(both):
    adaptive, full = both.adaptive, both.full
    boundaries = [row for row in adaptive.layers if row.quantizable]
    left_out = [row for row in boundaries if row.outcome == NOT_TRIED]
    assert left_out
    assert all((row.similarity, row.loss, row.sqnr, row.ran) == (None, None, None, "") for row in left_out)
    (note,) = (note.text for note in adaptive.notes if note.kind == ADAPTIVE_CURVE)
    assert f"{len(boundaries) - len(left_out)} of {len(boundaries)} boundaries" in note
    assert ADAPTIVE_CURVE not in kinds(full.notes)


def test_what_was_measured_is_the_figure_of_the_full_curve(both):
    for own, other in zip(both.adaptive.layers, both.full.layers, strict=True):
        if own.quantizable and own.similarity is not None and not own.suspect:
            assert own.similarity == pytest.approx(other.similarity, rel=1e-5)


def test_an_interrupted_run_goes_on_and_ends_with_the_same_report(deep, both, tmp_path):
    network, data, options = deep
    report = both.adaptive
    lines = (both.folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL).write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:10])
    again = trt_bisect.run(network, data, **options, curve="adaptive", output=tmp_path)
    shown = [(row.name, row.similarity, row.loss, row.outcome, row.culprit) for row in report.layers]
    assert [(row.name, row.similarity, row.loss, row.outcome, row.culprit) for row in again.layers] == shown
    assert len((tmp_path / JOURNAL).read_bytes().splitlines()) <= len(lines)


def test_each_suspect_is_said_while_the_curve_goes_on(both):
    lines = [f"Suspect: {name}" for name in named(both.adaptive)]
    assert lines
    assert [line for line in both.lines if line in lines][:1] == lines[:1]


@pytest.mark.parametrize(("layers", "curve"), [(400, "full"), (401, "adaptive")])
def test_the_curve_is_adaptive_beyond_400_layers_unless_the_user_asks(layers, curve):
    options = RunOptions.given("run", {"calibration": None, "inputs": None})
    assert options.curve_of("emulation", layers) == curve
    asked = RunOptions.given("run", {"calibration": None, "inputs": None, "curve": "full"})
    assert asked.curve_of("emulation", 2000) == "full"
    assert options.curve_of("exhaustive", 2000) == "full"
