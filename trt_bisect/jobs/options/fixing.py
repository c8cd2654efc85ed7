"""The options that fix the precision of layers before anything is searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trt_bisect.errors import BadInput
from trt_bisect.jobs.options.declare import option
from trt_bisect.jobs.options.kinds import PLAN, TEXTS
from trt_bisect.jobs.options.operators import OperatorOptions
from trt_bisect.precision import Precision

if TYPE_CHECKING:
    from trt_bisect.jobs.plan_file import FilePlan
    from trt_bisect.model.network import Network

FIXING = ("high", "keep_low", "plan", "scoped", "only", "one_scale")
"""The names of these options."""


@dataclass(frozen=True, kw_only=True)
class FixedLayerOptions(OperatorOptions):
    """The layers whose precision the user fixes; no search changes it."""

    panel: ClassVar[str] = "Fixed layers"

    high: Sequence[str] = option(
        (),
        kind=TEXTS,
        help="Layers that stay high: a name, a name with * and ?, re:PATTERN, op:Softmax, or recipe:RUN for those that "
        "the recipe in a run folder leaves high; may be repeated.",
    )
    keep_low: Sequence[str] = option(
        (), kind=TEXTS, help="Layers that stay in INT8, named in the same ways; may be repeated."
    )
    plan: Any = option(
        None,
        kind=PLAN,
        help="A TOML or JSON file that fixes precisions of layers and scales of activations; or a run folder or its "
        "recipe/plan.json, which fixes every layer as in the recipe. In Python also a mapping.",
    )

    scoped: str = option(
        "",
        help="Exactly one plan, and no search: the layers up to this one, by name or by number, in INT8, all others "
        "high; --high, --keep-low and --plan count more.",
        otherwise="no layer is fixed by its place",
    )

    only: Sequence[str] = option(
        (),
        kind=TEXTS,
        help="The only layers that may be in INT8, named in the same ways, such as op:Conv; all others stay high; may "
        "be repeated.",
        otherwise="all that TensorRT can run in INT8",
    )
    one_scale: Sequence[str] = option(
        (),
        kind=TEXTS,
        help="Layers whose weights have one scale each, and not one for each output channel, named in the same ways, "
        "such as op:MatMul; may be repeated.",
        otherwise="a scale for each output channel",
    )

    @property
    def high_precision(self) -> Precision:
        """The precision of layers that are not in INT8."""
        return Precision.FP32

    def adapted(self, network: Network) -> Network:
        """Returns a network with the precisions that the user fixes.

        Raises:
            BadInput: the plan or a pattern cannot be used.
        """
        network, plan = super().adapted(network), self.file_plan()
        if plan is None and not any(getattr(self, name) for name in FIXING):
            return network
        from trt_bisect.jobs.fixed_layers import fixed_network, leaving_out, scoped, with_one_scale

        following = self.base_precision or self.high_precision
        if plan is not None and plan.high not in (None, following):
            raise BadInput(
                f"In '{plan.source}' layers that can never be low are in {plan.high}, here they are in {following}.",
                f"Add --base {plan.high}, or take 'high' out of a copy of the plan.",
            )
        network = leaving_out(with_one_scale(network, self.one_scale), self.only, self.high_precision)
        if self.scoped:
            network = scoped(network, self.scoped, self.high_precision)
        return fixed_network(network, self.high, self.keep_low, plan, self.high_precision)

    def file_plan(self) -> FilePlan | None:
        """Returns the plan that the user gave in a file; None without one.

        Raises:
            BadInput: it cannot be read.
        """
        if self.plan is None:
            return None
        from trt_bisect.jobs.plan_file import read_plan

        return read_plan(self.plan)
