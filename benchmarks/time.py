"""Compares the model of time with a measured engine, and fits its constants.

    python -m benchmarks.time GRAPH.json PROFILE.json --gpu A100
    python -m benchmarks.time GRAPH.json PROFILE.json --gpu RTX3090 --json
    python -m benchmarks.time --fit ../shared/profiles/A100
    python -m benchmarks.time --pairs FOLDER --half kept

GRAPH.json is the engine inspector's (``trtexec --exportLayerInfo``), PROFILE.json has the time of each layer
(``--exportProfile``), ``--gpu`` is a name or a TOML file. *Wrong share* is the part of the convolutions' time that a
cost puts on the wrong layers: half the sum of the differences between each layer's share by the cost and by the
profile.

``--fit FOLDER`` fits ``FIT`` of ``trt_bisect.model.gpu_time`` on the engines of a folder: the mean over the engines of
the squared logarithm of predicted to measured time, each kernel weighted by its share of its engine's time, is made
least by changing one constant at a time. It prints the constants, and the errors on each engine with constants that
were fitted on the others. **The constants in the package were fitted on the four engines in shared/profiles/A100 and on
no others**: ResNet-18, batch 32, A100, from NVIDIA's TensorRT Engine Explorer. The engines of docs/evidence/engines
(H200) check them.

``--pairs FOLDER`` predicts the pairs of INT8 and FP16 times in ``timed.csv``, which others published, from the
networks that ``python benchmarks/make_timed.py FOLDER`` makes. ``base`` is the type of all layers that are not in INT8,
``floats`` the layers that the source left out of INT8: a pattern of names, operators, or ``attention``, its two
products. Before the first prediction a network went into the half ``kept`` if the first byte of its name's SHA-256 was
odd, else into ``tuned``, as did the pairs that the model was made with. ``later`` are pairs that were collected when
the half kept had been predicted, and a fusion mended that it had shown to be wrong. No constant was chosen by either.

*Sign*: does INT8 take less time than FP16? Times within 5 % of each other have no sign; such a prediction is right if
it is within 10 % of equal.
"""

from __future__ import annotations

import csv
import json as to_json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from benchmarks.measure import command_line
from trt_bisect.builder.inspector import EngineKernel, profiled_kernels
from trt_bisect.errors import BadInput, TrtBisectError
from trt_bisect.model.cost import UNITS, EngineModel
from trt_bisect.model.gpu_time import FIT, Fit, Gpu, Kernel, Kind, Predicted, gpu_named, predicted, seconds
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import facts_for
from trt_bisect.options.declare import asked_gpu
from trt_bisect.precision import Precision

_FIRST_STEP, _LAST_STEP = 0.2, 0.004
"""The relative change of a constant that the fit begins and ends with."""
_PROFILED = 1.8e-3
"""The milliseconds that a profile adds to a kernel: for four engines of docs/evidence, the sum of the profile is 1.5 to
2.1 µs a kernel longer than the whole engine takes.
"""


@dataclass(frozen=True)
class Engine:
    """A measured engine on a GPU."""

    kernels: tuple[EngineKernel, ...]
    gpu: Gpu

    @cached_property
    def measured_ms(self) -> float:
        """The sum of all kernels' times."""
        return math.fsum(kernel.ms for kernel in self.kernels)

    def predicted(self, fit: Fit = FIT) -> Predicted:
        """The model's time of the engine, as the sum of its profile."""
        whole = predicted((kernel.kernel for kernel in self.kernels), self.gpu, fit)
        added = _PROFILED * sum(kernel.kernel.kind is not Kind.NOTHING for kernel in self.kernels)
        return Predicted(whole.ms + added, whole.least + added, whole.most + added)

    def wrong_share(self, costs: Mapping[int, float]) -> float:
        """The part of the convolutions' time that costs, by position in ``kernels``, put on wrong layers."""
        measured = {k: kernel.ms for k, kernel in enumerate(self.kernels) if kernel.is_convolution}
        total, all_costs = sum(measured.values()) or 1.0, sum(costs[k] for k in measured) or 1.0
        return sum(abs(costs[k] / all_costs - ms / total) for k, ms in measured.items()) / 2

    @property
    def by_macs(self) -> dict[int, float]:
        """The cost of each convolution by multiply-adds, as ``--cost macs`` counts them."""
        products = ((k, kernel.kernel.product) for k, kernel in enumerate(self.kernels) if kernel.is_convolution)
        return {k: product.macs * UNITS[product.precision] for k, product in products if product}

    def by_model(self, fit: Fit = FIT) -> dict[int, float]:
        """The predicted time of each kernel."""
        return {k: self.ms(kernel.kernel, fit) for k, kernel in enumerate(self.kernels)}

    def ms(self, kernel: Kernel, fit: Fit = FIT) -> float:
        """The predicted milliseconds of a kernel, as a profile shows them."""
        if kernel.kind is Kind.NOTHING:
            return 0.0
        return seconds(kernel, self.gpu, fit) * 1e3 + _PROFILED

    def figures(self, fit: Fit = FIT) -> dict[str, Any]:
        """The figures that are printed."""
        total, by_model = self.predicted(fit), self.by_model(fit)
        reformats = [k for k, kernel in enumerate(self.kernels) if kernel.kernel.kind is Kind.REFORMAT]
        return {
            "measured_ms": round(self.measured_ms, 4),
            "predicted_ms": round(total.ms, 4),
            "range_ms": [round(total.least, 4), round(total.most, 4)],
            "wrong_share_macs": round(self.wrong_share(self.by_macs), 4),
            "wrong_share_model": round(self.wrong_share(by_model), 4),
            "reformats": {
                "count": len(reformats),
                "measured_ms": round(sum(self.kernels[k].ms for k in reformats), 4),
                "predicted_ms": round(sum(by_model[k] for k in reformats), 4),
                "names": [self.kernels[k].kernel.name for k in reformats],
            },
        }


