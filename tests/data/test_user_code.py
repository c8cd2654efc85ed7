"""Figures of a user's function are taken up again by the same function alone."""

import functools
import json

import numpy as np
import pytest

import trt_bisect
from tests.support import networks
from tests.support.records import texts
from trt_bisect.analyzer.metrics import find_metric
from trt_bisect.data.named import code_digest, is_reusable


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

    error.higher_is_better = False
    return error


def plain(reference, output):
    return float(np.abs(reference - output).max())


class Counting:
    """A metric with a state."""

    higher_is_better = False

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, reference, output):
        return self.factor * float(np.abs(reference - output).max())


QUICK = {"samples": 1, "engine": "onnxruntime", "calibrator": "minmax", "explain": "none", "history": "none"}
QUICK["effort"] = "quick"


def run(planted, folder, metric):
    path, data = planted
    return trt_bisect.run(path, data, data, metric=metric, threshold=0.05, curve="culprits", output=folder, **QUICK)


def trials(folder):
    return sum("trial" in json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines())


@pytest.mark.slow
def test_a_closure_over_another_constant_takes_no_figure_of_the_first(planted, tmp_path):
    """Three times the factor is three times the error, to the last bit but rounding. The report says so."""
    first = run(planted, tmp_path / "run", scaled(1.0))
    measured = trials(tmp_path / "run")
    second = run(planted, tmp_path / "run", scaled(3.0))
    assert first.similarity.int8 > 0.05
    assert second.similarity.int8 == pytest.approx(3.0 * first.similarity.int8, rel=1e-12)
    assert trials(tmp_path / "run") == 2 * measured
    assert any("'error'" in note and "again" in note for note in texts(second.notes))


@pytest.mark.slow
def test_the_same_function_goes_on_though_it_has_functions_in_it(planted, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import numpy as np\n"
        "def worst(r, o):\n"
        "    def largest(values):\n"
        "        return max(map(lambda value: abs(value), values))\n"
        "    return float(largest((r - o).ravel()))\n"
        "worst.higher_is_better = False\n"
    )
    first = run(planted, tmp_path / "run", f"{script}:worst")
    measured = trials(tmp_path / "run")
    second = run(planted, tmp_path / "run", f"{script}:worst")
    assert trials(tmp_path / "run") == measured
    assert second.similarity.int8 == first.similarity.int8 > 0.05


NOTEBOOK = {"__name__": "__main__"}
exec(compile("def worst(r, o):\n    return 1.0\n", "/tmp/ipykernel_1/2.py", "exec"), NOTEBOOK)
SEEN_IN_NO_FILE = {
    "notebook": NOTEBOOK["worst"],
    **{"closure": scaled(1.0), "partial": functools.partial(plain), "built in": max, "lambda": lambda r, o: r + o},
    **{"state": Counting(1.0), "bound method": Counting(1.0).__call__},
}


@pytest.mark.parametrize("function", SEEN_IN_NO_FILE.values(), ids=SEEN_IN_NO_FILE)
def test_what_a_file_does_not_tell_is_known_in_this_run_alone(function):
    assert not is_reusable(code_digest(function))
    assert code_digest(function) != code_digest(function)


def test_the_digest_is_of_file_name_and_facts(tmp_path):
    script, digests = tmp_path / "mine.py", []
    for body in ("one = lambda r, o: 1.0\n\ndef two(r, o):\n    return 2.0\n", "one = lambda r, o: 1.5\n"):
        script.write_text(body)
        digests.append(find_metric(f"{script}:one").code)
        assert find_metric(f"{script}:one").code == digests[-1]
        if "two" in body:
            digests.append(find_metric(f"{script}:two").code)
            script.write_text(f"{body}\none.higher_is_better = False\n")
            digests.append(find_metric(f"{script}:one").code)
    assert all(map(is_reusable, digests))
    assert len(set(digests)) == 4


def test_an_accuracy_over_another_constant_is_measured_anew(planted, tmp_path):
    """The function says what it closes over, whatever the network does: both are known by hand."""

    def of_full_int8(value):
        how = {"accuracy": lambda infer: value, "drop": "1%", "output": tmp_path / "run", **QUICK}
        return trt_bisect.run(*planted, planted[1], **how).figures.int8

    assert [of_full_int8(0.5), of_full_int8(0.75)] == [0.5, 0.75]
