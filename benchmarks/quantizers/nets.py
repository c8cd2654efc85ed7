"""The networks that are quantized, in PyTorch with random weights, and the samples for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

SAMPLES = 8


def convolution(inside: int, outside: int, stride: int = 1, group: int = 1, act: type[nn.Module] | None = nn.ReLU):
    parts = [nn.Conv2d(inside, outside, 3, stride, 1, groups=group, bias=False), nn.BatchNorm2d(outside)]
    return nn.Sequential(*parts, *([act()] if act else []))


def classifier(width: int, *body: nn.Module) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(width, width), convolution(width, width, act=None))
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.body(x) + x)


class Downsample(nn.Module):
    """A residual block both of whose branches are convolutions."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(inside, outside, 2), convolution(outside, outside, act=None))
        self.skip = nn.Sequential(nn.Conv2d(inside, outside, 1, 2, bias=False), nn.BatchNorm2d(outside))
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.body(x) + self.skip(x))


class Inverted(nn.Module):
    """MobileNet's block: expand, depthwise, project, and the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.expand = nn.Sequential(nn.Conv2d(width, wide, 1), nn.ReLU6())
        self.depthwise = convolution(wide, wide, group=wide, act=nn.ReLU6)
        self.project = nn.Conv2d(wide, width, 1)

    def forward(self, x):
        return x + self.project(self.depthwise(self.expand(x)))


class Split(nn.Module):
    """YOLO's C2f: SiLU, a part that goes on, and the concatenation of all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = convolution(width, width, act=nn.SiLU)
        self.second = convolution(width, width, act=nn.SiLU)
        self.mix = nn.Sequential(nn.Conv2d(3 * width, width, 1), nn.SiLU())

    def forward(self, x):
        one = self.first(x)
        return self.mix(torch.cat([x, one, one + self.second(one)], 1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        def split(y):
            return y.reshape(1, -1, self.heads, self.size).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        shares = torch.softmax(q @ k.transpose(2, 3) / self.size**0.5, -1)
        return self.out((shares @ v).transpose(1, 2).reshape(1, -1, self.heads * self.size))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, 2)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = convolution(3, 8)
        self.lstm = nn.LSTM(8 * 16, 16, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.conv(x).permute(0, 3, 1, 2).flatten(2)
        return self.head(self.lstm(x)[0])


class Detector(nn.Module):
    """Two scales, an upsampling, shared heads, boxes and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = convolution(3, 8, 2, act=nn.SiLU), convolution(8, 8, 2, act=nn.SiLU)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.mix = convolution(16, 8, act=nn.SiLU)
        self.box, self.score = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 5, 1)

    def forward(self, x):
        fine = self.stem(x)
        coarse = self.down(fine)
        fine = self.mix(torch.cat([fine, self.up(coarse)], 1))
        boxes = torch.cat([self.box(y).flatten(2) for y in (fine, coarse)], 2)
        scores = torch.cat([self.score(y).flatten(2) for y in (fine, coarse)], 2)
        return torch.cat([boxes[:, :2] - boxes[:, 2:].exp() * 0.5, torch.sigmoid(scores)], 1)


NETWORKS = {
    "convolutions": lambda: classifier(8, convolution(3, 8), convolution(8, 8), nn.MaxPool2d(2), convolution(8, 8)),
    "residual": lambda: classifier(12, convolution(3, 8), Residual(8), Downsample(8, 12)),
    "depthwise": lambda: classifier(8, convolution(3, 8, act=nn.ReLU6), Inverted(8), Inverted(8)),
    "silu": lambda: classifier(8, convolution(3, 8, act=nn.SiLU), Split(8)),
    "transformer": Transformer,
    "lstm": Recurrent,
    "detector": Detector,
}


def network(name: str) -> nn.Module:
    """Returns a network with random weights, its BatchNorms with statistics of random inputs."""
    torch.manual_seed(0)
    made = NETWORKS[name]()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.3)
            nn.init.normal_(part.running_mean, 0, 0.2)
            nn.init.uniform_(part.running_var, 0.3, 1.5)
    return made.eval()


def samples() -> np.ndarray:
    """The samples, stacked; all networks take them one at a time."""
    return np.random.default_rng(1).normal(0, 1, (SAMPLES, 3, 16, 16)).astype(np.float32)
