"""No fact of a report contradicts another: the runs of all samples and of planted networks, in every form."""

import re
import shlex
import shutil

import numpy as np
import pytest

import trt_bisect
from tests.conftest import SAMPLES
from tests.support import networks
from tests.support.editions import edition
from tests.support.planted_answers import MISLEADING
from tests.support.recorded import explained
from tests.support.records import kinds, record_of
from tests.support.statements import check_advice, check_statements
from trt_bisect.analyzer.doubts import CONSTANT, HELD_OUT
from trt_bisect.history.store import History
from trt_bisect.report import next_step, summary as headline
from trt_bisect.report.choices import FP16_INSTEAD
from trt_bisect.report.explanation import DIGITS
from trt_bisect.report.given import DATA
from trt_bisect.report.next_step import BUILD, SEARCH
from trt_bisect.report.page import page_data
from trt_bisect.report.parts import FAILS, PASSES, WITH_DOUBTS, spoken
from trt_bisect.report.screen.run import calibrator_cells
from trt_bisect.report.summary import TOO_EXPENSIVE
from trt_bisect.support.codec import shortened
from trt_bisect.view.index import Runs

pytestmark = pytest.mark.slow
CODES = {PASSES: 0, WITH_DOUBTS: 1, FAILS: 1}
TONES = {PASSES: "good", WITH_DOUBTS: "doubted", FAILS: "bad"}
HOW = {"engine": "onnxruntime", "history": "none"}


def part(path, most, cut=slice(None)):
    with np.load(path) as data:
        return {name: np.ascontiguousarray(data[name][:most, ..., cut, cut]) for name in data.files}


def lenet(name, **options):
    folder = SAMPLES / "lenet"
    return folder / name, {"calibration": part(folder / "calibration.npz", 12), **options}


def detector(**options):
    folder = SAMPLES / "detector"
    return folder / "detector.onnx", {"calibration": part(folder / "calibration.npz", 4), **options}


def ocr():
    tiles = part(SAMPLES / "ocr" / "inputs.npz", 2, slice(32, 64))
    options = {"threshold": 0.95, "samples": 1, "calibrator": "mse", "explain": "none"}
    return SAMPLES / "ocr" / "network.onnx", {"calibration": tiles, **options}


def transformer():
    folder = SAMPLES / "transformer"
    with np.load(folder / "calibration.npz") as data:
        return folder / "encoder.onnx", {"calibration": {"x": data["x"][:12]}}


CASES = {
    "lenet passes": lambda: lenet("lenet.onnx"),
    "lenet planted": lambda: lenet("lenet_planted.onnx"),
    "lenet top1": lambda: lenet("lenet_planted.onnx", metric="top1"),
    "lenet clipped": lambda: lenet("lenet.onnx", calibrator="percentile=60"),
    "lenet doubted": lambda: lenet("lenet.onnx", validation={"data": np.full((2, 1, 28, 28), 40.0, np.float32)}),
    "lenet constant": lambda: (
        SAMPLES / "lenet" / "lenet.onnx",
        {"calibration": {"data": np.zeros((4, 1, 28, 28), np.float32)}},
    ),
    "detector": lambda: detector(task="detect", threshold=0.99),
    "transformer": transformer,
    "ocr": ocr,
}


PLANTED = {
    "planted pair": (lambda: networks.planted(networks.chain(), ("conv0", "conv1"), ("conv5", "conv6")), {}),
    "planted clipped": (networks.chain, {"calibrator": "percentile=90", "threshold": 0.999}),
    **{name: (lambda make=make: make().model, {"calibrator": "minmax"}) for name, make in MISLEADING.items()},
}

RECORDED = ("lenet", "odd")
"""Runs of ``tests.support.recorded``: planted culprits, and remedies that were tried."""
OWN = [*CASES, *PLANTED]
LONG_OR_ALIKE = {"lenet planted", "lenet top1", "lenet clipped", "detector", "transformer", "ocr", "planted pair",
                 "planted clipped", "masked_culprit", "decoys", "absorbed_drop"}  # fmt: skip


@pytest.fixture(scope="module", params=[*RECORDED, *edition([name for name in OWN if name not in LONG_OR_ALIKE], OWN)])
def case(request, recorded, tmp_path_factory):
    """A finished run, and its folder, in a parent with nothing else."""
    folder = tmp_path_factory.mktemp("case")
    if request.param in RECORDED:
        shutil.copytree(recorded(request.param) / "runs" / request.param, folder / "runs" / "run")
        return explained(folder / "runs" / "run"), folder / "runs"
    if request.param in CASES:
        path, options = CASES[request.param]()
    else:
        make, options = PLANTED[request.param]
        path, data = networks.given(make(), folder)
        options = {**options, "calibration": data}
    report = trt_bisect.run(path, output=folder / "runs" / "run", **HOW, **options)
    return report, folder / "runs"


