"""A pipeline: a user's function that runs several networks on a sample, as one network with one data set."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from trt_bisect.builder.base import BuildOptions, Outputs
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.calibration.cache import is_cache_path, ranges_of_cache
from trt_bisect.calibration.ranges import Ranges, keeping_unusable_high
from trt_bisect.data.datasets import Dataset, check_feeds, digest_of_feeds, open_dataset
from trt_bisect.data.feeds import Feeds, Spill, TensorSpec, read_archive, read_array
from trt_bisect.data.named import code_digest, is_reusable, load_function, samples_from
from trt_bisect.errors import BadInput, TrialFailed, raised
from trt_bisect.model.merged import SAMPLE, merged, prefix_of
from trt_bisect.model.network import Infer, Network, Pipeline
from trt_bisect.support.progress import Progress

MOST_CALLS = 100_000  # the most calls for a sample in FP32, if the user gives no limit
# a plan's most calls for a sample: this multiple of FP32's, and at least the second number
_TIMES_FP32, _FEWEST = 10, 100
_FAILED = "inference failed"
Function = Callable[[Mapping[str, "Net"], Any], Any]


class _TooManyCalls(BaseException):  # a user's ``except Exception`` does not catch it
    pass


@dataclass
class _Calls:
    most: int
    count: int = 0
    failure: TrialFailed | None = None


@dataclass(frozen=True)
class Net:
    """A network as the user's function calls it: feeds by name in, outputs by name out."""

    name: str
    _network: Network
    _infer: Infer
    _calls: _Calls

    def __call__(self, feeds: Mapping[str, Any]) -> Outputs:
        """Runs the network and returns its outputs by name; raises an error after too many calls."""
        self._calls.count += 1
        if self._calls.count > self._calls.most:
            raise _TooManyCalls
        where = f"what the function feeds '{self.name}'"
        try:
            return self._infer(check_feeds(feeds, self._network.inputs, where))
        except TrialFailed as failure:
            if failure.outcome != _FAILED:
                self._calls.failure = failure
            raise

    def run(self, outputs: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Returns the named outputs as a list, like ``onnxruntime.InferenceSession.run``; None means all."""
        made = self(feeds)
        return [made[name] for name in outputs or (spec.name for spec in self._network.outputs)]

    def get_inputs(self) -> tuple[TensorSpec, ...]:
        """Returns the inputs, like ``onnxruntime.InferenceSession.get_inputs``."""
        return self._network.inputs

    def get_outputs(self) -> tuple[TensorSpec, ...]:
        """Returns the outputs, like ``onnxruntime.InferenceSession.get_outputs``."""
        return self._network.outputs


@dataclass
class Program:
    """The user's function, and the samples that it runs on.

    Attributes:
        most: the most network calls for a sample; None: ten times as many as in FP32, at least 100.
        calls: for each sample, the number of network calls in FP32.
        lost: for each sample, NaN in place of outputs, for when the function fails.
    """

    function: Function
    networks: Mapping[str, Network]
    samples: Sequence[Any]
    labels: Sequence[str]
    most: int | None
    calls: list[int] = field(default_factory=list)
    lost: list[Outputs] = field(default_factory=list)

    def __call__(self, feeds: Feeds, engines: Mapping[str, Infer]) -> tuple[Outputs, str]:
        """Runs the function on a sample, with an engine for each network; returns the outputs and the error (or empty).

        If the function fails, the outputs are NaN. Raises TrialFailed if an engine does not run, or the function fails
        on a sample not run in FP32.
        """
        is_known = isinstance(feeds, Mapping) and SAMPLE in feeds and np.shape(feeds[SAMPLE]) == (2,)
        place = int(feeds[SAMPLE][0]) if is_known else None
        most = MOST_CALLS if place is None else max(_FEWEST, _TIMES_FP32 * self.calls[place])
        calls = _Calls(self.most or most)
        try:
            outputs = self._run(feeds if place is None else self.samples[place], engines, calls)
        except (Exception, _TooManyCalls) as error:
            if calls.failure is not None or isinstance(error, MemoryError):
                raise calls.failure or error from error
            where = "" if place is None else f" on {self.labels[place]}"
            reason = f"The function fails{where}: {_reason(error, calls)}"
            if place is None:
                raise TrialFailed(_FAILED, reason) from error
            return dict(self.lost[place]), reason
        if place is None:
            return outputs, ""
        return {name: outputs.get(name, lost) for name, lost in self.lost[place].items()}, ""

    def in_fp32(self, place: int, engines: Mapping[str, Infer]) -> Outputs:
        """Runs the function in FP32 on the sample at an index, records the number of network calls, and returns the
        outputs.

        Raises BadInput if the function fails, or has other outputs than for the first sample.
        """
        calls, label = _Calls(self.most or MOST_CALLS), self.labels[place]
        try:
            outputs = self._run(self.samples[place], engines, calls)
        except (Exception, _TooManyCalls) as error:
            problem = f"The function fails on {label} in FP32: {_reason(error, calls)}"
            raise BadInput(problem, "Correct the function, or leave the sample out.") from error
        if self.lost and outputs.keys() != self.lost[0].keys():
            problem = f"The function gives {_quoted(outputs)} for {label}, and {_quoted(self.lost[0])} for the first."
            raise BadInput(problem, "Return the same outputs for every sample; an array may be empty.")
        self.calls.append(calls.count)
        lost = {}
        for name, array in outputs.items():
            shape = [max(size, 1) for size in array.shape]
            lost[name] = np.full(shape, np.nan, array.dtype if array.dtype.kind == "f" else np.float64)
        self.lost.append(lost)
        return outputs

    def _run(self, sample: Any, engines: Mapping[str, Infer], calls: _Calls) -> Outputs:
        nets = {name: Net(name, network, engines[name], calls) for name, network in self.networks.items()}
        return named_outputs(self.function(nets, sample))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "no output"


def _reason(error: BaseException, calls: _Calls) -> str:
    if isinstance(error, _TooManyCalls):
        return f"it calls its networks more than {calls.most} times (--most-calls)"
    return raised(error)  # type: ignore[arg-type]  # the other kind is an Exception


def named_outputs(returned: Any) -> Outputs:
    """Returns what a user's function returned as arrays by name.

    A dictionary keeps its names; a tuple's values become ``output 0`` and so on, any other value ``output``. A text
    becomes its characters' codes, int64. Raises BadInput if a value is no array.
    """
    values = {"output": returned}
    if isinstance(returned, Mapping):
        values = {str(name): value for name, value in returned.items()}
    elif isinstance(returned, tuple):
        values = {f"output {place}": value for place, value in enumerate(returned)}
    return {name: _array_of(name, value) for name, value in values.items()}


def _array_of(name: str, value: Any) -> np.ndarray:
    is_texts = isinstance(value, (list, tuple)) and bool(value) and all(isinstance(text, str) for text in value)
    if isinstance(value, str) or is_texts:
        return np.array([ord(letter) for letter in (value if isinstance(value, str) else "\n".join(value))], np.int64)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "fiub":
        remedy = "Return arrays of numbers, texts, or a dictionary of them by name."
        raise BadInput(f"The function's output '{name}' is a {type(value).__name__}, and no array.", remedy)
    return array


@dataclass(frozen=True)
class Samples:
    """The samples of a pipeline, their names (empty if they have none), and the name of the set."""

    values: Sequence[Any]
    names: tuple[str, ...]
    source: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the samples in messages."""
        return self.names or tuple(f"sample {place} of {self.source}" for place in range(len(self.values)))


def open_samples(given: Any) -> Samples:
    """Opens the samples of a pipeline.

    ``given`` is a file (the rows of an ``.npy``, or dictionaries of the rows of an ``.npz``), a folder (the arrays in
    such files, and the paths of others), ``module:function``, which returns the samples, or in Python any iterable.
    Raises BadInput if there are no samples, or they cannot be read.
    """
    if given is None:
        raise BadInput("There are no samples to run the pipeline on.", "Give --input.")
    source, names = "the samples given", tuple[str, ...]()
    if isinstance(given, (str, Path)):
        source, path = str(given), Path(given)
        if path.is_dir():
            files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
            values, names = [_read(file) for file in files], tuple(map(str, files))
        elif path.is_file():
            content = _read(path)
            values = _rows(content) if path.suffix in (".npz", ".npy") else [content]
        elif ":" in source:
            values = list(samples_from(load_function(source, "data set"), source))
        else:
            raise BadInput(f"The samples '{path}' do not exist.", "Give a file, a folder or module:function.")
    elif isinstance(given, Mapping):
        values = _rows(given)
    else:
        values = list(given)
    if not values:
        raise BadInput(f"There are no samples in {source}.", "Give at least one; better a few hundred.")
    return Samples(values, names, source)


def _read(file: Path) -> Any:
    if file.suffix == ".npz":
        return read_archive(file)
    return read_array(file) if file.suffix == ".npy" else str(file)


def _rows(arrays: Any) -> list[Any]:
    if not isinstance(arrays, Mapping):
        return list(arrays)
    return [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)]


