from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from trt_bisect.calibration.cache import is_data
from trt_bisect.calibration.ranges import Ranges
from trt_bisect.commands.check import check
from trt_bisect.commands.compare import compare, profile
from trt_bisect.commands.losses import sensitivity, worst
from trt_bisect.commands.run.run import run
from trt_bisect.data.datasets import open_dataset
from trt_bisect.data.feeds import Feeds
from trt_bisect.errors import BadInput
from trt_bisect.model.matching import match_inputs
from trt_bisect.model.network import GivenModel, Network, load_network
from trt_bisect.model.quantizer import find_low
from trt_bisect.options.commands import COMMANDS, CompareOptions
from trt_bisect.options.concerns import saved_outputs
from trt_bisect.options.declare import Job, by_key, declared, naming_keywords
from trt_bisect.precision import Precision
from trt_bisect.preparation.asked_network import use_machine
from trt_bisect.preparation.given_data import ranges_of
from trt_bisect.preparation.pytorch import exported
from trt_bisect.preparation.two_networks import feeds_between
from trt_bisect.report.losses import Sensitivity, WorstReport
from trt_bisect.report.structure import CheckReport
from trt_bisect.support.progress import default_progress
from trt_bisect.support.voices import in_python

_Keywords = ParamSpec("_Keywords")
_Result = TypeVar("_Result")


def _keywords_of(
    function: Job[Any, _Keywords, _Result],
) -> Callable[[Callable[..., Any]], Callable[Concatenate[Analysis, _Keywords], _Result]]:
    def method(given: Callable[..., Any]) -> Callable[Concatenate[Analysis, _Keywords], _Result]:
        _model, *keywords = inspect.signature(function).parameters.values()
        itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        keywords = [keyword.replace(kind=inspect.Parameter.KEYWORD_ONLY) for keyword in keywords]
        vars(given)["__signature__"] = inspect.Signature([itself, *keywords])
        return given

    return method


