"""Checks of a network file: operators that TensorRT refuses, and patterns that lose speed or accuracy."""
