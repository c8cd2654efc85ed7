"""The checks of a network file: what TensorRT refuses, and what costs speed or accuracy."""
