"""The keys of a network in a suite: those of a run's options, and those of the nights."""

from __future__ import annotations

from functools import partial

from trt_bisect.jobs.options import toml
from trt_bisect.jobs.options.cluster import ClusterOptions
from trt_bisect.jobs.options.concerns import OutputOptions
from trt_bisect.jobs.options.measuring import RunOptions
from trt_bisect.jobs.options.tables import readers

_NOT_OF_SUITES = {
    "try_remedies",
    "save_tensors",
    "max_size",
    *(info.name for concern in (ClusterOptions, OutputOptions) for info in concern.declared()),
}
"""Options of a run that the suite or the command sets itself."""

CLUSTER_KEYS: dict[str, toml.Read] = readers(ClusterOptions)
"""Keys of the suite itself: where its networks are measured."""

NIGHT_KEYS: dict[str, toml.Read] = {
    "target": toml.number,
    "target_recipe": toml.number,
    "similarity_tolerance": partial(toml.number, above=0.0),
    "latency_tolerance": partial(toml.number, above=0.0),
    "repeats": partial(toml.whole, least=1, most=100),
}
"""Keys that are not ``trt_bisect.run``'s, the name aside."""

NETWORK_KEYS: dict[str, toml.Read] = {
    "name": toml.name,
    "model": toml.file,
    **readers(RunOptions, leaving_out=_NOT_OF_SUITES),
    **NIGHT_KEYS,
}