def opened(
    function: Function,
    networks: Mapping[str, Network],
    given: Sequence[Samples],
    calibration: Mapping[str, Any],
    most: int | None,
    spill: Spill,
    progress: Progress,
) -> tuple[Network, list[Dataset]]:
    """Runs a pipeline once in FP32; returns its networks merged into one, and each set of samples as a data set for it.

    Args:
        calibration: by network, data, a calibration cache or ranges, in place of what the function feeds the network.
        most: ``Program.most``.
        spill: keeps the networks' feeds, beyond a limit in files.

    Raises:
        BadInput: the function fails on a sample, or ``calibration`` cannot be used.
    """
    given_feeds = {}
    for name, data in calibration.items():
        if isinstance(data, Ranges) or is_cache_path(data):
            networks = {**networks, name: _with_ranges(networks[name], data)}
        else:
            given_feeds[name] = [spill.kept(feeds) for feeds in open_dataset(data, networks[name].inputs)]
    values = [value for samples in given for value in samples.values]
    program = Program(function, networks, values, [label for samples in given for label in samples.labels], most)
    builders = {name: OnnxRuntimeBuilder(network, {}, BuildOptions()) for name, network in networks.items()}
    engines = {name: builder.reference() for name, builder in builders.items()}
    fed = [{name: list[Feeds]() for name in networks} for _ in values]
    digests = []
    progress.stage("The pipeline in FP32", len(fed))
    for place, by_name in enumerate(fed):
        progress.step(f"sample {place}")
        keeping = {name: partial(_keep, engines[name].infer, by_name[name], spill) for name in networks}
        outputs = program.in_fp32(place, keeping)
        parts = [digest_of_feeds(outputs), *(digest_of_feeds(feeds) for calls in by_name.values() for feeds in calls)]
        digest = hashlib.sha256("".join(parts).encode()).digest()
        digests.append(int.from_bytes(digest[:8], "little", signed=True))
    calls = {name: sum(len(by_name[name]) for by_name in fed) / len(fed) for name in networks}
    code = code_digest(function)
    network = merged(Pipeline(networks, program, f"{code} {most}", calls))
    if not is_reusable(code):
        text = "the function is a closure, or not from a source file: another run measures it again"
        network = replace(network, notes=(*network.notes, text))
    never = {}  # what a network that the function does not call is fed
    for name, own_network in networks.items():
        zeros = {spec.name: np.zeros([size or 1 for size in spec.shape], spec.dtype) for spec in own_network.inputs}
        never[name] = next(chain.from_iterable(by_name[name] for by_name in fed), zeros)
    first = ({name: next(iter(own), never[name]) for name, own in by_name.items()} for by_name in fed)
    feeds = iter([_row([place, digests[place]], by_name) for place, by_name in enumerate(first)])
    rows = partial(_rows_of, fed, never, given_feeds)
    sets = []
    for samples in given:
        own = list(islice(feeds, len(samples.values)))
        of_own = partial(iter, own)
        sets.append(Dataset(samples.source, network.inputs, of_own, len(own), names=samples.names, fed=rows))
    return network, sets


