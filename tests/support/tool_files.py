"""Files as trtexec and Triton write them, by the sources of these tools."""

import json

import numpy as np


def trtexec_json(path, outputs):
    """Writes ``--exportOutput``: ``exportJSONOutput`` of samples/common/sampleReporting.cpp, whose streams print %g."""
    lines, separator = ["["], "  "
    for name, values in outputs.items():
        lines.append(f'{separator}{{ "name" : "{name}"')
        separator = ", "
        lines.append(f'  , "dimensions" : "{"x".join(map(str, values.shape))}"')
        lines.append(f'  , "values" : [ {", ".join(f"{value:g}" for value in values.ravel().tolist())} ]\n  }}')
    path.write_text("\n".join([*lines, "]\n"]))


def trtexec_dump(folder, tensors, side):
    """Writes ``--dumpRawBindingsToFile``: ``dumpRawBindingToFiles`` of samples/common/sampleInference.cpp."""
    kinds = {"float32": "Float", "float16": "Half", "int64": "Int64", "int32": "Int32"}
    for name, values in tensors.items():
        sizes = ".".join(map(str, values.shape))
        (folder / f"{name.replace('/', '_')}.{side}.{sizes}.{kinds[str(values.dtype)]}.raw").write_bytes(
            values.tobytes()
        )


def triton_json(path, side, tensors):
    """Writes a request or a response of Triton's HTTP protocol."""
    kinds = {"float32": "FP32", "int64": "INT64"}
    entries = [
        {
            "name": name,
            "datatype": kinds[str(values.dtype)],
            "shape": list(values.shape),
            "data": values.ravel().tolist(),
        }
        for name, values in tensors.items()
    ]
    path.write_text(json.dumps({f"{side}s": entries}))


def digits(count=2):
    """Returns some digits of the sample."""
    with np.load("samples/lenet/digits.npz") as data:
        return np.array(data["data"][:count], np.float32).reshape(count, 1, 28, 28)
