"""Ranges: the INT8 scale of every activation tensor, from data or from a TensorRT calibration cache."""