def loss(engines: Sequence[Engine], fit: Fit) -> float:
    """The measure that the fit makes least; see the module."""
    return sum(_error(engine, fit) for engine in engines) / len(engines)


def _error(engine: Engine, fit: Fit) -> float:
    timed = ((kernel.ms, engine.ms(kernel.kernel, fit)) for kernel in engine.kernels if kernel.ms > 0.0)
    return sum(ms * math.log(model / ms) ** 2 for ms, model in timed if model > 0.0) / engine.measured_ms


def fitted(engines: Sequence[Engine], start: Fit = FIT) -> Fit:
    """Fits the constants, from ``start``: one at a time, in smaller and smaller steps."""
    best, least, step = start, loss(engines, start), _FIRST_STEP
    while step > _LAST_STEP:
        before = least
        for name in asdict(start):
            for factor in (1 + step, 1 / (1 + step)):
                changed = replace(best, **{name: getattr(best, name) * factor})
                if max(changed.memory, changed.integer, changed.scalar) <= 1.0:
                    error = loss(engines, changed)
                    best, least = (changed, error) if error < least - 1e-9 else (best, least)
        step = step if least < before else step / 2
    return best


def engines_in(folder: Path, gpu: Gpu) -> dict[str, Engine]:
    """Reads the engines of a folder: ``NAME.graph.json`` and ``NAME.profile.json``."""
    names = [graph.name.split(".graph.")[0] for graph in sorted(folder.glob("*.graph.json"))]
    files = {name: (folder / f"{name}.graph.json", folder / f"{name}.profile.json") for name in names}
    return {name: Engine(profiled_kernels(*pair), gpu) for name, pair in files.items()}


PAIRS = Path(__file__).with_name("timed.csv")
_EQUAL, _ABOUT = 0.05, 0.1
"""Times have no sign within the first share of each other; a prediction of those is right within the second."""


@dataclass(frozen=True)
class Pair:
    """A published pair of times, a row of ``timed.csv``."""

    half: str
    network: str
    shape: str
    gpu: str
    tensorrt: str
    how: str
    base: str
    floats: str
    fp16_ms: float
    int8_ms: float
    source: str

    @property
    def ratio(self) -> float:
        """The measured time in INT8 for that in FP16."""
        return self.int8_ms / self.fp16_ms

    def kernels(self, folder: Path) -> tuple[Sequence[Kernel], Sequence[Kernel]]:
        """Returns the model's kernels of the FP16 and of the INT8 engine."""
        base = Precision(self.base)
        given_base = None if base is Precision.FP32 else base
        network = load_network(folder / f"{self.network}-{self.shape}.onnx", base=given_base)
        sizes = tuple(map(int, self.shape.split("x")))
        model = EngineModel(network, facts_for(network, {network.inputs[0].name: np.zeros(sizes, np.float32)}))
        products = {group.head for _, groups in model.attentions for group in groups}
        low = []
        for k in network.quantizable:
            layer = network.layers[k]
            by_name = self.floats and (layer.op_type in self.floats.split() or re.match(self.floats, layer.name))
            if not by_name and not (self.floats == "attention" and k in products):
                low.append(k)
        in_fp16 = network.free_plan((), Precision.FP16)
        return model.kernels(in_fp16), model.kernels(network.free_plan(low, base))

    def is_right(self, predicted_ratio: float) -> bool:
        """True if a predicted ratio has the sign of the measured one."""
        if abs(self.ratio - 1.0) < _EQUAL:
            return abs(predicted_ratio - 1.0) < _ABOUT
        return (predicted_ratio < 1.0) == (self.ratio < 1.0)


