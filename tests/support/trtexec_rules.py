"""trtexec's rules for its flags, version by version, and a stand-in that prints its arguments.

trtexec itself needs a GPU. Its rules are written down here once more, from samples/common of NVIDIA/TensorRT
(sampleOptions.cpp, sampleEngines.cpp, sampleUtils.cpp), branches release/8.5 to release/11.1, apart from the code under
test.
"""

import subprocess
import sys

from tests.support.waiting import LIMIT

SHORT = {"FLOAT": "fp32", "HALF": "fp16", "INT8": "int8", "INT32": "int32"}


OPTIONS = {
    "--onnx": "8.5 11.1", "--noTF32": "8.5 11.1", "--memPoolSize": "8.5 11.1", "--tacticSources": "8.5 11.1",
    "--minShapes": "8.5 11.1", "--optShapes": "8.5 11.1", "--maxShapes": "8.5 11.1", "--plugins": "8.5 11.1",
    "--useDLACore": "8.5 11.1", "--allowGPUFallback": "8.5 11.1", "--saveEngine": "8.5 11.1",
    "--int8": "8.5 10.16", "--fp16": "8.5 10.16", "--calib": "8.5 10.16", "--precisionConstraints": "8.5 10.16",
    "--layerPrecisions": "8.5 10.16", "--layerOutputTypes": "8.5 10.16", "--optShapesCalib": "8.5 10.16",
    "--staticPlugins": "8.6 11.1", "--builderOptimizationLevel": "8.6 11.1", "--fp8": "8.6 10.16",
    "--bf16": "9.3 10.16", "--stronglyTyped": "9.3 11.1",
}  # fmt: skip
"""The first and the last release in which ``BuildOptions::parse`` and ``SystemOptions::parse`` read an option."""

TYPES = {
    "8.5": "fp32 fp16 int8 int32",
    "8.6": "fp32 fp16 int8 fp8 int32",
    "9.3": "fp32 fp16 bf16 int8 fp8 int32 int64 bool uint8",
}
"""The names in ``stringToValue<DataType>``, from that release on; 10.1 adds int4, and 11 has none."""

SOURCES = {
    "8.5": "CUBLAS CUBLAS_LT CUDNN EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS",
    "11.0": "EDGE_MASK_CONVOLUTIONS JIT_CONVOLUTIONS",
}
"""The names that ``--tacticSources`` compares with, from that release on."""


def release(text):
    """``8.5`` as a pair of numbers."""
    return tuple(map(int, text.split(".")[:2]))


def since(table, version):
    """The entry of the last release in ``table`` that is not after ``version``."""
    return table[max((key for key in table if release(key) <= release(version)), key=release)].split()


def read(argv, version, inputs):
    """Returns the options that trtexec of a release reads, or raises AssertionError where it stops.

    ``inputs`` has the shape of each input of the network, None for a dynamic axis. The options come back by name, and
    the profile by input as ``IOptimizationProfile`` gets it.
    """
    options = {}
    for word in argv:
        flag, _, value = word.partition("=")
        assert flag in OPTIONS, f"Unknown option: {word}"
        first, last = OPTIONS[flag].split()
        assert release(first) <= release(version) <= release(last), f"Unknown option: {word}"
        options.setdefault(flag, []).append(value)
    for flag, values in options.items():
        assert len(values) == 1 or flag in ("--plugins", "--staticPlugins"), f"Unknown option: {flag}"
    for flag in ("--layerPrecisions", "--layerOutputTypes"):
        layer_entries(options.get(flag, [""])[0], version)
    if "--memPoolSize" in options:
        pool, size = options["--memPoolSize"][0].split(":")
        assert pool == "workspace", f"Unknown memory pool: {pool}"
        options["--memPoolSize"] = [float(size) * 2**20]
    if "--tacticSources" in options:
        signs = {entry[1:]: entry[0] for entry in options["--tacticSources"][0].split(",")}
        assert set(signs.values()) <= {"+", "-"}
        assert set(signs) <= set(since(SOURCES, version)), "Unknown tactic source"
        options["--tacticSources"] = [{name for name, sign in signs.items() if sign == "+"}]
    given = [_shapes(options[flag][0]) for flag in ("--minShapes", "--optShapes", "--maxShapes") if flag in options]
    dynamic = {name for name, shape in inputs.items() if None in shape}
    if given:
        assert len(given) == 3
        assert dynamic, "Static model does not take explicit shapes"
        assert all(set(shapes) <= set(inputs) for shapes in given), "Cannot find input tensor"
    if "--optShapesCalib" in options:
        assert set(_shapes(options["--optShapesCalib"][0])) == set(inputs), "Calibration profile cannot be found!"
    ones = {name: tuple(size or 1 for size in inputs[name]) for name in dynamic}
    profile = {name: tuple(shapes.get(name, ones[name]) for shapes in given or [{}] * 3) for name in dynamic}
    return options, profile


