"""The screen of ``run``: what stands on it, in which order, and how many lines it takes."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.support.records import EMPTY
from trt_bisect import Report
from trt_bisect.analyzer.judge import make_rule
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.report import summary
from trt_bisect.report.answer import AnswerFacts, CalibratorRow, Goal, Held, RecipeLayers
from trt_bisect.report.choices import Choice
from trt_bisect.report.parts import FAILS, LayerRow, NextStep
from trt_bisect.report.screen.run import LINES, calibrator_cells, print_report
from trt_bisect.report.screen.tables import _sized
from trt_bisect.support.text import Line, Note

ASCII = 127


def row(index: int, **figures) -> LayerRow:
    blank = LayerRow(index, f"conv{index}", "Conv", (1, 8, 4, 4), True, 0.99, 0.001, False, "measured", "int8", "int8")
    return replace(blank, **figures)


@pytest.fixture
def crowded() -> Report:
    """A report in which every list is longer than the screen shows."""
    culprits = [row(k, culprit=True, loss=0.01 * k, alone=0.02 * k, put_back=0.9) for k in range(20)]
    suspects = [row(20 + k, loss=0.1 + 0.01 * k, suspect="later layers cancel its error") for k in range(5)]
    kinds = ("entropy", "minmax", "percentile 99.9", "percentile 99.99", "percentile 99.999", "mse")
    answer = AnswerFacts(
        judged=8,
        given=Held("a.npz", 26, 26, 0.96, "data/a.npz 7", 0.98, 0.97),
        held_out=Held("b.npz", 9, 8, 0.92, "data/b.npz 4", 0.97, 0.94),
        cost=0.04,
        calibrators=tuple(
            CalibratorRow(kind, 0.9, 26 if kind == "mse" else 17, False, 0.05, 3, kind == "mse") for kind in kinds
        ),
        settings={"scales as they are": 0.96, "scales moved by 2e-5": 0.961},
        doubts=(Line("clipped", "output 'y' is clipped at 25.0%"),),
        confidence=(
            Line("inputs", "It rests on 26 inputs given: the search judged 8.", short="It rests on 26 inputs given."),
            Line("arithmetic", "No engine has confirmed this: emulated.", short="No engine has confirmed this."),
        ),
    )
    return replace(
        EMPTY,
        verdict=FAILS,
        layers=tuple(culprits + suspects + [row(25 + k) for k in range(100)]),
        culprits=tuple(each.name for each in culprits),
        recipe=RecipeLayers(tuple(each.name for each in culprits), meets=True),
        notes=tuple(Note("data", f"note {k}: " + "some words about the run " * 3) for k in range(30)),
        lines=(
            Line("doubted", "DOUBTED: output 'y' is clipped at 25.0%"),
            Line("fails", "FAILS: full INT8"),
            Line("recipe", "RECIPE: with 20 layers in FP32"),
        ),
        next=NextStep("recipe", "build", "trtexec --onnx=run/recipe/network.qdq.onnx --stronglyTyped"),
        answer=answer,
    )


def printed(report: Report, *, width: int = 80, **options) -> list[str]:
    written = io.StringIO()
    print_report(report, Console(file=written, width=width, highlight=False), **options)
    return written.getvalue().splitlines()


def test_a_crowded_report_fits_on_the_screen_in_order(crowded):
    lines = printed(crowded)
    assert len(lines) < LINES
    assert all(ord(letter) <= ASCII for line in lines for letter in line)
    starts = ["FAILS", "NEXT: build", "DOUBT", "RECIPE", "Culprit", "Suspect 'conv24'", "Calibrator", "Recipe on"]
    starts += ["Confidence: It rests on 26 inputs given. No engine has confirmed this."]
    starts += ["More in report.html: other settings, 30 notes, curve of 125 layers"]
    places = [next(k for k, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    assert sum(line.startswith("Suspect") for line in lines) == 3
    assert lines[places[4] + 1].split() == ["conv0", "Conv", "90%", "0%", "0%"]
    assert lines[places[7] + 2].split() == ["held-out", "inputs", "8", "of", "9", "97%", "94%", "92%", "b.npz", "4"]


def test_the_plan_to_ship_is_in_the_first_ten_lines_and_what_speaks_against_it_below(crowded):
    plans = ("fp32", True, None), ("fp16", True, 0.9999), ("int8", False, 0.9), ("recipe", True, 0.96)
    choices = tuple(Choice(plan, meets, value, None, 1.0, None) for plan, meets, value in plans)
    doubts = tuple(Line("doubted", f"DOUBT: {'words ' * 40}") for _ in range(3))
    ship = Line("ship fp16", f"SHIP FP16: {'a reason ' * 15}")
    report = replace(crowded, lines=(*doubts, ship, *crowded.lines[1:]), choices=choices)
    lines = printed(report, width=100)
    starts = ["SHIP FP16", "FAILS", "plan", "FP32", "FP16", "full INT8", "recipe"]
    places = [next(k for k, line in enumerate(lines) if line.startswith(start)) for start in starts]
    assert places == sorted(places)
    assert places[-1] < 10
    below = [next(k for k, line in enumerate(lines) if line.startswith(start)) for start in ("NEXT", "DOUBT", "RECIPE")]
    assert places[-1] < below[0] < below[1] < below[2]
    shown = str(report).splitlines()
    assert [line.split(":")[0] for line in shown if ":" in line][:4] == ["SHIP FP16", "FAILS", "PLANS", "NEXT"]


@pytest.mark.parametrize(
    ("held_out", "refused", "accept", "passes"),
    [
        (None, (), False, "yes"),
        (False, (), False, "doubtful"),
        (False, (), True, "yes"),
        (True, ("NMS",), False, "doubtful"),
    ],
)
def test_fp16_is_doubtful_where_it_misses_held_out_inputs_or_tensorrt_refuses_it(
    crowded, held_out, refused, accept, passes
):
    choices = (Choice("fp32", True, None, None, None, None), Choice("fp16", True, 0.99, None, None, 1.0, held_out))
    lines = tuple(Line("refused", text) for text in refused)
    shown = printed(replace(crowded, choices=choices, refused=lines, accept=accept))
    (row,) = (line for line in shown if line.startswith("FP16"))
    assert row.split()[1] == passes


def test_a_recipe_that_is_slower_than_fp16_keeps_no_share_of_the_speedup(crowded):
    costs = {"fp32": None, "fp16": 1.0, "int8": 0.0, "recipe": 2.1}
    choices = tuple(Choice(plan, True, 0.99, None, None, cost) for plan, cost in costs.items())
    lines = printed(replace(crowded, choices=choices), width=100)
    last = {line.split()[0]: line.split()[-1] for line in lines if line.startswith(("FP16", "full", "recipe"))}
    assert last == {"FP16": "0%", "full": "100%", "recipe": "slower"}


def test_with_an_accuracy_that_decides_calibrators_do_not_pass(crowded):
    """They were measured by the similarity, all but one on fewer inputs."""
    told = replace(crowded, goal=Goal(drop="1%"), answer=replace(crowded.answer, given=None))
    cells = [calibrator_cells(told, row) for row in told.answer.calibrators]
    assert [row[3] for row in cells] == ["-"] * 6
    assert [row[1].endswith("or worse") for row in cells] == [True] * 5 + [False]


def test_a_notebook_has_the_plans(crowded):
    times = {"fp32": 2.0, "fp16": 1.0, "int8": 0.5, "recipe": 0.75}
    choices = tuple(Choice(p, True, None if p == "fp32" else 0.99, None, ms, None) for p, ms in times.items())
    told = replace(crowded, choices=choices)
    plans = "FP32 in 2 ms, FP16 99% in 1 ms, full INT8 99% in 0.5 ms, recipe 99% in 0.75 ms"
    assert f"PLANS: {plans}." in str(told).splitlines()
    assert plans.replace(", ", " · ") in told._repr_html_()


def test_all_layers_prints_all_parts(crowded):
    lines = printed(crowded, every_layer=True)
    [place] = [k for k, line in enumerate(lines) if line.startswith("Calibrator")]
    assert lines[place + 6].split() == ["mse", "90%", "no", "5%", "3", "-", "chosen"]
    assert any(line.startswith("Worst input in other settings") for line in lines)
    assert not any(line.startswith("More in report.html") for line in lines)


def test_a_narrow_screen_leaves_out_columns_rather_than_breaking_words(crowded):
    far = replace(crowded.answer, given=replace(crowded.answer.given, worst_input="a-file-with-a-long-name.npz 7"))
    few = replace(crowded, answer=far, notes=(), culprits=crowded.culprits[:1], layers=crowded.layers[:1])
    lines = printed(few, width=60)
    assert max(len(line) for line in lines if not line.startswith("NEXT")) <= 60
    [place] = [k for k, line in enumerate(lines) if line.startswith("Calibrator")]
    assert lines[place].split() == ["Calibrator", "Full", "INT8", "first", "recipe"]
    assert lines[place + 5].split() == ["percentile", "99.999", "90%", "or", "worse", "5%"]
    [inputs] = [line for line in lines if line.startswith("Recipe on")]
    assert inputs.split() == ["Recipe", "on", "passes", "mean", "5th", "perc.", "worst"]


def test_what_is_not_shown_is_counted(crowded):
    lines = printed(replace(crowded, answer=None))
    shown = sum(line.startswith("Note: ") for line in lines)
    assert 1 <= shown <= 5
    assert any(line.startswith(f"{30 - shown} more notes ") for line in lines)
    listed = sum(line.split()[1:2] == ["Conv"] for line in lines)
    assert f"{20 - listed} more, in layers.csv" in [line.strip() for line in lines]


def test_weak_culprits_stand_after_the_others_which_are_ranked(crowded):
    names = crowded.culprits
    few = names[4::-1] + names[5:7]
    rows = tuple(row for row in crowded.layers if not row.culprit or row.name in few)
    report = replace(crowded, layers=rows, answer=replace(crowded.answer, ranked=few, weak=few[3:]))
    lines = printed(report)
    first = next(place for place, line in enumerate(lines) if line.startswith("Culprit"))
    table = [line.split() for line in lines[first + 1 : first + 8]]
    assert [cells[0] for cells in table[:3]] == list(few[:3])
    assert table[3][0] == "Weak"
    assert [cells[0] for cells in table[4:6]] == list(few[3:5])
    assert " ".join(table[6]).startswith("2 weak")
    main, weak = report.to_markdown().split("## Weak culprits")
    places = [main.index(name) for name in few[:3]]
    assert places == sorted(places)
    assert all(name in weak and name not in main for name in few[3:])


@pytest.mark.parametrize(
    ("put_back", "margin", "said"),
    [
        ([0.9489], 0.5, {"noise"}),
        ([0.96], 0.5, {"97.5%"}),
        ([0.9489, 0.96], 0.5, {"noise", "97.5%"}),
        ([0.96], 0.0, {"mean loss"}),
    ],
)
def test_a_weak_culprit_misses_the_threshold_or_the_margin(crowded, put_back, margin, said):
    """Of a threshold of 95 % a margin of half leaves 97.5 %."""
    rows = tuple(replace(row(k), culprit=True, put_back=value) for k, value in enumerate(put_back))
    names = tuple(each.name for each in rows)
    report = replace(crowded, layers=rows, answer=replace(crowded.answer, ranked=names, weak=names, margin=margin))
    text = summary._missed_by_weak(report, make_rule(find_metric("cosine"), 0.95))
    assert {word for word in ("noise", "97.5%", "mean loss") if word in text} == said


def test_the_curve_is_printed_when_it_is_asked_for_or_fits(crowded):
    whole = printed(crowded, every_layer=True)
    assert sum("1x8x4x4" in line for line in whole) == len(crowded.layers)
    small = replace(crowded, layers=crowded.layers[:3] + crowded.layers[-4:], notes=(), answer=None)
    assert sum("1x8x4x4" in line for line in printed(small)) == 7
    assert not any("1x8x4x4" in line for line in printed(crowded))


@pytest.mark.parametrize(("costs", "means", "figures"), [
    ((0.015, 0.024), (0.0016, 0.0002), {"1.5%", "2.4%", "0.16%", "0.02%"}),
    ((0.024, 0.015), (0.0016, 0.0002), None),
    ((0.015, 0.015), (0.0016, 0.0002), None),
    ((0.015, 0.024), (None, None), None),
    ((0.015, 0.4), (0.0016, 0.0002), set()),
    ((0.015, 0.024), (0.0002, 0.0016), set()),
])  # fmt: skip
def test_the_choice_of_a_more_expensive_calibrator_has_its_reason(crowded, costs, means, figures):
    """It cost about as much and lost less; or the whole search decided, not the first recipes."""
    kinds = ("entropy", "mse")
    rows = tuple(
        CalibratorRow(kind, 0.9, 17, False, cost, layers, kind == "mse", mean)
        for kind, cost, mean, layers in zip(kinds, costs, means, (1, 4), strict=True)
    )
    report = replace(crowded, answer=replace(crowded.answer, calibrators=rows))
    console = Console(file=io.StringIO(), width=400)
    print_report(report, console, every_layer=True)
    said = [line for line in console.file.getvalue().splitlines() if "mse is chosen" in line]
    assert len(said) == (figures is not None)
    assert all(figure in line for line in said for figure in figures)


@pytest.mark.parametrize(
    ("shape", "dtype", "sizes"),
    [
        ((None, 3, None, None), np.float32, "1x3x224x224"),
        ((None, None, None, 3), np.uint8, "1x224x224x3"),
        ((None, None), np.int64, "1x128"),
        ((None, None, 8), np.float32, "1x128x8"),
        ((None, 12, None, 64), np.float32, "1x12x128x64"),
        ((None, 3, 32, 32), np.float32, "1x3x32x32"),
    ],
)
def test_only_pictures_are_given_the_usual_size_of_pictures(shape, dtype, sizes):
    assert _sized(TensorSpec("x", np.dtype(dtype), shape)) == f"--shape x:{sizes}"
