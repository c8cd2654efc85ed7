"""PyTorch modules as networks: exported as ONNX, compared with the module, with layers named after its modules."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from trt_bisect.calibration.cache import is_data
from trt_bisect.data.feeds import TensorSpec
from trt_bisect.data.named import load_function
from trt_bisect.data.samples import as_array
from trt_bisect.errors import BadInput, EngineUnavailable, first_line, install
from trt_bisect.model.file import folder_until_the_end
from trt_bisect.model.modules import (
    METADATA_IR_VERSION,
    WEIGHTED,
    ModuleTensor,
    Place,
    module_tensors,
    places_of,
    titles_of,
    write_place,
)
from trt_bisect.model.session import new_options
from trt_bisect.support.files import make_folder

if TYPE_CHECKING:
    import torch

_EXPORTERS = {"dynamo": True, "TorchScript": False}  # tried in this order, each with its argument dynamo
_FAR = 1e-2  # an export whose outputs differ by more than this share of the largest value is refused
_IN_ONE_FILE = 1 << 30  # the most bytes of weights in the ONNX file itself
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_HOW = "Give a DataLoader or a list of samples as calibration, or the sizes of the inputs as shapes."


@dataclass(frozen=True)
class Exported:
    """A PyTorch module exported as an ONNX file.

    Attributes:
        note: a sentence on the distance of the file's outputs from the module's.
        calls: the number of calls of each submodule in one inference; empty for an exported program.
    """

    path: Path
    note: str
    calls: Mapping[str, int]


def exported(model: Any, data: Iterable[Any], shapes: Mapping[str, tuple[int, ...]], output: Any) -> Exported | None:
    """Returns a PyTorch module exported as ONNX, in evaluation mode, for one sample; None for any other ``model``.

    Args:
        model: a module; or a ``module:function`` or ``file.py:function`` that returns a module.
        data: sources of a sample, such as a DataLoader, first choice first.
        shapes: the inputs' shapes by name; used if no data have a sample.
        output: the file's folder; None: one that lasts as long as the process.

    Raises:
        BadInput: there is no sample, the module does not take it, or cannot be exported.
    """
    module = given_module(model)
    if module is None:
        return None
    args, kwargs = _example(module, data, shapes)
    folder = folder_until_the_end() if output is None else make_folder(Path(output))
    path, failures = folder / f"{type(module).__name__}.onnx", []
    with _in_evaluation(module):
        with _calls_counted(module) as calls:
            wanted = _tensors(_run(module, args, kwargs))
        for exporter, dynamo in _EXPORTERS.items():
            try:
                _export(module, args, kwargs, path, dynamo=dynamo)
                difference, largest = _difference(path, [*args, *kwargs.values()], wanted)
            except Exception as error:
                failures.append(f"{exporter}: {first_line(error)}")
                continue
            if difference > _FAR * largest:
                failures.append(f"{exporter}: its outputs differ by {difference:.2g}, of at most {largest:.2g}")
                continue
            _name_layers(module, path)
            how = f"by torch.onnx.export ({exporter}) as {path}"
            difference_text = f"its outputs differ from the module's by at most {difference:.1e}, of {largest:.1e}"
            calls = {} if _is_exported(module) else calls
            return Exported(path, f"the module {type(module).__name__} was exported {how}; {difference_text}", calls)
    remedy = "Export it yourself, and give the file." if "onnxscript" not in failures[0] else install("torch")
    raise BadInput(f"{type(module).__name__} cannot be exported as ONNX. {'. '.join(failures)}", remedy)


class Hooked:
    """Runs a PyTorch module, or an exported program, and gives the tensors of all its submodules.

    Attributes:
        modules: of the last inference, the place of each call of a submodule and its tensor's name; then each output's
            name with an empty place.

    Raises:
        EngineUnavailable: PyTorch has no such ``device``.
    """

    def __init__(self, module: torch.nn.Module, device: str | None) -> None:
        try:
            self.module = module if device is None else module.to(device)
        except (AssertionError, RuntimeError) as error:
            problem = f"PyTorch cannot run on {device}: {first_line(error)}"
            raise EngineUnavailable(problem, "Give --device cpu, or leave it out.") from error
        self.modules: list[ModuleTensor] = []
        self._device = _device_of(self.module)
        self._names = [*inspect.signature(module.forward).parameters]

    def digest(self) -> str:
        """Returns the digest of the module: its printed form, parameters and buffers."""
        sha = hashlib.sha256(str(self.module).encode())
        for name, values in self.module.state_dict().items():
            sha.update(name.encode())
            for array in _tensors(values):
                sha.update(array.tobytes())
        return sha.hexdigest()

    def inputs(self, data: Iterable[Any]) -> tuple[TensorSpec, ...]:
        """Returns the module's inputs as in the first sample of ``data``, with batch 1; empty without one."""
        try:
            args, kwargs = _example(self.module, data, {})
        except BadInput:
            return ()
        named = {**dict(zip(self._names, args, strict=False)), **kwargs}
        arrays = {name: tensor.cpu().numpy() for name, tensor in named.items()}
        return tuple(TensorSpec(name, array.dtype, (1, *array.shape[1:])) for name, array in arrays.items())

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs the module; returns the outputs, and each submodule's tensor by path (``act@2`` for its second call)."""
        import torch

        fed = {name: torch.as_tensor(values).to(self._device) for name, values in feeds.items()}
        tensors: dict[str, np.ndarray] = {}
        self.modules = []
        run = self._node_by_node if _is_exported(self.module) else self._hooked
        outputs = run(fed, tensors)
        results = _tensors(outputs)
        names = list(outputs) if isinstance(outputs, Mapping) else []
        if len(names) != len(results):
            names = [f"output{number or ''}" for number in range(len(results))]
        for name, values in zip(names, results, strict=True):
            tensors[name] = values
            self.modules.append((Place(), name))
        return tensors

    def _hooked(self, fed: dict[str, torch.Tensor], tensors: dict[str, np.ndarray]) -> Any:
        def keeping(path: str) -> Any:
            def keep(module: torch.nn.Module, _given: Any, made: Any) -> None:
                self._keep(Place(path, type(module).__name__), _tensors(made), tensors)

            return keep

        with _in_evaluation(self.module), _hooks(self.module, keeping):
            return self.module(**fed) if fed.keys() <= {*self._names} else self.module(*fed.values())

    def _node_by_node(self, fed: dict[str, torch.Tensor], tensors: dict[str, np.ndarray]) -> Any:
        import torch

        seen: dict[str, np.ndarray] = {}
        made: list[ModuleTensor] = []

        class Nodes(torch.fx.Interpreter):  # type: ignore[misc]
            def run_node(self, n: torch.fx.Node) -> Any:
                values, stack = super().run_node(n), n.meta.get("nn_module_stack")
                if stack and isinstance(values, torch.Tensor):
                    path, kind = [*stack.values()][-1]
                    (seen[n.name],) = _tensors(values)
                    made.append((Place(path, str(kind).rpartition(".")[2]), n.name))
                return values

        with torch.no_grad():
            outputs = Nodes(self.module).run(*fed.values())
        for place, tensor in module_tensors(made):
            self._keep(place, [seen[tensor]], tensors)
        return outputs

    def _keep(self, place: Place, kept: list[np.ndarray], tensors: dict[str, np.ndarray]) -> None:
        number = 1 + sum(before.path == place.path for before, _ in self.modules)
        name = place.path if number == 1 else f"{place.path}@{number}"
        self.modules.append((place, name))
        if len(kept) == 1:
            tensors[name] = kept[0]


