"""Seconds of multi-head latent attention: expanded for prompts, absorbed for decode, and the absorbing products."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from roofline.arrays import Array
from roofline.kernels.blocks import in_blocks
from roofline.kernels.chip import Chip
from roofline.kernels.decode import TILE, AttentionTerms, DecodeConstants, split_kv_terms, warm_bandwidth
from roofline.kernels.prefill import PrefillConstants, tiled_terms
from roofline.workload import attended_pairs, kv_tokens_read

ROW_TILE = 64.0  # rows that the batched products are padded to


@dataclass(frozen=True, slots=True)
class AbsorbConstants:
    """How well batched per-head products do on one GPU in one format; defaults: a GPU nobody measured."""

    compute_fraction: Array = 0.60  # [-] of the dense peak, rows padded to 64
    memory_fraction: Array = 0.85  # [-] of datasheet bandwidth when streaming cold weights
    launch_s: Array = 4.3e-6  # [s] the smallest call
    row_s: Array = 5e-9  # [s] one SM's time per row of one head: strided reads, and the quantiser where there is one
    warm_ratio: Array = 2.0  # [-] bandwidth gained when everything lies in L2; benchmarks only, unused when cold
    warm_l2_share: Array = 0.7  # [-] of L2 that a buffer keeps between calls; benchmarks only
    blend: Array = 1.0  # [-] 1: compute and memory overlap as a 3-norm; 0: perfectly (their maximum)
    padding: Array = 1.0  # [-] 1: rows are padded to 64; 0: not (datasheet)

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "compute_fraction": (0.02, 1.0),
        "memory_fraction": (0.1, 1.0),
        "launch_s": (1e-6, 1.5e-5),
        "row_s": (1e-11, 1e-6),
        "warm_ratio": (1.0, 8.0),
        "warm_l2_share": (0.3, 1.6),
    }


# defaults for a GPU nobody measured: a block carries 64 heads, its softmax state is 512 wide
MLA_DECODE = DecodeConstants(
    memory_fraction=0.80, compute_fraction=0.9, launch_s=6e-6, block_s=4.5e-6, mha_block_s=4.5e-6, split_s=3.5e-6,
    reread=0.1, row_tile=64.0, group_rows=64.0,
)  # fmt: skip
MLA_PREFILL = PrefillConstants(
    compute_fraction=0.65, memory_fraction=0.85, launch_s=10e-6, softmax_dims=5.0, wide_fraction=1.0, tail=0.8,
    step_s=1.0e-6, block_s=2.8e-6, cache_passes=0.0,
)  # fmt: skip
ABSORB_IDENTITY = AbsorbConstants(
    compute_fraction=1.0, memory_fraction=1.0, launch_s=0.0, row_s=0.0, warm_ratio=1.0, blend=0.0, padding=0.0
)


def mla_prefill_terms(
    batch: Array,
    new: Array,
    heads: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    past: Array = 0.0,
    nope: Array = 128.0,
    rope: Array = 64.0,
    v_dim: Array = 128.0,
    rank: Array = 512.0,
    cache_bytes_per_el: Array = 2.0,
    window: Array = np.inf,
    constants: PrefillConstants | None = None,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of MLA of a prompt in its expanded form, with what they consist of.

    Formula:  `tiled_terms` with dk = nope + rope; moved: 2 B heads (dk + dv) (new for queries and outputs, new + past
              for the expanded K and V, all 16 bits) + B new (rank + rope) b of latents written
    Args:     batch B, new, past [tokens], heads on this rank [-], nope, rope, v_dim dv, rank [elements];
              peak_flops_per_s [FLOP/s] of the matmul format; cache_bytes_per_el b [B]; window [tokens]; cold
    Returns:  AttentionTerms [s]
    Assumes:  expanding the latents of past tokens (a GEMM) is counted elsewhere
    Error:    see `mla_prefill_time`
    Source:   DeepSeek-V2 report, section 2.1
    """
    width = nope + rope + v_dim
    latents = batch * new * (rank + rope) * cache_bytes_per_el
    expanded = 2.0 * batch * heads * width * (new + kv_tokens_read(new, past, window))
    return tiled_terms(
        batch, new, heads, width, past=past, window=window, causal=True, moved_bytes=expanded + latents,
        fresh_bytes=latents, chip=chip, peak_flops_per_s=peak_flops_per_s,
        constants=MLA_PREFILL if constants is None else constants, cold=cold,
    )  # fmt: skip


