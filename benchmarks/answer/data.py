"""Photographs, pages, lines of text and speech from packages: data of the kinds that the published networks read.

The given ones and the unseen ones come from different photographs, sentences and voices. It runs in the environment of
``published.txt``, with NumPy, Pillow and the standard library.
"""

from __future__ import annotations

import ctypes
import sysconfig
import textwrap
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SITE = Path(sysconfig.get_paths()["purelib"])
RATE = 16_000
PARTS = ("given", "unseen")


def halves(file: str) -> dict[str, list[str]]:
    """The lines of a file of this folder, the given ones before an empty line, the unseen ones after."""
    both = Path(__file__).with_name(file).read_text().split("\n\n")
    return {part: half.splitlines() for part, half in zip(PARTS, both, strict=True)}


PHOTOGRAPHS = halves("photographs.txt")
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10", "DejaVuSans-Bold", "DejaVuSerif-Italic")
VOICES = {
    "given": ("gmw/en-US", "gmw/en", "gmw/en-US+f3", "gmw/en+m4", "gmw/en-GB-scotland"),
    "unseen": ("gmw/en-GB-x-rp", "gmw/en-US+m7", "gmw/en+f2", "gmw/en-029", "gmw/en-US+f4"),
}
BACKGROUNDS = {"given": "gradio/media_assets/audio/cantina.wav", "unseen": "gradio/media_assets/audio/sax.wav"}


def photographs(part: str, random: np.random.Generator) -> list[Image.Image]:
    """Each photograph whole, and a crop of it, perhaps mirrored."""
    found = []
    for path in PHOTOGRAPHS[part]:
        whole = Image.open(SITE / path).convert("RGB")
        width, height = whole.size
        left, top = int(random.uniform(0, 0.4) * width), int(random.uniform(0, 0.4) * height)
        crop = whole.crop((left, top, left + int(0.6 * width), top + int(0.6 * height)))
        found += [whole, crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else crop]
    return found


def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(SITE / f"matplotlib/mpl-data/fonts/ttf/{name}.ttf"), size)


def lines(texts: Sequence[str], random: np.random.Generator) -> list[Image.Image]:
    """A line of some words of each text, in one of the fonts and colours, with blur and noise as a camera adds."""
    found = []
    for text in texts:
        words = text.split()
        start = int(random.integers(0, max(len(words) - 4, 1)))
        letters = font(str(random.choice(FONTS)), int(random.integers(26, 40)))
        line = " ".join(words[start : start + int(random.integers(2, 5))])
        box = letters.getbbox(line)
        paper, ink = int(random.integers(170, 256)), int(random.integers(0, 90))
        tint = random.integers(-25, 26, 3)
        colour = tuple(int(np.clip(paper + t, 0, 255)) for t in tint)
        picture = Image.new("RGB", (int(box[2]) + 20, int(box[3]) + 16), colour)
        ImageDraw.Draw(picture).text((10, 6), line, (ink, ink, ink), letters)
        picture = picture.rotate(random.uniform(-1.5, 1.5), fillcolor=colour)
        picture = picture.filter(ImageFilter.GaussianBlur(float(random.uniform(0, 1.0))))
        noisy = np.asarray(picture, np.float32) + random.normal(0, random.uniform(0, 8), (*picture.size[::-1], 3))
        found.append(Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)))
    return found


