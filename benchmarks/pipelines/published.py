"""Pipelines of published networks, with a culprit planted in one of them: speech and text from packages.

The packages are those of ``benchmarks.answer published``, in the same environment under ``.bench``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.answer.judge import Outputs
from benchmarks.answer.published import make_networks
from benchmarks.measure import ROOT, WORK
from benchmarks.pipelines.subject import Nets, Subject

NAME = "published"
"""The names of these pipelines begin so."""
FACTOR = 3000.0
_WINDOW, _HOP, _EMBEDDINGS = 76, 8, 34
_FRAMES, _CHUNK, _CONTEXT = 8, 512, 64
_RATE = 16_000
_HEIGHT, _WIDEST = 48, 320
_SURE = 0.9
"""RapidOCR turns a line only if the probability that it is upside down is larger."""


def subjects() -> Iterator[Subject]:
    """Yields the pipelines; layers that turn sound into a spectrum stay high."""
    site = _site()
    wake, ocr = site / "openwakeword/resources/models", site / "rapidocr_onnxruntime/models"
    files = {
        "spectrum": wake / "melspectrogram.onnx",
        "embedding": wake / "embedding_model.onnx",
        "words": wake / "timer_v0.1.onnx",
        "silero": site / "silero_vad/data/silero_vad_openvino_16k.onnx",
        "akiki": site / "akiki/models/akiki-vad.onnx",
        "turn": ocr / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "detector": ocr / "ch_PP-OCRv4_det_infer.onnx",
        "reader": ocr / "ch_PP-OCRv4_rec_infer.onnx",
    }
    models = {name: onnx.load(file) for name, file in files.items()}

    def of(*names: str) -> dict[str, onnx.ModelProto]:
        return {name: models[name] for name in names}

    word = Subject(
        "spoken word", spoken_word, of("spectrum", "embedding", "words"), "", 0.95, _few, ("spectrum/*",), "minmax"
    )
    convolution = "model/conv2d_{}/Conv2D_{}_fused_bn"
    made = convolution.format(3, "weights"), convolution.format(3, "bias")
    yield _planted(word, "embedding/model/conv2d_4/Conv2D", made, convolution.format(4, "weights"), 5)
    yield _planted(word, "words/Gemm_3", ("model.1.weight", "model.1.bias"), "model.3.weight", 92)
    spectra = "silero/*stft*", *(f"akiki//model/{layer}" for layer in ("Conv", "Mul*", "Add", "Sqrt"))
    voices = Subject("two voices", two_voices, of("silero", "akiki"), "", 0.95, _sounds, spectra)
    encoder = "F0::If_0_then_branch__Inline_0__encoder.{}.reparam_conv.{}"
    made = encoder.format(0, "weight"), encoder.format(0, "bias")
    culprit = "silero/F0::If_0_then_branch__Inline_0__/encoder/1/reparam_conv/Conv"
    yield _planted(voices, culprit, made, encoder.format(1, "weight"), 5)
    encoder = "model.encoder.{}.{}"
    made = encoder.format(1, "weight"), encoder.format(1, "bias")
    yield _planted(voices, "akiki//model/encoder.2/Conv", made, encoder.format(2, "weight"), 5)
    line = Subject("turned line", turned_line, of("turn", "reader"), "", 0.8, _lines, calibrator="minmax")
    made = "conv2_linear_bn_scale", "conv2_linear_bn_offset"
    yield _planted(line, "turn/Conv@6", made, "conv3_expand_weights", 3)
    page = Subject("page", read_page, of("detector", "reader"), "", 0.8, _tiles, calibrator="minmax")
    made = "batch_norm_0.w_0", "batch_norm_0.b_0"
    yield _planted(page, "detector/p2o.ConvTranspose.0", made, "conv2d_transpose_0.w_0", 3, axis=0)


def spoken_word(nets: Nets, sound: np.ndarray) -> Outputs:
    """openWakeWord: a spectrum, an embedding of each window of it, called in a loop, and a network of words."""
    spectrum = nets["spectrum"]({"input": 32767 * sound[None]})["output"].reshape(-1, 32, 1) / 10 + 2
    starts = range(0, _HOP * _EMBEDDINGS, _HOP)
    windows = [spectrum[None, start : start + _WINDOW] for start in starts]
    found = [nets["embedding"]({"input_1": window})["conv2d_19"].ravel() for window in windows]
    (words,) = nets["words"]({"onnx::Flatten_0": np.stack(found)[None]}).values()
    return {"words": words, "embeddings": np.stack(found)}


def two_voices(nets: Nets, sound: np.ndarray) -> Outputs:
    """Silero's and akiki's detectors of speech, each with its own state carried over eight frames."""
    state, hidden = np.zeros((2, 1, 128), np.float32), np.zeros((1, 1, 128), np.float32)
    speech: list[np.ndarray] = []
    first = _RATE // 2 + _CHUNK
    for start in range(first, first + _FRAMES * _CHUNK, _CHUNK):
        frame = sound[None, start - _CONTEXT : start + _CHUNK]
        silero = nets["silero"]({"input": frame, "state": state})
        akiki = nets["akiki"]({"audio_with_context": frame, "h": hidden})
        state, hidden = silero["stateN"], akiki["h_out"]
        speech.append(np.array([silero["output"].item(), akiki["probability"].item()], np.float32))
    return {"speech": np.stack(speech)}


def turned_line(nets: Nets, line: np.ndarray) -> Outputs:
    """RapidOCR's classifier tells whether a line is upside down; its recogniser reads the line turned so."""
    turned = nets["turn"]({"x": _resized(line, 192)})["save_infer_model/scale_0.tmp_1"]
    upright = line[..., ::-1, ::-1] if turned[0, 1] > _SURE else line
    return {"turned": turned, "letters": nets["reader"]({"x": np.ascontiguousarray(upright)})["softmax_11.tmp_0"]}


