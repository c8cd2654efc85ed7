"""The layers that another tool keeps in high precision. Runs in an environment of the tool's packages, without ours.

python -m benchmarks.answer.tools TOOL TASK.json

Every tool calibrates with the given inputs and judges by the worst cosine on them, in its own emulation.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader

from benchmarks.answer.judge import Cuts, infer, read_samples, session, worst

TORCH, RUNTIME = "torch==2.13.0", "onnxruntime==1.32.0"


def fewest(ranked: Sequence[Any], holds: Callable[[Sequence[Any]], bool]) -> Sequence[Any]:
    """The first of the ranked ones that must be kept, all if no number holds."""
    few, many = 0, len(ranked)
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if holds(ranked[:middle]) else (middle + 1, many)
    return ranked[:few]


class Task:
    """A network, its given inputs, and the cosine asked for."""

    def __init__(self, network: str, samples: str, target: float, cuts: Cuts) -> None:
        self.network, self.target, self.cuts = network, target, cuts
        exact = session(Path(network), "off")
        self.feeds = read_samples(Path(samples), exact)
        self.exact = [infer(exact, each) for each in self.feeds]

    def figures(self, outputs: Sequence[Sequence[np.ndarray]], places: Sequence[int] | None = None) -> list[float]:
        """The cosine of each input whose outputs are given in the network's order."""
        exact = [self.exact[k] for k in places or range(len(self.exact))]
        return [worst(e, dict(zip(e, found, strict=True)), self.cuts) for e, found in zip(exact, outputs, strict=True)]

    def worst(self, rounded: onnxruntime.InferenceSession) -> float:
        return min(self.figures([rounded.run(None, each) for each in self.feeds]))


class Reader(CalibrationDataReader):
    def __init__(self, task: Task) -> None:
        self.get_first, self._left = lambda: task.feeds[0], iter(task.feeds)

    def get_next(self) -> Any:
        return next(self._left, None)


def nncf(task: Task) -> set[str]:
    """The operations that accuracy control takes back."""
    import nncf

    def judged(rounded: Any, places: Sequence[int]) -> tuple[float, list[float]]:
        found = onnxruntime.InferenceSession(rounded.SerializeToString(), providers=["CPUExecutionProvider"])
        figures = task.figures([found.run(None, task.feeds[k]) for k in places], list(places))
        return min(figures), figures

    model, data, most = onnx.load(task.network), nncf.Dataset(task.feeds), {"subset_size": len(task.feeds)}
    places, drop = nncf.Dataset(list(range(len(task.feeds)))), 1.0 - task.target
    controlled = nncf.quantize_with_accuracy_control(model, data, places, judged, max_drop=drop, **most)
    return _quantized(nncf.quantize(model, data, **most)) - _quantized(controlled)


def quark(task: Task) -> set[str]:
    """The nodes that ``auto_mixprecision`` promotes from INT8 to INT16."""
    from quark.onnx import AutoMixprecisionConfig, Int8Spec, Int16Spec, ModelQuantizer, QConfig, QLayerConfig
    from quark.onnx.algorithm.mprecision.mixing_executor import MixingExecutor

    promoted: set[str] = set()
    execute = MixingExecutor.execute

    def noted(self: Any, *given: Any) -> Any:
        model = execute(self, *given)
        promoted.update(self.promoted_nodes)
        return model

    MixingExecutor.execute = noted
    search = AutoMixprecisionConfig(
        QLayerConfig(activation=Int16Spec(), weight=Int16Spec()),
        data_size=len(task.feeds),
        metric_output_index=-1,
        metric_distance_fn=lambda _, found: 1.0 - min(task.figures(found)),
        metric_threshold=1.0 - task.target,
        metric_optimize_object="quality",
    )
    config = QConfig(QLayerConfig(activation=Int8Spec(), weight=Int8Spec()), algo_config=[search])
    ModelQuantizer(config).quantize_model(task.network, None, Reader(task))
    return promoted


def aimet_amp(task: Task) -> set[str]:
    """The nodes whose quantizers AMP leaves at 16 bits."""
    from aimet_onnx import int8, int16
    from aimet_onnx.mixed_precision import analyze_mixed_precision_sensitivity, apply_amp

    sim, pairs = _simulated(task), [(int8, int8), (int16, int16)]
    found = analyze_mixed_precision_sensitivity(sim, pairs, task.worst, task.feeds)
    apply_amp(sim, found, lambda rounded: task.worst(rounded) >= task.target)
    groups = {name: sim.get_op_quantizers(op) for name, op in sim.connected_graph.get_all_ops().items()}
    read = {name: [q.bitwidth for q in (*i, *w.values()) if q.enabled] for name, (i, _, w) in groups.items()}
    return {name for name, widths in read.items() if widths and min(widths) > 8}


