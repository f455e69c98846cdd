"""Softmax attention with its own keys and values: MHA, GQA and MQA; full, windowed, chunked or block-sparse."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.layers.attention.indexer import Indexer
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
    chunk: int | None = Field(
        None, ge=1, description="a query sees its own chunk of that many positions only (Llama 4)"
    )
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = Field(
        "none", description="full: one norm over all heads of a rank group"
    )
    qk_norm_params: bool = Field(True, description="false: the norm has no weight (Llama 4)")
    rope: bool = Field(True, description="false: no rotary kernel (NoPE layers, learned or ALiBi positions)")
    rope_scale: float = Field(1.0, ge=1, description="linear scaling: the rotary table has that many times the rows")
    sinks: bool = Field(False, description="one learned logit per head (gpt-oss)")
    output_gate: Literal["none", "full", "head"] = Field(
        "none", description="gate on the attention output, per element or head"
    )
    k_is_v: bool = Field(False, description="the value is the key projection: one matrix less, same cache (Gemma 4)")
    shared_kv: bool = Field(
        False, description="reads the cache of an earlier layer: no key or value of its own (Gemma 4)"
    )
    causal: bool = Field(True, description="false: every token sees every other and nothing is cached (encoders)")
    index: Indexer | None = Field(None, description="sparse attention: an indexer chooses what a query sees")

    @model_validator(mode="after")
    def _grouped(self):
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.window and self.chunk:
            raise ValueError("window and chunk exclude each other")
        return self

    @property
    def value_dim(self) -> int:
        """Width of a value."""
        return self.v_dim or self.head_dim

    def weights(self, hidden: int) -> list[Weight]:
        q, d, v = self.heads, self.head_dim, self.value_dim
        kv = 0 if self.shared_kv else self.kv_heads
        w = [Weight("q", q * d, hidden, cut="n"), Weight("o", hidden, q * v, cut="k")]
        if kv:
            w += [Weight("k", kv * d, hidden, cut="n", limit=kv)]
            w += [] if self.k_is_v else [Weight("v", kv * v, hidden, cut="n", limit=kv)]
        if self.output_gate != "none":
            w += [Weight("output_gate", q * (v if self.output_gate == "full" else 1), hidden, cut="n")]
        if self.qkv_bias:
            w += [Weight("qkv_bias", q * d + kv * (d + v), cut="n")]
        if self.o_bias:
            w += [Weight("o_bias", hidden)]
        if self.qk_norm != "none" and self.qk_norm_params:
            heads_q, heads_k = (1, 1 if kv else 0) if self.qk_norm == "head" else (q, kv)
            w += [Weight("qk_norm", (heads_q + heads_k) * d, role="norm")]
        if self.sinks:
            w += [Weight("sinks", q, cut="n")]
        return w + (self.index.weights(hidden, hidden) if self.index else [])

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """Bytes of KV that one sequence of `tokens` holds on one rank; a window keeps at most `window` tokens."""
        if self.shared_kv or not self.causal:
            return 0.0 * tokens
        per_token = kv_heads_per_rank(self.kv_heads, plan.tp) * (self.head_dim + self.value_dim)
        held = np.minimum(tokens, self.window or self.chunk or np.inf) * per_token * precision.kv.element_bytes
        return (held + (self.index.cache_bytes(tokens) if self.index else 0.0)) / plan.cp

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens = sum(g.tokens for g in groups)
        q, kv = heads_per_rank(self.heads, plan.tp), kv_heads_per_rank(self.kv_heads, plan.tp)
        d, v, fmt, static = self.head_dim, self.value_dim, precision.of("attention"), precision.static_activation_scales
        gate = {"none": 0.0, "head": 1.0, "full": v}[self.output_gate]
        own = 0.0 if self.shared_kv else kv
        row = ACTIVATION_BYTES * tokens
        out: list[Op] = [
            Gemm(
                "attn.qkv",
                tokens,
                q * (d + gate) + own * (d + (0 if self.k_is_v else v)),
                hidden,
                fmt,
                static_scales=static,
            )
        ]
        if self.qk_norm != "none":
            out += [Elementwise("attn.qk_norm", 2.0 * (q + own) * d * row)]
        if self.qk_norm == "full" and plan.tp > 1:  # the mean square runs over the heads of all ranks: two fp32 a token
            out += [Collective("attn.qk_norm_reduce", "all_reduce", 8.0 * tokens, plan.tp)]
        if self.rope:
            out += [Elementwise("attn.rope", 2.0 * (q + own) * d * row)]
        if not self.shared_kv and self.causal:
            out += [Elementwise("attn.kv_append", kv * (d + v) * row)]
        if self.index:
            out += self.index.ops(hidden, hidden, groups, precision)
        out += [
            Attention(
                "attn.core", s, q, kv, d, v, precision.kv, self._window / g.shards, self.causal,
                writes_cache=self.causal and not self.shared_kv, count=count,
            )
            for g in groups
            for s, count in self._pieces(g)
        ]  # fmt: skip
        if gate:
            out += [Elementwise("attn.output_gate", 3.0 * q * v * row)]
        return [*out, Gemm("attn.out", tokens, hidden, q * v, fmt, static_scales=static)]

    @property
    def _window(self) -> float:
        if self.index:
            return float(self.index.top_k)
        return float(self.window) if self.window else np.inf

    def _pieces(self, g: Sequences) -> list[tuple[Sequences, Array]]:
        """The group itself; with chunks: the rest of the one under way, whole ones, and the beginning of the last."""
        if self.chunk is None:
            return [(g, 1.0)]
        begun = np.mod(g.past * g.shards, self.chunk)
        first = np.minimum(g.new, self.chunk - begun)
        whole = np.floor((g.new - first) / self.chunk)
        last = g.new - first - whole * self.chunk
        pieces = [
            Sequences(g.count, first, begun / g.shards),
            Sequences(g.count * whole, float(self.chunk)),
            Sequences(g.count, last),
        ]
        return [(s, c) for s in pieces if np.any(c := np.where(s.tokens > 0, 1.0, 0.0))]
