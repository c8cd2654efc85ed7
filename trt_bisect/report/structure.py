"""The results of ``check`` (a network's structure) and ``migrate`` (from weak to strong typing)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from trt_bisect.analyzer.structure.findings import ERROR, SEVERITIES, Finding
from trt_bisect.analyzer.structure.graph import DroppedNode
from trt_bisect.analyzer.structure.kernels import EngineFacts
from trt_bisect.analyzer.structure.qdq import TensorRounding
from trt_bisect.calibration.cache import BY_NAME, TensorScale
from trt_bisect.report.result import DISTRIBUTION, Plot, Result, TablePage
from trt_bisect.support.table import INDEX, NAME, Column
from trt_bisect.support.text import counted

CHECK_CSV, TENSORS_CSV, DROPPED_CSV = "check.csv", "quantization.csv", "dropped.csv"


@dataclass(frozen=True, repr=False)
class CheckReport(Result):
    """The findings of a structure check.

    Attributes:
        opset: the opset of the ONNX operators.
        nodes: the number of nodes in the main graph.
        pairs: the number of Q/DQ pairs in the main graph.
        findings: errors first.
        tensors: the quantization of the layers' tensors, in execution order.
        dropped: the nodes that are no layers, in the file's order.
        unread: the reason why ``run`` cannot read the file, so that ``tensors`` is empty; else empty.
        engine: the kernels of the given engine; None without one.
        predicted: a sentence with the predicted times of FP16 and full INT8.
    """

    COMMAND = "check"

    model: str
    opset: int
    nodes: int
    pairs: int
    findings: tuple[Finding, ...]
    tensors: tuple[TensorRounding, ...] = ()
    unread: str = ""
    dropped: tuple[DroppedNode, ...] = ()
    engine: EngineFacts | None = None
    predicted: str = ""

    @property
    def exit_code(self) -> int:
        """1 if any finding is an error, else 0."""
        return int(any(finding.severity == ERROR for finding in self.findings))

    @property
    def summary(self) -> str:
        """A sentence with the number of findings of each severity."""
        number = Counter(finding.severity for finding in self.findings)
        counts = ", ".join(counted(number[severity], severity) for severity in SEVERITIES)
        graph = f"{self.nodes} nodes, opset {self.opset}, {self.pairs or 'no'} Q/DQ pairs"
        return f"{self.model} ({graph}): {counts}."

    @property
    def rows(self) -> tuple[Finding, ...]:
        """The findings, one for each layer; a finding on the whole network has no layer."""
        return tuple(
            replace(finding, layers=finding.layers[k : k + 1])
            for finding in self.findings
            for k in range(max(1, len(finding.layers)))
        )

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {
            CHECK_CSV: (Finding, self.rows),
            TENSORS_CSV: (TensorRounding, self.tensors),
            DROPPED_CSV: (DroppedNode, self.dropped),
        }

    def page(self) -> TablePage:
        """Returns the content of ``check.html``."""
        kinds, tensors = (
            Plot(DISTRIBUTION, "Distribution of the findings", column="kind"),
            Plot(DISTRIBUTION, "Distribution of the tensors", column="quantized"),
        )
        filters = ("role", "op_type", "quantized", "origin")
        red = ("severity", ERROR)
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=self.summary,
            facts={"Opset": str(self.opset), "Nodes": str(self.nodes), "Q/DQ pairs": str(self.pairs)},
            notes=self.remarks,
            sections=[
                *self.section("findings", "Findings", CHECK_CSV, filters=("severity", "kind"), plots=(kinds,), red=red),
                *self.section(
                    "quantization", "Quantization of each layer", TENSORS_CSV, filters=filters, plots=(tensors,)
                ),
                *self.section("dropped", "Nodes that are no layers", DROPPED_CSV, filters=("op_type", "why")),
            ],
        )

    @property
    def remarks(self) -> list[str]:
        """Sentences on layers that are not listed, on the engine and on times."""
        unread = f"The layers are not listed: {self.unread}" if self.unread else ""
        engine = "" if self.engine is None else self.engine.summary
        return [text for text in (unread, engine, self.predicted) if text]


LAYERS_CSV, SCALES_CSV, CHOICES_CSV = "migrate.csv", "scales.csv", "choices.csv"
LARGEST_DIFFERENCE = 1e-6
"""The largest relative difference of equal outputs: float32 sums depend on their order."""


@dataclass(frozen=True)
class MigratedLayer:
    """A layer, and its precision in the network that ``migrate`` writes."""

    index: Annotated[int, Column("#", "Number of the layer", INDEX, rank=2)]
    name: Annotated[str, Column("Layer", kind=NAME, rank=0)]
    op_type: Annotated[str, Column("Operator", rank=3)]
    precision: Annotated[str, Column("Precision", "In the written network", rank=0)]
    why: Annotated[str, Column("Why not INT8", rank=1)] = ""


@dataclass(frozen=True)
class Choice:
    """An unknown fact of the deployment, and the assumption about it.

    Attributes:
        kind: a short name, such as ``no scale``.
        names: the layers, tensors or cache entries.
    """

    kind: Annotated[str, Column("Kind", rank=2)]
    about: Annotated[str, Column("Unknown", rank=1)]
    choice: Annotated[str, Column("Assumed", rank=0)]
    names: tuple[str, ...] = ()

    @property
    def count(self) -> Annotated[int, Column("Number", "Of layers, tensors or entries", rank=3)]:
        """The number of ``names``."""
        return len(self.names)


@dataclass(frozen=True)
class Proof:
    """The test of the written network on the user's data.

    Attributes:
        difference: the largest difference from the old deployment's outputs, as a share of the largest magnitude.
    """

    inputs: int
    difference: float
    metric: str
    similarity: float | None
    threshold: float
    verdict: str
    sentence: str
    folder: str

    @property
    def is_same(self) -> bool:
        """True if the written network's outputs equal the old deployment's, up to float noise."""
        return self.difference <= LARGEST_DIFFERENCE


@dataclass(frozen=True, repr=False)
class Migration(Result):
    """A deployment with weak typing, as one strongly typed network.

    Attributes:
        cache: the calibration cache; ``header`` is its first line.
        search: the command that names the layers to blame.
        commands: by engine, the command that builds it.
        gone: the options that TensorRT 11 does not have, with their replacements.
    """

    COMMAND = "migrate"

    model: str
    cache: str
    header: str
    search: str
    deployment: str
    base: str
    network: str
    commands: Mapping[str, str]
    layers: tuple[MigratedLayer, ...]
    scales: tuple[TensorScale, ...]
    choices: tuple[Choice, ...] = ()
    gone: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    proof: Proof | None = None
    predicted: str = ""

    @property
    def exit_code(self) -> int:
        """1 if TensorRT refuses the network, or it fails its test or differs from the old deployment; else 0."""
        failed = self.proof is not None and (self.proof.verdict != "passes" or not self.proof.is_same)
        return int(failed or bool(self.refused))

    @property
    def summary(self) -> str:
        """A sentence with the numbers of layers and scales."""
        kinds = Counter(layer.precision for layer in self.layers)
        layers = ", ".join(f"{count} in {kind.upper()}" for kind, count in kinds.most_common())
        named = sum(scale.way == BY_NAME for scale in self.scales)
        others = (
            f", {len(self.scales) - named} of them found otherwise than by name" if named < len(self.scales) else ""
        )
        return f"{self.network}: {layers}; {counted(len(self.scales), 'scale')} of the cache bit for bit{others}."

    @property
    def proven(self) -> list[str]:
        """Sentences on the test with the user's data; if there was none, on the option that asks for it."""
        if self.proof is None:
            return ["Not measured: give --input with data to compare the network with FP32."]
        same = "Same outputs as" if self.proof.is_same else "Outputs are NOT those of"
        inputs, difference = counted(self.proof.inputs, "input"), f"{self.proof.difference:.2g}"
        return [
            f"{same} the cache's plan on {inputs} (largest difference {difference}).",
            self.proof.sentence,
            *([] if self.proof.verdict == "passes" else [f"Find the layers to blame: {self.search}"]),
        ]

    def tables(self) -> Mapping[str, tuple[type, Sequence[Any]]]:
        """Returns the rows' class and the rows by CSV file name."""
        return {
            LAYERS_CSV: (MigratedLayer, self.layers),
            SCALES_CSV: (TensorScale, self.scales),
            CHOICES_CSV: (Choice, self.choices),
        }

    def page(self) -> TablePage:
        """Returns the content of ``migrate.html``."""
        return TablePage(
            command=self.COMMAND,
            model=self.model,
            headline=self.summary,
            facts={"Cache": self.header, "Layer precisions": self.deployment, "Base": self.base.upper()},
            notes=[
                *self.refused,
                *self.proven,
                *filter(None, [self.predicted]),
                *(f"{engine}: {command}" for engine, command in self.commands.items()),
            ],
            sections=[
                *self.section("choices", "Unknown of the old engine", CHOICES_CSV),
                *self.section("layers", "Layers", LAYERS_CSV, filters=("precision", "op_type")),
                *self.section("scales", "Scales", SCALES_CSV, filters=("way",)),
            ],
        )
