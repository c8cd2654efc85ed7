"""Module names of exported networks, against PyTorch's own: the module that holds the weight of a layer.

Each network is exported by both exporters and read by ``load_network``. For every layer with a weight, PyTorch is asked
which of its parameters that weight is: of the same numbers but for a factor of each output channel, which the fusion of
a BatchNormalization changes. The layer's module has to be the one that holds it.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
from torch import nn

from trt_bisect.model.layers import Layer
from trt_bisect.model.network import Network, load_network

TORCHVISION = (
    "resnet18 resnet50 mobilenet_v2 mobilenet_v3_small efficientnet_b0 squeezenet1_1 densenet121 shufflenet_v2_x1_0 "
    "googlenet mnasnet0_5 regnet_y_400mf convnext_tiny vgg11_bn alexnet vit_b_16 swin_t"
).split()
TIMM = (
    "resnet10t mobilenetv3_small_100 efficientformerv2_s0 levit_128s ghostnet_100 repvgg_a0 deit_tiny_patch16_224 "
    "mixer_s32_224 poolformer_s12 hardcorenas_a lcnet_050 tinynet_e edgenext_xx_small mobilevit_xxs"
).split()


def networks() -> Iterator[tuple[str, nn.Module]]:
    for name in TORCHVISION:
        options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
        yield f"torchvision {name}", torchvision.models.get_model(name, weights=None, **options)
    for name in TIMM:
        yield f"timm {name}", timm.create_model(name, pretrained=False)


def exported(module: nn.Module, folder: Path, *, dynamo: bool) -> Path:
    path = folder / ("dynamo.onnx" if dynamo else "torchscript.onnx")
    picture = torch.randn(1, 3, 224, 224)
    with warnings.catch_warnings(), redirect_stdout(StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (picture,), path, dynamo=dynamo, **({"external_data": False} if dynamo else {}))
    return path


def shuffled(module: nn.Module) -> nn.Module:
    """Returns a module in which no two parameters have the same numbers, and normalizations do something."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    for name, buffer in module.named_buffers():
        if name.endswith("running_var"):
            buffer.data = torch.rand(buffer.shape, generator=generator) + 0.5
    return module.eval()


def directions(weight: np.ndarray) -> frozenset[tuple[float, ...]]:
    """Returns the output channels of a weight without their length and sign, as far as 3 digits tell them apart."""
    rows = weight.reshape(len(weight), -1).astype(np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    first = np.sign(rows[:, :1])
    return frozenset(tuple(np.round(row[:6], 3)) for row in rows * first)


def near(one: frozenset[tuple[float, ...]], other: frozenset[tuple[float, ...]]) -> bool:
    return len(one & other) * 2 > max(len(one), len(other))


def owners_of(module: nn.Module) -> dict[int, list[tuple[str, frozenset[tuple[float, ...]]]]]:
    """Returns by the number of values the modules that hold parameters of so many, and their directions."""
    owners: dict[int, list] = {}
    for name, parameter in module.named_parameters():
        path = name.rpartition(".")[0]
        if parameter.ndim > 1 and path:
            owners.setdefault(parameter.numel(), []).append((path, directions(parameter.detach().numpy())))
    return owners


def asked(network: Network, layer: Layer, owners: dict) -> str | None:
    """Returns the module that holds the weight of a layer, as PyTorch has it; None if it holds none of them."""
    weight = next((network.constant(r.tensor) for r in layer.roundings if r.is_weight), None)
    if weight is None or weight.ndim < 2:
        return None
    forms = [weight, np.moveaxis(weight, -1, 0), np.moveaxis(weight, 1, 0)]
    for path, shape in owners.get(weight.size, []):
        if any(near(directions(form), shape) for form in forms):
            return path
    return None


def check(module: nn.Module, path: Path) -> tuple[int, int, list[str]]:
    """Returns the layers with a weight, those whose module PyTorch knows, and what is wrong with others."""
    network, owners, wrong, found = load_network(path), owners_of(module), [], 0
    weighted = [layer for layer in network.layers if layer.has_weight]
    for layer in weighted:
        path_in_torch = asked(network, layer, owners)
        if path_in_torch is None:
            continue
        found += 1
        if layer.module.split(" ")[0] != path_in_torch:
            wrong.append(f"{layer.name}: {layer.module!r} and not {path_in_torch!r}")
    return len(weighted), found, wrong


def main() -> int:
    right = total = 0
    for name, network in networks():
        module = shuffled(network)
        for dynamo in (True, False):
            kind = "dynamo" if dynamo else "TorchScript"
            with tempfile.TemporaryDirectory() as folder:
                try:
                    path = exported(module, Path(folder), dynamo=dynamo)
                except Exception as error:
                    print(f"{name:40} {kind:12} not exported: {str(error).splitlines()[0][:80]}", flush=True)
                    continue
                layers, found, wrong = check(module, path)
            total += 1
            right += not wrong and found > 0
            print(f"{name:40} {kind:12} {found:4} of {layers:4} layers", *wrong[:3], sep="  ", flush=True)
    print(f"{right} of {total} exports right")
    return 0 if right == total else 1


if __name__ == "__main__":
    raise SystemExit(main())
