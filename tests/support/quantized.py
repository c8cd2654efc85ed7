"""Networks that ONNX Runtime quantized, and whole files run as they are."""

import numpy as np
import onnx
import onnxruntime as ort

from tests.support.networks import Sketch
from trt_bisect import load_network
from trt_bisect.builder.base import BuildOptions
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import NO_QDQ_FUSION


def plain_session(model, *, optimised=True, integers=False, threads=0):
    """A file, or a model, as ONNX Runtime runs it; node by node where it is not optimised.

    Q/DQ pairs are computed in float, with ``integers`` by INT8 kernels where ONNX Runtime has them.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads leave cores to others
    if not integers:
        options.add_session_config_entry(*NO_QDQ_FUSION)
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def plain_run(model, feeds, **how):
    """The outputs of ``plain_session``."""
    return plain_session(model, **how).run(None, feeds)


def plain_tensors(model, names, samples):
    """Tensors of a file, or a model, by name, those of all samples joined: ONNX Runtime node by node."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model if isinstance(model, onnx.ModelProto) else onnx.load(model))
    known = {value.name for value in exposed.graph.output}
    exposed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = plain_session(exposed, optimised=False)
    runs = [session.run(list(names), sample) for sample in samples]
    return {name: np.concatenate([run[k] for run in runs]).astype(np.float64) for k, name in enumerate(names)}


def in_plan(network, plan, feeds, scales=None):
    """The outputs of a plan's own engine of ONNX Runtime, by name."""
    return OnnxRuntimeBuilder(network, scales or {}, BuildOptions()).build(plan).infer(feeds)


def for_tensorrt(network, scales=None, plan=None):
    """A plan's graph for TensorRT; without a plan, that of all layers low."""
    plan = plan or network.free_plan(network.quantizable)
    return PlanWriter(network, scales or {}, GraphTarget.TENSORRT).write(plan)


def reference(network, feeds):
    scales = dict.fromkeys(network.activations, np.float32(0.05))
    return list(OnnxRuntimeBuilder(network, scales, BuildOptions()).reference().infer(feeds).values())


def same_as_the_file(path, feeds, **options):
    network = load_network(path, **options)
    for ours, theirs in zip(reference(network, feeds), plain_run(path, feeds), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return network


def round_trip(values, scale, zero_point):
    """The values after ONNX Runtime's QuantizeLinear and DequantizeLinear."""
    sketch = Sketch()
    pair = [sketch.constant("s", scale), sketch.constant("z", zero_point, zero_point.dtype)]
    levels = sketch.node("QuantizeLinear", ["x", *pair], "q")
    model = sketch.model({"x": None}, {sketch.node("DequantizeLinear", [levels, *pair], "y"): None}, opset=19)
    return plain_run(model, {"x": values}, optimised=False)[0]


def quantized_by_onnxruntime(path, out, samples, **options):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.feeds = iter(samples)

        def get_next(self):
            return next(self.feeds, None)

    quantize_static(str(path), str(out), Reader(), **{"quant_format": QuantFormat.QDQ, **options})