def pages(texts: Sequence[str], pictures: Sequence[Image.Image], random: np.random.Generator) -> list[Image.Image]:
    """Pages of 608 by 800: a title, one or two columns of text, a figure with a caption, and a table."""
    found = []
    for first in range(len(texts)):
        page = Image.new("RGB", (608, 800), (255, 255, 255))
        draw = ImageDraw.Draw(page)
        family = FONTS[int(random.integers(0, 5))]
        draw.text((60, 36), texts[first][:36], (0, 0, 0), font(family, 24))
        columns = int(random.integers(1, 3))
        width = (608 - 100) // columns - 10
        for column in range(columns):
            left, top = 50 + column * (width + 20), 90
            place = int(random.integers(0, 3))
            for block in range(3):
                if block == place:
                    top = _figure(page, pictures, random, family, left, top, width)
                elif random.random() < 0.25:
                    top = _ruled(draw, random, family, left, top, width)
                else:
                    body = " ".join(texts[int(k)] for k in random.integers(0, len(texts), 5))
                    for line in textwrap.wrap(body, width // 6)[:12]:
                        draw.text((left, top), line, (20, 20, 20), font(family, 11))
                        top += 15
                    top += 16
        found.append(page)
    return found


def _figure(
    page: Image.Image,
    pictures: Sequence[Image.Image],
    random: np.random.Generator,
    family: str,
    left: int,
    top: int,
    width: int,
) -> int:
    height = int(random.integers(120, 180))
    page.paste(pictures[int(random.integers(0, len(pictures)))].resize((width, height)), (left, top))
    ImageDraw.Draw(page).text((left + 10, top + height + 4), "Figure 1: as measured", (0, 0, 0), font(family, 10))
    return top + height + 34


def _ruled(draw: ImageDraw.ImageDraw, random: np.random.Generator, family: str, left: int, top: int, width: int) -> int:
    rows, columns = int(random.integers(4, 8)), int(random.integers(2, 5))
    for row in range(rows + 1):
        draw.line((left, top + 18 * row, left + width, top + 18 * row), (0, 0, 0))
        for column in range(columns if row < rows else 0):
            at = (left + 4 + column * width // columns, top + 18 * row + 3)
            draw.text(at, f"{random.uniform(0, 100):.1f}", (0, 0, 0), font(family, 10))
    return top + 18 * rows + 24


def speech(part: str, texts: Sequence[str], random: np.random.Generator) -> list[np.ndarray]:
    """Each text spoken by eSpeak NG with a pause before and after, float32 in -1 to 1 at 16 kHz, music behind some."""
    behind = sound_of(SITE / BACKGROUNDS[part])
    voices = VOICES[part]
    library = _Espeak()
    found = []
    for k, text in enumerate(texts):
        spoken = library.say(text, voices[k % len(voices)])
        quiet = np.zeros(RATE // 2, np.float32)
        sound = np.concatenate([quiet, spoken * random.uniform(0.2, 0.9), quiet])
        start = int(random.integers(0, max(len(behind) - len(sound), 1)))
        music = np.resize(behind[start:], len(sound)) * (0.0, 0.02, 0.15)[k % 3]
        found.append((sound + music + random.normal(0, 0.002, len(sound))).astype(np.float32))
    return found


def sound_of(path: Path, rate: int = RATE) -> np.ndarray:
    """The mean of a WAV file's channels, float32 in -1 to 1, at ``rate`` Hz."""
    with wave.open(str(path)) as file:
        values = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        return _resampled(values.reshape(-1, file.getnchannels()).mean(1), file.getframerate(), rate)


def _resampled(values: np.ndarray, before: int, after: int) -> np.ndarray:
    times = np.arange(int(len(values) * after / before)) * before / after
    return np.interp(times, np.arange(len(values)), values).astype(np.float32)


class _Espeak:
    """eSpeak NG's library (speak_lib.h) as the package espeakng-loader ships it."""

    RETRIEVE, UTF8, FIRST = 2, 1, 1

    def __init__(self) -> None:
        folder = SITE / "espeakng_loader"
        self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self._rate = self._library.espeak_Initialize(self.RETRIEVE, 0, str(folder).encode(), 0)
        # Some voices flutter and breathe at random, by the library's generator and by the C library's.
        self._library.espeak_ng_SetRandSeed(ctypes.c_long(1))
        ctypes.CDLL(None).srand(1)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self._pieces: list[np.ndarray] = []
        self._callback = kind(self._take)
        self._library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples: object, count: int, _: object) -> int:
        if samples and count:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, text: str, voice: str) -> np.ndarray:
        self._pieces.clear()
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise SystemExit(f"eSpeak NG has no voice {voice}")
        data = text.encode()
        self._library.espeak_Synth(data, ctypes.c_size_t(len(data) + 1), 0, self.FIRST, 0, self.UTF8, None, None)
        self._library.espeak_Synchronize()
        return _resampled(np.concatenate(self._pieces).astype(np.float32) / 32768, self._rate, RATE)