def read_pairs(half: str = "") -> list[Pair]:
    """Reads the pairs of a half, or all."""
    with PAIRS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if half in ("", row["half"])]
    return msgspec.convert(rows, list[Pair], strict=False)


PAIR = (
    "{network:20} {shape:14} {gpu:14} {fp16_ms:7.2f} {int8_ms:7.2f} {ratio:5.2f}   "
    "{fp16:7.2f} {int8:7.2f} {predicted:5.2f}  {right}"
)


def _tell_pairs(folder: Path, half: str) -> Iterator[str]:
    """Yields a line for each pair, and the counts."""
    yield f"{'':50} measured FP16, INT8     predicted FP16, INT8"
    told: list[tuple[bool, bool]] = []
    for pair in read_pairs(half):
        gpu = gpu_named(pair.gpu)
        fp16, int8 = (1e3 * math.fsum(seconds(kernel, gpu) for kernel in kernels) for kernels in pair.kernels(folder))
        right, has_sign = pair.is_right(int8 / fp16), abs(pair.ratio - 1.0) >= _EQUAL
        told.append((has_sign, right))
        figures = {"fp16": fp16, "int8": int8, "predicted": int8 / fp16, "ratio": pair.ratio}
        words = "right" if right else "wrong"
        yield PAIR.format(**{**asdict(pair), **figures}, right=words if has_sign else f"{words} (about equal)")
    for has_sign, name in ((True, "sign"), (False, "about equal")):
        rights = [right for signed, right in told if signed == has_sign]
        yield f"{name}: {sum(rights)} of {len(rights)} right"


TEXT = """\
measured    {measured_ms:.3f} ms
predicted   {predicted_ms:.3f} ms ({range_ms[0]:.3f} to {range_ms[1]:.3f})
wrong share {wrong_share_macs:.1%} by multiply-adds, {wrong_share_model:.1%} by the model
reformats   {reformats[count]}: measured {reformats[measured_ms]:.3f} ms, predicted {reformats[predicted_ms]:.3f} ms"""
ROW = "{name:24} {measured_ms:7.3f} {predicted_ms:7.3f} {ratio:5.2f} {wrong_share_macs:6.1%} {wrong_share_model:6.1%}"


def _fit(folder: Path, gpu: Gpu) -> None:
    engines = engines_in(folder, gpu)
    best = fitted(list(engines.values()))
    print(best)
    print(f"{'':24} measured predicted ratio, wrong share by multiply-adds, by the model")
    others = {name: [engine for other_name, engine in engines.items() if other_name != name] for name in engines}
    for title, fits in (
        ("fitted on all", dict.fromkeys(engines, best)),
        ("fitted on the others", {name: fitted(others[name]) for name in engines}),
    ):
        print(title)
        for name, fit in fits.items():
            figures = engines[name].figures(fit)
            print(ROW.format(name=name, ratio=figures["predicted_ms"] / figures["measured_ms"], **figures))


def compare(
    *files: Path,
    gpu: str = "A100",
    json: bool = False,
    fit: bool = False,
    pairs: Path | None = None,
    half: Literal["", "tuned", "kept", "later"] = "",
) -> int:
    """The command."""
    try:
        if pairs is not None:
            for line in _tell_pairs(pairs, half):
                print(line, flush=True)
            return 0
        peaks = asked_gpu(gpu)
        if fit:
            _fit(files[0], peaks)
            return 0
        if len(files) != 2:
            raise BadInput("There are two files: GRAPH.json and PROFILE.json.", "Give both.")
        figures = Engine(profiled_kernels(*files), peaks).figures()
    except TrtBisectError as error:
        print(error, file=sys.stderr)
        return 2
    lines = [TEXT.format(**figures), *figures["reformats"]["names"]]
    print(to_json.dumps(figures, indent=1) if json else "\n  ".join(lines))
    return 0


def main(tokens: Sequence[str] | None = None) -> int:
    """Returns the exit code of the command line."""
    code: int = command_line(__doc__, compare, tokens=tokens)
    return code


if __name__ == "__main__":
    sys.exit(main())
