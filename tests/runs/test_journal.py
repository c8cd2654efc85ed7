"""The journal of a run: what it waits for."""

import os

import pytest

from trt_bisect.builder.base import MEASURED
from trt_bisect.errors import BadInput
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


def test_a_journal_that_is_a_symbolic_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text("mine")
    (tmp_path / JOURNAL).symlink_to(elsewhere)
    with pytest.raises(BadInput, match="symbolic link"):
        Journal(tmp_path, "key", {})
    assert elsewhere.read_text() == "mine"
