"""The mixture-of-experts block."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.errors import InfeasibleError
from roofline.layers.ffn.dense import gated_pair
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Collective, Elementwise, Exchange, Experts, Gemm, Op, distinct_experts
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
    shared_gate: bool = Field(False, description="a sigmoid gate scales the shared expert (Qwen2-MoE, Qwen3-Next)")
    latent: int | None = Field(
        None, ge=1, description="routed experts work on rows of this width (Nemotron 3, Kimi K3)"
    )
    latent_norm: bool = False
    router_bias: bool = False
    correction_bias: bool = Field(False, description="a bias that only steers the choice (DeepSeek-V3)")
    router_scales: bool = Field(False, description="a scale per input channel and per expert (Gemma 4)")
    bias: bool = Field(False, description="expert matrices have biases (gpt-oss)")

    @model_validator(mode="after")
    def _routed(self):
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is larger than experts ({self.experts})")
        if self.shared_gate and not self.shared_width:
            raise ValueError("shared_gate without a shared expert; give shared_width")
        return self

    @property
    def matrices(self) -> int:
        """Matrices of an expert."""
        return 3 if self.gated else 2

    def weights(self, hidden: int) -> list[Weight]:
        wide, e, k, x = self.matrices - 1, self.experts, self.top_k, self.latent or hidden
        w = [
            Weight("router", e, hidden, role="router"),
            Weight("experts.up", wide * self.width, x, "expert", e, k, "n", expert=True),
            Weight("experts.down", x, self.width, "expert", e, k, "k", expert=True),
        ]
        if self.bias:
            w += [
                Weight("experts.up_bias", wide * self.width, 1, "expert", e, k, "n", expert=True),
                Weight("experts.down_bias", x, 1, "expert", e, k, expert=True),
            ]
        if self.latent:
            w += [Weight("latent_down", self.latent, hidden, "ffn"), Weight("latent_up", hidden, self.latent, "ffn")]
        if self.latent_norm:
            w += [Weight("latent_norm", x, role="norm")]
        if self.router_bias or self.correction_bias:
            w += [Weight("router_bias", e * (self.router_bias + self.correction_bias), role="router")]
        if self.router_scales:
            w += [Weight("router_scales", hidden + e, role="router")]
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
        row, x = ACTIVATION_BYTES * tokens, self.latent or hidden
        fmt = precision.of("expert")
        out: list[Op] = [
            Gemm("moe.router", tokens, self.experts, hidden, precision.of("router")),
            Elementwise("moe.top_k", self.experts * row),
        ]
        if self.shared_width:
            out += self._shared(hidden, tokens, plan, precision)
        if self.latent:
            out += [Gemm("moe.latent_down", tokens, x, hidden, precision.of("ffn"))]
        if self.latent_norm:
            out += [Elementwise("moe.latent_norm", 2.0 * x * row)]
        out += [
            Experts(
                "moe.experts", tokens * plan.dp, x, self.width, self.experts, self.top_k, plan.moe_tp, plan.ep, fmt,
                float(self.matrices),
            )
        ]  # fmt: skip
        if plan.dp > 1:
            out += [exchange(x, tokens, self.top_k, fmt.act_bits / 8.0, plan)]
        if self.latent:
            out += [Gemm("moe.latent_up", tokens, hidden, x, precision.of("ffn"))]
        if self.shared_width:
            out += [Elementwise("shared.add", 3.0 * hidden * row)]
        if plan.dp == 1 and plan.tp > 1:
            out += [Collective("tp.all_reduce", "all_reduce", hidden * row, plan.tp)]
        return out

    def _shared(self, hidden: int, tokens: Array, plan: Plan, precision: Precision) -> list[Op]:
        row = ACTIVATION_BYTES * tokens
        out = gated_pair("shared", self.shared_width, self.gated, hidden, tokens, plan.tp, precision, "shared")
        if self.shared_gate:
            out += [
                Elementwise("shared.gate", hidden * (row + ACTIVATION_BYTES)),
                Elementwise("shared.scale", 2.0 * hidden * row),
            ]
        return out


def exchange(hidden: int, tokens: Array, top_k: int, dispatch_bytes: float, plan: Plan) -> Exchange:
    """The two ways of bringing the tokens of all attention-data-parallel ranks to the experts and back.

    Formula:  gather: all_gather and reduce_scatter of 2 T dp h bytes over n = tp dp ranks
              all-to-all (ep > 1): dispatch of d T h b and combine of d T h 2 bytes, a token going to
              d = n (1 - (1 - 1/n)^k) ranks, b = 1 or 2 bytes an element
    Args:     hidden h [-], tokens T of one rank [-], top_k k [-], dispatch_bytes b [B]
    Assumes:  uniform routing; every tp rank of a group sends its copy of the tokens
    Source:   derivation (occupancy of ranks); DeepEP sends a token once to each rank that holds a chosen expert
    """
    n = plan.tp * plan.dp
    everyone = hidden * ACTIVATION_BYTES * tokens * plan.dp
    ways = [
        (
            Collective("moe.all_gather", "all_gather", everyone, n),
            Collective("moe.reduce_scatter", "reduce_scatter", everyone, n),
        )
    ]
    if plan.ep > 1:
        rows = distinct_experts(n, 1.0, top_k) * tokens * hidden
        ways += [
            (
                Collective("moe.dispatch", "alltoall", rows * dispatch_bytes, n),
                Collective("moe.combine", "alltoall", rows * ACTIVATION_BYTES, n),
            )
        ]
    return Exchange("moe.exchange", tuple(ways))
