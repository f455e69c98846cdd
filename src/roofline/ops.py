"""What one rank does in a step, as shapes. Each op knows its FLOPs and its bytes; how fast is not said here.

All fields that can vary in a sweep are floats or arrays that broadcast. `count` is how many times the step does the
op (layers of the same shape). `flops`, `weight_bytes`, `kv_bytes` and `activation_bytes` are of ONE execution; bytes
are what has to cross the memory bus at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError
from roofline.precision import FORMATS, Format
from roofline.workload import Sequences, attended_pairs, kv_tokens_read

BF16 = FORMATS["bf16"]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "send", "host_gather")
MATMULS = ("gemm", "experts")  # kinds of op that multiply by weights
NETWORK = ("collective", "exchange")  # kinds of op that wait for links
ACTIVATION_BYTES = 2.0  # between ops activations are 16 bits wide


@dataclass(frozen=True, slots=True)
class Op:
    """Base of all ops: a name, how often, and zero for everything that a kind does not move."""

    name: str
    kind: ClassVar[str] = "op"

    @property
    def flops(self) -> Array:
        return 0.0

    @property
    def weight_bytes(self) -> Array:
        return 0.0

    @property
    def kv_bytes(self) -> Array:
        return 0.0

    @property
    def activation_bytes(self) -> Array:
        return 0.0

    @property
    def wire_bytes(self) -> Array:
        """Payload handed to the network per rank."""
        return 0.0

    @property
    def bytes(self) -> Array:
        """Bytes over the memory bus: weights, KV and activations."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True)
class Gemm(Op):
    """`batch` independent products [m, k] @ [k, n], each with its own weight (batch = heads for absorbed MLA)."""

    m: Array
    n: Array
    k: Array
    weight: Format = BF16
    batch: Array = 1.0
    count: Array = 1.0
    static_scales: bool = False  # activation scales are known beforehand: no quantiser kernel runs
    cached: Array = 0.0  # share of the weight that is found in the last-level cache (looped layers)
    kind: ClassVar[str] = "gemm"

    @property
    def flops(self) -> Array:
        """2 m n k: one multiply and one add each."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> Array:
        return self.weight.bytes(self.n, self.k, self.batch) * (1.0 - self.cached)

    @property
    def activation_bytes(self) -> Array:
        """Input as the format's matmul reads it, output 16 bits wide."""
        return self.batch * self.m * (self.k * self.weight.act_bits / 8.0 + self.n * ACTIVATION_BYTES)


@dataclass(frozen=True, slots=True)
class Attention(Op):
    """Softmax attention of a group of like sequences: MHA, GQA, MQA, and MLA in its expanded form.

    `naive` materialises the score table: written, read by the softmax, written, read (4 passes); otherwise tiled.
    """

    sequences: Sequences
    heads: Array
    kv_heads: Array
    qk_dim: Array
    v_dim: Array
    kv: Format = BF16
    window: Array = np.inf
    causal: bool = True
    writes_cache: bool = True  # False where the layer reads a cache that another layer wrote (shared KV)
    naive: bool = False
    expanded_latent: bool = False  # keys and values were expanded from MLA latents
    count: Array = 1.0
    kind: ClassVar[str] = "attention"

    @property
    def flops(self) -> Array:
        """2 (qk_dim + v_dim) per head and attended pair."""
        s = self.sequences
        pairs = attended_pairs(s.new, s.past, self.window, self.causal)
        return 2.0 * s.count * self.heads * (self.qk_dim + self.v_dim) * pairs

    @property
    def kv_bytes(self) -> Array:
        """Cache read for what the queries see, and written for the new tokens."""
        s = self.sequences
        per_token = self.kv_heads * (self.qk_dim + self.v_dim) * self.kv.element_bytes
        written = s.new if self.writes_cache else 0.0
        return s.count * per_token * (kv_tokens_read(s.new, s.past, self.window) - s.new + written)

    @property
    def activation_bytes(self) -> Array:
        s = self.sequences
        own = self.heads * (self.qk_dim + self.v_dim) + self.kv_heads * (self.qk_dim + self.v_dim)
        tokens = s.count * s.new
        table = 0.0
        if self.naive:
            table = 4.0 * s.count * self.heads * s.new * (s.past + s.new)
        return (tokens * own + table) * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class LatentAttention(Op):
    """MLA, absorbed form: all heads attend over one latent of `rank + rope` a token (DeepSeek-V2, section 2.1)."""

    sequences: Sequences
    heads: Array
    rank: Array
    rope: Array
    kv: Format = BF16
    token_bytes: Array | None = None  # cache bytes per token where the layout is packed (fp8_ds_mla: 656)
    window: Array = np.inf  # cached entries that a query sees; top-k of a sparse indexer limits them in the same way
    ratio: Array = 1.0  # positions that one cached entry stands for (compressed attention)
    count: Array = 1.0
    kind: ClassVar[str] = "latent_attention"

    @property
    def flops(self) -> Array:
        """2 (2 rank + rope) per head and attended pair: scores over rank + rope, values over rank."""
        s = self.sequences
        pairs = attended_pairs(s.new, s.past, self.window * self.ratio) / self.ratio
        return 2.0 * s.count * self.heads * (2.0 * self.rank + self.rope) * pairs

    @property
    def kv_bytes(self) -> Array:
        s = self.sequences
        per_token = (self.rank + self.rope) * self.kv.element_bytes if self.token_bytes is None else self.token_bytes
        return s.count * per_token * kv_tokens_read(s.new, s.past, self.window * self.ratio) / self.ratio

    @property
    def activation_bytes(self) -> Array:
        s = self.sequences
        return s.count * s.new * self.heads * (2.0 * self.rank + self.rope) * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class IndexScores(Op):
    """Scores of a sparse indexer: every query against every cached key of `dim` in fp8 (DeepSeek-V3.2 report, 2.1)."""

    sequences: Sequences
    heads: Array
    dim: Array
    key_bytes: Array  # per key: dim elements and their scale
    ratio: Array = 1.0  # positions that one key stands for (compressed attention)
    count: Array = 1.0
    kind: ClassVar[str] = "index_scores"

    @property
    def flops(self) -> Array:
        s = self.sequences
        return 2.0 * s.count * self.heads * self.dim * attended_pairs(s.new, s.past) / self.ratio

    @property
    def kv_bytes(self) -> Array:
        s = self.sequences
        return s.count * self.key_bytes * kv_tokens_read(s.new, s.past) / self.ratio

    @property
    def activation_bytes(self) -> Array:
        s = self.sequences
        pairs = attended_pairs(s.new, s.past) / self.ratio
        return s.count * (s.new * self.heads * self.dim + pairs * ACTIVATION_BYTES)