def _with_ranges(network: Network, given: Any) -> Network:
    if network.has_scales or not network.low.needs_ranges:
        return replace(network, notes=(*network.notes, "the ranges given for it are not needed"))
    ranges = given if isinstance(given, Ranges) else ranges_of_cache(Path(given), network)
    usable, notes = keeping_unusable_high(network, ranges)
    own = {tensor: ranges.scales[tensor] for tensor in network.activations if tensor in ranges.scales}
    notes = [f"its ranges are those of {ranges.origin or 'the user'}", *notes]
    return replace(usable, scales={**own, **network.scales}, notes=(*network.notes, *notes))


def _keep(infer: Infer, calls: list[Feeds], spill: Spill, feeds: Feeds) -> Outputs:
    calls.append(spill.kept(feeds))
    return infer(feeds)


def _rows_of(
    fed: Sequence[Mapping[str, list[Feeds]]],
    never: Mapping[str, Feeds],
    given: Mapping[str, list[Feeds]],
    samples: Iterable[Mapping[str, np.ndarray]],
) -> Iterator[Feeds]:
    # the feeds of all networks together, call by call; a network with fewer calls repeats its own
    places = [int(sample[SAMPLE][0]) for sample in samples]
    calls = {}
    for name in never:
        own = [feeds for place in places for feeds in fed[place][name]]
        calls[name] = given.get(name) or own or [never[name]]
    for number in range(max(map(len, calls.values()))):
        yield _row([-1, number], {name: own[number % len(own)] for name, own in calls.items()})


def _row(numbers: Sequence[int], by_name: Mapping[str, Feeds]) -> Feeds:
    row = {SAMPLE: np.array(numbers, np.int64)}
    for name, feeds in by_name.items():
        row |= {prefix_of(name) + tensor: array for tensor, array in feeds.items()}
    return row
