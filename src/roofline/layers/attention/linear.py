"""Linear attention with a gated delta rule: a matrix per head instead of a cache that grows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Elementwise, Gemm, Op, StateUpdate
from roofline.parallel import Plan, heads_per_rank
from roofline.precision import FORMATS, Precision
from roofline.workload import Sequences

CONV_BYTES = 2.0  # the last inputs of the short convolution are kept 16 bits wide


class GatedDelta(Spec):
    """Gated DeltaNet: `heads` states of key_dim x value_dim, keys shared by groups of heads (Yang et al. 2024)."""

    kind: Literal["gated_delta"] = "gated_delta"
    heads: int = Field(ge=1, description="value heads, one state each")
    key_heads: int = Field(ge=1)
    key_dim: int = Field(ge=1)
    value_dim: int = Field(ge=1)
    conv: int = Field(4, ge=1, description="taps of the short convolution")
    state_format: Literal["fp32", "bf16"] = "fp32"

    @model_validator(mode="after")
    def _grouped(self):
        if self.heads % self.key_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of key_heads ({self.key_heads})")
        return self

    @property
    def channels(self) -> int:
        """Channels of the convolution: query, key, value."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    def weights(self, hidden: int) -> list[Weight]:
        value = self.heads * self.value_dim
        return [
            Weight("qkvz", self.channels + value, hidden, cut="n"),
            Weight("ba", 2 * self.heads, hidden, cut="n"),
            Weight("conv", self.channels * self.conv, cut="n"),
            Weight("decay", 2 * self.heads, cut="n"),
            Weight("gated_norm", self.value_dim, role="norm"),
            Weight("o", hidden, value, cut="k"),
        ]

    def state_bytes(self, plan: Plan) -> float:
        """Bytes of recurrent and convolution state of one sequence in one layer on one rank."""
        state = self.heads * self.key_dim * self.value_dim * FORMATS[self.state_format].element_bytes
        return (state + (self.conv - 1) * self.channels * CONV_BYTES) / plan.tp

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """The same for any number of tokens."""
        return 0.0 * tokens + self.state_bytes(plan)

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens = sum(g.tokens for g in groups)
        h, keys = heads_per_rank(self.heads, plan.tp, "linear-attention heads"), self.key_heads * self.key_dim / plan.tp
        value, channels, fmt = h * self.value_dim, self.channels / plan.tp, precision.of("attention")
        row = ACTIVATION_BYTES * tokens
        return [
            Gemm("attn.qkvz", tokens, 2.0 * keys + 2.0 * value + 2.0 * h, hidden, fmt),
            Elementwise("attn.split", 2.0 * (channels + value) * row),
            Elementwise("attn.conv", 2.0 * channels * row),
            Elementwise("attn.gates", 4.0 * h * row),
            *(
                StateUpdate("attn.core", g, h, self.key_dim, self.value_dim, self.state_bytes(plan))
                for g in groups
            ),
            Elementwise("attn.gated_norm", 3.0 * value * row),
            Gemm("attn.out", tokens, hidden, value, fmt),
        ]  # fmt: skip


class KDA(Spec):
    """Kimi Delta Attention: a delta rule whose decay is a vector per head, from a low-rank projection.

    Source: Kimi Linear report, section 3
    """

    kind: Literal["kda"] = "kda"
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    conv: int = Field(4, ge=1, description="taps of each of the three short convolutions")
    full_rank_gate: bool = Field(False, description="the output gate is one matrix, not a product of two (Kimi K3)")
    state_format: Literal["fp32", "bf16"] = "fp32"

    @property
    def width(self) -> int:
        """All heads together."""
        return self.heads * self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        q, d = self.width, self.head_dim
        gate = [Weight("gate", q, hidden, cut="n")]
        if not self.full_rank_gate:
            gate = [Weight("gate_a", d, hidden), Weight("gate_b", q, d, cut="n")]
        return [
            Weight("qkv", 3 * q, hidden, cut="n"),
            Weight("conv", 3 * q * self.conv, cut="n"),
            Weight("decay_a", d, hidden),
            Weight("decay_b", q, d, cut="n"),
            Weight("decay_bias", q + self.heads, cut="n"),
            Weight("beta", self.heads, hidden, cut="n"),
            *gate,
            Weight("gated_norm", d, role="norm"),
            Weight("o", hidden, q, cut="k"),
        ]

    def state_bytes(self, plan: Plan) -> float:
        """Bytes of recurrent and convolution state of one sequence in one layer on one rank."""
        state = self.width * self.head_dim * FORMATS[self.state_format].element_bytes
        return (state + (self.conv - 1) * 3 * self.width * CONV_BYTES) / plan.tp

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """The same for any number of tokens."""
        return 0.0 * tokens + self.state_bytes(plan)

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens = sum(g.tokens for g in groups)
        h, d, fmt = (
            heads_per_rank(self.heads, plan.tp, "linear-attention heads"),
            self.head_dim,
            precision.of("attention"),
        )
        q, row = h * d, ACTIVATION_BYTES * tokens
        low = 1.0 if self.full_rank_gate else 2.0  # low-rank pairs: decay, and the gate where it is one
        out: list[Op] = [
            Gemm("attn.qkv", tokens, 3.0 * q + h + (q if self.full_rank_gate else 0.0), hidden, fmt),
            Gemm("attn.low_rank_a", tokens, low * d, hidden, fmt),
            Gemm("attn.low_rank_b", tokens, q, d, fmt, batch=low),
            Elementwise("attn.conv", 6.0 * q * row),
            Elementwise("attn.gates", 2.0 * (q + h) * row),
        ]
        out += [StateUpdate("attn.core", g, h, d, d, self.state_bytes(plan)) for g in groups]
        return [
            *out,
            Elementwise("attn.gated_norm", 3.0 * q * row),
            Gemm("attn.out", tokens, hidden, q, fmt),
        ]
