"""Tensors of a comparison."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable

import numpy as np
import onnx

from tests.support import networks
from trt_bisect.calibration.collect import calibrate
from trt_bisect.data.datasets import open_dataset
from trt_bisect.model.network import load_network
from trt_bisect.model.observe import Observer
from trt_bisect.model.qdq import GraphTarget, PlanWriter
from trt_bisect.model.session import make_session
from trt_bisect.precision import int8_set


def calibrated(path, feeds, method="entropy"):
    """A network, and its ranges on samples of its input ``x``."""
    network = load_network(path)
    return network, calibrate(network, open_dataset(feeds, network.inputs), method)


def tensors_of(network, feeds, scales=None, low=()):
    """Every tensor of a network with the layers ``low`` in INT8 on every sample, by name, stacked."""
    plan = int8_set(len(network.layers), low)
    written = PlanWriter(network, scales or {}, GraphTarget.ONNXRUNTIME).write(plan)
    return stacked_tensors(written, list(network.producers), networks.feeds(feeds["x"]))


def row_of(found, tensor):
    """The row of a tensor in a comparison."""
    return next(row for row in found.tensors if row.origin.tensor == tensor)


def stacked_tensors(written, names, feeds):
    """Tensors of a written plan by name, all samples together: ONNX Runtime with them as outputs."""
    known = {value.name for value in written.model.graph.output}
    written.model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = make_session(written)
    runs = [session.run(names, sample) for sample in feeds]
    return {name: np.stack([run[place] for run in runs]) for place, name in enumerate(names)}


class Alive:
    """Counts the inner tensors that are alive at once; tracemalloc does not see those that ONNX Runtime makes."""

    def __init__(self, monkeypatch):
        self.most, self._seen, real = 0, [], Observer.run

        def run(observer, feeds, position):
            for tensors in real(observer, feeds, position):
                self._seen += [weakref.ref(array) for array in tensors.values()]
                self.most = max(self.most, len({id(seen()) for seen in self._seen if seen() is not None}))
                yield tensors
                del tensors

        monkeypatch.setattr(Observer, "run", run)

    def take(self) -> int:
        """Returns the most arrays alive at once since the last call."""
        most, self.most, self._seen = self.most, 0, []
        return most


def assert_memory_stays(monkeypatch, job: Callable[[int], None], more: int, times: int = 2) -> None:
    """Asserts that a job on ten samples takes little more memory than one on two.

    Args:
        job: takes the number of samples.
        more: bytes that NumPy may take besides; the tensors of eight samples are more.
        times: of the inner tensors alive at once with two samples; those of ten samples are five times as many.
    """
    alive = Alive(monkeypatch)

    def peak(count: int) -> tuple[int, int]:
        tracemalloc.start()
        job(count)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, alive.take()

    peak(2)
    (few, few_arrays), (many, many_arrays) = peak(2), peak(10)
    assert many < few + more
    assert 0 < many_arrays < times * few_arrays
