"""``tools/gpu_check``, which is a folder of modules and no package."""

from pathlib import Path

TOOL = Path(__file__).parents[2] / "tools" / "gpu_check"


def failed(made):
    """Returns the expectations of a check that do not hold."""
    return [expectation["what"] for expectation in made.expectations if not expectation["holds"]]
