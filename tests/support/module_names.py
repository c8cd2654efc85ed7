"""LeNet with its culprit, whose nodes have names as TorchScript makes them of modules."""

import shutil

import onnx

NAMES = {"conv1": "/body/body.0/Conv", "conv2": "/body/body.1/conv/Conv", "ip1": "/head/head.0/Gemm"}
NAMES |= {"relu1": "/head/Relu", "ip2": "/head/head.1/Gemm", "prob": "/Softmax"}
TITLES = {"/body/body.0/Conv": "body.0", "/body/body.1/conv/Conv": "body.1.conv", "/head/head.0/Gemm": "head.0"}
TITLES |= {"/head/Relu": "head/Relu", "/head/head.1/Gemm": "head.1"}
CULPRIT, MODULE = "/head/head.1/Gemm", "head.1"


def written(lenet, folder):
    """Returns the paths of the network and of its calibration data."""
    model = onnx.load(lenet / "lenet_planted.onnx")
    for node in model.graph.node:
        node.name = NAMES.get(node.name, node.name)
    onnx.save(model, folder / "net.onnx")
    shutil.copy(lenet / "calibration.npz", folder)
    return folder / "net.onnx", folder / "calibration.npz"