def _shapes(text):
    entries = (entry.rsplit(":", 1) for entry in text.split(","))
    return {name: tuple(map(int, dims.split("x"))) for name, dims in entries}


STAND_IN = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
unknown = [word for word in sys.argv[1:] if word.split("=")[0] not in {sorted(OPTIONS)}]
for word in unknown:
    print("Unknown option:", word, file=sys.stderr)
sys.exit(1 if unknown else 0)
"""


def documented(folder, tools):
    """Runs the README's command line in a recipe's folder; ``trtexec`` there prints its arguments."""
    line = "grep -v '^#' trtexec.flags | xargs trtexec --onnx=network.onnx"
    return subprocess.run(["bash", "-c", line], cwd=folder, env=tools, capture_output=True, text=True, timeout=LIMIT)


def by_rules(argv):
    """The precisions and output types that trtexec reads in its arguments, by layer name."""
    options = dict(word.partition("=")[::2] for word in argv)
    texts = [options.get(flag, "") for flag in ("--layerPrecisions", "--layerOutputTypes")]
    assert not any(texts) or options["--precisionConstraints"] == "obey"
    return [layer_entries(text, "10.0") for text in texts]


def layer_entries(text, version):
    """The types of each layer in the value of an option."""
    entries = {}
    for entry in text.split(",") if text else []:
        parts = entry.split("'")
        if len(parts) not in (1, 3):
            raise ValueError(f"invalid number of quotes in {entry}")
        name, value = (parts[0] + parts[1], parts[2][1:]) if len(parts) == 3 else entry.rsplit(":", 1)
        entries[name] = value.split("+")
        assert set(entries[name]) <= set(since(TYPES, version)), f"Invalid DataType {value}"
    return entries


def obeyed(argv, definition):
    """Returns trtexec's requests for the layers of a parsed network: precision, and output types by position."""
    precisions, types = by_rules(argv)

    def entry(entries, name):
        plausible = (key for key in entries if "*" in key and matches(key, name))
        return entries.get(name) or entries.get(next(plausible, None))

    asked = {}
    for i in range(definition.num_layers):
        layer = definition.get_layer(i)
        precision, outputs = entry(precisions, layer.name), entry(types, layer.name)
        if outputs is not None:
            assert len(outputs) in (1, layer.num_outputs), "Invalid --layerOutputTypes flag."
            outputs = outputs * layer.num_outputs if len(outputs) == 1 else outputs
            own = [SHORT.get(layer.get_output(slot).dtype.name) for slot in range(layer.num_outputs)]
            outputs = {k: kind for k, kind in enumerate(outputs) if kind != own[k] or kind in ("fp32", "fp16")}
        if precision or outputs:
            asked[layer.name] = (precision and precision[0], outputs or {})
    return asked


def matches(pattern, name):
    start, end = pattern.split("*", 1)
    return len(name) >= len(start) + len(end) and name.startswith(start) and name.endswith(end)


def in_short(asked):
    """Returns the requests in ``Definition.asked`` in trtexec's words."""
    types = {name: {slot: SHORT[kind] for slot, kind in told.items()} for name, (_, told) in asked.items()}
    return {name: (SHORT.get(precision), types[name]) for name, (precision, _) in asked.items()}
