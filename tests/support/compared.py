"""Tensors of a comparison."""

from __future__ import annotations

import tracemalloc
import weakref
from collections.abc import Callable

import numpy as np
import onnx

from trt_bisect.model.observe import Observer
from trt_bisect.model.session import make_session


def tensors_of(written, network, feeds):
    """Every tensor of the network in a written plan on every sample, by name, stacked."""
    return stacked_tensors(written, list(network.producers), [{"x": sample[None]} for sample in feeds["x"]])


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