@dataclass(frozen=True, slots=True)
class StateUpdate(Op):
    """Linear attention or SSM: a state of heads x key_dim x value_dim, read and written once a step and sequence."""

    sequences: Sequences
    heads: Array
    key_dim: Array
    value_dim: Array
    state_bytes: Array  # of one sequence on this rank, convolution state included
    flops_per_element: float = 6.0  # decay, outer product, read-out: three multiply-adds per state element and token
    count: Array = 1.0
    kind: ClassVar[str] = "state_update"

    @property
    def flops(self) -> Array:
        return self.flops_per_element * self.sequences.tokens * self.heads * self.key_dim * self.value_dim

    @property
    def kv_bytes(self) -> Array:
        return 2.0 * self.sequences.count * self.state_bytes

    @property
    def activation_bytes(self) -> Array:
        return self.sequences.tokens * self.heads * 2.0 * (self.key_dim + self.value_dim) * ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """The routed experts of one MoE layer on the busiest rank: permute, grouped GEMMs, activation, combine.

    `tokens` enter the layer over the whole replica; the rank holds `experts / ep` experts, each cut in `tp`.
    `matrices` is 3 for gated experts, 2 for plain ones.
    """

    tokens: Array
    hidden: Array
    inter: Array
    experts: Array
    top_k: Array
    tp: Array = 1.0
    ep: Array = 1.0
    weight: Format = BF16
    matrices: float = 3.0
    imbalance: Array = 1.0  # rows of the busiest rank over the mean
    count: Array = 1.0
    kind: ClassVar[str] = "experts"

    @property
    def pairs(self) -> Array:
        """Token-expert pairs on the busiest rank."""
        return self.tokens * self.top_k / self.ep * self.imbalance

    @property
    def distinct(self) -> Array:
        """Experts of this rank that at least one token is routed to."""
        return distinct_experts(self.experts, self.top_k, self.tokens) / self.ep

    @property
    def flops(self) -> Array:
        return 2.0 * self.matrices * self.hidden * self.inter / self.tp * self.pairs

    @property
    def weight_bytes(self) -> Array:
        shard = self.inter / self.tp
        wide = self.matrices - 1.0  # gate and up, or up alone: [inter, hidden]; down: [hidden, inter]
        return self.weight.bytes(shard, self.hidden, self.distinct * wide) + self.weight.bytes(
            self.hidden, shard, self.distinct
        )

    @property
    def activation_bytes(self) -> Array:
        """Each pair reads and writes a hidden row and an inner row once."""
        return self.pairs * 2.0 * (self.hidden + self.inter / self.tp) * ACTIVATION_BYTES


