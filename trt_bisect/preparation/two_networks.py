"""Two networks that are compared unchanged: in floats, with Q/DQ pairs or dynamic quantization, or functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from trt_bisect.analyzer.origins import Origin, Tensors, activation_origins, plan_observer, sides_of, weight_origins
from trt_bisect.analyzer.structure.graph import PAIR
from trt_bisect.data.feeds import Feeds, TensorSpec
from trt_bisect.data.named import code_digest
from trt_bisect.errors import BadInput, first_line
from trt_bisect.model.file import ONNX_TYPES, Written, read_model, saved_model, with_outputs
from trt_bisect.model.layers import Layer
from trt_bisect.model.matching import Matching, match_inputs, match_layers
from trt_bisect.model.modules import ModuleTensor, Place, matched_modules, module_tensors, places_of
from trt_bisect.model.network import Network, spec_of
from trt_bisect.model.observe import facts_for, groups_within
from trt_bisect.model.prepare import DYNAMIC_OPS, with_named_nodes
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.quantizer import Quantizer
from trt_bisect.model.session import UNOPTIMISED, element_type, make_session
from trt_bisect.options.concerns import FIXING, DeviceOptions, OtherOptions, UnquantizedOptions
from trt_bisect.precision import PrecisionPlan
from trt_bisect.preparation.pytorch import Hooked, given_module
from trt_bisect.report.comparison import MatchedLayer

# ONNX Runtime's quantizer appends these to the name of a rounded tensor
_ENDING, _SCALE, _ZERO = "_quantized", "_scale", "_zero_point"


@dataclass(frozen=True)
class AsItRuns:
    """A network that is run unchanged.

    Attributes:
        source: its name in messages.
        inputs: the inputs; empty if unknown.
        run: returns the tensors for feeds, by name.
        weights: by name in the float network, the integer levels and the quantizer of each integer weight.
        modules: returns the last inference's calls of PyTorch modules, in the form of ``Hooked.modules``.
        digest: the digest of a file, a module or code; random for code other than a function in a file. Empty for
            saved outputs, and for a network under a plan.
    """

    source: str
    inputs: tuple[TensorSpec, ...]
    run: Callable[[Feeds], Mapping[str, np.ndarray]]
    weights: Mapping[str, tuple[np.ndarray, Quantizer]] = field(default_factory=dict)
    modules: Callable[[], Sequence[ModuleTensor]] = tuple
    digest: str = ""

    def tensors(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Returns the float tensors for a sample by name.

        The sample's arrays become inputs by name, or in order if names differ. Raises BadInput if the network
        does not run on this sample, or returns no arrays by name.
        """
        names = [spec.name for spec in self.inputs]
        given = dict(feeds) if not names or set(names) == set(feeds) else dict(zip(names, feeds.values(), strict=False))
        try:
            tensors = self.run(given)
            return {str(name): values for name, values in tensors.items() if np.asarray(values).dtype.kind == "f"}
        except Exception as error:
            problem = f"'{self.source}' cannot be run: {type(error).__name__}: {first_line(error)}"
            raise BadInput(problem, "It takes arrays by input name, and returns arrays by output name.") from error


def weights_as_they_are(
    origins: Iterable[Origin], constant: Callable[[str], np.ndarray], given: AsItRuns
) -> Iterator[tuple[Origin, np.ndarray, np.ndarray]]:
    """Yields each of the weights ``origins`` that ``given`` has in integers, with its float and its dequantized values.

    ``constant`` returns a weight's float values by name.
    """
    for origin in origins:
        if origin.tensor not in given.weights:
            continue
        # Integer layers of a matrix product may have the weight transposed.
        values, (levels, quantizer) = constant(origin.tensor), given.weights[origin.tensor]
        quantizer = replace(quantizer, axis=origin.channel_axis if quantizer.scale.size > 1 else None)
        rounded = [quantizer.dequantized(array) for array in (levels, levels.T) if array.shape == values.shape]
        if rounded:
            nearest = min(rounded, key=lambda weight: float(np.abs(weight - values).sum()))
            yield replace(origin, quantizers=(quantizer,), readers=(origin.layer,)), values, nearest


def refuse_with_other(options: OtherOptions) -> None:
    """Raises BadInput for an option that changes how a network runs, since two networks run unchanged."""
    changing = ("fp32", "int8", "recipe", "reference", *FIXING)
    refused = [name for name in changing if getattr(options, name, None)]
    if isinstance(options, UnquantizedOptions) and options.unquantized_round:
        refused.append("unquantized")
    if refused:
        raise BadInput(
            f"Two networks run as their files say, and --{refused[0].replace('_', '-')} cannot be used.",
            "Leave this option out, or compare one network.",
        )


def same_tensors(
    first: AsItRuns, second: AsItRuns, ours: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
) -> dict[str, str]:
    """Returns, by tensor name in ``first``, the tensor of ``second`` with the same shape and the same module or name.

    ``ours`` and ``others`` are the tensors of both on the same sample.
    """
    modules = first.modules(), second.modules()
    of_modules = set.intersection(*({tensor for _, tensor in side} for side in modules))
    names = {name: name for name in ours if name not in of_modules} | matched_modules(*modules)
    return {
        name: names[name]
        for name, values in ours.items()
        if names.get(name) in others and values.shape == others[names[name]].shape
    }


