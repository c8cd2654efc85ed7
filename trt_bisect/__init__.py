"""trt-bisect names the layers that lose a network's accuracy under TensorRT INT8 and hands back the recipe.

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
    from trt_bisect.analyzer.judge import compare_arrays, make_rule
    from trt_bisect.analyzer.metrics import find_metric
    from trt_bisect.analyzer.similarity import similarity
    from trt_bisect.api import run
    from trt_bisect.builder.engines import list_engines, make_builder
    from trt_bisect.calibration.cache import format_cache, read_cache
    from trt_bisect.calibration.collect import calibrate
    from trt_bisect.checking import check
    from trt_bisect.comparison import compare
    from trt_bisect.data import open_dataset
    from trt_bisect.driver.bisect import bisect
    from trt_bisect.driver.exhaustive import exhaustive
    from trt_bisect.driver.recipe import repair
    from trt_bisect.driver.search import Question, drive
    from trt_bisect.errors import BadInput, EngineUnavailable, NothingMeasured, TrtBisectError
    from trt_bisect.model.network import Network, load_network
    from trt_bisect.nightly import regress
    from trt_bisect.precision import Precision, PrecisionPlan, all_but, only, prefix
    from trt_bisect.profiling import profile
    from trt_bisect.recovery import recover
    from trt_bisect.report.check_report import CheckReport
    from trt_bisect.report.comparison import Comparison
    from trt_bisect.report.profile import Profile
    from trt_bisect.report.recovered import Recovery
    from trt_bisect.report.regression import Regression
    from trt_bisect.report.report import Report
    from trt_bisect.report.worst_report import WorstReport
    from trt_bisect.runs.history import History
    from trt_bisect.sensitive import Sensitivity, sensitivity
    from trt_bisect.worst_job import worst

_HOME = {
    "BadInput": "errors",
    "CheckReport": "report.check_report",
    "Comparison": "report.comparison",
    "EngineUnavailable": "errors",
    "History": "runs.history",
    "Network": "model.network",
    "NothingMeasured": "errors",
    "Precision": "precision",
    "PrecisionPlan": "precision",
    "Profile": "report.profile",
    "Question": "driver.search",
    "Regression": "report.regression",
    "Report": "report.report",
    "TrtBisectError": "errors",
    "WorstReport": "report.worst_report",
    "all_but": "precision",
    "bisect": "driver.bisect",
    "calibrate": "calibration.collect",
    "check": "checking",
    "compare": "comparison",
    "compare_arrays": "analyzer.judge",
    "drive": "driver.search",
    "exhaustive": "driver.exhaustive",
    "find_metric": "analyzer.metrics",
    "format_cache": "calibration.cache",
    "list_engines": "builder.engines",
    "load_network": "model.network",
    "make_builder": "builder.engines",
    "make_rule": "analyzer.judge",
    "only": "precision",
    "open_dataset": "data",
    "prefix": "precision",
    "profile": "profiling",
    "read_cache": "calibration.cache",
    "Recovery": "report.recovered",
    "recover": "recovery",
    "regress": "nightly",
    "repair": "driver.recipe",
    "run": "api",
    "Sensitivity": "sensitive",
    "sensitivity": "sensitive",
    "similarity": "analyzer.similarity",
    "worst": "worst_job",
}
"""Where each public name lives; it is imported at its first use, so that ``import trt_bisect`` costs nothing."""

__all__ = [
    "__version__",
    "BadInput",
    "CheckReport",
    "Comparison",
    "EngineUnavailable",
    "History",
    "Network",
    "NothingMeasured",
    "Precision",
    "PrecisionPlan",
    "Profile",
    "Question",
    "Recovery",
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
    "load_network",
    "make_builder",
    "make_rule",
    "only",
    "open_dataset",
    "prefix",
    "profile",
    "read_cache",
    "recover",
    "regress",
    "repair",
    "run",
    "sensitivity",
    "similarity",
    "worst",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"trt_bisect.{_HOME[name]}"), name)
    raise AttributeError(f"module 'trt_bisect' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
