"""The time left of a run: the model, fed with numbers, and a whole run's."""

import pytest

import trt_bisect
from tests.support import networks
from tests.support.progress_doubles import Said
from trt_bisect.support.progress import CHECKS, CURVE, EXPLANATION, SEARCH, Forecast, other_stages


class Told(Said):
    """Keeps the times left, each with the stage in which it was told."""

    def __init__(self):
        super().__init__()
        self.times, self.at = [], ""

    def stage(self, title, total):
        self.at = title

    def left(self, seconds):
        self.times.append((self.at, seconds))


@pytest.fixture
def forecast():
    found = Forecast(Told())
    found.left = {}
    return found


def test_nothing_is_told_before_the_first_inference(forecast):
    forecast.search(100)
    assert forecast.seconds() is None


def test_the_budget_of_the_search_at_a_pace(forecast):
    """Ten inferences in two seconds: of a hundred ninety are left, 0.2 s each."""
    forecast.search(100)
    forecast.ran(10, 2.0)
    assert forecast.seconds() == pytest.approx(18.0)
    forecast.search(40, 0.5)
    assert forecast.seconds() == pytest.approx(20.0)
    assert forecast.shown.times[-1] == ("", forecast.seconds())


def test_a_search_that_takes_longer_than_its_budget_never_ends_at_once(forecast):
    forecast.search(10)
    for _ in range(40):
        forecast.ran(1, 1.0)
        assert forecast.seconds() > 0.5
    assert forecast.seconds() < 20, "a quarter of what was done, as a bar grows"


def test_the_pace_is_that_of_the_last_minute(forecast):
    forecast.search(10_000)
    for _ in range(20):
        forecast.ran(1, 1.0)
    for _ in range(1000):
        forecast.ran(1, 0.1)
    assert forecast.seconds() / forecast.left[SEARCH] == pytest.approx(0.1, rel=0.1)


def test_a_stage_that_begins_ends_those_before_it(forecast):
    forecast.left = other_stages(50, 20, 1, explains=True)
    assert set(forecast.left) == {CURVE, CHECKS, EXPLANATION}
    forecast.search(200, 0.01)
    before = forecast.seconds()
    forecast.begins(SEARCH)
    assert forecast.seconds() == before
    forecast.begins(CHECKS)
    assert set(forecast.left) == {CHECKS, CURVE, EXPLANATION}
    forecast.ran(500, 5.0)
    assert set(forecast.left) == {CHECKS, CURVE, EXPLANATION}, "inferences of the checks are not of the search"
    forecast.begins(CURVE)
    forecast.ends(CURVE)
    assert set(forecast.left) == {EXPLANATION}, "the curve comes first where an engine is built for each plan"
    forecast.begins(EXPLANATION)
    assert 0 < forecast.seconds() < before


def test_a_job_of_which_only_the_search_is_known_tells_nothing():
    forecast = Forecast(Told())
    forecast.ran(10, 1.0)
    forecast.search(100)
    forecast.begins(CHECKS)
    assert forecast.seconds() is None
    assert not forecast.shown.times


def test_a_run_without_causes_has_no_time_for_them():
    assert not other_stages(50, 20, 1, explains=False)[EXPLANATION]


def test_a_run_tells_its_time_from_the_first_stage_of_its_search_to_its_last(tmp_path):
    path, data = networks.given(networks.transformer(blocks=1), tmp_path, 4)
    feeds = [{name: values[k : k + 1] for name, values in data.items()} for k in range(4)]
    told = Told()
    asked = {"engine": "onnxruntime", "history": "none", "threshold": 0.9999, "effort": "quick"}
    report = trt_bisect.run(path, feeds, inputs=feeds, progress=told, **asked)
    assert report.culprits
    assert all(seconds is not None and seconds > 0 for _, seconds in told.times)
    assert told.times[0][0] == "Full INT8 with each calibrator", "the first inferences of the search"
    assert told.times[-1][1] < max(seconds for _, seconds in told.times), "the explanation alone is left"
