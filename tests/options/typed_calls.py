"""Calls of a user, right and wrong, for mypy in ``make lint``: an error that does not come is an unused ignore."""

import plotly.graph_objects as go
from typing_extensions import assert_type

import trt_bisect
from trt_bisect import Report, Sensitivity, WorstReport
from trt_bisect.report.result import Result

assert_type(trt_bisect.run("net.onnx", "data.npz", input, threshold="99%", high=["conv1"]), Report)
trt_bisect.run("net.onnx", thresold=0.9)  # type: ignore[call-arg]
trt_bisect.run("net.onnx", samples="two")  # type: ignore[arg-type]
trt_bisect.run("net.onnx", budget="5%", front="yes")  # type: ignore[arg-type]
trt_bisect.run("net.onnx", effort="fast")  # type: ignore[arg-type]
trt_bisect.worst("net.onnx", engine="cuda", calibrator="percentile=99.9")  # type: ignore[arg-type]
trt_bisect.compare("net.onnx", low="int4", other="other.onnx")  # type: ignore[arg-type]
trt_bisect.sensitivity("net.onnx", precision="mixed")  # type: ignore[arg-type]
analysis = trt_bisect.Analysis("net.onnx", "data.npz", metric="mse")
assert_type(analysis.worst(keep=3, metric=lambda one, other: 0.0), WorstReport)
analysis.run(effort="fast")  # type: ignore[arg-type]
assert_type(trt_bisect.load("run", "sensitivity.json"), Sensitivity)
assert_type(trt_bisect.load("run"), Report | Result)
trt_bisect.run("net.onnx", effort="quick", metric="my.py:metric", cost="macs", low="int8", base="fp16").plot()
trt_bisect.load("run", "report.json").plot().show()
assert_type(trt_bisect.load("run", "report.json").plot_front(), go.Figure)
