"""Ten networks of PyTorch with one culprit each: a channel of what it reads is a thousand times larger than the others.

The layer before makes the channel larger and the culprit's weights make up for it, so that the network computes the
same; between the two are only layers that pass a factor on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torchvision
from torch import nn

_FACTOR = 1000.0


@dataclass(frozen=True)
class Planted:
    """A network: how it is made, the layer whose first output channel is enlarged, and the layers that read it."""

    name: str
    make: Callable[[], nn.Module]
    before: str
    culprits: tuple[str, ...]
    shape: tuple[int, ...] = (3, 32, 32)


class Branches(nn.Module):
    """Branches whose outputs are joined, as in GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.short = nn.Conv2d(32, 16, 1)
        self.long = nn.Sequential(nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, 16, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.cat([0.1 * self.short(x), self.long(x)], 1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + 0.1 * x)


class Mixer(nn.Module):
    """LayerNorm and two linear layers, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.1 * x + self.fc2(torch.relu(self.fc1(self.norm(x))))


class Attention(nn.Module):
    """Reads ``qkv`` by a function, as Swin does; the module itself is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = nn.functional.linear(self.norm(x), self.qkv.weight, self.qkv.bias).chunk(3, -1)
        return 0.1 * x + self.proj(torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v)


def _convolutions(*inside: nn.Module, width: int = 32) -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, 16))
    return nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), *inside, *head)


def _chain(*after: type[nn.Module], depth: int = 4) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers.append(nn.Conv2d(32, 32, 3, padding=1))
        layers += [
            kind(32) if kind is nn.BatchNorm2d else kind(2) if kind is nn.MaxPool2d else kind() for kind in after
        ]
    return layers


def _tokens(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), *blocks, nn.Linear(64, 16))


def _torchvision(name: str) -> Callable[[], nn.Module]:
    return lambda: torchvision.models.get_model(name, weights=None)


TOKENS = (16, 64)
NETWORKS = (
    Planted("linear", lambda: _tokens(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()), "2", ("4",), TOKENS),
    Planted("convolutions", lambda: _convolutions(*_chain(nn.ReLU)), "4", ("6",)),
    Planted("normalizations", lambda: _convolutions(*_chain(nn.BatchNorm2d, nn.ReLU)), "6", ("8",)),
    Planted("pools", lambda: _convolutions(*_chain(nn.ReLU, nn.MaxPool2d, depth=2)), "2", ("5",)),
    Planted("first", lambda: _convolutions(*_chain(nn.ReLU, depth=2)), "0", ("2",)),
    Planted("residuals", lambda: _convolutions(Residual(), Residual(), Residual()), "3.bn1", ("3.conv2",)),
    Planted("branches", lambda: _convolutions(Branches(), Branches(), Branches()), "3.long.0", ("3.long.2",)),
    Planted("mixer", lambda: _tokens(Mixer(), Mixer(), Mixer()), "3.norm", ("3.fc1",), TOKENS),
    Planted("attention", lambda: _tokens(Attention(), Mixer()), "2.norm", ("2.qkv",), TOKENS),
    Planted(
        "squeezenet1_1",
        _torchvision("squeezenet1_1"),
        "features.3.squeeze",
        ("features.3.expand1x1", "features.3.expand3x3"),
    ),
)


def planted(network: Planted) -> nn.Module:
    """Returns the network in evaluation mode, with its culprit."""
    torch.manual_seed(0)
    module = network.make().eval()
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):  # the outputs vary with the input
            nn.init.kaiming_normal_(layer.weight)
    with torch.no_grad():
        before = module.get_submodule(network.before)
        before.weight[0] *= _FACTOR
        if before.bias is not None:
            before.bias[0] *= _FACTOR
        for culprit in network.culprits:
            module.get_submodule(culprit).weight[:, 0] /= _FACTOR
    return module
