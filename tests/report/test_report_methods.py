"""``print(report)``, ``to_json``, ``to_markdown`` and ``compare`` of a report in Python."""

from dataclasses import replace

import pytest

import trt_bisect
from tests.support.records import record_of, report_from
from trt_bisect import BadInput
from trt_bisect.report.answer import RecipeLayers
from trt_bisect.report.model import ByPlan


@pytest.fixture(scope="module")
def report(lenet):
    return trt_bisect.run(lenet / "lenet_planted.onnx", lenet / "calibration.npz", engine="onnxruntime", explain="none")


def test_print_shows_the_verdict_and_the_next_step_in_20_lines(report):
    said = " ".join(str(report).split())
    assert all(" ".join(line.text.split()) in said for line in report.lines)
    assert report.next.what in said
    assert len(str(report).splitlines()) <= 20
    assert repr(report) == str(report)


def test_json_is_plain_and_is_read_again(report):
    record = record_of(report)
    again = report_from(record)
    assert again.culprits == report.culprits
    assert again.to_markdown() == report.to_markdown()


def test_markdown_names_the_culprit_in_a_table(report):
    lines = report.to_markdown().splitlines()
    header = lines.index("| culprit | op | if put back in INT8 | loss here | fixed alone | rounds |")
    cells = [cell.strip() for cell in lines[header + 2].split("|")[1:-1]]
    assert cells[:2] == ["ip2", "Gemm"]
    assert float(cells[3].replace("\\", "").rstrip("%")) == pytest.approx(
        100 * report.layers[report_index(report)].drop, abs=1e-2
    )


def report_index(report):
    return next(row.index for row in report.layers if row.name == "ip2")


def test_a_report_is_equal_to_itself(report):
    found = report.compare(report)
    assert (found.changes, found.differs) == ((), ())
    assert str(found).startswith("Nothing changed.")


def test_what_changed_is_named(report):
    layers = tuple(
        replace(row, culprit=False, drop=0.0, similarity=1.0) if row.name == "ip2" else row for row in report.layers
    )
    good = replace(
        report,
        layers=layers,
        culprits=(),
        similarity=ByPlan(0.9999, 0.9999),
        recipe=RecipeLayers(meets=True),
        threshold=0.98,
    )
    worse = report.compare(good)
    keys = {change.key for change in worse.changes}
    assert keys >= {("culprit", "worse", "ip2"), ("similarity", "worse", "int8")}
    assert [each.what for each in worse.differs] == ["option threshold"]
    assert ("culprit", "better", "ip2") in {change.key for change in good.compare(report).changes}
    assert "new culprit 'ip2'" in str(worse)
    assert record_of(worse)["metric"] == "cosine"


def test_reports_of_two_metrics_are_not_compared(report):
    with pytest.raises(BadInput, match="sqnr"):
        report.compare(replace(report, metric="sqnr"))


def test_results_of_all_commands_are_loaded_and_shown_in_20_lines(report, lenet, tmp_path):
    model, data = lenet / "lenet_planted.onnx", lenet / "calibration.npz"
    made = [
        report,
        trt_bisect.sensitivity(model, data),
        trt_bisect.compare(model, data),
        trt_bisect.profile(model),
        trt_bisect.worst(model, data, data),
        trt_bisect.check(model),
    ]
    for place, result in enumerate(made):
        folder = tmp_path / str(place)
        result.save(folder)
        again = trt_bisect.load(folder)
        assert type(again) is type(result)
        for text in (str(again), repr(result)):
            assert 0 < len(text.splitlines()) <= 20
        assert "<table" in again._repr_html_()
        name = next(name for name in ("report.json", f"{getattr(result, 'COMMAND', '')}.json")
                    if (folder / name).is_file())  # fmt: skip
        assert type(trt_bisect.load(folder / name)) is type(result)
    assert (report.passed, report.verdict) == (False, "fails")
    with pytest.raises(BadInput, match="holds no result"):
        trt_bisect.load(tmp_path)
