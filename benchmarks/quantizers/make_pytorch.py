"""PyTorch's own: pt2e, and FX fake-quantizers, each written by torch.onnx.export."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from maker import make_all
from nets import network
from torch.ao.quantization import QConfigMapping, get_default_qat_qconfig
from torch.ao.quantization.quantize_fx import prepare_qat_fx
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
    X86InductorQuantizer,
    get_default_x86_inductor_quantization_config,
)
from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

Samples = list[dict[str, np.ndarray]]


def export(model: torch.nn.Module, samples: Samples, out: Path, dynamo: bool) -> None:
    inputs = (torch.from_numpy(samples[0]["x"]),)
    options = {"external_data": False} if dynamo else {"do_constant_folding": False}
    names = {"input_names": ["x"], "output_names": ["y"]}
    with torch.no_grad():
        torch.onnx.export(model, inputs, str(out), opset_version=18, dynamo=dynamo, **names, **options)


def pt2e(source: Path, out: Path, samples: Samples, quantizer: Callable[[], object]) -> None:
    inputs = (torch.from_numpy(samples[0]["x"]),)
    model = prepare_pt2e(torch.export.export(network(source.stem), inputs).module(), quantizer())
    for sample in samples:
        model(torch.from_numpy(sample["x"]))
    export(convert_pt2e(model), samples, out, dynamo=True)


def fake_quantizers(source: Path, out: Path, samples: Samples, backend: str, dynamo: bool) -> None:
    inputs = (torch.from_numpy(samples[0]["x"]),)
    mapping = QConfigMapping().set_global(get_default_qat_qconfig(backend, version=0))
    model = prepare_qat_fx(copy.deepcopy(network(source.stem)).train(), mapping, inputs).eval()
    for sample in samples:
        model(torch.from_numpy(sample["x"]))
    model.apply(torch.ao.quantization.disable_observer)
    export(model, samples, out, dynamo)


def xnnpack(per_channel: bool) -> XNNPACKQuantizer:
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=per_channel))


def x86() -> X86InductorQuantizer:
    return X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())


if __name__ == "__main__":
    make_all(
        "pytorch",
        {
            "pt2e-xnnpack": partial(pt2e, quantizer=partial(xnnpack, False)),
            "pt2e-xnnpack-channel": partial(pt2e, quantizer=partial(xnnpack, True)),
            "pt2e-x86": partial(pt2e, quantizer=x86),
            "fake-quantizers": partial(fake_quantizers, backend="qnnpack", dynamo=False),
            "fake-quantizers-dynamo": partial(fake_quantizers, backend="qnnpack", dynamo=True),
        },
    )
