"""Compressed attention of DeepSeek-V4: a short window of tokens, and one entry for every few tokens before it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.layers.attention.indexer import Indexer
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Elementwise, Gemm, LatentAttention, Op
from roofline.parallel import Plan, heads_per_rank
from roofline.precision import Precision
from roofline.workload import Sequences


class Compressed(Spec):
    """All heads share one cached row of `head_dim` per entry, which is key and value at once.

    A query sees the last `window` tokens and, where `ratio` is given, entries that each summarise `ratio` tokens: all
    of them, or the `index.top_k` that an indexer chooses.
    """

    kind: Literal["compressed"] = "compressed"
    heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    rope_dim: int = Field(64, ge=0, description="rotary part of head_dim")
    q_rank: int = Field(ge=1)
    o_rank: int = Field(ge=1, description="rank of the output projection of each group")
    o_groups: int = Field(ge=1)
    window: int = Field(ge=1)
    ratio: int | None = Field(None, ge=2, description="tokens that one entry summarises; absent: only the window")
    overlap: bool = Field(False, description="an entry also covers the tokens of the one before: twice the projections")
    index: Indexer | None = None

    @model_validator(mode="after")
    def _entries(self):
        if self.index and not self.ratio:
            raise ValueError("index chooses compressed entries; give ratio")
        return self

    def weights(self, hidden: int) -> list[Weight]:
        d, q = self.head_dim, self.heads * self.head_dim
        w = [
            Weight("q_a", self.q_rank, hidden),
            Weight("q_a_norm", self.q_rank, role="norm"),
            Weight("q_b", q, self.q_rank, cut="n"),
            Weight("kv", d, hidden),
            Weight("kv_norm", d, role="norm"),
            Weight("o_a", self.o_rank, q, cut="k"),
            Weight("o_b", hidden, self.o_groups * self.o_rank, cut="k"),
            Weight("sinks", self.heads, cut="n"),
        ]
        if self.ratio:
            w += self._compressor("compressor", hidden, d)
        if self.index:
            i = self.index
            w += self._compressor("index.compressor", hidden, i.dim)
            w += [Weight("index.q", i.heads * i.dim, self.q_rank), Weight("index.head_weights", i.heads, hidden)]
        return w

    def _compressor(self, name: str, hidden: int, dim: int) -> list[Weight]:
        """Value and gate projections, a bias per position in the block, and a norm."""
        wide = dim * (2 if self.overlap else 1)
        return [
            Weight(name, 2 * wide, hidden),
            Weight(f"{name}_bias", self.ratio * wide),
            Weight(f"{name}_norm", dim, role="norm"),
        ]

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision) -> Array:
        """Bytes that one sequence holds; every tp rank keeps all of it."""
        entries = np.minimum(tokens, self.window) + (tokens / self.ratio if self.ratio else 0.0)
        index = self.index.cache_bytes(tokens / self.ratio) if self.index else 0.0
        return (entries * self.head_dim * precision.kv.element_bytes + index) / plan.cp

    def ops(self, hidden: int, groups: tuple[Sequences, ...], plan: Plan, precision: Precision) -> list[Op]:
        tokens, fmt = sum(g.tokens for g in groups), precision.of("attention")
        h, d = heads_per_rank(self.heads, plan.tp), self.head_dim
        row, q = ACTIVATION_BYTES * tokens, h * d
        out: list[Op] = [
            Gemm("attn.qkv_a", tokens, self.q_rank + d, hidden, fmt),
            Elementwise("attn.latent_norm", 2.0 * (self.q_rank + d) * row),
            Gemm("attn.q_b", tokens, q, self.q_rank, fmt),
            Elementwise("attn.rope", 2.0 * (h + 1.0) * self.rope_dim * row),
            Elementwise("attn.kv_append", 2.0 * d * row),
        ]
        wide = 2.0 if self.overlap else 1.0
        if self.ratio:
            out += [
                Gemm("compressor", tokens, 2.0 * wide * d, hidden, fmt),
                Elementwise("compressor.reduce", (2.0 * wide + 1.0 / self.ratio) * d * row),
            ]
        if self.index:
            columns = 2.0 * wide * self.index.dim  # keys are compressed like the rows they stand for
            out += self.index.ops(hidden, self.q_rank, groups, precision, float(self.ratio), columns)
        kv = precision.kv
        out += [LatentAttention("attn.core", g, h, d, 0.0, kv, window=self.window / g.shards) for g in groups]
        if self.ratio:
            seen = float(self.index.top_k) if self.index else np.inf
            out += [
                LatentAttention("attn.compressed", g, h, d, 0.0, kv, window=seen / g.shards, ratio=float(self.ratio))
                for g in groups
            ]
        grouped = self.o_groups / plan.tp
        return [
            *out,
            Gemm("attn.out_a", tokens, self.o_rank, q / grouped, fmt, batch=grouped),
            Gemm("attn.out", tokens, hidden, grouped * self.o_rank, fmt),
        ]
