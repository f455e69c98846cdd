"""The mixture-of-experts block."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.errors import InfeasibleError
from roofline.layers.ffn.dense import Dense
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Collective, Elementwise, Experts, Gemm, Op
from roofline.parallel import Plan
from roofline.precision import Precision


class MoE(Spec):
    """`top_k` of `experts` experts of `width` per token, and a shared expert of `shared_width` for every token."""

    kind: Literal["moe"] = "moe"
    width: int = Field(ge=1, description="inner width of one routed expert")
    experts: int = Field(ge=1)
    top_k: int = Field(ge=1)
    gated: bool = True
    shared_width: int = Field(0, ge=0, description="inner width of all shared experts together; 0: none")
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    bias: bool = False

    @model_validator(mode="after")
    def _routed(self):
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is larger than experts ({self.experts})")
        return self

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    def weights(self, hidden: int) -> list[Weight]:
        wide, e, k = self.matrices - 1, self.experts, self.top_k
        w = [
            Weight("router", e, hidden, role="router"),
            Weight("experts.up", wide * self.width, hidden, "expert", e, k, "n", expert=True),
            Weight("experts.down", hidden, self.width, "expert", e, k, "k", expert=True),
        ]
        if self.bias:
            w += [
                Weight("experts.up_bias", wide * self.width, 1, "expert", e, k, "n", expert=True),
                Weight("experts.down_bias", hidden, 1, "expert", e, k, expert=True),
            ]
        if self.router_bias or self.correction_bias:
            w += [Weight("router_bias", e * (self.router_bias + self.correction_bias), role="router")]
        if self.shared_width:
            w += [
                Weight("shared.up", wide * self.shared_width, hidden, "shared", cut="n"),
                Weight("shared.down", hidden, self.shared_width, "shared", cut="k"),
            ]
        if self.shared_gate:
            w += [Weight("shared.gate", 1, hidden, "shared")]
        return w

    def ops(self, hidden: int, tokens: Array, plan: Plan, precision: Precision) -> list[Op]:
        """`tokens` are those of one attention-data-parallel rank; the experts see the tokens of all of them."""
        if self.experts % plan.ep:
            raise InfeasibleError(f"ep: {plan.ep} does not divide the {self.experts} experts")
        row, everyone = ACTIVATION_BYTES * tokens, tokens * plan.dp
        ranks = plan.tp * plan.dp
        out: list[Op] = [
            Elementwise("ffn.norm", 4.0 * hidden * row),
            Gemm("moe.router", tokens, self.experts, hidden, precision.of("router")),
            Elementwise("moe.top_k", 2.0 * self.experts * row),
        ]
        if self.shared_width:
            shared = Dense(width=self.shared_width, gated=self.gated)
            out += [
                op
                for op in shared.ops(hidden, tokens, Plan(tp=plan.tp), precision)
                if isinstance(op, Gemm) or op.name == "ffn.activation"
            ]
        if plan.dp > 1:
            out += [Collective("moe.dispatch", "all_to_all", hidden * ACTIVATION_BYTES * everyone, ranks)]
        out += [
            Experts(
                "moe.experts", everyone, hidden, self.width, self.experts, self.top_k, plan.moe_tp, plan.ep,
                precision.of("expert"), float(self.matrices),
            )
        ]  # fmt: skip
        if plan.dp > 1:
            out += [Collective("moe.combine", "all_to_all", hidden * ACTIVATION_BYTES * everyone, ranks)]
        elif ranks > 1:
            out += [Collective("tp.all_reduce", "all_reduce", hidden * row, ranks)]
        return out
