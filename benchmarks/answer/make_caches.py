"""Caches of other tools' scales: ``python make_caches.py NETWORK.onnx INPUTS.npz TOOL CHANGE FOLDER``.

Writes ``FOLDER/network.onnx`` (NETWORK after CHANGE) and ``FOLDER/scales.cache`` (scales of NETWORK itself). It runs in
an environment of its own, with the tools and without trt-bisect.
"""

import struct
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static, write_calibration_table
from onnxruntime.quantization.calibrate import CalibrationDataReader, create_calibrator

SAMPLES = 8


class Reader(CalibrationDataReader):
    def __init__(self, feeds):
        self._rest = iter(feeds)

    def get_next(self):
        return next(self._rest, None)


def read(network, path):
    inputs = ort.InferenceSession(network, providers=["CPUExecutionProvider"]).get_inputs()
    with np.load(path) as file:
        arrays = {spec.name: (file[spec.name], file[spec.name].ndim == len(spec.shape)) for spec in inputs}
    count = min(SAMPLES, *(len(array) for array, _ in arrays.values()))
    return [{n: a[k : k + 1] if is_batch else a[k] for n, (a, is_batch) in arrays.items()} for k in range(count)]


def onnxruntime_pairs(network, feeds, folder):
    quantize_static(
        network,
        folder / "pairs.onnx",
        Reader(feeds),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
    )
    return folder / "pairs.onnx"


def onnxruntime_table(network, feeds, folder):
    calibrator = create_calibrator(network, augmented_model_path=str(folder / "augmented.onnx"))
    calibrator.collect_data(Reader(feeds))
    write_calibration_table(calibrator.compute_data().data, str(folder))
    (folder / "calibration.cache").rename(folder / "scales.cache")


def nncf(network, feeds, folder):
    import nncf as tool

    preset, data = tool.QuantizationPreset.PERFORMANCE, tool.Dataset(feeds)
    quantized = tool.quantize(onnx.load(network), data, preset=preset, subset_size=len(feeds))
    onnx.save(quantized, folder / "pairs.onnx")
    return folder / "pairs.onnx"


def modelopt(network, feeds, folder):
    from modelopt.onnx.quantization import quantize

    data = {name: np.concatenate([sample[name] for sample in feeds]) for name in feeds[0]}
    quantize(
        network,
        "int8",
        data,
        calibration_eps=["cpu"],
        output_path=str(folder / "pairs.onnx"),
        high_precision_dtype="fp32",
    )
    return folder / "pairs.onnx"


def scales_of(path):
    """By tensor, the scale of its symmetric pair; of 0 to 255, that of -127 to 127 with the same largest value."""
    graph = onnx.load(path).graph
    constants = {constant.name: numpy_helper.to_array(constant) for constant in graph.initializer}
    constants |= {n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"}
    scales = {}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in constants and constants[node.input[1]].size == 1:
            scale, zero = np.float32(constants[node.input[1]]), constants[node.input[2]]
            if zero == (128 if zero.dtype == np.uint8 else 0):
                scales[node.input[0]] = scale
            elif zero == 0:
                scales[node.input[0]] = np.float32(scale * np.float32(255 / 127))
    return scales


def onnxsim(model):
    import onnxsim as tool

    return tool.simplify(model)[0]


def onnxslim(model):
    import onnxslim as tool

    return tool.slim(model)


def main(network, inputs, tool, change, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = globals()[tool](network, read(network, inputs), folder)
    if pairs:
        lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in scales_of(pairs).items()]
        (folder / "scales.cache").write_text("\n".join(["TRT-8601-EntropyCalibration2", *lines, ""]))
    model = onnx.load(network)
    onnx.save(globals()[change](model) if change != "none" else model, folder / "network.onnx")


if __name__ == "__main__":
    main(*sys.argv[1:])