def distinct_experts(experts: Array, top_k: Array, tokens: Array) -> Array:
    """Expected number of experts that at least one token is routed to.

    Formula:  E (1 - (1 - k/E)^T)
    Args:     experts E [-], top_k k [-], tokens T [-]; floats or arrays that broadcast
    Assumes:  uniform, independent routing; skewed routers hit fewer
    Source:   derivation (occupancy problem)

    >>> round(float(distinct_experts(128, 8, 16)), 2), float(distinct_experts(8, 8, 1))
    (82.42, 8.0)
    """
    experts, top_k = np.asarray(experts, float), np.asarray(top_k, float)
    return experts * (1.0 - (1.0 - top_k / experts) ** np.asarray(tokens, float))


@dataclass(frozen=True, slots=True)
class Elementwise(Op):
    """`kernels` small memory-bound kernels that together move `moved_bytes` (norms, RoPE, activation, cache append)."""

    moved_bytes: Array
    kernels: Array = 1.0
    count: Array = 1.0
    kind: ClassVar[str] = "elementwise"

    @property
    def activation_bytes(self) -> Array:
        return self.moved_bytes


@dataclass(frozen=True, slots=True)
class Collective(Op):
    """One collective over `ranks`; `payload_bytes` is the buffer of one rank. One rank alone sends nothing."""

    pattern: str  # one of COLLECTIVES
    payload_bytes: Array
    ranks: int
    across_nodes: bool = False
    count: Array = 1.0
    kind: ClassVar[str] = "collective"

    @property
    def wire_bytes(self) -> Array:
        """Bytes that each rank must send: see `wire_bytes`."""
        return wire_bytes(self.pattern, self.payload_bytes, self.ranks)


def wire_bytes(kind: str, message_bytes: Array, ranks: Array) -> Array:
    """Return the bytes that each rank must send, at least, when no switch helps.

    Formula:  all_reduce 2 (n-1)/n b; all_gather, reduce_scatter, alltoall (n-1)/n b; send b;
              host_gather (n+1)/n b: all_gather through host memory, a rank's part there and the whole back
    Args:     kind, one of COLLECTIVES; message_bytes b [B]: the full buffer, as nccl-tests counts it (all_gather: what
              a rank holds afterwards; reduce_scatter: what it holds before); ranks n [-]
    Returns:  [B] per rank, one direction
    Source:   NCCL tests, doc/PERFORMANCE.md

    >>> float(wire_bytes("all_reduce", 8e6, 8))
    14000000.0
    """
    if kind not in COLLECTIVES:
        raise InputError(f"collective: unknown kind '{kind}'; allowed: {', '.join(COLLECTIVES)}")
    if kind == "send":
        return message_bytes * np.ones_like(np.asarray(ranks, float))
    if kind == "host_gather":
        return (ranks + 1.0) / ranks * message_bytes
    return (2.0 if kind == "all_reduce" else 1.0) * (ranks - 1.0) / ranks * message_bytes


@dataclass(frozen=True, slots=True)
class Exchange(Op):
    """Tokens of attention-data-parallel ranks go to the experts and come back, in the cheapest of several ways.

    Each alternative is a sequence of collectives; whoever prices the op takes the one with the least time.
    """

    alternatives: tuple[tuple[Collective, ...], ...]
    count: Array = 1.0
    kind: ClassVar[str] = "exchange"

    @property
    def wire_bytes(self) -> Array:
        """Bytes that each rank must send in the alternative that sends least."""
        totals = [sum(c.wire_bytes for c in way) for way in self.alternatives]
        return totals[0] if len(totals) == 1 else np.minimum.reduce(np.broadcast_arrays(*totals))


def tiled_attention_io_elements(tokens: Array, head_dim: Array, sram_elements: Array) -> Array:
    """HBM elements that tiled attention moves for one head, the asymptotic bound of FlashAttention.

    Formula:  T^2 d^2 / M
    Args:     tokens T, head_dim d, sram_elements M (on-chip memory) [-]
    Returns:  [elements], up to a constant factor
    Source:   Dao et al. 2022 (FlashAttention), Theorem 2

    >>> tiled_attention_io_elements(2048, 64, 1e5) / tiled_attention_io_elements(1024, 64, 1e5)
    4.0
    """
    return tokens * tokens * head_dim * head_dim / sram_elements


def naive_attention_io_elements(tokens: Array, head_dim: Array) -> Array:
    """HBM elements that attention moves for one head when the score table goes through memory.

    Formula:  4 T d + 4 T^2   (read Q, K, V, write O; write S, read S, write P, read P)
    Source:   Dao et al. 2022 (FlashAttention), Algorithm 0 and Theorem 2: Theta(T d + T^2)

    >>> naive_attention_io_elements(8192, 0)
    268435456
    """
    return 4 * tokens * head_dim + 4 * tokens * tokens