def as_it_runs(given: Any, options: DeviceOptions) -> AsItRuns | None:
    """Returns a dynamically quantized network, a session, a function or a module, to run unchanged; None for others.

    ``options`` tell a module's device, and the data that show its inputs.
    """
    if given is None or isinstance(given, Network):
        return None
    module = given_module(given)
    if module is not None:
        hooked = Hooked(module, options.device)
        data = [getattr(options, name, None) for name in ("calibration", "inputs", "dataset")]
        name, inputs = type(module).__name__, hooked.inputs(data)
        return AsItRuns(name, inputs, hooked.run, modules=lambda: hooked.modules, digest=hooked.digest())
    if isinstance(given, ONNX_TYPES):
        path = saved_model(given)
        try:
            nodes = onnx.load(str(path), load_external_data=False).graph.node if path.is_file() else ()
        except Exception:  # whatever protobuf raises: reading the network as one with floats says what is wrong
            return None
        return _dynamic_network(path) if any(node.op_type in DYNAMIC_OPS for node in nodes) else None
    if hasattr(given, "run") and hasattr(given, "get_inputs"):
        return _session(given)
    if callable(given):
        return AsItRuns(getattr(given, "__name__", type(given).__name__), (), given, digest=code_digest(given))
    return None


def _session(session: Any) -> AsItRuns:
    outputs = [spec.name for spec in session.get_outputs()]
    inputs = []
    for spec in session.get_inputs():
        shape = tuple(size if isinstance(size, int) else None for size in spec.shape)
        kind = element_type(spec.type) or onnx.TensorProto.FLOAT
        inputs.append(TensorSpec(spec.name, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)), shape))
    return AsItRuns("the session given", tuple(inputs), partial(_run, session, outputs), digest=code_digest(session))


def _run(session: Any, names: Sequence[str], feeds: Feeds) -> dict[str, np.ndarray]:
    return dict(zip(names, session.run(names, feeds), strict=True))


def _dynamic_network(path: Path) -> AsItRuns:
    # Dynamic quantization stays as it is, since each inference computes its scales.
    model, apart = read_model(path)
    made = [name for node in model.graph.node for name in node.output if name]
    session = make_session(Written(with_outputs(model, made), apart), level=UNOPTIMISED, integers=True)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = tuple(spec_of(value) for value in model.graph.input if value.name not in constants)
    weights = {}
    for name in constants:
        weight = name.removesuffix(_ENDING)
        names_of = (name, f"{weight}{_SCALE}", f"{weight}{_ZERO}")
        if weight != name and all(part in constants for part in names_of):
            values, scale, zero = (
                apart[part] if part in apart else numpy_helper.to_array(constants[part]) for part in names_of
            )
            weights[weight] = (values, Quantizer(scale.astype(np.float32), zero))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return AsItRuns(str(path), inputs, partial(_run, session, made), weights, digest=digest)


@dataclass(frozen=True)
class Planned:
    """A network under a plan, in the emulation.

    Attributes:
        writer: writes the network's graph for a plan, with scales.
    """

    writer: PlanWriter
    plan: PrecisionPlan

    @property
    def network(self) -> Network:
        """The network that runs under the plan."""
        return self.writer.network

    @classmethod
    def as_in_file(cls, network: Network) -> Planned:
        """Returns ``network`` as in its file: with all Q/DQ pairs, asymmetric ones too, or in floats if it has none."""
        in_file = network.as_in_file()
        plan = in_file.free_plan(in_file.quantizable if in_file.has_pairs else ())
        return cls(PlanWriter(in_file, {}, GraphTarget.ONNXRUNTIME), plan)

    def origins(self) -> dict[str, Origin]:
        """Returns the network's float tensors by name, each with its layer and the roundings that it gets."""
        return activation_origins(self.network, self.writer, self.plan.lowered, sides_of(self.plan))

    def weights(self) -> list[Origin]:
        """Returns the network's weights, each with its layer and the roundings that it gets."""
        return weight_origins(self.network, self.writer, self.plan.lowered, sides_of(self.plan))

    def as_it_runs(self) -> AsItRuns:
        """Returns the network under the plan, in a form that gives all of its float tensors."""
        observe = plan_observer(self.writer, self.plan, self.origins())
        return AsItRuns(
            self.network.source,
            self.network.inputs,
            lambda feeds: next(observe(feeds, 0)),
            modules=partial(_modules_in, self.network),
        )


def _modules_in(network: Network) -> list[ModuleTensor]:
    model, _ = read_model(Path(network.source))
    model = with_named_nodes(model)
    places = places_of(model.graph)
    nodes = [node for node in model.graph.node if node.op_type not in ("Constant", *PAIR)]
    made = module_tensors((places.get(node.name, Place()), node.output[0]) for node in nodes)
    return [*made, *((Place(), spec.name) for spec in network.outputs)]


