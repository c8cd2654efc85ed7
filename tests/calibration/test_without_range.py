"""A pass says which layers stay in high precision because a calibration cache lacks their range."""

import numpy as np

import trt_bisect
from tests.support import networks
from trt_bisect.calibration.collect import calibrate
from trt_bisect.model.network import load_network


def test_layers_without_a_range_are_named_in_the_verdict(tmp_path):
    model = networks.chain(3)
    path, x = networks.save(model, tmp_path), networks.samples(model, 8)["x"]
    scales = dict(calibrate(load_network(path), networks.feeds(x), "minmax").scales)
    del scales["relu1_out"]
    lines = [f"{tensor}: {np.float32(scale).view(np.uint32):08x}" for tensor, scale in scales.items()]
    cache = tmp_path / "c.cache"
    cache.write_text("\n".join(["TRT-8501-EntropyCalibration2", *lines]) + "\n")
    report = trt_bisect.run(path, str(cache), inputs={"x": x}, threshold=0.5, explain="none", history="none")
    assert report.verdict == "passes"
    (reader,) = (node.name for node in model.graph.node if "relu1_out" in node.input)
    said = f"'{reader}' stays in high precision without a usable range; no other layer has to."
    assert said in report.lines[0].text