class Analysis:
    """A network under diagnosis. Each method calls the function of ``trt_bisect`` of the same name, with this network,
    its data and its options, and returns the function's result.

    >>> qa = trt_bisect.Analysis("network.onnx", "calibration.npz", output="diagnosis")  # doctest: +SKIP
    >>> qa.worst()  # doctest: +SKIP
    >>> qa.compare()  # on the worst inputs  # doctest: +SKIP
    >>> qa.run(high=qa.top(3))  # doctest: +SKIP

    Keywords of a method override those of the object. With ``other``, ``worst`` and ``compare`` compare the two
    networks, both unchanged and without calibration; the other methods diagnose ``other``, judged by ``network``.

    Args:
        network: in any form that ``run`` takes, such as a ``torch.nn.Module``.
        calibration: data in any form that ``run`` takes, such as a data loader.
        output: a folder; each method saves its result in a subfolder of its name.
        dataset: data that ``worst`` and ``run`` search; by default the calibration data, else ``inputs``.
        other: a second network, such as a quantized export of the first.
        options: keywords of the methods, such as ``metric`` or ``reference``; each method takes those that it knows.

    Raises:
        TypeError: no method has such a keyword.
        BadInput: the network cannot be read, or both ``reference`` and ``other`` are given.
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
        known = {key: option for command in COMMANDS.values() for key, option in by_key(declared(command)).items()}
        for key, value in options.items():
            if key not in known:
                raise TypeError(f"Analysis() got an unexpected keyword argument '{key}'")
            if value is not None:
                known[key].kind.read(value, key)
        self._data, self._dataset, self._other, self._options = calibration, dataset, other, options
        self._reference = self._given("reference")
        if other is not None and self._reference is not None:
            raise BadInput("There are a reference and another network.", "Leave out reference or other.")
        self._output = None if output is None else Path(output)
        self._results: dict[str, Any] = {}
        self.network = self._read(network)

    def _read(self, network: Any) -> Network:
        if isinstance(network, Network):
            return network
        low, base, shapes = find_low(self._options.get("low", "int8")), self._options.get("base"), self._given("shapes")
        module = exported(network, (self._data, self._dataset, self._given("inputs")), shapes or {}, self._output)
        if module is not None:
            network = module.path
        return load_network(network, shapes, low, Precision(base) if base else None)

    def _given(self, keyword: str) -> Any:
        keys = by_key(declared(CompareOptions))[keyword].keys
        return next((self._options[key] for key in keys if self._options.get(key) is not None), None)

    @cached_property
    def _diagnosed(self) -> Network:
        return self.network if self._other is None else self._read(self._other)

    @cached_property
    def ranges(self) -> Ranges | None:
        """The ranges of the activations, computed once for all methods but ``run``, which computes its own. None if the
        network has Q/DQ pairs, or its low precision needs no ranges.
        """
        network = self._diagnosed
        if not network.low.needs_ranges or network.has_pairs:
            return None
        options = CompareOptions.given("Analysis", self._for(CompareOptions))
        use_machine(options)
        data = self._renamed(self._data)
        with naming_keywords(), closing(options.progress or default_progress()) as shown:
            return ranges_of(network, data, options, shown)[0]

    @property
    def _searched(self) -> Any:
        data, inputs = self._data, self._given("inputs")
        if saved_outputs(self._reference) is not None and inputs is not None:
            return inputs
        given = (self._dataset, data if is_data(data) else None, inputs)
        return next((each for each in given if each is not None), None)

    def _renamed(self, data: Any) -> Any:
        first, second = self.network, self._diagnosed
        names = match_inputs(first, second)
        if not is_data(data) or all(name == other for name, other in names.items()):
            return data
        pictures = CompareOptions.given("Analysis", self._for(CompareOptions)).preprocessing()
        samples = open_dataset(data, first.inputs, pictures=pictures)
        return list(map(feeds_between(first, second), samples))

    @property
    def bad_case(self) -> tuple[Feeds, ...]:
        """The inputs that the last call of ``worst`` found, worst first; calls ``worst`` if there was none."""
        worst_report: WorstReport = self._results["worst"] if "worst" in self._results else self.worst()
        return worst_report.inputs

    def top(self, count: int) -> tuple[str, ...]:
        """Returns the names of the ``count`` layers with the largest loss if only this layer is in INT8, worst first;
        calls ``sensitivity`` if it was not called before.
        """
        measured: Sensitivity = self._results["sensitivity"] if "sensitivity" in self._results else self.sensitivity()
        return tuple(op.op_name for op in measured.sorted_by("loss", way="both")[:count])

    @_keywords_of(worst)
    def worst(self, **options: Any) -> Any:
        """Finds the worst inputs, on which ``compare`` and ``sensitivity`` run from then on."""
        source = self._scales if self._other is None else {"other": self._other}
        facts = {**source, "dataset": self._searched}
        return self._kept("worst", worst, self.network, facts, options)

    @_keywords_of(compare)
    def compare(self, **options: Any) -> Any:
        """Compares every tensor on the worst inputs: FP32 (or ``reference``) with low precision, or the network with
        ``other``.
        """
        source = self._scales if self._other is None else {"other": self._other}
        facts = {**source, **self._inputs(options)}
        return self._kept("compare", compare, self.network, facts, options)

    @_keywords_of(sensitivity)
    def sensitivity(self, **options: Any) -> Any:
        """Measures the loss if only one layer is in INT8, for each layer, on the worst inputs."""
        facts = {**self._scales, **self._judged_by_first, **self._inputs(options)}
        if "inputs" in facts:
            facts["inputs"] = self._renamed(facts["inputs"])
        return self._kept("sensitivity", sensitivity, self._diagnosed, facts, options)

    @_keywords_of(profile)
    def profile(self, **options: Any) -> Any:
        """Lists each layer's tensors, with their figures over the data that ``worst`` searches."""
        facts = {**self._scales, "inputs": self._renamed(self._searched)}
        return self._kept("profile", profile, self._diagnosed, facts, options)

    @_keywords_of(run)
    def run(self, **options: Any) -> Any:
        """Finds the culprits and the recipe, and returns the report."""
        facts = {"calibration": self._renamed(self._data), "dataset": self._renamed(self._dataset)}
        return self._kept("run", run, self._diagnosed, {**facts, **self._judged_by_first}, options)

    def check(self, **options: Any) -> CheckReport:
        """Checks the structure of the network's file."""
        output = {} if self._output is None else {"output": self._output / "check"}
        self._results["check"] = report = check(self._diagnosed, **{**output, **options})
        return report

    @property
    def _scales(self) -> dict[str, Any]:
        return {"calibration": self._renamed(self._data) if self.ranges is None else self.ranges}

    @property
    def _judged_by_first(self) -> dict[str, Any]:
        return {} if self._other is None else {"reference": self.network}

    def _inputs(self, options: dict[str, Any]) -> dict[str, Any]:
        names = by_key(declared(CompareOptions))["inputs"].keys
        if not {*names}.isdisjoint({*options, *self._options}):
            return {}
        return {"inputs": self._searched if saved_outputs(self._reference) is not None else self.bad_case}

    def _for(self, kind: Any) -> dict[str, Any]:
        keys = by_key(declared(kind)).keys() - ({"threshold"} if kind is CompareOptions else set())
        return {key: value for key, value in self._options.items() if key in keys}

    def _kept(self, name: str, function: Any, network: Network, facts: dict[str, Any], options: dict[str, Any]) -> Any:
        output = {} if self._output is None else {"output": self._output / name}
        self._results[name] = result = function(network, **{**facts, **output, **self._for(COMMANDS[name]), **options})
        return result

    def __repr__(self) -> str:
        lines = [f"Analysis of '{self.network.source}'"]
        for name, result in self._results.items():
            shown = result.overview
            lines.append(f"  {name}: {in_python(shown.lines[0] if shown.lines else shown.headline)}")
        return "\n".join(lines)