class TwoNetworks:
    """Two networks, with their layers matched on one sample.

    Args:
        first: the network whose names samples and tensors have.
        memory: the bytes that a group of tensors of both may take.
        planned: puts the second network under a plan; default: as in its file.

    Attributes:
        feeds_of_second: returns a sample with the names and dtypes of the second network's inputs.
        origins: by name in the first network, each tensor that both have, with its roundings in the second.
        groups: the number of groups of tensors that ``on`` yields.

    Raises:
        BadInput: the inputs of the networks cannot be matched, or ONNX Runtime refuses a network.
    """

    def __init__(
        self,
        first: Network,
        second: Network,
        feeds: Feeds,
        memory: int,
        planned: Callable[[Network], Planned] = Planned.as_in_file,
    ) -> None:
        self.feeds_of_second = feeds_between(first, second)
        first = first.with_shapes(facts_for(first, feeds).shapes)
        second = second.with_shapes(facts_for(second, self.feeds_of_second(feeds)).shapes)
        self.matching = match_layers(first, second)
        self._first, self._second = Planned.as_in_file(first), planned(second)
        here, there = self._first.origins(), self._second.origins()
        shared = {tensor: other for tensor, other in self.matching.tensors.items() if tensor in here and other in there}
        self._back = {other: tensor for tensor, other in shared.items()}
        pairs = self.matching.pairs.values()
        self._layers = {pair.second.name: pair.first.name for pair in pairs if pair.first and pair.second}
        self.origins = {}
        for name in here:
            if name in shared:
                self.origins[name] = self._rounded_as(here[name], there[shared[name]])
        groups = groups_within(first, self.origins, feeds, memory, runs=2)
        theirs = [tuple(shared[name] for name in names) for names in groups]
        self._runs = (
            plan_observer(self._first.writer, self._first.plan, {name: here[name] for name in shared}, groups),
            plan_observer(self._second.writer, self._second.plan, {n: there[n] for n in self._back}, theirs),
        )
        self.groups = len(groups)

    def _rounded_as(self, here: Origin, other: Origin) -> Origin:
        return replace(
            here,
            int8_op_type=other.int8_op_type,
            quantizers=other.quantizers,
            float_type=other.float_type,
            readers=self._names_here(other.readers),
            rounded_as_result=other.rounded_as_result,
            beside=tuple(self._rounded_as(here, each) for each in other.beside),
        )

    def _names_here(self, layers: Iterable[str]) -> tuple[str, ...]:
        return tuple(self._layers.get(layer, layer) for layer in layers)

    def on(self, feeds: Feeds, position: int) -> Iterator[tuple[Tensors, Tensors]]:
        """Runs both networks on a sample; yields tensors of the first and of the second, both by name in the first.

        They come in groups that fit the memory. ``position`` is the sample's number. Raises BadInput if ONNX Runtime
        refuses the sample.
        """
        second = self._runs[1](self.feeds_of_second(feeds), position)
        for first in self._runs[0](feeds, position):
            yield first, {self._back[name]: values for name, values in next(second).items()}
            del first

    def weights(self) -> Iterator[tuple[Origin, np.ndarray, np.ndarray]]:
        """Yields each weight of a matched layer, with its values in the first network and, rounded, in the second."""
        second = self._second.network
        for origin in weight_origins(second, self._second.writer, self._second.plan.lowered):
            match = self.matching.pairs.get(-1 if origin.index is None else origin.index)
            if match is None or match.first is None or match.second is None:
                continue
            if self.matching.tensors.get(match.first.outputs[0]) != match.second.outputs[0]:
                continue
            slot = list(second.skeleton.graph.node[match.second.index].input).index(origin.tensor)
            mine = self._first.network.skeleton.graph.node[match.first.index].input[slot]
            try:
                values = self._first.network.constant(mine)
            except KeyError:
                continue
            theirs = origin.rounded(second.constant(origin.tensor))
            if values.shape == theirs.shape:
                layer, readers = match.first, self._names_here(origin.readers)
                named = replace(origin, tensor=mine, index=layer.index, layer=layer.name, readers=readers)
                yield named, values, theirs


def feeds_between(first: Network, second: Network) -> Callable[[Feeds], Feeds]:
    """Returns a function that gives a sample of ``first`` the names and dtypes of ``second``'s inputs.

    Raises BadInput if the inputs cannot be matched.
    """
    names, specs = match_inputs(first, second), {spec.name: spec for spec in second.inputs}

    def renamed(feeds: Feeds) -> Feeds:
        given = {other: feeds[name] for name, other in names.items() if name in feeds}
        return {name: values.astype(specs[name].dtype, copy=False) for name, values in given.items()}

    return renamed


def matched_layers(matching: Matching) -> tuple[MatchedLayer, ...]:
    """Returns the layers of two networks as rows of a table."""

    def texts(layer: Layer | None) -> tuple[str, str]:
        return (layer.name, layer.op_type) if layer else ("", "")

    return tuple(MatchedLayer(*texts(pair.first), *texts(pair.second), pair.by) for pair in matching.matches)
