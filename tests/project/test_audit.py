"""The licences of what is brought along. The weaknesses known of it need the internet: ``make audit``."""

import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import audit  # noqa: E402

ALLOWED = ("MIT", "Apache Software License; BSD License", "GPL-3.0-or-later OR MIT", "BSD-3-Clause AND 0BSD AND Zlib")
GPL3 = "MIT; GNU General Public License v3 (GPLv3)"


@pytest.mark.parametrize("licence", [*ALLOWED, "GPL-3.0-or-later", "MIT AND AGPL-3.0", GPL3, "UNKNOWN", ""])
def test_what_is_allowed(licence):
    assert audit.is_allowed({"Name": "some", "License": licence}) is (licence in ALLOWED)


def test_every_licence_of_what_is_installed_is_allowed(capsys):
    assert audit.check_licences(None) == 0
    listed = capsys.readouterr().out
    for expected in ("numpy", "onnxruntime", "polygraphy", "MarkupSafe"):  # the last is Jinja2's
        assert f"| {expected} |" in listed
    for own in ("pytest", "ruff", "hypothesis"):
        assert f"| {own} |" not in listed


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock, and so the list, is of Python 3.11")
def test_the_list_in_the_docs_has_all_that_is_installed():
    rows = [line for line in (ROOT / "docs/licences.md").read_text().splitlines() if line.startswith("| ")]
    listed = {audit.plain_name(row.split("|")[1].strip()) for row in rows}
    assert audit.brought_along() - listed == set()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is of Python 3.11")
def test_what_the_lock_installs_runs_on_every_python_3_11():
    """Debian 12 has 3.11.2; pip refuses the whole lock if one package asks for a later one."""
    asked = {each.name: SpecifierSet(each.metadata.get("Requires-Python", "")) for each in distributions()}
    assert [name for name, versions in asked.items() if not versions.contains("3.11.0")] == []
