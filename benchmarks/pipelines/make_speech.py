"""Writes spoken sentences: ``python make_speech.py FILE``, in the environment of the published networks.

An array of sentences by samples, float32 in -1 to 1 at 16 kHz.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "answer"))
from data import RATE, halves, speech

LENGTH, COUNT = 4 * RATE, 6

if __name__ == "__main__":
    sounds = speech("given", halves("texts.txt")["given"], np.random.default_rng(1))
    np.save(sys.argv[1], np.stack([sound[:LENGTH] for sound in sounds if len(sound) >= LENGTH][:COUNT]))
