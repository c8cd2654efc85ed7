"""The network that a command asks for: read, with the precisions and scales that the user fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trt_bisect.errors import BadInput
from trt_bisect.model.low import INT8, LowPrecision
from trt_bisect.model.network import GivenModel, Network, load_network
from trt_bisect.model.operators import use_libraries
from trt_bisect.options.commands import CompareOptions
from trt_bisect.options.concerns import FIXING, FixedLayerOptions, NetworkOptions
from trt_bisect.precision import Precision
from trt_bisect.preparation.fixed_layers import (
    fixed_network,
    in_folder,
    leaving_out,
    read_notes,
    scoped,
    with_one_scale,
)
from trt_bisect.preparation.plan_file import FilePlan, read_plan

Shapes = Mapping[str, tuple[int, ...]]


def asked_network(options: NetworkOptions, model: GivenModel | Callable[..., Any], shapes: Shapes | None) -> Network:
    """Returns a network with what the options ask of it.

    Args:
        options: those of a command.
        model: its file, or one that is read already, which keeps its own low precision where INT8 is asked for.
        shapes: the shapes of dynamic inputs, for a file.

    Raises:
        BadInput: a library or a file cannot be used, or an option does not fit the network.
    """
    plan = _file_plan(options) if isinstance(options, FixedLayerOptions) else None
    base = options.base_precision
    if isinstance(options, CompareOptions) and options.recipe is not None and not options.base and plan is not None:
        base = plan.high or base
    network = read_network(options, model, shapes, options.low_precision, base)
    if isinstance(options, FixedLayerOptions):
        network = _with_fixed_layers(network, options, plan, base)
    return network


def read_network(
    options: NetworkOptions,
    model: GivenModel | Callable[..., Any],
    shapes: Shapes | None,
    low: LowPrecision | None = None,
    base: Precision | None = None,
) -> Network:
    """Returns a network with the operators of the options, and nothing else that they ask for.

    Args:
        options: those of a command.
        model: its file, or one that is read already.
        shapes: the shapes of dynamic inputs, for a file.
        low: the low precision; None for INT8, or that of a network that is read already.
        base: see ``Network``; None for that of each plan.

    Raises:
        BadInput: a library or the file cannot be used.
    """
    use_libraries(options.libraries(onnxruntime=True))
    if isinstance(model, Network):
        network = model if low in (None, INT8, model.low) else model.with_low(low or INT8)
        return network if base is None else network.with_base(base)
    return load_network(model, shapes, low or INT8, base, fuse_norms=options.fuse_norms)


def _with_fixed_layers(
    network: Network, options: FixedLayerOptions, plan: FilePlan | None, base: Precision | None
) -> Network:
    """Returns a network with the precisions that the user fixes; raises BadInput if a plan or a pattern is no use."""
    if plan is None and not any(getattr(options, name) for name in FIXING):
        return network
    high = base or Precision.FP32 if isinstance(options, CompareOptions) else options.high_precision
    following = base or high
    if plan is not None and plan.high not in (None, following):
        raise BadInput(
            f"In '{plan.source}' layers that can never be low are in {plan.high}, here they are in {following}.",
            f"Add --base {plan.high}, or take 'high' out of a copy of the plan.",
        )
    output = getattr(options, "output", None)
    raised, lowered, only = (in_folder(each, output) for each in (options.high, options.keep_low, options.only))
    network = leaving_out(with_one_scale(network, options.one_scale), only, high)
    if options.scoped:
        network = scoped(network, options.scoped, high)
    found = fixed_network(network, raised, lowered, plan, high)
    return replace(found, notes=(*found.notes, *read_notes(network, [*raised, *lowered, *only])))


def _file_plan(options: FixedLayerOptions) -> FilePlan | None:
    """Returns the plan of ``--plan``, or of ``--recipe``; None without either."""
    recipe = options.recipe if isinstance(options, CompareOptions) else None
    if recipe is not None and options.plan is not None:
        raise BadInput("--recipe and --plan both give a plan.", "Leave out one of the two.")
    given = options.plan if recipe is None else recipe
    return None if given is None else read_plan(given)
