"""``trt-bisect demo``: the main job on a network that comes with the package."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import Configured, Display
from trt_bisect.options.concerns import RESULTS
from trt_bisect.options.kinds import PLACE

SAMPLE = Path(__file__).with_name("sample")
NETWORK, CALIBRATION = "lenet_planted.onnx", "calibration.npz"
_AROUND = 17
"""Lines that the command prints before and after the report."""
_LOOK = """
What to look at:
  {page}
      in a browser: the curve falls at ip2, the layer that was planted to lose
      the accuracy.
  {recipe}
      how TensorRT, trtexec, Polygraphy and ModelOpt take the recipe.
The network is LeNet, which reads digits. One channel of it was made a thousand
times larger on purpose, so that INT8 has no steps left for the others. For your
own network, with an .npz file or a folder of pictures:
  trt-bisect run NETWORK.onnx --calibration DATA"""


def demo_command(
    *,
    output: Annotated[Path, RESULTS(PLACE, "--output", "-o")] = Path("trt-bisect-demo"),
    display: Display = Configured(),
) -> None:
    """Find the planted culprit of a small network that comes with the package, in seconds and without a GPU.

    Args:
        output: Write the sample and its run to this folder.
    """
    from trt_bisect.commands.run.run import run_with
    from trt_bisect.options.commands import RunOptions
    from trt_bisect.report.page.render import PAGE
    from trt_bisect.report.screen.run import console_for_reports, print_report, print_verdict
    from trt_bisect.support.files import make_folder

    make_folder(output)
    for name in (NETWORK, CALIBRATION):
        shutil.copyfile(SAMPLE / name, output / name)
    model, data, run = output / NETWORK, output / CALIBRATION, output / "run"
    command = shlex.join(["trt-bisect", "run", str(model), "--calibration", str(data), "--output", str(run)])
    display.say(f"$ {command}\n")
    options = RunOptions(calibration=str(data), output=run, engine="onnxruntime", history="none")
    report = run_with(model, replace(options, progress=display.progress()), command)
    if display.json:
        display.print_json(report)
        return
    console = console_for_reports()
    if display.quiet:
        print_verdict(report, console)
        return
    print_report(report, console, around=_AROUND)
    print(_LOOK.format(page=run / PAGE, recipe=run / "recipe" / "README.md"))
