"""ONNX Runtime under the name of a foreign engine, which may run layers otherwise than asked, and says what it ran."""

import pytest

from trt_bisect.builder.base import Latency
from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.commands.run import run
from trt_bisect.preparation import experiment as setup, preparation


class Foreign:
    """An engine of measured arithmetic, which runs some layers in FP32 whatever is asked."""

    engine, arithmetic = "foreign", "measured"

    def __init__(self, builder, network, typing, in_float, tells, computed):
        self._builder, self._network, self.typing = builder, network, typing
        self._index = {layer.name: layer.index for layer in network.layers}
        self._in_float, self._tells, self._computed = in_float, tells, computed
        self.versions, self.reference = {"foreign": "8.6"}, builder.reference

    def build(self, plan):
        engine = self._builder.build(plan.keeping(self._index[name] for name in self._in_float))
        told = self._tells({name: engine.ran[k] for name, k in self._index.items()})
        engine.ran = {self._index[name]: said for name, said in told.items()}
        engine.latency = lambda feeds: Latency.of([1.0], computed=self._computed)
        return engine


@pytest.fixture
def foreign(monkeypatch):
    """Makes every run one on a foreign engine, but those that ask for ONNX Runtime.

    Args:
        in_float: the names of the layers that it runs in FP32.
        tells: from what each layer ran, by name, to what the engine says of it.
        typing: the engine's.
        computed: as ``Latency`` has it.
    """
    open_builder = setup.open_builder

    def use(in_float=(), tells=dict, typing="weak", computed=None):
        def opened(engine, typing_, network, scales, options, shapes, workshop=None):
            if engine == "onnxruntime":
                return open_builder(engine, typing_, network, scales, options, shapes, workshop)
            return Foreign(OnnxRuntimeBuilder(network, scales, options), network, typing, in_float, tells, computed)

        for module in (preparation, setup, run):
            monkeypatch.setattr(module, "choose_engine", lambda asked: asked if asked == "onnxruntime" else "foreign")
        monkeypatch.setattr(
            setup, "typing_of", lambda engine, *_, **__: "strong" if engine == "onnxruntime" else typing
        )
        monkeypatch.setattr(setup, "open_builder", opened)

    return use
