"""Compares the model of time with a measured engine, and fits its constants.

    python -m benchmarks.time GRAPH.json PROFILE.json --gpu A100
    python -m benchmarks.time GRAPH.json PROFILE.json --gpu RTX3090 --json
    python -m benchmarks.time --fit ../shared/profiles/A100

GRAPH.json is the engine inspector's (``trtexec --exportLayerInfo``), PROFILE.json has the time of each layer
(``--exportProfile``). *Wrong share* is the part of the convolutions' time that a price puts on the wrong layers: half
the sum of the differences between each layer's share by the price and by the profile.

``--fit FOLDER`` fits ``FIT`` of ``trt_bisect.model.gpu_time`` on the engines of a folder: the mean over the engines of
the squared logarithm of predicted to measured time, each kernel weighted by its share of its engine's time, is made
least by changing one constant at a time. It prints the constants, and the errors on each engine with constants that
were fitted on the others. **The constants in the package were fitted on the four engines in shared/profiles/A100 and on
no others**: ResNet-18, batch 32, A100, from NVIDIA's TensorRT Engine Explorer. The engines of docs/evidence/engines
(H200) check them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trt_bisect.builder.inspector import EngineKernel, profiled_kernels
from trt_bisect.errors import TrtBisectError
from trt_bisect.model.cost import UNITS
from trt_bisect.model.gpu_time import FIT, GPUS, Fit, Gpu, Predicted, predicted, seconds
from trt_bisect.options.declare import asked_gpu

_FIRST_STEP, _LAST_STEP = 0.2, 0.004
"""The relative change of a constant that the fit begins and ends with."""


@dataclass(frozen=True)
class Engine:
    """A measured engine on a GPU."""

    kernels: tuple[EngineKernel, ...]
    gpu: Gpu

    @cached_property
    def measured_ms(self) -> float:
        """The sum of all kernels' times."""
        return math.fsum(one.ms for one in self.kernels)

    def predicted(self, fit: Fit = FIT) -> Predicted:
        """The model's time of the engine."""
        return predicted((one.kernel for one in self.kernels), self.gpu, fit)

    def wrong_share(self, prices: Mapping[int, float]) -> float:
        """The part of the convolutions' time that prices, by position in ``kernels``, put on wrong layers."""
        measured = {i: one.ms for i, one in enumerate(self.kernels) if one.is_convolution}
        whole, all_prices = sum(measured.values()) or 1.0, sum(prices[i] for i in measured) or 1.0
        return sum(abs(prices[i] / all_prices - ms / whole) for i, ms in measured.items()) / 2

    @property
    def by_macs(self) -> dict[int, float]:
        """The price of each convolution by multiply-adds, as ``--cost macs`` counts them."""
        products = ((i, one.kernel.product) for i, one in enumerate(self.kernels) if one.is_convolution)
        return {i: product.macs * UNITS[product.precision] for i, product in products if product}

    def by_model(self, fit: Fit = FIT) -> dict[int, float]:
        """The predicted time of each kernel."""
        return {i: seconds(one.kernel, self.gpu, fit) for i, one in enumerate(self.kernels)}

    def figures(self, fit: Fit = FIT) -> dict[str, Any]:
        """The figures that are printed."""
        whole = self.predicted(fit)
        reformats = [i for i, one in enumerate(self.kernels) if one.is_reformat]
        by_model = self.by_model(fit)
        return {
            "measured_ms": round(self.measured_ms, 4),
            "predicted_ms": round(whole.ms, 4),
            "range_ms": [round(whole.least, 4), round(whole.most, 4)],
            "wrong_share_macs": round(self.wrong_share(self.by_macs), 4),
            "wrong_share_model": round(self.wrong_share(by_model), 4),
            "reformats": {
                "count": len(reformats),
                "measured_ms": round(sum(self.kernels[i].ms for i in reformats), 4),
                "predicted_ms": round(1e3 * sum(by_model[i] for i in reformats), 4),
                "names": [self.kernels[i].kernel.name for i in reformats],
            },
        }


def loss(engines: Sequence[Engine], fit: Fit) -> float:
    """The measure that the fit makes least; see the module."""
    return sum(_error(engine, fit) for engine in engines) / len(engines)


