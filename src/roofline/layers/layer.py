"""A layer: a mixer and a feed-forward block with what stands around them."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from roofline.arrays import Array
from roofline.layers.attention import AttentionKind
from roofline.layers.attention.gqa import GQA
from roofline.layers.ffn import FFNKind
from roofline.layers.spec import Spec
from roofline.layers.weight import Weight
from roofline.ops import ACTIVATION_BYTES, Attention, Collective, Elementwise, Gemm, Op
from roofline.parallel import Plan
from roofline.precision import Precision
from roofline.workload import Sequences


class Layer(Spec):
    """One layer: a mixer (attention, linear attention, state space), a feed-forward block, or either alone."""

    attention: AttentionKind | None = None
    cross: GQA | None = Field(None, description="attention over what an encoder produced")
    ffn: FFNKind | None = None
    norms: int | None = Field(None, ge=0, description="norms of width hidden; absent: one per part, one if parallel")
    parallel: bool = Field(
        False, description="attention and feed-forward read the same normed row (GPT-J, Falcon, Cohere)"
    )
    streams: int | None = Field(None, ge=2, description="residual streams mixed by hyper-connections (DeepSeek-V4)")
    per_layer_input: int | None = Field(
        None, ge=1, description="width of a per-layer embedding that is gated in (Gemma 4)"
    )
    input_projection: bool = Field(
        False, description="a square matrix before the layer (into or out of a looped block)"
    )
    loops: int = Field(1, ge=1, description="times that the block holding this layer is executed")
    loop_cache: Literal["each", "shared"] = Field("each", description="whether every loop keeps its own KV")

    @model_validator(mode="after")
    def _something(self):
        if not self.parts:
            raise ValueError("a layer needs attention or ffn")
        return self

    @property
    def parts(self) -> int:
        """Sublayers with a residual of their own."""
        return sum(part is not None for part in (self.attention, self.cross, self.ffn))

    @property
    def norm_count(self) -> int:
        """Norms of width hidden."""
        return (1 if self.parallel else self.parts) if self.norms is None else self.norms

    @property
    def cached_loops(self) -> int:
        """Executions that keep KV of their own."""
        return self.loops if self.loop_cache == "each" else 1

    def weights(self, hidden: int, norm_params: int) -> list[Weight]:
        """The weights of one layer; `norm_params` is the size of one norm."""
        w = [w for part in (self.attention, self.cross, self.ffn) if part is not None for w in part.weights(hidden)]
        w += [Weight("norms", self.norm_count * norm_params, role="norm")]
        if self.per_layer_input:
            p = self.per_layer_input
            w += [Weight("per_layer.gate", p, hidden, "ffn"), Weight("per_layer.up", hidden, p, "ffn")]
            w += [Weight("per_layer.norm", norm_params, role="norm")]
        if self.streams:
            mixed = (2 + self.streams) * self.streams
            w += [
                Weight("streams.mix", mixed, self.streams * hidden, "norm", copies=2),
                Weight("streams.bias", 2 * (mixed + 3), role="norm"),
            ]
        if self.input_projection:
            w += [Weight("input_projection", hidden, hidden, "ffn")]
        return w

    def cache_bytes(self, tokens: Array, plan: Plan, precision: Precision, encoder_tokens: Array = 0.0) -> Array:
        """Bytes that one sequence of `tokens` keeps on one rank for one layer, all loops together."""
        held = 0.0 * tokens
        if self.attention is not None:
            held = held + self.cached_loops * self.attention.cache_bytes(tokens, plan, precision)
        if self.cross is not None:
            held = held + self.cross.cache_bytes(encoder_tokens, plan, precision)
        return held

    def ops(
        self,
        hidden: int,
        groups: tuple[Sequences, ...],
        plan: Plan,
        precision: Precision,
        encoder_tokens: Array = 0.0,
    ) -> list[Op]:
        """The ops of one execution of the layer on one rank, norms and collectives included."""
        tokens = sum(g.tokens for g in groups)
        row = ACTIVATION_BYTES * tokens
        norm = 4.0 * hidden * row  # reads the residual and what is added to it, writes both the sum and the norm
        out: list[Op] = []
        if self.input_projection:
            out += [Gemm("layer.input", tokens, hidden, hidden, precision.of("ffn"))]
        if self.attention is not None:
            out += [Elementwise("attn.norm", norm), *self.attention.ops(hidden, groups, plan, precision)]
            if plan.tp > 1 and not (self.parallel and self.ffn is not None):
                out += [Collective("tp.all_reduce", "all_reduce", hidden * row, plan.tp)]
        if self.cross is not None:
            out += [Elementwise("cross.norm", norm), *self._cross_ops(hidden, groups, plan, precision, encoder_tokens)]
        if self.ffn is not None:
            if not (self.parallel and self.norm_count < self.parts):
                out += [Elementwise("ffn.norm", norm)]
            out += self.ffn.ops(hidden, tokens, plan, precision)
        if self.norm_count > self.parts:
            out += [
                Elementwise(
                    "layer.post_norm", (self.norm_count - self.parts) * norm, kernels=self.norm_count - self.parts
                )
            ]
        if self.per_layer_input:
            p, fmt = self.per_layer_input, precision.of("ffn")
            out += [
                Gemm("per_layer.gate", tokens, p, hidden, fmt),
                Elementwise("per_layer.multiply", 3.0 * p * row),
                Gemm("per_layer.up", tokens, hidden, p, fmt),
                Elementwise("per_layer.norm", norm),
            ]
        if self.streams:
            m = self.streams
            mix = Gemm("streams.mix", tokens, (2 + m) * m, m * hidden, precision.of("norm"))
            out += [mix, mix, Elementwise("streams.apply", 2 * 2.0 * m * hidden * row, kernels=2)]
        return out

    def _cross_ops(self, hidden, groups, plan, precision, encoder_tokens) -> list[Op]:
        """Attention of new tokens over all encoder tokens, whose keys and values are made once, with the encoder."""
        seen = tuple(Sequences(g.count, g.new, encoder_tokens - g.new) for g in groups)
        over_all = self.cross.model_copy(update={"causal": False, "rope": False})
        ops = over_all.ops(hidden, seen, plan, precision)
        ops = [replace(op, writes_cache=True) if isinstance(op, Attention) else op for op in ops]  # every key is read
        tokens, q = sum(g.tokens for g in groups), self.cross.heads * self.cross.head_dim / plan.tp
        ops[0] = Gemm("attn.q", tokens, q, hidden, precision.of("attention"))
        ops = [replace(op, name=op.name.replace("attn.", "cross.")) for op in ops]
        if plan.tp > 1:
            ops += [Collective("tp.all_reduce", "all_reduce", hidden * ACTIVATION_BYTES * tokens, plan.tp)]
        return ops
