from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from trt_bisect.commands.run.run import run, time_limited
from trt_bisect.data.feeds import Spill
from trt_bisect.data.named import load_function
from trt_bisect.errors import BadInput
from trt_bisect.model.network import Network, load_network
from trt_bisect.options.commands import PipelineOptions
from trt_bisect.options.declare import takes
from trt_bisect.preparation.asked_network import use_machine
from trt_bisect.preparation.pipeline import open_samples, opened
from trt_bisect.report.model import Report
from trt_bisect.support.progress import default_progress

_SHARE_FED = 4  # one in this many bytes of the memory may hold the networks' inputs


@takes(PipelineOptions)
def run_pipeline(function: str | Callable[..., Any], options: PipelineOptions, command: str = "") -> Report:
    """Finds the layers that lose a pipeline's outputs in INT8, and a plan for all its networks that restores them.

    Args:
        function: your code, ``function(nets, sample) -> outputs``, or ``module:function``. ``nets["detector"](feeds)``
            returns the outputs of that network by name. The function may call networks any number of times, also with
            their own outputs, or not at all.
        options: fields of ``PipelineOptions``, as keywords.

    Raises:
        BadInput: an argument cannot be used, or the function fails in FP32.
        EngineUnavailable: the engine cannot be used here.
        NothingMeasured: a network could not be run in FP32.
        StoppedRun: the user interrupted the run; its report says what is known.
    """
    # ``command`` is for the report
    calibration, began = options.calibration or {}, perf_counter()
    if not options.networks:
        raise BadInput("The pipeline has no networks.", "Give --network NAME=FILE for each.")
    progress = options.progress or default_progress()
    called = load_function(function, "pipeline") if isinstance(function, str) else function
    networks = _loaded(options)
    for name in calibration:
        if name not in networks:
            raise BadInput(f"There is no network '{name}' to calibrate.", f"Its name is one of {', '.join(networks)}.")
    with Spill(options.memory_bytes // _SHARE_FED) as spill:
        sets = [open_samples(data) for data in (options.inputs, *options.validation_data)]
        with time_limited(options, progress, began) as shown:
            network, data = opened(called, networks, sets, calibration, options.most_calls, spill, shown)
        return run.job(network, options.for_run(*data, progress=progress), command, began)


def _loaded(options: PipelineOptions) -> Mapping[str, Network]:
    # all networks must have the same opset
    use_machine(options)
    how = (None, options.low_precision, options.base_precision)
    given = {name: Path(file) if isinstance(file, str) else file for name, file in (options.networks or {}).items()}
    networks = {name: load_network(file, *how, fuse_norms=options.fuse_norms) for name, file in given.items()}
    newest = max(network.opset for network in networks.values())
    for name, network in networks.items():
        if network.opset < newest:
            networks[name] = load_network(given[name], *how, fuse_norms=options.fuse_norms, opset=newest)
    return networks
