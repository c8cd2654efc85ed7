"""One object for a session of diagnosis: the network, its ranges and the bad case are read, made and found once."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from trt_bisect.calibration.collect import ranges_of
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.commands.check import check
from trt_bisect.commands.compare import compare, profile
from trt_bisect.commands.losses import sensitivity, worst
from trt_bisect.commands.run.run import run
from trt_bisect.data.feeds import Feeds
from trt_bisect.model.network import GivenModel, Network, load_network
from trt_bisect.model.quantizer import find_low
from trt_bisect.options.commands import COMMANDS, CompareOptions
from trt_bisect.options.declare import by_key, declared
from trt_bisect.precision import Precision
from trt_bisect.report.comparison import Comparison, Profile
from trt_bisect.report.losses import Sensitivity, WorstReport
from trt_bisect.report.model import Report
from trt_bisect.report.structure import CheckReport
from trt_bisect.support.progress import default_progress


class Analysis:
    """A network under diagnosis. Each method is the function of that name, with what is known already.

    >>> qa = trt_bisect.Analysis("network.onnx", "calibration.npz", output="diagnosis")  # doctest: +SKIP
    >>> qa.worst()  # doctest: +SKIP
    >>> qa.compare()  # on the worst inputs  # doctest: +SKIP
    >>> qa.run(high=qa.top(3))  # doctest: +SKIP

    The keywords of a method count more than those of the object.

    Args:
        network: as ``run`` takes it; so is ``calibration``.
        output: a folder; each result is saved in a folder in it, by the name of its method.
        dataset: the data that ``worst`` searches; None for the calibration data.
        other: a second network, which ``compare`` compares with the first one.
        options: keywords of the methods, such as ``metric`` and ``engine``; each method takes those that it has.

    Attributes:
        network: as it was read.

    Raises:
        TypeError: no method has such a keyword.
        BadInput: the network cannot be read.
    """

    def __init__(
        self,
        network: GivenModel,
        calibration: Any = None,
        *,
        output: str | Path | None = None,
        dataset: Any = None,
        other: Any = None,
        **options: Any,
    ) -> None:
        keys = {key for command in COMMANDS.values() for key in by_key(declared(command))}
        for key in options:
            if key not in keys:
                raise TypeError(f"Analysis() got an unexpected keyword argument '{key}'")
        self._data, self._dataset, self._other, self._options = calibration, dataset, other, options
        self._output = None if output is None else Path(output)
        self._results: dict[str, Any] = {}
        if isinstance(network, Network):
            self.network = network
        else:
            low = find_low(options.get("low", "int8"))
            base = Precision(options["base"]) if options.get("base") else None
            shapes = options.get("shapes", options.get("shape"))
            self.network = load_network(network, shapes, low, base)

    @cached_property
    def ranges(self) -> Ranges | None:
        """The ranges of the activations, made once; None where the network needs none. ``run`` makes its own."""
        if not self.network.low.needs_ranges or self.network.has_pairs:
            return None
        options = CompareOptions.given("Analysis", self._for(CompareOptions))
        return ranges_of(self.network, self._data, options.calibrating(), options.progress or default_progress())[0]

    @property
    def bad_case(self) -> tuple[Feeds, ...]:
        """The worst inputs, worst first, as the last ``worst`` found them; searched for if none did."""
        worst_report: WorstReport = self._results["worst"] if "worst" in self._results else self.worst()
        return worst_report.inputs

    def top(self, count: int) -> tuple[str, ...]:
        """Returns the layers that lose most alone, as the last ``sensitivity`` measured; measured if none did."""
        measured: Sensitivity = self._results["sensitivity"] if "sensitivity" in self._results else self.sensitivity()
        return tuple(op.op_name for op in measured.sorted_by("loss", way="both")[:count])

    def worst(self, **options: Any) -> WorstReport:
        """Finds the worst inputs, which ``compare`` and ``sensitivity`` take from then on."""
        data = self._data if self._dataset is None else self._dataset
        return self._kept("worst", worst, {**self._scales, "dataset": data}, options)  # type: ignore[no-any-return]

    def compare(self, **options: Any) -> Comparison:
        """Compares every tensor on the worst inputs: in FP32 and in low precision, or with the other network."""
        source = self._scales if self._other is None else {"other": self._other}
        return self._kept("compare", compare, {**source, **self._inputs(options)}, options)  # type: ignore[no-any-return]

    def sensitivity(self, **options: Any) -> Sensitivity:
        """Measures each layer alone, on the worst inputs."""
        return self._kept("sensitivity", sensitivity, {**self._scales, **self._inputs(options)}, options)  # type: ignore[no-any-return]

    def profile(self, **options: Any) -> Profile:
        """Lists the tensors of the layers, over the calibration data."""
        return self._kept("profile", profile, {**self._scales, "inputs": self._data}, options)  # type: ignore[no-any-return]

    def run(self, **options: Any) -> Report:
        """Finds the culprits and the recipe."""
        return self._kept("run", run, {"calibration": self._data}, options)  # type: ignore[no-any-return]

    def check(self, **options: Any) -> CheckReport:
        """Checks the file of the network."""
        output = {} if self._output is None else {"output": self._output / "check"}
        self._results["check"] = report = check(self.network, **{**output, **options})
        return report

    @property
    def _scales(self) -> dict[str, Any]:
        return {"calibration": self._data if self.ranges is None else self.ranges}

    def _inputs(self, options: dict[str, Any]) -> dict[str, Any]:
        has_inputs = {"input", "inputs"} & {*options, *self._options}
        return {} if has_inputs else {"inputs": self.bad_case}

    def _for(self, kind: Any) -> dict[str, Any]:
        """The keywords of the object that a command has; the threshold of ``compare`` is another one."""
        keys = by_key(declared(kind)).keys() - ({"threshold"} if kind is CompareOptions else set())
        return {key: value for key, value in self._options.items() if key in keys}

    def _kept(self, name: str, function: Any, facts: dict[str, Any], options: dict[str, Any]) -> Any:
        output = {} if self._output is None else {"output": self._output / name}
        self._results[name] = result = function(
            self.network, **{**facts, **output, **self._for(COMMANDS[name]), **options}
        )
        return result

    def __repr__(self) -> str:
        """Returns the network and the results so far, a line each."""
        lines = [f"Analysis of '{self.network.source}'"]
        lines += [f"  {name}: {str(result).splitlines()[0]}" for name, result in self._results.items()]
        return "\n".join(lines)
