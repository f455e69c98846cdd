"""State-space mixers: Mamba (selective scan over channels) and Mamba-2 (heads with a scalar decay)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from roofline.arrays import Array
from roofline.layers.attention.linear import CONV_BYTES
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Collective, Elementwise, Gemm, Op, StateUpdate
from roofline.parallel import Plan, heads_per_rank
from roofline.precision import FORMATS, Precision
from roofline.workload import Sequences


class Mamba1(Spec):
    """Selective scan: each of `inner` channels carries `state` numbers (Gu and Dao 2023)."""

    kind: Literal["mamba1"] = "mamba1"
    inner: int = Field(ge=1)
    state: int = Field(ge=1)
    conv: int = Field(4, ge=1)
    dt_rank: int = Field(ge=1)
    norms: bool = Field(False, description="norms on the step size, B and C (Jamba)")
    state_format: Literal["fp32", "bf16"] = "fp32"

    def weights(self, hidden: int) -> list[Weight]:
        d, s, r = self.inner, self.state, self.dt_rank
        w = [
            Weight("in", 2 * d, hidden, cut="n"),
            Weight("conv", d * (self.conv + 1), cut="n"),
            Weight("x", r + 2 * s, d, cut="k"),
            Weight("dt", d, r, cut="n"),
            Weight("dt_bias", d, cut="n"),
            Weight("decay", d * s + d, cut="n"),
            Weight("o", hidden, d, cut="k"),
        ]
        return w + ([Weight("norms", r + 2 * s, role="norm")] if self.norms else [])

    def state_bytes(self, plan: Plan) -> float:
        """Bytes of scan and convolution state of one sequence in one layer on one rank."""
        per_channel = self.state * FORMATS[self.state_format].element_bytes + (self.conv - 1) * CONV_BYTES
        return self.inner * per_channel / plan.tp

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """The same for any number of tokens."""
        return 0.0 * tokens + self.state_bytes(plan)

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens, fmt = sum(g.tokens for g in groups), precision.of("attention")
        d, s, r = heads_per_rank(self.inner, plan.tp, "channels"), self.state, self.dt_rank
        row = ACTIVATION_BYTES * tokens
        out: list[Op] = [
            Gemm("attn.in", tokens, 2.0 * d, hidden, fmt),
            Elementwise("attn.conv", 2.0 * d * row),
            Gemm("attn.x", tokens, r + 2.0 * s, d, fmt),
        ]
        if plan.tp > 1:  # step size, B and C are made from the channels of all ranks
            out += [Collective("attn.x_reduce", "all_reduce", (r + 2.0 * s) * row, plan.tp)]
        out += [Gemm("attn.dt", tokens, d, r, fmt)]
        if self.norms:
            out += [Elementwise("attn.state_norm", 2.0 * (r + 2.0 * s) * row)]
        # B and C are shared by all channels: one head of key width `state` and value width `inner`
        out += [StateUpdate("attn.core", g, 1.0, s, d, self.state_bytes(plan)) for g in groups]
        return [*out, Gemm("attn.out", tokens, hidden, d, fmt)]


class Mamba2(Spec):
    """Scalar-decay state space: `heads` states of head_dim x `state`, B and C shared by `groups` (Dao and Gu 2024)."""

    kind: Literal["mamba2"] = "mamba2"
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    state: int = Field(ge=1)
    groups: int = Field(1, ge=1)
    conv: int = Field(4, ge=1)
    state_format: Literal["fp32", "bf16"] = "fp32"

    @property
    def inner(self) -> int:
        """All heads together."""
        return self.heads * self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        d, bc, g = self.inner, 2 * self.groups * self.state, self.groups
        return [
            Weight("in", 2 * d + self.heads, hidden, cut="n"),
            Weight("in_bc", bc, hidden, cut="n", limit=g),
            Weight("conv", d * (self.conv + 1), cut="n"),
            Weight("conv_bc", bc * (self.conv + 1), cut="n", limit=g),
            Weight("decay", 3 * self.heads, cut="n"),
            Weight("gated_norm", d, cut="n", role="norm"),
            Weight("o", hidden, d, cut="k"),
        ]

    def _groups_per_rank(self, plan: Plan) -> float:
        return max(self.groups / plan.tp, 1.0)

    def state_bytes(self, plan: Plan) -> float:
        """Bytes of state and convolution input of one sequence in one layer on one rank."""
        state = self.inner / plan.tp * self.state * FORMATS[self.state_format].element_bytes
        channels = self.inner / plan.tp + 2.0 * self._groups_per_rank(plan) * self.state
        return state + (self.conv - 1) * channels * CONV_BYTES

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """The same for any number of tokens."""
        return 0.0 * tokens + self.state_bytes(plan)

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens, fmt = sum(g.tokens for g in groups), precision.of("attention")
        h = heads_per_rank(self.heads, plan.tp, "state-space heads")
        d, bc = h * self.head_dim, 2.0 * self._groups_per_rank(plan) * self.state
        row = ACTIVATION_BYTES * tokens
        return [
            Gemm("attn.in", tokens, 2.0 * d + bc + h, hidden, fmt),
            Elementwise("attn.conv", 2.0 * (d + bc) * row),
            *(StateUpdate("attn.core", g, h, self.state, self.head_dim, self.state_bytes(plan)) for g in groups),
            Elementwise("attn.gated_norm", 3.0 * d * row),
            Gemm("attn.out", tokens, hidden, d, fmt),
        ]