def _is_exported(module: torch.nn.Module) -> bool:
    import torch

    return isinstance(module, torch.fx.GraphModule)


def given_module(given: Any) -> torch.nn.Module | None:
    """Returns the PyTorch module of a module, an exported program or a ``module:function``; None for anything else."""
    module = _named_module(given) if isinstance(given, (str, Path)) else given
    library = sys.modules.get("torch")
    if library is None:
        return None
    if isinstance(module, library.export.ExportedProgram):
        module = module.module()
    return module if isinstance(module, library.nn.Module) else None


def _named_module(text: str | Path) -> Any:
    name = str(text)
    if not re.search(r":[A-Za-z_]\w*$", name) or Path(name).exists():
        return None
    try:
        module = load_function(name, "network")()
    except BadInput as error:
        if getattr(error.__cause__, "name", None) == "torch":
            raise BadInput("The package 'torch' is not installed.", install("torch")) from error
        raise
    except Exception as error:
        raise BadInput(f"The network '{name}' failed: {type(error).__name__}: {first_line(error)}") from error
    if not hasattr(module, "named_modules"):
        problem = f"The function '{name}' returned a {type(module).__name__}, no module of PyTorch."
        raise BadInput(problem, "Return a torch.nn.Module, or give an ONNX file.")
    return module


