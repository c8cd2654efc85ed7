"""``compare`` on runs that Polygraphy or NumPy saved: names, layers and scales."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from polygraphy.comparator import IterationResult, RunResults

import trt_bisect
from tests.support import networks
from tests.support.compared import calibrated, tensors_of
from trt_bisect.data.feeds import match_names


@pytest.fixture
def dumps(tmp_path):
    """Two runs of two inferences, in memory, with one tensor named otherwise and one in the first run alone."""
    random = np.random.default_rng(1)
    fp32 = [{"a": random.normal(0, 1, (1, 4)), "/b/Out:0": random.normal(0, 1, (1, 3)), "c": np.ones(2)} for _ in "12"]
    fp32 = [{name: values.astype(np.float32) for name, values in run.items()} for run in fp32]
    int8 = [{"a": run["a"] + np.float32(0.1), "b_out": run["/b/Out:0"] * np.float32(2)} for run in fp32]
    return fp32, int8


def save_polygraphy(path, *runners):
    results = RunResults()
    for name, runs in runners:
        results.add([IterationResult(run, runner_name=name) for run in runs], runner_name=name)
    results.save(str(path))


def check_dumps(found, dumps):
    fp32, int8 = dumps
    assert (found.arithmetic, found.samples) == ("saved", 2)
    rows = {row.origin.tensor: row for row in found.tensors}
    assert set(rows) == {"a", "/b/Out:0"}
    difference = np.concatenate([i["a"].astype(np.float64) - f["a"] for f, i in zip(fp32, int8, strict=True)])
    assert rows["a"].figures.mse == pytest.approx(np.mean(difference**2))
    assert rows["/b/Out:0"].int8.max == max(run["b_out"].max() for run in int8)
    assert found.notes == ("in the FP32 run only (1): 'c'",)


def test_two_runs_saved_by_polygraphy(command, dumps, tmp_path):
    save_polygraphy(tmp_path / "fp32.json", ("ort", dumps[0]))
    save_polygraphy(tmp_path / "int8.json", ("trt", dumps[1]))
    check_dumps(trt_bisect.compare(fp32=tmp_path / "fp32.json", int8=tmp_path / "int8.json"), dumps)
    save_polygraphy(tmp_path / "both.json", ("ort", dumps[0]), ("trt", dumps[1]))
    check_dumps(trt_bisect.compare(fp32=tmp_path / "both.json", int8=tmp_path / "both.json"), dumps)
    code, out, _ = command("compare", "--fp32", tmp_path / "fp32.json", "--int8", tmp_path / "int8.json")
    assert code == 0
    assert "/b/Out:0" in out


def test_two_folders_of_npz(dumps, tmp_path):
    for run, inferences in zip(("fp32", "int8"), dumps, strict=True):
        (tmp_path / run).mkdir()
        for place, tensors in enumerate(inferences):
            with (tmp_path / run / f"{place}.npz").open("wb") as file:
                np.savez(file, **{name.replace("/", "|"): values for name, values in tensors.items()})
    found = trt_bisect.compare(fp32=tmp_path / "fp32", int8=tmp_path / "int8")
    assert [row.origin.tensor for row in found.tensors] == ["a", "|b|Out:0"]


def test_saved_runs_get_layers_and_scales_from_the_network(tmp_path):
    path, feeds = networks.given(networks.chain(4), tmp_path, 1)
    network, ranges = calibrated(path, feeds)
    for run, chosen in (("fp32", ()), ("int8", network.quantizable)):
        tensors = tensors_of(network, feeds, ranges.scales, chosen)
        np.savez(tmp_path / f"{run}.npz", **{name: values[0] for name, values in tensors.items()})
    saved = {"fp32": tmp_path / "fp32.npz", "int8": tmp_path / "int8.npz"}
    emulated = trt_bisect.compare(path, ranges, feeds)
    figures = {row.origin.tensor: row.figures for row in emulated.tensors}
    found = trt_bisect.compare(path, ranges, **saved)
    assert len(found.tensors) == len(network.layers)
    assert all(row.origin.layer and row.figures == figures[row.origin.tensor] for row in found.tensors)
    assert [row.scale for row in found.tensors] == [row.scale for row in emulated.tensors[1:]]
    assert len(found.weights) == len(emulated.weights)
    without = trt_bisect.compare(path, **saved)
    assert {row.scale for row in without.tensors} == {None}
    assert [row.origin.layer for row in without.tensors] == [row.origin.layer for row in found.tensors]


NAMES = st.lists(st.text("abAB_/:01", min_size=1, max_size=5), max_size=8, unique=True)


@given(NAMES, NAMES)
def test_names_are_matched_one_to_one(reference, output):
    matched = match_names(reference, output)
    assert len(set(matched.values())) == len(matched)
    assert set(matched) <= set(reference)
    assert set(matched.values()) <= set(output)
    assert all(matched[name] == name for name in set(reference) & set(output))
