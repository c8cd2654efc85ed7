"""The layers that NNCF's accuracy control returns to floats. Runs in an environment of its own, without trt-bisect.

python nncf_control.py NETWORK.onnx GIVEN.npz TARGET LAYERS.json
"""

import json
import sys
import time
from pathlib import Path

import nncf
import numpy as np
import onnx
import onnxruntime


def main(network: str, samples: str, target: str, layers: str) -> None:
    model = onnx.load(network)
    exact = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    feeds = _samples(samples, {each.name: len(each.shape) for each in exact.get_inputs()})
    names = [each.name for each in exact.get_outputs()]
    references = [exact.run(names, each) for each in feeds]

    def judged(rounded, indices):
        found = onnxruntime.InferenceSession(rounded.SerializeToString(), providers=["CPUExecutionProvider"])
        figures = [min(map(_cosine, references[k], found.run(names, feeds[k]))) for k in indices]
        return min(figures), figures

    began = time.process_time()
    calibration = nncf.Dataset(feeds)
    plain = nncf.quantize(model, calibration, subset_size=len(feeds))
    controlled = nncf.quantize_with_accuracy_control(
        model,
        calibration,
        nncf.Dataset(list(range(len(feeds)))),
        judged,
        max_drop=1.0 - float(target),
        subset_size=len(feeds),
    )
    high = sorted(_quantized(plain) - _quantized(controlled))
    Path(layers).write_text(json.dumps({"high": high, "seconds": time.process_time() - began}))


def _samples(path, ranks):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    count = len(next(iter(arrays.values())))
    return [{n: a[k] if a.ndim > ranks[n] else a[k : k + 1] for n, a in arrays.items()} for k in range(count)]


def _cosine(a, b):
    x, y = np.ravel(a).astype(np.float64), np.ravel(b).astype(np.float64)
    sizes = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / sizes if sizes else float(np.array_equal(x, y))


def _quantized(model):
    """The nodes that read a tensor with a Q/DQ pair."""
    pairs = {out for node in model.graph.node if node.op_type == "DequantizeLinear" for out in node.output}
    return {node.name for node in model.graph.node if pairs & set(node.input)}


if __name__ == "__main__":
    main(*sys.argv[1:])
