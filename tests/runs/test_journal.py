"""The journal of a run: what it waits for."""

import os

from trt_bisect.builder.base import MEASURED
from trt_bisect.evaluator.trial import Trial
from trt_bisect.runs.journal import JOURNAL, Journal


def test_a_trial_is_on_the_disk_before_the_run_goes_on(tmp_path, monkeypatch):
    """fsync(2) is called when the whole line is in the file. ``tests/conftest.py`` spares the other tests this call."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append((tmp_path / JOURNAL).read_bytes()))
    with Journal(tmp_path, "key", {}) as journal:
        journal.keep(Trial("plan", MEASURED))
        assert synced[-1] == (tmp_path / JOURNAL).read_bytes()
        assert b'"plan"' in synced[-1]
