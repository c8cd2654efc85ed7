"""``trt-bisect run``: finds the culprits and a recipe; ``demo`` does so on a network that comes with the package."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from trt_bisect.cli.display import DISPLAY, Configured, Display, Model, run_folder
from trt_bisect.options.commands import RunOptions
from trt_bisect.options.concerns import EXPLAIN_FULL, RESULTS
from trt_bisect.options.declare import FLAT
from trt_bisect.options.kinds import PLACE, SWITCH


def run_command(
    model: Model,
    /,
    *,
    options: Annotated[RunOptions, FLAT] = RunOptions(),
    all_layers: Annotated[bool, DISPLAY(SWITCH, expert=True)] = False,
    display: Display = Configured(),
) -> int:
    """Find the layers that lose the accuracy, print them, and write the plan that restores it.

    Exit codes: 0 full INT8 passes; 1 it fails, or passes with doubts; 2 bad use or input; 3 nothing could be measured;
    130 interrupted, the same command goes on.

    Args:
        all_layers: Print the curve with a row per layer, and the advice in full.
    """
    from trt_bisect.commands.run.live import StoppedRun
    from trt_bisect.commands.run.run import run_with
    from trt_bisect.report.page.render import PAGE
    from trt_bisect.report.screen.run import console_for_reports, print_advice, print_report, print_verdict
    from trt_bisect.report.screen.tables import TENSORS_UP_TO, print_explained_tensors

    folder = Path(str(run_folder(options.output, model)))
    command = shlex.join(["trt-bisect", *sys.argv[1:]])
    try:
        report = run_with(model, replace(options, output=folder, progress=display.progress()), command)
    except StoppedRun as stop:
        if display.json:
            display.print_json(stop.report)
        else:
            print_verdict(stop.report, console_for_reports())
        raise
    if display.json:
        display.print_json(report)
        return report.exit_code
    console = console_for_reports()
    if display.quiet:
        print_verdict(report, console)
        return report.exit_code
    print_report(report, console, every_layer=all_layers)
    if all_layers and report.explanation is not None:
        print_advice(report.explanation, report.metric, console)
    if options.explain == EXPLAIN_FULL and report.explanation is not None:
        print_explained_tensors(report.explanation, report.low, console, top=0 if all_layers else TENSORS_UP_TO)
    console.print(
        f"Plans: {report.plans}; engines: {report.builds}, {report.engine} ({report.arithmetic}); "
        f"{report.seconds.total:.1f} s, at most {report.peak_bytes >> 20} MiB.",
        markup=False,
    )
    console.print(f"Report and recipe: {folder}\nThe page to look at: {folder / PAGE}", markup=False, soft_wrap=True)
    return report.exit_code


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
