"""Options that several commands share, and how their texts are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trt_bisect.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

Model = Annotated[Path, typer.Argument(help="The ONNX network.", show_default=False)]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Size of a dynamic input, name:1x3x224x224; may be repeated.", show_default=False),
]
Calibrator = Annotated[str, typer.Option(help="entropy, minmax or percentile.")]
Percentile = Annotated[float, typer.Option(help="For the percentile calibrator, of |x|, in per cent.")]
KeepMasks = Annotated[
    bool, typer.Option("--keep-mask-ranges", help="Quantize tensors whose range is a mask's (-1e9, -3e38) too.")
]
CacheVersion = Annotated[
    str,
    typer.Option(
        "--trt-version",
        help="The TensorRT that is to read the calibration cache. [default: the one in use, else 10.3.0]",
        show_default=False,
    ),
]
Calibration = Annotated[
    str | None, typer.Option(help="Data to calibrate with, or a TensorRT calibration cache.", show_default=False)
]
Inputs = Annotated[
    str | None,
    typer.Option("--input", help="The inputs to judge on; without it the worst are found.", show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The folder. [default: trt-bisect-<model>]", show_default=False),
]
KeptIn = Annotated[
    str, typer.Option("--history", help="Where the run is recorded: beside (the run folder), none, or a file.")
]
Direction = Annotated[str, typer.Option(help="For module:function: are higher or lower values better.")]
Outputs = Annotated[
    list[str] | None,
    typer.Option("--outputs", help="A final output that counts; may be repeated. [default: all]", show_default=False),
]
Samples = Annotated[
    int | None,
    typer.Option(
        help="How many of the worst inputs are judged, each by itself; the worst decides.", show_default=False
    ),
]
ClassAxis = Annotated[
    int | None,
    typer.Option(
        "--class-axis", help="Of kl and top1: the axis of the outputs that holds the classes.", show_default=False
    ),
]
Engine = Annotated[str, typer.Option(help="auto, onnxruntime, tensorrt or tensorrt-rtx.")]
Typing = Annotated[str, typer.Option(help="TensorRT's typing: auto, weak or strong.")]
Memory = Annotated[int, typer.Option(help="MiB of tensors held at once.")]
Top = Annotated[int, typer.Option("--top", min=0, help="How many rows of a table are printed; 0 for all.")]
Tensorboard = Annotated[
    Path | None, typer.Option("--tensorboard", help="A folder for TensorBoard's logs.", show_default=False)
]
TensorboardChannels = Annotated[
    int,
    typer.Option(
        "--tensorboard-channels", help="Of how many channels of a tensor, the loudest, logs have histograms as well."
    ),
]
ClusterAddress = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="Try whole engines on a Ray cluster (auto, HOST:PORT, ray://HOST:PORT) or in N processes here (local:N).",
        show_default=False,
    ),
]
ClusterCpus = Annotated[
    int, typer.Option("--cluster-cpus", help="Processors of a Ray task, where the engine needs no GPU.")
]
Retries = Annotated[int, typer.Option(help="How often a plan whose worker was lost is tried again.")]

_WIDE = 220
_SHAPE = re.compile(r"(.+):(\d+(?:x\d+)*)")


def parse_shapes(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """``name:1x3x224x224`` as a name and a shape; names may hold colons.

    Raises:
        BadInput: a text is of another form, or a size is 0.
    """
    shapes = {}
    for text in texts or ():
        match = _SHAPE.fullmatch(text)
        if not match or "0" in match[2].split("x"):
            raise BadInput(f"The shape '{text}' cannot be read.", "Write name:1x3x224x224, every size 1 or more.")
        shapes[match[1]] = tuple(int(size) for size in match[2].split("x"))
    return shapes


def wide_console() -> Console:
    """A console for tables of many columns: as wide as the terminal, or as they need where it is none."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=_WIDE, highlight=False)
