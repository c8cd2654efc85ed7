"""The INT8 scale of every activation, from data or from a TensorRT calibration cache."""
