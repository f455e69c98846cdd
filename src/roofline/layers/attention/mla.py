"""Multi-head latent attention, absorbed for decode and expanded for prompts; dense or sparse."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.layers.attention.indexer import Indexer
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, BF16, Attention, Elementwise, Gemm, LatentAttention, Op
from roofline.parallel import Plan, heads_per_rank
from roofline.precision import Precision
from roofline.workload import Sequences, attended_pairs

PACKED_LATENT = "fp8_ds_mla"  # cache format that only latents have


class MLA(Spec):
    """Keys and values of all heads come from one latent of `kv_rank`, cached with a rotary part of `rope_dim`.

    Source: DeepSeek-V2 report, section 2.1
    """

    kind: Literal["mla"] = "mla"
    heads: int = Field(ge=1)
    q_rank: int | None = Field(
        None, ge=1, description="rank of the query compression; absent: queries are projected directly"
    )
    kv_rank: int = Field(ge=1)
    nope_dim: int = Field(ge=1)
    rope_dim: int = Field(ge=0)
    v_dim: int = Field(ge=1)
    rope: bool = Field(True, description="false: the rotary part is carried but not rotated (Kimi Linear)")
    output_gate: bool = False
    index: Indexer | None = Field(None, description="sparse attention: an indexer chooses what a query sees")

    @model_validator(mode="after")
    def _index_input(self):
        if self.index and not self.q_rank:
            raise ValueError("index needs q_rank: its queries are projected from the compressed query")
        return self

    def weights(self, hidden: int) -> list[Weight]:
        h, q, r = self.heads, self.heads * (self.nope_dim + self.rope_dim), self.kv_rank
        if self.q_rank:
            w = [
                Weight("q_a", self.q_rank, hidden),
                Weight("q_a_norm", self.q_rank, role="norm"),
                Weight("q_b", q, self.q_rank, cut="n"),
            ]
        else:
            w = [Weight("q", q, hidden, cut="n")]
        w += [
            Weight("kv_a", r + self.rope_dim, hidden),
            Weight("kv_a_norm", r, role="norm"),
            Weight("kv_b", h * (self.nope_dim + self.v_dim), r, cut="n"),
            Weight("o", hidden, h * self.v_dim, cut="k"),
        ]
        if self.output_gate:
            w += [Weight("output_gate", h * self.v_dim, hidden, cut="n")]
        return w + (self.index.weights(hidden, self.q_rank) if self.index else [])

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """Bytes of latent (and index keys) that one sequence holds; every tp rank keeps all of it."""
        index = self.index.cache_bytes(tokens) if self.index else 0.0
        return (tokens * self.token_bytes(precision) + index) / plan.cp

    def token_bytes(self, precision: Precision) -> float:
        """Cached bytes of one token in one layer.

        Formula:  (kv_rank + rope_dim) element bytes; packed fp8: kv_rank + 4 ceil(kv_rank / 128) + 2 rope_dim
        Source:   FlashMLA sparse layout (512 e4m3, 4 fp32 scales, 64 bf16 = 656 B)
        """
        if precision.kv.name == PACKED_LATENT:
            return self.kv_rank + 4.0 * np.ceil(self.kv_rank / 128) + 2.0 * self.rope_dim
        return (self.kv_rank + self.rope_dim) * precision.kv.element_bytes

    def absorbed(self, g: Sequences) -> Array:
        """1 where a group runs in the absorbed form, 0 where its keys and values are expanded first.

        Formula:  past kv_rank (nope + v) > pairs (2 kv_rank - nope - v), i.e. the form with fewer FLOPs: expanding
                  costs 2 kv_rank (nope + v) per head and cached token, absorbing 2 (2 kv_rank - nope - v) more per pair
        Assumes:  sparse attention is always absorbed: a chosen token is read in latent form
        Source:   derivation; prompts without past are expanded and single tokens absorbed, as engines do
        """
        if self.index:
            return np.ones_like(np.asarray(g.past, float))
        n, r = self.nope_dim + self.v_dim, self.kv_rank
        return np.where(np.asarray(g.past) * (r * n) > attended_pairs(g.new, g.past) * (2.0 * r - n), 1.0, 0.0)

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens = sum(g.tokens for g in groups)
        h, fmt = heads_per_rank(self.heads, plan.tp), precision.of("attention")
        qk, latent = self.nope_dim + self.rope_dim, self.kv_rank + self.rope_dim
        row = ACTIVATION_BYTES * tokens
        out: list[Op] = []
        if self.q_rank:
            out += [
                Gemm("attn.qkv_a", tokens, self.q_rank + latent, hidden, fmt),
                Elementwise("attn.latent_norm", 2.0 * (self.q_rank + self.kv_rank) * row),
                Gemm("attn.q_b", tokens, h * qk, self.q_rank, fmt),
            ]
        else:
            out += [
                Gemm("attn.q", tokens, h * qk, hidden, fmt),
                Gemm("attn.kv_a", tokens, latent, hidden, fmt),
                Elementwise("attn.latent_norm", 2.0 * self.kv_rank * row),
            ]
        if self.rope:
            out += [Elementwise("attn.rope", 2.0 * (h + 1.0) * self.rope_dim * row)]
        out += [
            Elementwise("attn.kv_append", 2.0 * latent * row),
            Elementwise("attn.q_concat", 2.0 * h * qk * row),
        ]
        if self.index:
            out += self.index.ops(hidden, self.q_rank, groups, precision)
        for g in groups:
            out += self._core(g, h, precision)
        if self.output_gate:
            out += [
                Gemm("attn.gate", tokens, h * self.v_dim, hidden, fmt),
                Elementwise("attn.output_gate", 3.0 * h * self.v_dim * row),
            ]
        return [*out, Gemm("attn.out", tokens, hidden, h * self.v_dim, fmt)]

    def _core(self, g: Sequences, h: Array, precision: Precision) -> list[Op]:
        """Both forms of the attention of one group; `count` is 0 for the form that is not taken."""
        r, n, v = self.kv_rank, self.nope_dim, self.v_dim
        window = self.index.top_k / g.shards if self.index else np.inf
        absorbed = self.absorbed(g)
        expanded = 1.0 - absorbed
        both = [
            Gemm("attn.absorb_q", g.tokens, r, n, BF16, h, absorbed),  # engines keep these products 16 bits wide
            LatentAttention(
                "attn.core", g, h, r, self.rope_dim, precision.kv, self.token_bytes(precision), window, count=absorbed
            ),
            Gemm("attn.absorb_v", g.tokens, v, r, BF16, h, absorbed),
            Gemm("attn.kv_b", g.count * (g.past + g.new), h * (n + v), r, precision.of("attention"), count=expanded),
            Attention(
                "attn.core", g, h, h, n + self.rope_dim, v, BF16, writes_cache=False, expanded_latent=True,
                count=expanded,
            ),
        ]  # fmt: skip
        return [op for op in both if np.any(op.count)]
