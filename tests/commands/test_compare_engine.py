"""``compare --engine tensorrt``: the tensors of stand-in engines, of which half have one wrong kernel."""

import csv

import pytest
from rich.console import Console

import trt_bisect
from tests.support import networks
from tests.support.debug_engine import ShowingBuilder
from tests.support.editions import edition
from tests.support.records import texts
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.debug_tensors import BEFORE, ENGINE, QUANTIZATION
from trt_bisect.builder.engines import EngineStatus
from trt_bisect.commands import compare
from trt_bisect.errors import TrialFailed
from trt_bisect.report.screen.tables import print_comparison

MADE = {f"drawn{seed}": (lambda seed=seed: networks.drawn(seed)) for seed in range(6)}
MADE |= {each.__name__: each for each in (networks.residual, networks.depthwise, networks.chain)}
MADE["transformer"] = lambda: networks.transformer(1)
FEW = [("drawn0", "int8", 1), ("transformer", "fp16", 1), ("drawn0", "int8", 0)]
WHERE = [(name, low, engine) for name in MADE for low, engine in (("int8", 1), ("fp16", 1), ("int8", 0))]
"""The network, the low precision, and which of the two engines is wrong: the first one is FP32."""
FEW_HEALTHY = [("transformer", "int8", 1), ("drawn0", "fp16", 2)]
HEALTHY = [(name, low, seed) for name in MADE for low, seed in (("int8", 1), ("fp16", 2), ("int8", 3))]


def compared(name, low, builder, monkeypatch, folder, version="11.4.0", **more):
    monkeypatch.setattr(compare, "engine_status", lambda name: EngineStatus(name, version, ("strong",), "GPU"))
    monkeypatch.setattr(compare, "open_builder", builder)
    model = MADE[name]()
    path, data = networks.given(model, folder, 3)
    return trt_bisect.compare(path, data, low=low, **{"engine": "tensorrt", **more})


@pytest.mark.parametrize(("name", "low", "engine"), edition(FEW, WHERE))
def test_a_wrong_kernel_is_named_and_none_else(name, low, engine, tmp_path, monkeypatch):
    builder = ShowingBuilder(sum(map(ord, name)) + 1000 * engine, wrong=engine)
    found = compared(name, low, builder, monkeypatch, tmp_path)
    (wrong,) = [row for row in found.engine_tensors if row.cause == ENGINE]
    assert builder.layer in wrong.layers
    assert wrong.precision == ("fp32", low)[engine]
    (note,) = [note for note in texts(found.notes) if "otherwise than the emulation" in note]
    assert builder.layer in note
    assert {row.cause for row in found.engine_tensors if row.precision != wrong.precision} <= {QUANTIZATION, ""}


@pytest.mark.parametrize(("name", "low", "seed"), edition(FEW_HEALTHY, HEALTHY))
def test_an_engine_with_no_wrong_kernel_is_not_blamed(name, low, seed, tmp_path, monkeypatch):
    found = compared(name, low, ShowingBuilder(seed), monkeypatch, tmp_path)
    causes = {(row.precision, row.cause) for row in found.engine_tensors}
    assert ("fp32", "") in causes
    assert causes <= {("fp32", ""), (low, ""), ("int8", QUANTIZATION)}
    assert low in {precision for precision, _ in causes}
    assert "no kernel of the engines is to blame" in texts(found.notes)


def test_the_figures_are_those_of_the_planted_kernel(tmp_path, monkeypatch):
    """A kernel that gives twice the right tensor is off by 100 %; what follows it is off, but not to blame."""
    builder = ShowingBuilder(5, wrong=0, kernel=("conv3", "Add"), fuses=False)
    found = compared("chain", "int8", builder, monkeypatch, tmp_path)
    rows = {row.layer: row for row in found.engine_tensors if row.precision == "fp32"}
    assert rows["conv3"].own == pytest.approx(1.0, abs=1e-6)
    assert rows["conv3"].layers == ("conv3",)
    behind = {*(f"{kind}{k}" for k in range(4, 8) for kind in ("relu", "conv")), "pool", "flatten", "fc"}
    assert {name for name, row in rows.items() if row.cause == BEFORE} == behind
    assert all(row.own < 1e-5 for name, row in rows.items() if name != "conv3")
    int8 = {row.layer: row for row in found.engine_tensors if row.precision == "int8"}
    emulated = {row.origin.layer: row for row in found.tensors}
    for name in ("relu2", "conv5"):
        worst = 10 ** (-emulated[name].figures.sqnr / 20)
        assert int8[name].quantization >= 0.9 * worst, "the worst sample is no better than all together"


def test_tables_and_screen(tmp_path, monkeypatch, capsys):
    builder = ShowingBuilder(5, wrong=1, kernel=("conv3", "Add"))
    found = compared("chain", "int8", builder, monkeypatch, tmp_path, output=tmp_path / "out")
    with (tmp_path / "out/engine.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["tensor"], row["precision"]) for row in rows if row["cause"] == "engine"] == [
        (row.tensor, row.precision) for row in found.engine_tensors if row.cause == ENGINE
    ]
    assert trt_bisect.Comparison.load(tmp_path / "out").engine_tensors == found.engine_tensors
    assert "Tensors of the engine" in (tmp_path / "out/compare.html").read_text()
    print_comparison(found, Console(width=160))
    assert "Tensors of the engine:" in capsys.readouterr().out
    assert builder.options == BuildOptions(debug_tensors=True)
    assert builder.shapes == {"x": ((1, 3, 16, 16),) * 3}


@pytest.mark.parametrize(("version", "name"), [("10.7.0", "tensorrt"), ("11.4.0", "tensorrt-rtx")])
def test_an_engine_that_shows_nothing_is_not_built(version, name, tmp_path, monkeypatch):
    found = compared("chain", "int8", None, monkeypatch, tmp_path, version, engine=name)
    assert found.engine_tensors == ()
    assert any("final outputs only" in note for note in texts(found.notes))


def test_an_engine_that_fails_costs_a_note_only(tmp_path, monkeypatch):
    def refuse(*_):
        raise TrialFailed("build failed", "no implementation for node conv1")

    found = compared("chain", "int8", refuse, monkeypatch, tmp_path)
    assert found.engine_tensors == ()
    assert found.tensors
    assert any("no implementation for node conv1" in note for note in texts(found.notes))
