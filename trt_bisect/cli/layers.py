"""``trt-bisect layers``: the network as it will be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from trt_bisect.cli.display import Configured, Display, Model, console
from trt_bisect.jobs.options.commands import LayersOptions
from trt_bisect.jobs.options.declare import FLAT

if TYPE_CHECKING:
    from trt_bisect.data.feeds import TensorSpec


def layers_command(
    model: Model,
    /,
    *,
    options: Annotated[LayersOptions, FLAT] = LayersOptions(),
    display: Display = Configured(),
) -> None:
    """List the layers in execution order with operator and output shape, and whether TensorRT can quantize them.

    Below the layers are the inputs and outputs of the network, with dtype and shape.
    """
    from rich.table import Table
    from rich.text import Text

    network = options.network(model, options.shapes)
    if display.json:
        rows = [
            {
                "index": layer.index,
                "name": layer.name,
                "op_type": layer.op_type,
                "shape": layer.shape,
                "quantizable": layer.quantizable,
                "why_not": layer.why_not,
            }
            for layer in network.layers
        ]
        display.print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("#", justify="right")
    for title in ("Layer", "Op", "Shape", network.low.title):
        table.add_column(title, overflow="fold")
    for layer in network.layers:
        dims = "?" if layer.shape is None else "x".join("?" if d is None else str(d) for d in layer.shape)
        table.add_row(
            str(layer.index),
            Text(layer.name),
            Text(layer.op_type),
            Text(dims),
            Text("yes" if layer.quantizable else f"no: {layer.why_not}", style="" if layer.quantizable else "dim"),
        )
    console(160).print(table)
    dynamic = [spec for spec in network.inputs if None in spec.shape]
    pairs = " The network has Q/DQ pairs: plans keep their scales." if network.has_pairs else ""
    print(f"{len(network.layers)} layers, {len(network.quantizable)} of them quantizable.{pairs}")
    print(f"Inputs: {', '.join(map(str, network.inputs))}. Outputs: {', '.join(map(str, network.outputs))}.")
    if dynamic:
        print(f"'?' is dynamic. Sizes: {' '.join(map(_sized, dynamic))}")


def _sized(spec: TensorSpec) -> str:
    """The option that gives a dynamic input sizes, 1 for the batch and 224 elsewhere as an example."""
    sizes = (size or (224 if place else 1) for place, size in enumerate(spec.shape))
    return f"--shape {spec.name}:{'x'.join(map(str, sizes))}"