@contextmanager
def _in_evaluation(module: torch.nn.Module) -> Iterator[None]:
    import torch

    training = {child: child.training for child in module.modules()}
    with suppress(NotImplementedError):  # an exported program has its mode in its graph
        module.eval()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for child, mode in training.items():
            child.training = mode


@contextmanager
def _calls_counted(module: torch.nn.Module) -> Iterator[dict[str, int]]:
    calls = {name: 0 for name, _ in module.named_modules() if name}

    def counting(name: str) -> Any:
        def count(*_: Any) -> None:
            calls[name] += 1

        return count

    with _hooks(module, counting):
        yield calls


@contextmanager
def _hooks(module: torch.nn.Module, making: Callable[[str], Any]) -> Iterator[None]:
    children = [(name, child) for name, child in module.named_modules() if name]
    hooks = [child.register_forward_hook(making(name)) for name, child in children]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


Arguments = tuple[list["torch.Tensor"], dict[str, "torch.Tensor"]]


def _example(module: Any, data: Iterable[Any], shapes: Mapping[str, tuple[int, ...]]) -> Arguments:
    import torch

    device = _device_of(module)
    for source in data:
        sample = _first_of(source)
        if sample is not None:
            args, kwargs = _arguments(module, sample)
            break
    else:
        if not shapes:
            raise BadInput(f"There is no sample to export {type(module).__name__} with.", _HOW)
        args, kwargs = [], {name: torch.zeros(shape) for name, shape in shapes.items()}
    tensors = [*args, *kwargs.values()]
    sizes = {len(tensor) if tensor.ndim else 0 for tensor in tensors}
    if len(sizes) == 1 and min(sizes) > 1:
        tensors = [tensor[:1] for tensor in tensors]
    alone = [tensor.to(device) for tensor in tensors]
    if _is_exported(module):  # it takes its arguments as it was exported: by position
        return alone, {}
    return alone[: len(args)], dict(zip(kwargs, alone[len(args) :], strict=True))


def _device_of(module: torch.nn.Module) -> torch.device:
    import torch

    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))


def _first_of(source: Any) -> Any:
    if isinstance(source, (str, Path)):
        text = str(source)
        if Path(text).suffix in (".npz", ".npy") and Path(text).is_file():
            arrays = np.load(text)
            return arrays if isinstance(arrays, np.ndarray) else dict(arrays)
        if Path(text).exists() or ":" not in text:
            return None
        source = load_function(text, "data set")
    if not is_data(source):
        return None
    if isinstance(source, Mapping) or hasattr(source, "__array__"):
        return source
    source = source() if callable(source) and not isinstance(source, Iterable) else source
    if isinstance(source, Iterator):
        problem = f"A {type(source).__name__} can be read only once, and the first sample is needed for the export."
        raise BadInput(problem, "Give a DataLoader, a list, or a function that returns the iterator.")
    if isinstance(source, Iterable):
        return next(iter(source), None)
    if hasattr(source, "__getitem__"):
        return [part[None] if hasattr(part, "ndim") and part.ndim else part for part in _parts(source[0])]
    return None


def _parts(sample: Any) -> list[Any]:
    return list(sample) if isinstance(sample, (tuple, list)) else [sample]


