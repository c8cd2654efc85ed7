"""``clean`` lists and removes files that a run can make again; the run then goes on with its trials."""

import json
import re

import pytest

import trt_bisect
from tests.support import networks
from trt_bisect.errors import BadInput
from trt_bisect.preparation.workspace import clean, removable


def test_a_cleaned_run_takes_up_its_trials(command, tmp_path):
    model = networks.chain(2)
    given = networks.given(model, tmp_path, 4)
    run = tmp_path / "run"
    options = {"engine": "onnxruntime", "explain": "none", "effort": "quick", "save_tensors": "outputs", "output": run}
    before = trt_bisect.run(*given, **options)
    kept = {path.name for path in run.iterdir()} - {"tensors", "magnitudes.npz", "ranges.json", "candidates.json"}
    code, out, _ = command("clean", str(run), "--json")
    listed = json.loads(out)
    names = {row["path"].rpartition("/")[2]: row["bytes"] for row in listed["found"]}
    assert code == 0
    assert {"tensors", "magnitudes.npz", "ranges.json"} <= set(names)
    assert names["tensors"] == sum(path.stat().st_size for path in (run / "tensors").rglob("*") if path.is_file())
    assert (run / "tensors").is_dir()
    journal = (run / "journal.jsonl").read_bytes()
    assert command("clean", str(run), "--yes")[0] == 0
    assert {path.name for path in run.iterdir()} == kept
    assert removable(run) == ()
    after = trt_bisect.run(*given, **options)
    assert (after.fingerprint, after.similarity) == (before.fingerprint, before.similarity)
    assert (run / "journal.jsonl").read_bytes() == journal


def test_other_folders_are_left_alone(tmp_path):
    (tmp_path / "tensors").mkdir()
    with pytest.raises(BadInput, match=re.escape(f"'{tmp_path}'")):
        clean(tmp_path)
    assert (tmp_path / "tensors").is_dir()