def read_page(nets: Nets, page: np.ndarray) -> Outputs:
    """RapidOCR's detector finds the lines of a page; its recogniser reads each."""
    heat = nets["detector"]({"x": page})["sigmoid_0.tmp_0"][0, 0]
    lines, letters = [], []
    inked = np.flatnonzero(np.diff(np.pad((heat > 0.3).any(axis=1).astype(int), 1)))
    for top, bottom in inked.reshape(-1, 2):
        if bottom - top >= 4:
            columns = np.flatnonzero((heat[top:bottom] > 0.3).any(axis=0))
            left, right = columns[0], columns[-1] + 1
            crop = page[..., max(top - 3, 0) : bottom + 3, max(left - 3, 0) : right + 3]
            lines.append([left, top, right, bottom])
            letters.append(nets["reader"]({"x": _resized(crop, _WIDEST)})["softmax_11.tmp_0"][0])
    return {"lines": np.array(lines, np.float32).reshape(-1, 4), "letters": np.reshape(letters, (-1, 6625))}


def _resized(picture: np.ndarray, width: int) -> np.ndarray:
    """Returns a picture 48 high, by its nearest pixels."""
    rows, columns = (np.arange(new) * old // new for new, old in zip((_HEIGHT, width), picture.shape[2:], strict=True))
    return np.ascontiguousarray(picture[:, :, rows[:, None], columns])


def _planted(subject: Subject, culprit: str, made: tuple[str, ...], read: str, channel: int, axis: int = 1) -> Subject:
    """Raises a channel where weights make it and lowers it where the culprit reads it: the same in FP32.

    Args:
        made: the constants that make the channel, on their first axis.
        read: the culprit's weights, which read it on ``axis``.
    """
    at, model = culprit.partition("/")[0], onnx.ModelProto()
    model.CopyFrom(subject.networks[at])
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"}
    for name in (*made, read):
        values = numpy_helper.to_array(constants[name]).copy()
        if name == read:
            np.moveaxis(values, axis, 0)[channel] /= FACTOR
        else:
            values[channel] *= FACTOR
        constants[name].CopyFrom(numpy_helper.from_array(values, name))
    networks = {**subject.networks, at: model}
    return replace(subject, name=f"{NAME}, {subject.name}, {at}", networks=networks, culprit=culprit)


@cache
def _site() -> Path:
    make_networks()
    (site,) = (WORK / "published" / "lib").glob("python*/site-packages")
    return site


@cache
def _sounds() -> list[np.ndarray]:
    file = WORK / "speech.npy"
    python, maker = WORK / "published" / "bin" / "python", Path(__file__).with_name("make_speech.py")
    without_ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    _site()
    subprocess.run([python, maker, file], check=True, env=without_ours)
    return list(np.load(file))


def _few() -> list[np.ndarray]:
    return _sounds()[:4]


def _lines() -> list[np.ndarray]:
    """Six lines of text, each second one upside down."""
    _site()
    with np.load(WORK / "published-networks" / "recogniser" / "given.npz") as given:
        lines = given["x"][:6, None]
    return [line[..., ::-1, ::-1] if k % 2 else line for k, line in enumerate(lines)]


def _tiles() -> list[np.ndarray]:
    with np.load(ROOT / "samples" / "ocr" / "inputs.npz") as tiles:
        return list(tiles["x"][:4, None])
