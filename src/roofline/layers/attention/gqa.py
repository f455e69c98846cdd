"""Softmax attention with its own keys and values: MHA, GQA and MQA, full or windowed."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Attention, Collective, Elementwise, Gemm, Op
from roofline.parallel import Plan, heads_per_rank, kv_heads_per_rank
from roofline.precision import Precision
from roofline.workload import Sequences


class GQA(Spec):
    """`heads` queries share `kv_heads` keys and values (Ainslie et al. 2023); equal: MHA, 1: MQA."""

    kind: Literal["gqa"] = "gqa"
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    v_dim: int | None = Field(None, ge=1, description="value width where it differs from head_dim")
    window: int | None = Field(None, ge=1, description="tokens that a query sees; absent: all")
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    sinks: bool = False
    output_gate: bool = False

    @model_validator(mode="after")
    def _grouped(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        return self

    @property
    def value_dim(self) -> int:
        return self.v_dim or self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        q, kv, d, v = self.heads, self.kv_heads, self.head_dim, self.value_dim
        w = [
            Weight("q", q * d * (2 if self.output_gate else 1), hidden, cut="n"),
            Weight("k", kv * d, hidden, cut="n", limit=kv),
            Weight("v", kv * v, hidden, cut="n", limit=kv),
            Weight("o", hidden, q * v, cut="k"),
        ]
        if self.qkv_bias:
            w += [Weight("qkv_bias", q * d + kv * (d + v), cut="n")]
        if self.o_bias:
            w += [Weight("o_bias", hidden)]
        if self.qk_norm != "none":
            w += [Weight("qk_norm", 2 * d if self.qk_norm == "head" else (q + kv) * d, role="norm")]
        if self.sinks:
            w += [Weight("sinks", q, cut="n")]
        return w

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """Bytes of KV that one sequence of `tokens` holds on one rank; a window keeps at most `window` tokens."""
        held = tokens if self.window is None else np.minimum(tokens, self.window)
        per_token = kv_heads_per_rank(self.kv_heads, plan.tp) * (self.head_dim + self.value_dim)
        return held * per_token * precision.kv.element_bytes / plan.cp

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens = sum(g.tokens for g in groups)
        q, kv = heads_per_rank(self.heads, plan.tp), kv_heads_per_rank(self.kv_heads, plan.tp)
        d, v, fmt = self.head_dim, self.value_dim, precision.of("attention")
        static = precision.static_activation_scales
        qkv = q * d * (2 if self.output_gate else 1) + kv * (d + v)
        row = ACTIVATION_BYTES * tokens
        out: list[Op] = [
            Elementwise("attn.norm", 4.0 * hidden * row),
            Gemm("attn.qkv", tokens, qkv, hidden, fmt, static_scales=static),
        ]
        if self.qk_norm != "none":
            out += [Elementwise("attn.qk_norm", 2.0 * (q + kv) * d * row)]
        out += [Elementwise("attn.rope", 2.0 * (q + kv) * d * row), Elementwise("attn.kv_append", kv * (d + v) * row)]
        out += [
            Attention("attn.core", g, q, kv, d, v, precision.kv, np.inf if self.window is None else float(self.window))
            for g in groups
        ]
        out += [Gemm("attn.out", tokens, hidden, q * v, fmt, static_scales=static)]
        if plan.tp > 1:
            out += [Collective("tp.all_reduce", "all_reduce", hidden * row, plan.tp)]
        return out
