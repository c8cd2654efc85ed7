"""Sentences on data: files of samples, pictures, data kept unseen, ranges."""

from __future__ import annotations

TOO_FEW_SAMPLES = "too few samples"
NO_USABLE_RANGE = "no usable range"
SEVERAL_AT_A_TIME = "2 at a time"
USED_FOR_CALIBRATION = "used for calibration"
OF_THE_ARRAYS_GIVEN = "of the arrays given"
ONE_FOR_EACH_CHANNEL = "one for each channel"
PIXELS_AS_THEY_ARE = "pixels as they are"
FED_PIXELS = "is fed pixels"
MORE_THAN_8_BITS = "more than 8 bits"
KEPT_HIGH = "are kept in high precision"
AS_A_MASK_DOES = "as a mask does"