def _arguments(module: Any, sample: Any) -> Arguments:
    import torch

    def tensor(value: Any) -> torch.Tensor:
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(as_array(value))

    while isinstance(sample, (tuple, list)) and sample and isinstance(sample[0], (tuple, list, Mapping)):
        sample = sample[0]
    parameters = inspect.signature(module.forward).parameters.values()
    places = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    if isinstance(sample, Mapping):
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        names = {parameter.name for parameter in parameters}
        taken = {name: value for name, value in sample.items() if (takes_all or name in names) and name[:5] != "label"}
        if not taken:
            problem = f"{type(module).__name__}.forward takes {', '.join(sorted(names))}, and a sample has "
            raise BadInput(f"{problem}{', '.join(map(str, sample))}.", "Name the arrays of a sample as it does.")
        return [], {name: tensor(value) for name, value in taken.items()}
    needed = sum(parameter.default is parameter.empty for parameter in places)
    return [tensor(part) for part in _parts(sample)[: max(needed, 1)]], {}


def _run(module: Any, args: list[torch.Tensor], kwargs: dict[str, torch.Tensor]) -> Any:
    try:
        return module(*args, **kwargs)
    except Exception as error:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (*args, *kwargs.values()))
        raise BadInput(
            f"{type(module).__name__} does not take the first sample ({shapes}): {first_line(error)}",
            "Give samples as the module takes them: a batch as a tensor, a tuple or a dictionary.",
        ) from error


def _tensors(outputs: Any) -> list[np.ndarray]:
    import torch
    from torch.utils import _pytree

    if isinstance(outputs, Mapping):
        outputs = dict(outputs)
    arrays = []
    for leaf in _pytree.tree_leaves(outputs):
        if isinstance(leaf, torch.Tensor):
            plain = leaf.dequantize() if leaf.is_quantized else leaf
            arrays.append(plain.detach().float().cpu().numpy().copy())
    return arrays


def _export(module: Any, args: list[Any], kwargs: dict[str, Any], path: Path, *, dynamo: bool) -> None:
    import torch

    names = list(inspect.signature(module.forward).parameters)[: len(args)] + list(kwargs)
    size = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
    options: dict[str, Any] = {"external_data": size > _IN_ONE_FILE, "verbose": False} if dynamo else {}
    for leftover in (path, path.with_name(f"{path.name}.data")):
        leftover.unlink(missing_ok=True)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        torch.onnx.export(module, tuple(args), path, kwargs=kwargs, input_names=names, dynamo=dynamo, **options)


def _difference(path: Path, inputs: list[Any], wanted: list[np.ndarray]) -> tuple[float, float]:
    session = ort.InferenceSession(path, new_options(), providers=["CPUExecutionProvider"])
    feeds = zip(session.get_inputs(), inputs, strict=True)
    outputs = session.run(None, {spec.name: as_array(tensor) for spec, tensor in feeds})
    if [output.shape for output in outputs] != [array.shape for array in wanted]:
        raise ValueError(f"it has outputs of {[output.shape for output in outputs]}")
    pairs = list(zip(outputs, wanted, strict=True))
    difference = max((float(np.abs(output - array).max(initial=0)) for output, array in pairs), default=0.0)
    return difference, max((float(np.abs(array).max(initial=0)) for array in wanted), default=0.0)


def _name_layers(module: torch.nn.Module, path: Path) -> None:
    model = onnx.load(path, load_external_data=False)
    parameters = {tensor.name for tensor in model.graph.initializer}
    places, taken = places_of(model.graph), {node.name for node in model.graph.node}
    nodes = []
    for node in model.graph.node:
        has_weight = node.op_type in WEIGHTED and not parameters.isdisjoint(node.input)
        nodes.append((node.name, node.op_type, has_weight))
    titles, modules = titles_of(nodes, places), dict(module.named_modules())
    for node in model.graph.node:
        place = places.get(node.name)
        if place is not None and place.path in modules:
            write_place(node, replace(place, kind=type(modules[place.path]).__name__))
        title = titles.get(node.name, "")
        if title and title not in taken:
            node.name = title
    model.ir_version = max(model.ir_version, METADATA_IR_VERSION)
    path.write_bytes(model.SerializeToString())
