"""trtexec's rules for its precision flags, and a stand-in that prints its arguments.

trtexec itself needs a GPU. Its rules are written down here once more, from samples/common of NVIDIA/TensorRT 10.13
(sampleOptions.cpp, sampleEngines.cpp, sampleUtils.cpp), apart from the code under test.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import LIMIT

SHORT = {"FLOAT": "fp32", "HALF": "fp16", "INT8": "int8", "INT32": "int32"}


STAND_IN = f"""#!{sys.executable}
import json, sys
print(json.dumps(sys.argv[1:]))
unknown = [word for word in sys.argv[1:] if word.split("=")[0] not in {{
    "--onnx", "--int8", "--fp16", "--noTF32", "--calib", "--precisionConstraints", "--layerPrecisions",
    "--layerOutputTypes", "--stronglyTyped"}}]
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
    options = {}
    for word in argv:
        flag, _, value = word.partition("=")
        options.setdefault(flag, value)
    assert not (options.keys() & {"--layerPrecisions", "--layerOutputTypes"}) or (
        options["--precisionConstraints"] == "obey"
    )
    read = []
    for flag in ("--layerPrecisions", "--layerOutputTypes"):
        entries = {}
        for entry in options.get(flag, "").split(",") if options.get(flag) else []:
            parts = entry.split("'")
            if len(parts) not in (1, 3):
                raise ValueError(f"invalid number of quotes in {entry}")
            name, value = (parts[0] + parts[1], parts[2][1:]) if len(parts) == 3 else entry.rsplit(":", 1)
            entries[name] = value.split("+")
            assert set(entries[name]) <= {"fp32", "fp16", "int8", "int32", "int64", "bool", "uint8"}
        read.append(entries)
    return read


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
            outputs = {
                slot: kind
                for slot, kind in enumerate(outputs)
                if kind != SHORT.get(layer.get_output(slot).dtype.name) or kind in ("fp32", "fp16")
            }
        if precision or outputs:
            asked[layer.name] = (precision and precision[0], outputs or {})
    return asked


def matches(pattern, name):
    start, end = pattern.split("*", 1)
    return len(name) >= len(start) + len(end) and name.startswith(start) and name.endswith(end)


def in_short(asked):
    """Returns the requests in ``Definition.asked`` in trtexec's words."""
    return {
        name: (SHORT.get(precision), {slot: SHORT[kind] for slot, kind in types.items()})
        for name, (precision, types) in asked.items()
    }