def aimet_lite(task: Task) -> set[str]:
    """The least part of the most sensitive layers that ``lite_mp`` must flip to float16 for the target."""
    from aimet_onnx import analyze_per_layer_sensitivity
    from aimet_onnx.lite_mp import flip_layers_to_higher_precision

    found = analyze_per_layer_sensitivity(_simulated(task), task.worst)

    def holds(flipped: Sequence[str]) -> bool:
        sim = _simulated(task)
        flip_layers_to_higher_precision(sim, found, max(0.0, 100 * (len(flipped) - 0.5) / len(found)))
        return task.worst(sim.session) >= task.target

    return set(fewest(sorted(found, key=found.get), holds))


def _simulated(task: Task) -> Any:
    from aimet_onnx import QuantizationSimModel, int8

    sim = QuantizationSimModel(
        onnx.load(task.network), param_type=int8, activation_type=int8, dummy_input=task.feeds[0]
    )
    sim.compute_encodings(task.feeds)
    return sim


def modelopt(task: Task) -> set[str]:
    """The nodes that INT8 quantization leaves without a pair."""
    from modelopt.onnx.quantization import quantize

    with TemporaryDirectory() as folder:
        written = f"{folder}/quantized.onnx"
        options = {"calibration_eps": ["cpu"], "high_precision_dtype": "fp32", "output_path": written}
        quantize(task.network, calibration_data_reader=Reader(task), **options)
        return {node.name for node in onnx.load(task.network).graph.node} - _quantized(onnx.load(written))


def onnx_runtime(task: Task) -> set[str]:
    """The fewest nodes whose tensors the loss debugger finds worst, excluded until ONNX Runtime's INT8 holds."""
    from onnxruntime.quantization import QuantType, qdq_loss_debug, quantize_static

    options = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "per_channel": True}
    options |= {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}}
    with TemporaryDirectory() as folder:
        rounded, saved = f"{folder}/rounded.onnx", [f"{folder}/{k}.onnx" for k in range(2)]

        def holds(excluded: Sequence[str]) -> bool:
            quantize_static(task.network, rounded, Reader(task), nodes_to_exclude=list(excluded), **options)
            return task.worst(session(Path(rounded), "off")) >= task.target

        holds([])
        for path, copy in zip((task.network, rounded), saved, strict=True):
            qdq_loss_debug.modify_model_output_intermediate_tensors(path, copy)
        exact, found = (qdq_loss_debug.collect_activations(copy, Reader(task)) for copy in saved)
        errors = qdq_loss_debug.compute_activation_error(qdq_loss_debug.create_activation_matching(found, exact))
        ratios = {
            node.name: min((errors[name]["qdq_err"] for name in node.input if name in errors), default=np.inf)
            for node in onnx.load(task.network).graph.node
        }
        return set(fewest(sorted(ratios, key=lambda name: ratios[name]), holds))


def _quantized(model: onnx.ModelProto) -> set[str]:
    """The nodes that read a tensor with a Q/DQ pair."""
    pairs = {out for node in model.graph.node if node.op_type == "DequantizeLinear" for out in node.output}
    return {node.name for node in model.graph.node if pairs & set(node.input)}


AIMET = ("aimet-onnx==2.42.0", TORCH, RUNTIME)
TOOLS: dict[str, tuple[str, Sequence[str], Callable[[Task], set[str]]]] = {
    "NNCF": ("nncf", ("nncf==3.4.0", "onnx==1.19.1", RUNTIME), nncf),
    "Quark": ("quark.onnx", ("amd-quark==0.13", TORCH, RUNTIME), quark),
    "AIMET AMP": ("aimet_onnx", AIMET, aimet_amp),
    "AIMET lite_mp": ("aimet_onnx", AIMET, aimet_lite),
    "ModelOpt": ("modelopt.onnx", ("nvidia-modelopt[onnx]==0.47.0", TORCH, "onnxruntime-gpu==1.24.4"), modelopt),
    "ONNX Runtime": ("onnxruntime.quantization", (RUNTIME, "onnx==1.23.2"), onnx_runtime),
}
"""By name the module, whose import is not timed, the packages, and the function."""


def main(tool: str, path: str) -> None:
    module, _, keeps = TOOLS[tool]
    import_module(module)
    asked = json.loads(Path(path).read_text())
    layers = Path(asked.pop("layers"))
    began = time.process_time()
    high = sorted(keeps(Task(**asked)))
    layers.write_text(json.dumps({"high": high, "seconds": time.process_time() - began}))


if __name__ == "__main__":
    main(*sys.argv[1:])
