"""trt-bisect names the layers that lose a network's accuracy under TensorRT INT8 and writes the recipe.

>>> import trt_bisect
>>> report = trt_bisect.run("network.onnx", calibration="calibration.npz")  # doctest: +SKIP
>>> report.culprits  # doctest: +SKIP
('ip2',)
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from trt_bisect._version import __version__

if TYPE_CHECKING:
    from trt_bisect.analyzer.compare_output import similarity as similarity
    from trt_bisect.analyzer.judge import compare_arrays as compare_arrays, make_rule as make_rule
    from trt_bisect.analyzer.metrics import find_metric as find_metric
    from trt_bisect.builder.engines import list_engines as list_engines, make_builder as make_builder
    from trt_bisect.calibration.cache import format_cache as format_cache, read_cache as read_cache
    from trt_bisect.calibration.collect import calibrate as calibrate
    from trt_bisect.commands.analysis import Analysis as Analysis
    from trt_bisect.commands.check import check as check
    from trt_bisect.commands.compare import compare as compare, profile as profile
    from trt_bisect.commands.losses import sensitivity as sensitivity, worst as worst
    from trt_bisect.commands.migrate import migrate as migrate
    from trt_bisect.commands.regress import regress as regress
    from trt_bisect.commands.run.pipeline import run_pipeline as run_pipeline
    from trt_bisect.commands.run.run import run as run
    from trt_bisect.commands.verify.verify import verify as verify
    from trt_bisect.data.datasets import open_dataset as open_dataset
    from trt_bisect.driver.curves import bisect as bisect, exhaustive as exhaustive
    from trt_bisect.driver.search import Question as Question, drive as drive
    from trt_bisect.errors import (
        BadInput as BadInput,
        EngineUnavailable as EngineUnavailable,
        NothingMeasured as NothingMeasured,
        TrtBisectError as TrtBisectError,
    )
    from trt_bisect.history.store import History as History
    from trt_bisect.model.network import Network as Network, load_network as load_network
    from trt_bisect.precision import (
        Precision as Precision,
        PrecisionPlan as PrecisionPlan,
        all_but as all_but,
        only as only,
        prefix as prefix,
    )
    from trt_bisect.report.comparison import Comparison as Comparison, Profile as Profile
    from trt_bisect.report.losses import Sensitivity as Sensitivity, WorstReport as WorstReport
    from trt_bisect.report.model import Report as Report, load as load
    from trt_bisect.report.nightly import Regression as Regression
    from trt_bisect.report.structure import CheckReport as CheckReport, Migration as Migration
    from trt_bisect.report.verification import Verification as Verification

_NAMES = {
    "analyzer.compare_output": ("similarity",),
    "analyzer.judge": ("compare_arrays", "make_rule"),
    "analyzer.metrics": ("find_metric",),
    "builder.engines": ("list_engines", "make_builder"),
    "calibration.cache": ("format_cache", "read_cache"),
    "calibration.collect": ("calibrate",),
    "commands.analysis": ("Analysis",),
    "commands.check": ("check",),
    "commands.compare": ("compare", "profile"),
    "commands.losses": ("sensitivity", "worst"),
    "commands.migrate": ("migrate",),
    "commands.regress": ("regress",),
    "commands.run.pipeline": ("run_pipeline",),
    "commands.run.run": ("run",),
    "commands.verify.verify": ("verify",),
    "data.datasets": ("open_dataset",),
    "driver.curves": ("bisect", "exhaustive"),
    "driver.search": ("Question", "drive"),
    "errors": ("BadInput", "EngineUnavailable", "NothingMeasured", "TrtBisectError"),
    "history.store": ("History",),
    "model.network": ("Network", "load_network"),
    "precision": ("Precision", "PrecisionPlan", "all_but", "only", "prefix"),
    "report.comparison": ("Comparison", "Profile"),
    "report.losses": ("Sensitivity", "WorstReport"),
    "report.model": ("Report", "load"),
    "report.nightly": ("Regression",),
    "report.structure": ("CheckReport", "Migration"),
    "report.verification": ("Verification",),
}
"""The public names of each module, which is imported when one of them is first used."""
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["__version__"]
__all__ += list(_HOME)


def _disable_telemetry() -> None:
    """Switches ONNX Runtime's telemetry off, here and in child processes; ``ORT_DISABLE_TELEMETRY=0`` leaves it on."""
    # ONNX Runtime 1.29 and later read the variable once, when imported. If it was imported before, its interface stops
    # the events, but not the uploader.
    if os.environ.get("ORT_DISABLE_TELEMETRY"):
        return
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    if "onnxruntime" in sys.modules:
        sys.modules["onnxruntime"].disable_telemetry_events()


_disable_telemetry()


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"trt_bisect.{_HOME[name]}"), name)
    instead = ": use trt_bisect.run with budget, drop or front" if name in ("recover", "Recovery") else ""
    raise AttributeError(f"module 'trt_bisect' has no attribute '{name}'{instead}")


def __dir__() -> list[str]:
    return sorted(__all__)
