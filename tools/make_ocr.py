"""Write the files of ``samples/ocr``: a published text detector that INT8 hurts, and real pages of text for it.

The network is PP-OCRv4's text detector as the pip package ``rapidocr-onnxruntime`` ships it (Apache-2.0), copied byte
for byte. The pages are a photograph of a printed page from scikit-image and a scan from tesserocr's tests::

    pip download --no-deps rapidocr-onnxruntime==1.4.4 scikit-image==0.26.0
    pip download --no-deps --no-binary :all: tesserocr==2.13.0
    python tools/make_ocr.py rapidocr_onnxruntime-*.whl scikit_image-*.whl tesserocr-*.tar.gz --output samples/ocr

Needs numpy, onnxruntime and pillow. Nothing is random.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image

Array = npt.NDArray[np.float32]

NETWORK = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
INPUT = "x"  # [n, 3, height, width], all but the channels free, height and width multiples of 32
PHOTOGRAPH = "skimage/data/page.png"
SCAN = "tests/eurotext.png"
SHORT_SIDE, MULTIPLE = 736, 32  # rapidocr's limit_side_len, and what the network's strides ask for
MEAN, STD = np.float32(0.5), np.float32(0.5)  # rapidocr's, the same for each channel: black is -1, white is 1
TILE = 224
TEXT_SHARE = 0.02  # a tile is kept if the network finds text in so much of it: an empty map has no cosine


def read_member(archive: Path, ending: str) -> bytes:
    """Read the one file of a wheel or of a source archive whose path ends in ``ending``."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(ending))
            return wheel.read(name)
    with tarfile.open(archive) as source:
        (member,) = (member for member in source.getmembers() if member.name.endswith(ending))
        stream = source.extractfile(member)
        if stream is None:
            raise ValueError(f"{member.name} in {archive.name} is not a file")
        return stream.read()


def preprocess(image: bytes) -> Array:
    """Turn a page into the network's input as rapidocr does: [3, height, width].

    The short side is brought up to 736 pixels and both sides to multiples of 32, the channels are in the order blue,
    green, red, and the values go from -1 to 1 (``ch_ppocr_det/utils.py`` and ``config.yaml`` in the wheel).
    """
    page = Image.open(io.BytesIO(image)).convert("RGB")
    ratio = max(1.0, SHORT_SIDE / min(page.size))
    width, height = (round(int(side * ratio) / MULTIPLE) * MULTIPLE for side in page.size)
    pixels = np.asarray(page.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32)[..., ::-1]
    normalized: Array = ((pixels / np.float32(255) - MEAN) / STD).transpose(2, 0, 1).astype(np.float32)
    return normalized


def cut(page: Array) -> Array:
    """Cut a page [3, height, width] into tiles that do not overlap: [n, 3, 224, 224]. The rest at the rim is left."""
    rows, columns = page.shape[1] // TILE, page.shape[2] // TILE
    top, left = (page.shape[1] - rows * TILE) // 2, (page.shape[2] - columns * TILE) // 2
    middle = page[:, top : top + rows * TILE, left : left + columns * TILE]
    grid: Array = middle.reshape(3, rows, TILE, columns, TILE).transpose(1, 3, 0, 2, 4)
    return grid.reshape(-1, 3, TILE, TILE)


def main() -> None:
    """Copy the network, cut the pages, write every third tile with text as an input and the others for calibration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rapidocr", type=Path, help="wheel of rapidocr-onnxruntime 1.4.4")
    parser.add_argument("skimage", type=Path, help="wheel of scikit-image 0.26.0")
    parser.add_argument("tesserocr", type=Path, help="source archive of tesserocr 2.13.0")
    parser.add_argument("--output", type=Path, default=Path("samples/ocr"))
    arguments = parser.parse_args()

    network = read_member(arguments.rapidocr, NETWORK)
    pages = [read_member(arguments.skimage, PHOTOGRAPH), read_member(arguments.tesserocr, SCAN)]
    tiles = np.concatenate([cut(preprocess(page)) for page in pages])
    session = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    shares = np.array([float((session.run(None, {INPUT: tile[None]})[0] > 0.3).mean()) for tile in tiles])
    tiles = np.ascontiguousarray(tiles[shares > TEXT_SHARE])

    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "network.onnx").write_bytes(network)
    is_input = np.arange(len(tiles)) % 3 == 0
    for name, data in {"calibration": tiles[~is_input], "inputs": tiles[is_input]}.items():
        np.savez_compressed(arguments.output / f"{name}.npz", **{INPUT: data})
        print(f"{name}: {data.shape}")


if __name__ == "__main__":
    main()
