"""Results that were saved are loaded with all their figures."""

import json

import pytest

import trt_bisect
from tests.support.recorded import results
from trt_bisect.errors import BadInput
from trt_bisect.support import codec
from trt_bisect.support.text import percent
from trt_bisect.view.index import RESULTS


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a result of each command."""
    return results(tmp_path_factory)


@pytest.mark.parametrize("kind", RESULTS)
def test_all_is_as_it_was_saved_and_shown_in_20_lines(saved, kind, tmp_path):
    result = kind.load(saved)
    assert json.loads(codec.encode(result)) == json.loads((saved / f"{kind.COMMAND}.json").read_text())
    result.save(tmp_path)
    loaded = trt_bisect.load(tmp_path)
    assert type(loaded) is type(trt_bisect.load(saved / f"{kind.COMMAND}.json")) is kind
    assert codec.encode(loaded.page()) == codec.encode(result.page())
    assert len(loaded.table()) == len(result.table())
    assert all(0 < len(text.splitlines()) <= 20 for text in (str(loaded), repr(result)))
    assert "<table" in loaded._repr_html_()


def test_a_comparison_in_short_has_the_worst_tensors_first_and_tells_the_limit(saved):
    found = trt_bisect.Comparison.load(saved)
    by_cosine = sorted(found.tensors, key=lambda row: row.figures.cosine)
    shown = found.overview
    names = [row.origin.layer or row.origin.tensor for row in by_cosine]
    assert [row[0] for row in shown.rows] == names
    assert {"Cosine", "SQNR", "MSE", "Max abs"} <= set(shown.titles)
    assert percent(by_cosine[0].figures.cosine) in shown.headline
    assert "below 99%" in shown.headline


def test_of_a_folder_with_several_results_the_named_one_is_loaded(saved, tmp_path):
    sensitivity, worst = (kind.load(saved) for kind in (trt_bisect.Sensitivity, trt_bisect.WorstReport))
    for each in (sensitivity, worst):
        each.save(tmp_path)
    assert trt_bisect.load(tmp_path, "worst.json") == worst
    assert trt_bisect.load(tmp_path, "sensitivity.json") == trt_bisect.load(tmp_path) == sensitivity
    for place in (tmp_path, tmp_path / "worst.json"):
        with pytest.raises(BadInput, match=r"compare\.json"):
            trt_bisect.load(place, "compare.json")


def test_a_folder_without_a_result_holds_none(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    for path in (tmp_path, tmp_path / "other.json", tmp_path / "nothing"):
        with pytest.raises(BadInput, match="holds no result"):
            trt_bisect.load(path)
    with pytest.raises(BadInput, match=r"report\.json"):
        trt_bisect.Report.load(tmp_path)


@pytest.mark.parametrize("schema", [1, 3, 5])
def test_a_report_of_another_schema_is_refused_with_the_remedy(finished, tmp_path, schema):
    record = json.loads((finished / "report.json").read_text())
    (tmp_path / "report.json").write_text(json.dumps({**record, "schema": schema}))
    for load in (trt_bisect.load, trt_bisect.Report.load):
        with pytest.raises(BadInput) as refused:
            load(tmp_path)
        assert f"report.json' is of schema {schema}" in refused.value.problem
        assert refused.value.remedy == "Run 'trt-bisect run' again."


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 9}', '{"schema": 2, "model": 3, "ops": 4}'])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "sensitivity.json").write_text(text)
    with pytest.raises(BadInput, match=r"sensitivity\.json"):
        trt_bisect.Sensitivity.load(tmp_path)
