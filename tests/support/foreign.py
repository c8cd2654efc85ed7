"""ONNX Runtime under the name of a foreign engine, which may run layers otherwise than asked, and says what it ran."""

from __future__ import annotations

import pytest

from trt_bisect.builder.onnxruntime import OnnxRuntimeBuilder
from trt_bisect.builder.timing import latency_of
from trt_bisect.jobs import preparation


class Foreign:
    """An engine of measured arithmetic."""

    engine, arithmetic = "foreign", "measured"

    def __init__(self, builder, network, typing, tells, computed, obeys):
        self._builder, self._network, self.typing = builder, network, typing
        self._tells, self._computed, self._obeys = tells, computed, obeys
        self.versions, self.reference = {"foreign": "8.6"}, builder.reference

    def build(self, plan):
        engine = self._builder.build(plan) if self._obeys else self._builder.reference()
        index = {layer.name: layer.index for layer in self._network.layers}
        told = self._tells({name: engine.ran[k] for name, k in index.items()})
        engine.ran = {index[name]: said for name, said in told.items()}
        engine.latency = lambda feeds: latency_of([1.0], computed=self._computed)
        return engine


@pytest.fixture
def foreign(monkeypatch):
    """Makes every run one on a foreign engine.

    Args:
        tells: from what each layer ran, by name, to what the engine says of it.
        typing: the engine's.
        computed: as ``Latency`` has it.
        obeys: false for an engine that runs all layers in FP32.
    """

    def use(tells=dict, typing="weak", computed=None, obeys=True):
        def opened(engine, typing_, network, scales, options, shapes, workshop=None):
            builder = OnnxRuntimeBuilder(network, scales, options)
            return Foreign(builder, network, typing, tells, computed, obeys)

        monkeypatch.setattr(preparation, "choose_engine", lambda _: "foreign")
        monkeypatch.setattr(preparation, "choose_typing", lambda *_: typing)
        monkeypatch.setattr(preparation, "open_builder", opened)

    return use
