"""Docstrings are plain contracts: they say what a thing is or does, and open with no question word."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("trt_bisect", "benchmarks", "tools", "tests")
RIDDLE = re.compile(r'^ *r?"""(?:What|Whether|How|Who|Whose|Where|That|Which|Why)\b.*', re.MULTILINE)


def test_no_docstring_opens_as_a_question():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 300
    found = {str(path): RIDDLE.findall(path.read_text(encoding="utf-8")) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}