def _error(engine: Engine, fit: Fit) -> float:
    timed = ((one.ms, seconds(one.kernel, engine.gpu, fit) * 1e3) for one in engine.kernels if one.ms > 0.0)
    return sum(ms * math.log(model / ms) ** 2 for ms, model in timed if model > 0.0) / engine.measured_ms


def fitted(engines: Sequence[Engine], start: Fit = FIT) -> Fit:
    """Fits the constants, from ``start``: one at a time, in smaller and smaller steps."""
    best, least, step = start, loss(engines, start), _FIRST_STEP
    while step > _LAST_STEP:
        before = least
        for name in asdict(start):
            for by in (1 + step, 1 / (1 + step)):
                other = replace(best, **{name: getattr(best, name) * by})
                if max(other.memory, other.integer, other.scalar) <= 1.0 and loss(engines, other) < least - 1e-9:
                    best, least = other, loss(engines, other)
        step = step if least < before else step / 2
    return best


def engines_in(folder: Path, gpu: Gpu) -> dict[str, Engine]:
    """Reads the engines of a folder: ``NAME.graph.json`` and ``NAME.profile.json``."""
    pairs = ((graph, graph.with_name(graph.name.replace(".graph.", ".profile."))) for graph in _graphs(folder))
    return {graph.name.split(".graph.")[0]: Engine(profiled_kernels(graph, times), gpu) for graph, times in pairs}


def _graphs(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("*.graph.json"))


def without_each(engines: Mapping[str, Engine], start: Fit = FIT) -> dict[str, dict[str, Any]]:
    """Returns the figures of each engine with constants that were fitted on the others."""
    others = {name: [one for other, one in engines.items() if other != name] for name in engines}
    return {name: engines[name].figures(fitted(others[name], start)) for name in engines}


def _text(figures: Mapping[str, Any]) -> str:
    least, most = figures["range_ms"]
    reformats = figures["reformats"]
    lines = [
        f"measured    {figures['measured_ms']:.3f} ms",
        f"predicted   {figures['predicted_ms']:.3f} ms ({least:.3f} to {most:.3f})",
        f"wrong share {figures['wrong_share_macs']:.1%} by multiply-adds, "
        f"{figures['wrong_share_model']:.1%} by the model",
        f"reformats   {reformats['count']}: measured {reformats['measured_ms']:.3f} ms, "
        f"predicted {reformats['predicted_ms']:.3f} ms",
    ]
    return "\n".join([*lines, *(f"  {name}" for name in reformats["names"])])


def _row(name: str, figures: Mapping[str, Any]) -> str:
    ratio = figures["predicted_ms"] / figures["measured_ms"]
    shares = f"{figures['wrong_share_macs']:6.1%} {figures['wrong_share_model']:6.1%}"
    return f"{name:24} {figures['measured_ms']:7.3f} {figures['predicted_ms']:7.3f} {ratio:5.2f} {shares}"


def _fit(folder: Path, gpu: Gpu) -> None:
    engines = engines_in(folder, gpu)
    best = fitted(list(engines.values()))
    print(best)
    print(f"{'':24} measured predicted ratio, wrong share by multiply-adds, by the model")
    for title, rows in (
        ("fitted on all", {name: one.figures(best) for name, one in engines.items()}),
        ("fitted on the others", without_each(engines)),
    ):
        print(title)
        for name, figures in rows.items():
            print(_row(name, figures))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="GRAPH PROFILE", help="or a folder, with --fit")
    parser.add_argument("--gpu", default="A100", help=f"the GPU of the engine: {', '.join(GPUS)}, or a TOML file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--fit", action="store_true", help="fit the constants on the engines of a folder")
    options = parser.parse_args(arguments)
    try:
        gpu = asked_gpu(options.gpu)
        if options.fit:
            _fit(options.files[0], gpu)
            return 0
        if len(options.files) != 2:
            parser.error("give GRAPH.json and PROFILE.json")
        figures = Engine(profiled_kernels(*options.files), gpu).figures()
    except TrtBisectError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures, indent=1) if options.json else _text(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