def mla_decode_terms(
    batch: Array,
    past: Array,
    heads: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    new: Array = 1.0,
    rank: Array = 512.0,
    rope: Array = 64.0,
    token_bytes: Array | None = None,
    cache_bytes_per_el: Array = 2.0,
    window: Array = np.inf,
    constants: DecodeConstants | None = None,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of MLA over a latent cache in its absorbed form, with what they consist of.

    Formula:  `split_kv_terms` with one group of heads x new query rows, (rank + rope) b cache bytes a token and
              2 (2 rank + rope) FLOPs per row and key; moved besides: 2 B heads new (2 rank + rope)
    Args:     batch B, past [tokens] cached before this step, heads on this rank, new tokens per sequence [-], rank,
              rope [elements]; token_bytes [B] of one cached token where the layout is packed (else (rank + rope) b);
              window [tokens]: top-k of a sparse indexer limits the tokens in the same way; peak_flops_per_s [FLOP/s]
    Returns:  AttentionTerms [s]
    Assumes:  gathered tokens (sparse) cost what contiguous ones do
    Error:    see `mla_decode_time`
    Source:   DeepSeek-V2 report, section 2.1
    """
    per_token = (rank + rope) * cache_bytes_per_el if token_bytes is None else token_bytes
    row = 2.0 * (2.0 * rank + rope)
    read = kv_tokens_read(new, past, window)
    return split_kv_terms(
        sequences=batch, groups=1.0, rows=np.asarray(heads, float) * new, alone=0.0, tokens=read,
        cache_bytes=batch * read * per_token, other_bytes=batch * heads * new * row, tile_bytes=TILE * per_token,
        partial_elements=batch * heads * new * rank, row_flops=row,
        flops=row * batch * heads * attended_pairs(new, past, window),
        chip=chip, peak_flops_per_s=peak_flops_per_s, constants=MLA_DECODE if constants is None else constants,
        cold=cold,
    )  # fmt: skip


def absorb_terms(
    batch: Array,
    heads: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    head_dim: Array = 128.0,
    rank: Array = 512.0,
    weight_bytes_per_el: Array = 2.0,
    constants: AbsorbConstants | None = None,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of one absorbing product [batch, head_dim] x [head_dim, rank] (or back) for every head.

    Formula:  t_c = 2 heads head_dim rank m / (f_c P), m = batch padded to 64
              t_m = (heads head_dim rank w + 2 batch heads (head_dim + rank)) / (f_m BW)
              time = t_launch + (t_c^3 + t_m^3)^(1/3) + batch heads / SM t_row
    Args:     batch rows (tokens), heads on this rank, head_dim, rank [-]; weight_bytes_per_el w [B];
              peak_flops_per_s P [FLOP/s] of the operand format; cold
    Returns:  AttentionTerms [s]
    Assumes:  weights of a head are one matrix; activations are 16 bits wide outside the kernel
    Error:    see `mla_absorb_time`
    Source:   DeepSeek-V2 report, section 2.1; derivation
    """
    c = AbsorbConstants() if constants is None else constants
    inputs = [
        batch, heads, head_dim, rank, weight_bytes_per_el, peak_flops_per_s, cold, chip.bandwidth_bytes_per_s,
        chip.sms, chip.l2_bytes, *(getattr(c, f.name) for f in fields(c)),
    ]  # fmt: skip
    return AttentionTerms(*in_blocks(_absorb, inputs, 5))


def _absorb(batch, heads, head_dim, rank, w, peak, cold, bandwidth, sms, l2, *values):
    """Return the five fields of AttentionTerms for one block of rows."""
    c = AbsorbConstants(*values)
    rows = batch + c.padding * (ROW_TILE * np.ceil(batch / ROW_TILE) - batch)
    compute = 2.0 * heads * head_dim * rank * rows / (peak * c.compute_fraction)
    moved = heads * head_dim * rank * w + 2.0 * batch * heads * (head_dim + rank)
    memory = moved / (bandwidth * c.memory_fraction * warm_bandwidth(moved, l2, cold, c.warm_ratio, c.warm_l2_share))
    longest = np.maximum(compute, memory)
    joint = longest + c.blend * (np.cbrt(compute * compute * compute + memory * memory * memory) - longest)
    strided = batch * heads / sms * c.row_s
    return c.launch_s + joint + strided, c.launch_s, compute, memory, strided


def mla_prefill_time(batch: Array, new: Array, heads: Array, **arguments) -> Array:
    """Return seconds of MLA of a prompt, expanded; arguments as for `mla_prefill_terms`.

    Formula:  `mla_prefill_terms`
    Args:     as `mla_prefill_terms`
    Returns:  [s]
    Assumes:  as `mla_prefill_terms`
    Error:    held-out shapes of 2,800 rows on six GPUs: see docs/kernels/mla.md
    Source:   `mla_prefill_terms`
    """
    return mla_prefill_terms(batch, new, heads, **arguments).time_s


def mla_decode_time(batch: Array, past: Array, heads: Array, **arguments) -> Array:
    """Return seconds of MLA over a latent cache, absorbed; arguments as for `mla_decode_terms`.

    Formula:  `mla_decode_terms`
    Args:     as `mla_decode_terms`
    Returns:  [s]
    Assumes:  as `mla_decode_terms`
    Error:    held-out shapes of 2,950 rows on six GPUs: see docs/kernels/mla.md
    Source:   `mla_decode_terms`
    """
    return mla_decode_terms(batch, past, heads, **arguments).time_s


def mla_absorb_time(batch: Array, heads: Array, **arguments) -> Array:
    """Return seconds of one absorbing product for every head; arguments as for `absorb_terms`.

    Formula:  `absorb_terms`
    Args:     as `absorb_terms`
    Returns:  [s]
    Assumes:  as `absorb_terms`
    Error:    held-out shapes of 6,250 rows on six GPUs: see docs/kernels/mla.md
    Source:   `absorb_terms`
    """
    return absorb_terms(batch, heads, **arguments).time_s
