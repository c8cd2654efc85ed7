"""Small networks with FP16 trouble as it was published, with the layers that are to blame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from tests.support.networks import Sketch, save
from tests.support.norm_in_parts import WIDTH, layer_norm

TOKENS = 4


def encoder(sketch: Sketch, x: str) -> str:
    """Two blocks of attention and feed-forward layers, as in BERT. One channel of the stream is loud before ``ln1``.

    NVIDIA/TensorRT issues 2564 and 3101: BERT and RoBERTa are wrong in FP16, as Pow overflows in a LayerNormalization.
    """
    for block in (0, 1):
        queries = sketch.dense(x, f"q{block}", WIDTH, WIDTH)
        keys = sketch.node("Transpose", [sketch.dense(x, f"k{block}", WIDTH, WIDTH)], f"k{block}_t", perm=[0, 2, 1])
        scores = sketch.node("MatMul", [queries, keys], f"scores{block}")
        scores = sketch.node("Mul", [scores, sketch.constant(f"scale{block}", WIDTH**-0.5)], f"scaled{block}")
        shares = sketch.node("Softmax", [scores], f"softmax{block}", axis=-1)
        mixed = sketch.node("MatMul", [shares, sketch.dense(x, f"v{block}", WIDTH, WIDTH)], f"mixed{block}")
        x = sketch.node("Add", [x, sketch.dense(mixed, f"o{block}", WIDTH, WIDTH)], f"residual{block}")
        if block == 1:
            loud = np.zeros(WIDTH)
            loud[3] = 600.0
            x = sketch.node("Add", [x, sketch.constant("loud", loud)], "loud_add")
        x = layer_norm(sketch, x, f"ln{block}_")
        up = sketch.node("Tanh", [sketch.dense(x, f"up{block}", WIDTH, WIDTH)], f"tanh{block}")
        x = sketch.node("Add", [x, sketch.dense(up, f"down{block}", WIDTH, WIDTH)], f"out{block}")
    return x


def restorer(sketch: Sketch, x: str) -> str:
    """A block of NAFNet on an image: a normalization over channels, a gate (a product of two halves), a residual sum.

    NVIDIA/TensorRT issues 3897 and 4338: NAFNet is wrong or NaN in FP16. Its LayerNorm2d is Pow, ReduceMean, Sqrt and
    Div by itself, with an epsilon of 1e-6. Here pixels are in 0..255 and the first layer makes them four times larger.
    """
    x = sketch.conv(x, "intro", 3, 8)
    x = sketch.node("Mul", [x, sketch.constant("four", 4.0)], "loud_mul")
    y = layer_norm(sketch, x, "norm_", shape=(8, 1, 1), axes=(1,), epsilon=1e-6)
    y = sketch.conv(y, "wide", 8, 16)
    halves = sketch.constant("halves", [8, 8], np.int64)
    sketch.nodes.append(helper.make_node("Split", [y, halves], ["left", "right"], name="split", axis=1))
    y = sketch.conv(sketch.node("Mul", ["left", "right"], "gate"), "narrow", 8, 8)
    return sketch.conv(y, "ending", 8, 3)


def faint(sketch: Sketch, x: str) -> str:
    """Values of about 1e-9 between two layers, which are zero in FP16; FP32 makes them large again."""
    x = sketch.node("Mul", [sketch.dense(x, "fc", WIDTH, WIDTH), sketch.constant("small", 1e-3)], "small_mul")
    x = sketch.node("Mul", [x, x], "tiny")
    x = sketch.node("Mul", [x, sketch.constant("less", 1e-3)], "tinier")
    x = sketch.node("Mul", [x, sketch.constant("more", 3e4)], "larger")
    x = sketch.node("Mul", [x, sketch.constant("most", 3e4)], "largest")
    return sketch.dense(x, "out", WIDTH, WIDTH)


def sequences(count: int = 3) -> np.ndarray:
    """Inputs of ``encoder`` and ``faint``, float32 count x 1 x TOKENS x WIDTH."""
    return np.random.default_rng(11).normal(0, 1, (count, 1, TOKENS, WIDTH)).astype(np.float32)


def images(count: int = 3) -> np.ndarray:
    """Inputs of ``restorer``, float32 count x 1 x 3 x 8 x 8 in 0..255."""
    return np.random.default_rng(12).uniform(0, 255, (count, 1, 3, 8, 8)).astype(np.float32)


NETWORKS = {
    encoder: (sequences, [1, TOKENS, WIDTH]),
    restorer: (images, [1, 3, 8, 8]),
    faint: (sequences, [1, TOKENS, WIDTH]),
}
"""By network the function that makes its inputs, and the shape of its output."""


def written(draw, folder: Path) -> tuple[Path, Path]:
    """Writes a network and its inputs; returns both files."""
    inputs, shape = NETWORKS[draw]
    sketch, values = Sketch(4), inputs()
    model = sketch.model({"x": list(values.shape[1:])}, {draw(sketch, "x"): shape}, opset=13)
    np.savez(folder / "inputs.npz", x=values)
    return save(model, folder), folder / "inputs.npz"
