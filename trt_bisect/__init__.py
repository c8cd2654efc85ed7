"""trt-bisect names the layers that lose a network's accuracy under TensorRT INT8 and writes the recipe.

>>> import trt_bisect
>>> report = trt_bisect.run("network.onnx", calibration="calibration.npz")  # doctest: +SKIP
>>> report.culprits  # doctest: +SKIP
('ip2',)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trt_bisect._version import __version__

if TYPE_CHECKING:
    from trt_bisect.analyzer.compare_output import similarity
    from trt_bisect.analyzer.judge import compare_arrays, make_rule
    from trt_bisect.analyzer.metrics import find_metric
    from trt_bisect.builder.engines import list_engines, make_builder
    from trt_bisect.calibration.cache import format_cache, read_cache
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.commands.analysis import Analysis
    from trt_bisect.commands.check import check
    from trt_bisect.commands.compare import compare
    from trt_bisect.commands.losses import sensitivity, worst
    from trt_bisect.commands.migrate import migrate
    from trt_bisect.commands.profile import profile
    from trt_bisect.commands.regress.regress import regress
    from trt_bisect.commands.run.run import run
    from trt_bisect.data.datasets import open_dataset
    from trt_bisect.driver.suspects.curves import bisect, exhaustive
    from trt_bisect.driver.suspects.search import Question, drive
    from trt_bisect.errors import BadInput, EngineUnavailable, NothingMeasured, TrtBisectError
    from trt_bisect.history.store import History
    from trt_bisect.model.network import Network, load_network
    from trt_bisect.precision import Precision, PrecisionPlan, all_but, only, prefix
    from trt_bisect.report.comparison import Comparison, Profile
    from trt_bisect.report.losses import Sensitivity, WorstReport
    from trt_bisect.report.model import Report
    from trt_bisect.report.nightly import Regression
    from trt_bisect.report.result import load
    from trt_bisect.report.structure import CheckReport, Migration

_HOME = {
    "Analysis": "commands.analysis",
    "BadInput": "errors",
    "CheckReport": "report.structure",
    "Comparison": "report.comparison",
    "EngineUnavailable": "errors",
    "History": "history.store",
    "Migration": "report.structure",
    "Network": "model.network",
    "NothingMeasured": "errors",
    "Precision": "precision",
    "PrecisionPlan": "precision",
    "Profile": "report.comparison",
    "Question": "driver.suspects.search",
    "Regression": "report.nightly",
    "Report": "report.model",
    "TrtBisectError": "errors",
    "WorstReport": "report.losses",
    "all_but": "precision",
    "bisect": "driver.suspects.curves",
    "calibrate": "calibration.collect",
    "check": "commands.check",
    "compare": "commands.compare",
    "compare_arrays": "analyzer.judge",
    "drive": "driver.suspects.search",
    "exhaustive": "driver.suspects.curves",
    "find_metric": "analyzer.metrics",
    "format_cache": "calibration.cache",
    "list_engines": "builder.engines",
    "load": "report.result",
    "load_network": "model.network",
    "make_builder": "builder.engines",
    "make_rule": "analyzer.judge",
    "migrate": "commands.migrate",
    "only": "precision",
    "open_dataset": "data.datasets",
    "prefix": "precision",
    "profile": "commands.profile",
    "read_cache": "calibration.cache",
    "regress": "commands.regress.regress",
    "run": "commands.run.run",
    "Sensitivity": "report.losses",
    "sensitivity": "commands.losses",
    "similarity": "analyzer.compare_output",
    "worst": "commands.losses",
}
"""The module of each public name; it is imported at its first use, so that ``import trt_bisect`` costs nothing."""

__all__ = [
    "__version__",
    "Analysis",
    "BadInput",
    "CheckReport",
    "Comparison",
    "EngineUnavailable",
    "History",
    "Migration",
    "Network",
    "NothingMeasured",
    "Precision",
    "PrecisionPlan",
    "Profile",
    "Question",
    "Regression",
    "Report",
    "Sensitivity",
    "TrtBisectError",
    "WorstReport",
    "all_but",
    "bisect",
    "calibrate",
    "check",
    "compare",
    "compare_arrays",
    "drive",
    "exhaustive",
    "find_metric",
    "format_cache",
    "list_engines",
    "load",
    "load_network",
    "make_builder",
    "make_rule",
    "migrate",
    "only",
    "open_dataset",
    "prefix",
    "profile",
    "read_cache",
    "regress",
    "run",
    "sensitivity",
    "similarity",
    "worst",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"trt_bisect.{_HOME[name]}"), name)
    instead = ": use trt_bisect.run with budget, drop or front" if name in ("recover", "Recovery") else ""
    raise AttributeError(f"module 'trt_bisect' has no attribute '{name}'{instead}")


def __dir__() -> list[str]:
    return sorted(__all__)
