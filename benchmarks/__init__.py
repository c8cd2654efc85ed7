"""Measurements and their tools. ``trt_bisect`` comes first: it switches ONNX Runtime's telemetry off."""

import trt_bisect as trt_bisect
