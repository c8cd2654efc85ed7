"""The recipe in the forms that other tools read."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trt_bisect.calibration.cache import format_cache
from trt_bisect.errors import MAKE_ROOM, BadInput
from trt_bisect.model.file import save_model
from trt_bisect.model.network import Network
from trt_bisect.model.qdq import PlanWriter, Target, Written
from trt_bisect.precision import Precision, PrecisionPlan
from trt_bisect.runs.folder import make_folder, write_whole

QDQ_NETWORK = "network.qdq.onnx"
CACHE = "calibration.cache"
TRTEXEC = "trtexec.flags"
POLYGRAPHY = "polygraphy_postprocess.py"
MODELOPT = "modelopt_nodes_to_exclude.json"
PLAN = "plan.json"
_UNSAYABLE = ":,*\n"
"""What a name in trtexec's lists, one flag a line, cannot hold."""

TRT_TYPES = {Precision.FP32: "float32", Precision.FP16: "float16"}


@dataclass(frozen=True)
class RecipeFiles:
    """The recipe's files: small ones as text, the Q/DQ network apart.

    Attributes:
        texts: by file name.
        network: the Q/DQ network with the layers left high without pairs.
    """

    texts: Mapping[str, str]
    network: Written

    def write(self, folder: Path) -> None:
        """Writes the files.

        Raises:
            BadInput: the folder cannot be written.
        """
        make_folder(folder)
        for name, text in self.texts.items():
            write_whole(folder / name, text.encode())
        beside = folder / f".{QDQ_NETWORK}-{os.getpid()}"
        try:
            beside.mkdir(exist_ok=True)
            for file in reversed(save_model(self.network.model, self.network.weights, beside / QDQ_NETWORK)):
                file.replace(folder / file.name)
        except OSError as error:
            raise BadInput(f"'{folder / QDQ_NETWORK}' cannot be written: {error.strerror}.", MAKE_ROOM) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def recipe_files(
    network: Network, scales: Mapping[str, np.float32], plan: PrecisionPlan, high: Precision
) -> RecipeFiles:
    """The files of a plan.

    Args:
        scales: of all activations, for the calibration cache and the Q/DQ network.
        plan: as the recipe has it.
        high: the precision of the layers that are never in INT8.
    """
    in_int8 = {layer.index for layer in network.layers if layer.quantizable} & plan.int8
    kept = {
        layer.name: plan.precisions[layer.index] if layer.quantizable else high
        for layer in network.layers
        if layer.roundings and layer.index not in in_int8
    }
    texts = {
        PLAN: plan_json(network, kept, high),
        TRTEXEC: trtexec_flags(kept, with_cache=bool(scales)),
        POLYGRAPHY: polygraphy_script(kept),
        MODELOPT: modelopt_list(list(kept)),
    }
    if scales:
        texts[CACHE] = format_cache(scales)
    return RecipeFiles(texts, PlanWriter(network, scales, Target.TENSORRT).write(plan))


def plan_json(network: Network, kept: Mapping[str, Precision], high: Precision) -> str:
    """The precision of every layer that INT8 would round at, by name."""
    layers = {layer.name: str(kept.get(layer.name, Precision.INT8)) for layer in network.layers if layer.roundings}
    return json.dumps({"model": network.source, "high": str(high), "layers": layers}, indent=1) + "\n"


def trtexec_flags(kept: Mapping[str, Precision], *, with_cache: bool) -> str:
    """Flags for trtexec with weak typing, one a line, quoted for ``xargs``; what it cannot name is in a comment.

    Source of the syntax: ``trtexec --help``: ``--layerPrecisions=spec``, ``spec ::= layerName ":" precision``, joined
    by commas.
    """
    flags, unsayable = trtexec_arguments(kept, CACHE if with_cache else None)
    lines = [shlex.quote(flag) for flag in flags]
    if unsayable:
        lines.append(f"# trtexec cannot name {unsayable}; use {POLYGRAPHY} or {QDQ_NETWORK} for these layers")
    return "\n".join(lines) + "\n"


def trtexec_arguments(kept: Mapping[str, Precision], cache: str | None) -> tuple[list[str], list[str]]:
    """The flags that keep layers high, with a calibration cache if there is one, and the layers it cannot name."""
    sayable = {name: precision for name, precision in kept.items() if not set(name) & set(_UNSAYABLE)}
    flags = ["--int8", *(["--fp16"] if Precision.FP16 in kept.values() else [])]
    if cache:
        flags.append(f"--calib={cache}")
    if sayable:
        spec = ",".join(f"{name}:{precision}" for name, precision in sayable.items())
        flags += ["--precisionConstraints=obey", f"--layerPrecisions={spec}", f"--layerOutputTypes={spec}"]
    return flags, [name for name in kept if name not in sayable]


def modelopt_list(kept: list[str]) -> str:
    """``nodes_to_exclude`` for ``modelopt.onnx.quantization.quantize``, which takes patterns, not names.

    They may be matched at the beginning of a name alone, so each ends where its name does: ``conv1`` is not ``conv10``.
    """
    return json.dumps({"nodes_to_exclude": [f"^{re.escape(name)}$" for name in kept]}, indent=1) + "\n"


def polygraphy_script(kept: Mapping[str, Precision]) -> str:
    """A script for Polygraphy's ``--trt-network-postprocess-script``, for ``--precision-constraints obey``."""
    types = {name: TRT_TYPES[precision] for name, precision in kept.items()}
    fp16 = " --fp16" if Precision.FP16 in kept.values() else ""
    return f'''"""Keeps the layers that trt-bisect found to lose accuracy in INT8 in higher precision.

polygraphy convert MODEL --int8{fp16} --calibration-cache {CACHE} --precision-constraints obey \\\\
    --trt-network-postprocess-script {POLYGRAPHY} -o model.engine
"""

import tensorrt as trt

KEPT_HIGH = {json.dumps(types, indent=4)}


def postprocess(network):
    kept = {{name: getattr(trt, kind) for name, kind in KEPT_HIGH.items()}}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.name not in kept:
            continue
        precision = kept.pop(layer.name)
        layer.precision = precision
        for slot in range(layer.num_outputs):
            if layer.get_output(slot).dtype == trt.float32:
                layer.set_output_type(slot, precision)
    if kept:
        raise RuntimeError(f"the network has no layers {{sorted(kept)}}: it is not the one that was measured")
'''
