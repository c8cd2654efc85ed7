"""Figures of a user's function are taken up again by the same function alone."""

from __future__ import annotations

import functools
import json
import sys

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.records import texts
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.analyzer.user_code import code_digest, is_reusable

LIMIT = 3.0


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A small network with a culprit, and two samples."""
    model = networks.chain(depth=2)
    networks.plant_between(model, "conv0", "conv1")
    return networks.save(model, tmp_path_factory.mktemp("planted")), networks.samples(model, 2)


def scaled(factor, data=None):
    """A metric that closes over its factor, and has a function of its own in it."""

    def error(reference, output):
        largest = max((abs(value) for value in (reference - output).ravel()), key=lambda value: value)
        return factor * float(largest) + (0.0 if data is None else float(np.sum(data)))

    return error


def with_defaults(reference, output, factor=1.0, *, offset=0.0):
    return factor * float(np.abs(reference - output).max()) + offset


def with_global(reference, output):
    return LIMIT * float(np.abs(reference - output).max())


class Counting:
    """A metric with a state."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, reference, output):
        return self.factor * float(np.abs(reference - output).max())


def run(planted, folder, metric, threshold=0.05):
    path, data = planted
    return trt_bisect.run(
        path,
        data,
        data,
        samples=1,
        metric=metric,
        direction="lower",
        threshold=threshold,
        engine="onnxruntime",
        calibrator="minmax",
        curve="culprits",
        explain="none",
        output=folder,
        history="none",
    )


def trials(folder):
    return sum("trial" in json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines())


def test_a_closure_over_another_constant_takes_no_figure_of_the_first(planted, tmp_path):
    """Three times the factor is three times the error, to the last bit but rounding."""
    first = run(planted, tmp_path / "run", scaled(1.0))
    second = run(planted, tmp_path / "run", scaled(3.0))
    assert first.similarity.int8 > 0.05
    assert second.similarity.int8 == pytest.approx(3.0 * first.similarity.int8, rel=1e-12)


def test_the_same_function_goes_on_though_it_has_functions_in_it(planted, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import numpy as np\n"
        "def worst(r, o):\n"
        "    def largest(values):\n"
        "        return max(map(lambda value: abs(value), values))\n"
        "    return float(largest((r - o).ravel()))\n"
    )
    first = run(planted, tmp_path / "run", f"{script}:worst")
    measured = trials(tmp_path / "run")
    second = run(planted, tmp_path / "run", f"{script}:worst")
    assert trials(tmp_path / "run") == measured
    assert second.similarity == first.similarity


def test_a_metric_by_name_and_then_by_object_has_figures_both_times(planted, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import numpy as np\ndef worst(r, o):\n    return float(np.abs(r - o).max())\n")
    named = run(planted, tmp_path / "run", f"{script}:worst")
    from trt_bisect.data.user_functions import load_function

    given = run(planted, tmp_path / "run", load_function(f"{script}:worst", "metric"))
    assert given.metric == "worst"
    assert given.similarity.int8 == named.similarity.int8 > 0.05


def test_what_cannot_be_seen_is_measured_anew_and_said(planted, tmp_path):
    with (tmp_path / "state").open("w") as state:

        def error(reference, output):
            state.write(".")
            return float(np.abs(reference - output).max())

        run(planted, tmp_path / "run", error)
        measured = trials(tmp_path / "run")
        again = run(planted, tmp_path / "run", error)
    assert trials(tmp_path / "run") == 2 * measured
    assert any("'error'" in note and "anew" in note for note in texts(again.notes))


DIFFERENT = {
    "closure": (scaled(1.0), scaled(2.0)),
    "closed array": (scaled(1.0, np.zeros(3)), scaled(1.0, np.ones(3))),
    "partial": (functools.partial(with_defaults, factor=1.0), functools.partial(with_defaults, factor=2.0)),
    "state": (Counting(1.0), Counting(2.0)),
    "bound method": (Counting(1.0).__call__, Counting(2.0).__call__),
    "nested constant": (lambda r, o: max(r, key=lambda v: v + 1), lambda r, o: max(r, key=lambda v: v + 2)),
    "operation": (lambda r, o: r + o, lambda r, o: r - o),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_functions_that_differ_have_other_digests(pair):
    one, other = (code_digest(function) for function in pair)
    assert is_reusable(one)
    assert is_reusable(other)
    assert one != other


SAME = {
    "closure": lambda: scaled(1.0, np.arange(3)),
    "state": lambda: Counting(2.0),
    "NumPy's": lambda: np.linalg.norm,
    "built in": lambda: max,
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_the_same_function_made_again_has_the_same_digest(make):
    assert code_digest(make()) == code_digest(make())
    assert is_reusable(code_digest(make()))


def test_defaults_and_globals_are_seen(monkeypatch):
    before = code_digest(with_defaults)
    monkeypatch.setattr(with_defaults, "__defaults__", (2.0,))
    positional = code_digest(with_defaults)
    monkeypatch.setattr(with_defaults, "__kwdefaults__", {"offset": 1.0})
    assert len({before, positional, code_digest(with_defaults)}) == 3
    reading = code_digest(with_global)
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 4.0)
    assert code_digest(with_global) != reading


def test_a_changed_helper_module_is_seen(tmp_path, monkeypatch):
    """The metric's own file stays as it is; the module beside it changes."""
    (tmp_path / "metric_of_mine.py").write_text(
        "import helper_of_mine as h\ndef worst(r, o):\n    return h.worst(r, o)\n"
    )
    helper = tmp_path / "helper_of_mine.py"
    monkeypatch.syspath_prepend(tmp_path)
    digests = []
    for body in ("abs(r - o).max()", "abs(r - o).mean()"):
        helper.write_text(f"def worst(r, o):\n    return float({body})\n")
        for name in ("metric_of_mine", "helper_of_mine"):
            sys.modules.pop(name, None)
        digests.append(find_metric("metric_of_mine:worst").code)
    assert all(map(is_reusable, digests))
    assert digests[0] != digests[1]


def test_an_accuracy_over_another_constant_is_measured_anew(planted, tmp_path):
    """The function says what it closes over, whatever the network does: both are known by hand."""

    def constant(value):
        return lambda infer: value

    def recovered(value):
        found = trt_bisect.recover(
            *planted,
            planted[1],
            samples=1,
            accuracy=constant(value),
            engine="onnxruntime",
            calibrator="minmax",
            output=tmp_path / "run",
            history="none",
        )
        return found.measured.int8

    assert [recovered(0.5), recovered(0.75)] == [0.5, 0.75]
