"""The wheel and the sdist: what they hold, and that the wheel works where nothing else is installed."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import trt_bisect
from trt_bisect.errors import install

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_wheel_runs_on_a_sample_in_an_environment_with_what_it_requires_alone(tmp_path):
    """``tools/package.py`` asserts exit code, culprit and files of the run."""
    command = [sys.executable, ROOT / "tools" / "package.py", tmp_path, "--linked"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sources = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "trt_bisect").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == sources
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert sources | {"LICENSE", "README.md", "pyproject.toml"} <= held


def test_the_version_of_the_citation_is_that_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {trt_bisect.__version__}\n" in citation


@pytest.mark.parametrize("extra", ["view", "cluster", "coco", "history", "tensorboard", "notebook", "tensorrt", "rtx"])
def test_advice_to_install_names_the_packages_of_pyproject(extra):
    """No index is known to have trt-bisect itself."""
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(rf"^{extra} = \[(.*)\]$", text, re.MULTILINE)[1]
    assert install(extra).split("pip install ")[1] == " ".join(f"'{one}'" for one in re.findall('"([^"]+)"', listed))