def test_one_word_one_colour_and_one_exit_code(case):
    report, parent = case
    assert report.exit_code == CODES[report.verdict]
    assert [line.kind for line in report.lines if line.kind in CODES] == [report.verdict]
    page = page_data(report)
    assert page.tones["verdict"] == page.tones["int8"] == TONES[report.verdict]
    assert spoken(report.verdict) in page.headline
    if report.verdict == FAILS and report.recipe.meets:
        assert ("by less than the noise" in page.headline) == report.answer.close
    [entry] = Runs(parent).rows()
    assert entry.verdict.startswith(spoken(report.verdict))
    assert entry.tone == TONES[report.verdict]
    kept = History(parent / "history.sqlite")
    kept.record(parent / "run")
    assert [past.report.verdict for past in kept.past()] == [report.verdict]
    assert (report.verdict == PASSES) == (not report.doubts and report.recipe.meets and not report.recipe.high)


def test_full_int8_and_the_recipe_have_one_figure_over_the_same_inputs(case):
    report, _ = case
    answer = report.answer
    [chosen] = [row for row in answer.calibrators if row.chosen]
    assert (chosen.similarity, chosen.inputs) == (report.similarity.int8, answer.given.inputs)
    assert chosen.meets == (report.recipe.meets and not report.recipe.high)
    if report.metric != "agreement":
        assert answer.given.worst == pytest.approx(report.similarity.recipe, abs=1e-9)
        assert not report.recipe.meets or answer.given.holds == answer.given.inputs
    cells = {row.calibrator: calibrator_cells(report, row) for row in answer.calibrators}
    for row in answer.calibrators:
        assert ("or worse" in cells[row.calibrator][1]) == (row.inputs < answer.given.inputs)
        assert not row.meets or row.inputs == answer.given.inputs


def test_of_equally_cheap_recipes_the_report_says_why_one_is_chosen(case):
    report, _ = case
    searched = [row for row in report.answer.calibrators if row.cost is not None]
    [chosen] = [row for row in report.answer.calibrators if row.chosen]
    if len(searched) > 1:
        as_cheap = [row for row in searched if row.cost <= min(each.cost for each in searched) + 0.03]
        assert chosen.mean_loss == min(row.mean_loss for row in as_cheap)


def test_the_next_step_is_the_first_that_is_not_done(case):
    report, _ = case
    doubted = kinds(report.answer.doubts)
    cheaper = [
        each for each in (report.explanation.tried if report.explanation else ())
        if each.meets and (each.cost < report.answer.cost or not report.recipe.meets)
    ]  # fmt: skip
    assert not (cheaper and TOO_EXPENSIVE in kinds(report.lines) and any(each.high == 0 for each in cheaper))
    if report.inputs.warnings or CONSTANT in doubted:
        assert report.next.kind == DATA
    elif HELD_OUT in doubted:
        assert report.next.kind == next_step.INPUTS
    elif cheaper:
        assert report.next.kind == next_step.CHEAPER
    elif doubted:
        assert report.next.kind == next_step.DOUBT
    elif FP16_INSTEAD in kinds(report.lines):
        assert report.next.kind == FP16_INSTEAD
    else:
        pays = report.recipe.meets and report.answer.cost <= 0.5
        assert report.next.kind == (SEARCH if not pays else headline.RECIPE if report.recipe.high else BUILD)
    builds = headline.RECIPE, BUILD, FP16_INSTEAD
    assert (report.next.kind in builds) == report.next.command.startswith("trtexec")


def test_the_advice_keeps_the_recipes_layers_high_and_says_what_is_to_blame(case):
    report, _ = case
    kept = [f"^{re.escape(name)}$" for name in report.recipe.high]
    for advice in report.advice:
        for command in (command for remedy in advice.remedies for command in remedy.commands):
            if command.tool == "ModelOpt" and "_exclude" in command.text:
                words = shlex.split(command.text)
                assert words[words.index("--nodes_to_exclude") + 1 : words.index("--high_precision_dtype")] == kept
        assert advice.blame in (None, "both") or f"the {advice.blame} is to blame" in advice.evidence


def test_every_statement_follows_from_the_figures(case):
    report, _ = case
    check_statements(record_of(report))
    if report.explanation:
        check_advice(record_of(report), record_of(shortened(report.explanation, DIGITS)))
