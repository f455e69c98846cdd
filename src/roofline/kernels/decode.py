"""Seconds of decode attention: few new tokens against a long cache, the cache cut into parts (split KV)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from roofline.arrays import Array, larger, smaller, where
from roofline.kernels.blocks import in_blocks, quickest
from roofline.kernels.chip import Chip
from roofline.workload import attended_pairs, kv_tokens_read

TILE = 128  # cached tokens that a block consumes at a time; a split keeps at least one tile
QUERY_ROWS = 128  # query rows (heads of a group x new tokens) that one block carries at most
SPLITS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
WHOLE_WAVES = 4.0  # below this many waves a last, part-filled wave is felt; above, blocks finish at different times


@dataclass(frozen=True, slots=True)
class DecodeConstants:
    """How well a split-KV attention kernel does on one GPU with one cache format; defaults: a GPU nobody measured."""

    memory_fraction: Array = 0.90  # [-] of datasheet bandwidth when streaming cold KV
    compute_fraction: Array = 0.60  # [-] of the dense peak on padded query rows
    launch_s: Array = 8.0e-6  # [s] the smallest call: start, metadata, first loads, epilogue
    block_s: Array = 1.6e-6  # [s] one SM's time per block beyond its KV tiles: page table, query, softmax state, output
    mha_block_s: Array = 1.4e-6  # [s] the same where a block serves one query head (engines use another kernel there)
    tile_s: Array = 0.3e-6  # [s] latency of one KV tile: the serial walk of a lone block
    feed_ratio: Array = 8.0  # [-] rate at which one SM can draw KV, over its fair share of datasheet bandwidth
    blocks_per_sm: Array = 1.4  # [-] blocks that hide each other's latency on one SM
    split_s: Array = 1.8e-6  # [s] combining the parts when KV is split
    reread: Array = 0.0  # [-] share of KV fetched again from HBM by every further head group of one sequence (MLA)
    warm_ratio: Array = 2.0  # [-] bandwidth gained when all of the KV lies in L2; benchmarks only, unused when cold
    warm_l2_share: Array = 0.7  # [-] of L2 that a buffer keeps between calls; benchmarks only
    max_splits: Array = 128.0  # [-] 1 for kernels that never split
    mha_max_splits: Array = 128.0  # [-] the same where a block serves one query head
    fixed_splits: Array = 0.0  # [-] grids of a fixed number of parts however short the cache (Triton); 0: chosen
    row_tile: Array = 16.0  # [-] query rows are padded to a multiple of this (mma: 16, wgmma: 64)
    group_rows: Array = (
        QUERY_ROWS  # [-] query rows of one block: more heads than this share a KV head in several blocks
    )
    window_grouped: Array = 1.0  # [-] 0 for kernels that treat query heads one by one once a window is set
    blend: Array = 1.0  # [-] 1: memory and blocks of one wave overlap as a 2-norm; 0: perfectly (their maximum)
    padding: Array = 1.0  # [-] 1: padded rows, tiles and part-filled waves are paid; 0: not (datasheet)

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "memory_fraction": (0.03, 1.0),
        "compute_fraction": (0.02, 1.0),
        "launch_s": (1e-6, 3e-5),
        "block_s": (1e-8, 2e-5),
        "mha_block_s": (1e-8, 2e-5),
        "tile_s": (1e-8, 2e-5),
        "feed_ratio": (0.5, 16.0),
        "blocks_per_sm": (1.0, 8.0),
        "split_s": (1e-8, 3e-5),
        "reread": (1e-3, 1.0),
        "warm_ratio": (1.0, 10.0),
        "warm_l2_share": (0.3, 1.6),
    }


IDENTITY = DecodeConstants(
    memory_fraction=1.0, compute_fraction=1.0, launch_s=0.0, block_s=0.0, mha_block_s=0.0, tile_s=0.0,
    feed_ratio=np.inf, blocks_per_sm=1.0, split_s=0.0, reread=0.0, warm_ratio=1.0, max_splits=1.0, mha_max_splits=1.0,
    blend=0.0, padding=0.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttentionTerms:
    """Seconds of an attention call and of what it consists of, for the split that finishes first."""

    time_s: Array
    launch_s: Array  # fixed: launch, combining splits
    compute_s: Array  # matrix units, padding and part-filled waves included
    memory_s: Array  # HBM
    latency_s: Array  # per-block and per-tile latency beyond bytes and FLOPs


def decode_terms(
    batch: Array,
    past: Array,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    new: Array = 1.0,
    v_dim: Array | None = None,
    window: Array = np.inf,
    kv_bytes_per_el: Array = 2.0,
    constants: DecodeConstants | None = None,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of attention of `new` tokens per sequence over a cache, with what they consist of.

    Formula:  `split_kv_terms` with the KV heads as groups of heads / kv_heads x new query rows, KV of
              kv_heads (dk + dv) b a token, 2 (dk + dv) FLOPs per row and key; moved besides the cache:
              queries and outputs 2 B heads (dk + dv), new K and V read in 16 bits and written with b
    Args:     batch B, past [tokens] cached before this step, heads, kv_heads on this rank [-], head_dim dk (v_dim dv,
              equal unless said), new tokens per sequence [-] (drafts to verify: k + 1), window [tokens, inf = none];
              peak_flops_per_s [FLOP/s] of 16-bit matmuls (queries are 16 bits wide); kv_bytes_per_el b [B];
              cold: KV comes from HBM, as in serving. Everything broadcasts, `constants` fields too
    Returns:  AttentionTerms [s]
    Assumes:  new is small (rows are packed into one query tile); sequences of a call are equally long
    Error:    see `decode_attention_time`
    Source:   derivation
    """
    dv = head_dim if v_dim is None else v_dim
    width = head_dim + dv
    written = batch * new * (2.0 * heads + kv_heads * (2.0 + kv_bytes_per_el)) * width
    read = kv_tokens_read(new, past, window)
    group = heads / kv_heads
    c = DecodeConstants() if constants is None else constants
    alone = (group <= 1.0) | (np.isfinite(window) & (c.window_grouped == 0))
    tokens = read + where(past + new > read, TILE, 0.0)  # a window rarely starts on a tile
    return split_kv_terms(
        sequences=batch, groups=where(alone, heads, kv_heads), rows=where(alone, 1.0, group) * new, alone=alone,
        tokens=tokens, cache_bytes=batch * kv_heads * width * kv_bytes_per_el * (read - new), other_bytes=written,
        tile_bytes=TILE * width * kv_bytes_per_el, partial_elements=batch * heads * new * dv,
        row_flops=2.0 * width, flops=2.0 * width * batch * heads * attended_pairs(new, past, window),
        chip=chip, peak_flops_per_s=peak_flops_per_s, constants=c, cold=cold,
    )  # fmt: skip


def split_kv_terms(
    *,
    sequences: Array,
    groups: Array,
    rows: Array,
    alone: Array,
    tokens: Array,
    cache_bytes: Array,
    other_bytes: Array,
    tile_bytes: Array,
    partial_elements: Array,
    row_flops: Array,
    flops: Array,
    chip: Chip,
    peak_flops_per_s: Array,
    constants: DecodeConstants,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of a kernel whose blocks each walk one part of one sequence's cache for one group of rows.

    Formula:  for each number of parts s (1, 2, 4 .. max_splits, each of at least one tile of 128 tokens):
              c = s sequences groups ceil(rows/group_rows) blocks, x = c/SM, v = ceil(x) below 4 waves and x above,
              v' the same of x / blocks_per_sm, n = ceil(tokens / 128 s)
                t_m  = (cache (1 + reread (ceil(rows/group_rows) - 1)) + other + [s > 1] 8 s partial) / (f_m BW)
                t_b  = n max(v' t_tile, v sqrt(tile_bytes^2 / (feed BW/SM)^2 + (128 g row_flops SM / (f_c P))^2))
                       + (v' - 1) t_block,   g = rows padded to row_tile
                t    = max(t_m, t_b) + (sqrt(t_m^2 + t_b^2) - max(t_m, t_b)) / sqrt(v') + t_block + [s > 1] t_split
              time = t_launch + min over s of t
              warm buffers (benchmarks): BW grows by 1 + h (warm_ratio - 1), h = 1 / (1 + (Y / (share L2))^12)
    Args:     sequences, groups per sequence, query rows per group [-]; alone: the group is one query head;
              tokens walked per sequence; cache_bytes, other_bytes in all, tile_bytes of one tile of one group [B];
              partial_elements written per part [-]; row_flops per row and key, flops in all [FLOP]
    Returns:  AttentionTerms [s]
    Assumes:  the kernel picks a good number of parts; blocks of many waves are out of step, so that one loads while
              another starts or multiplies, and what still collides falls with the root of their number
    Error:    see the callers
    Source:   derivation; the twelfth power is the sharp edge that the tables show where KV outgrows the cache
    """
    inputs = [
        sequences, groups, rows, alone, tokens, cache_bytes, other_bytes, tile_bytes, partial_elements, row_flops,
        flops, peak_flops_per_s, cold, chip.bandwidth_bytes_per_s, chip.sms, chip.l2_bytes,
        *(getattr(constants, f.name) for f in fields(constants)),
    ]  # fmt: skip
    return AttentionTerms(*in_blocks(_split_kv, inputs, 5))


def decode_attention_time(
    batch: Array, past: Array, heads: Array, kv_heads: Array, head_dim: Array, **arguments
) -> Array:
    """Return seconds of attention of few new tokens per sequence over a cache; arguments as for `decode_terms`.

    Formula:  `decode_terms`
    Args:     as `decode_terms`
    Returns:  [s]
    Assumes:  as `decode_terms`
    Error:    held-out head layouts of 12,000 rows on six GPUs: see docs/kernels/attention.md
    Source:   `decode_terms`

    >>> h100 = Chip(bandwidth_bytes_per_s=3.35e12, sms=132, l2_bytes=50e6)
    >>> t = decode_attention_time(64, 8191, 32, 8, 128, chip=h100, peak_flops_per_s=989e12, constants=IDENTITY)
    >>> round(float(t) * 1e6, 1)
    641.4
    """
    return decode_terms(batch, past, heads, kv_heads, head_dim, **arguments).time_s


def warm_bandwidth(moved_bytes: Array, l2_bytes: Array, cold: Array, ratio: Array, share: Array) -> Array:
    """Return the factor on bandwidth of a benchmark that reads the same buffers again: 1 where cold.

    Formula:  1 + h (ratio - 1),  h = 1 / (1 + (Y / (share L2))^12)
    Args:     moved_bytes Y, l2_bytes L2 [B]; ratio, share [-]
    Returns:  [-]
    Assumes:  one buffer cycled: with least-recently-used replacement it is either all there or all gone
    Error:    part of the kernels that use it
    Source:   fit to the tables; with a fourth power decode errs 0.8-1.5 % more on the GPUs with large L2
    """
    y = smaller(moved_bytes / (share * larger(l2_bytes, 1.0)), 1e3)
    y = y * y * y
    y = y * y
    return 1.0 + where(cold, 0.0, (ratio - 1.0) / (1.0 + y * y))


def _split_kv(*inputs) -> tuple:
    """Return the five fields of AttentionTerms for one block of points."""
    (sequences, groups, rows, alone, tokens, cache, other, tile_bytes, partial, row_flops, flops, peak, cold, bandwidth,
     sms, l2, *values) = inputs  # fmt: skip
    c = DecodeConstants(*values)
    blocks_in_group = larger(np.ceil(rows / c.group_rows), 1.0)
    in_block = c.row_tile * np.ceil(rows / blocks_in_group / c.row_tile)
    rate = bandwidth * c.memory_fraction * warm_bandwidth(cache + other, l2, cold, c.warm_ratio, c.warm_l2_share)
    moved_s = (cache * (1.0 + c.reread * (blocks_in_group - 1.0)) + other) / rate
    partial_s = 8.0 * partial / rate  # fp32, written and read
    peak = peak * c.compute_fraction
    feed_s = tile_bytes * sms / (c.feed_ratio * bandwidth)
    padded_s = c.padding * TILE * in_block * row_flops * sms / peak
    exact_s = (1.0 - c.padding) * flops / peak
    occupied = sequences * groups * blocks_in_group / sms
    filled = np.ceil(tokens / 32.0)  # parts that are not empty; those store nothing
    setup = where(alone, c.mha_block_s, c.block_s)
    fixed, most = c.fixed_splits > 0, where(alone, c.mha_max_splits, c.max_splits)
    most = larger(smaller(most, tokens / TILE), 1.0)

    def way(parts):
        possible = fixed | (parts <= most)
        parts = where(fixed, c.fixed_splits, parts)
        split = parts > 1
        x = occupied * parts
        waves, hidden = _waves(x), _waves(x / c.blocks_per_sm)
        tiles = np.ceil(tokens / (TILE * parts))
        memory = moved_s + np.where(split, np.minimum(parts, filled), 0.0) * partial_s
        compute = tiles * (waves * padded_s) + exact_s
        walk = _two_norm(tiles * (waves * feed_s), compute)
        block = np.maximum(tiles * (hidden * c.tile_s), walk) + (hidden - 1.0) * setup
        longest = np.maximum(memory, block)
        joint = longest + (_two_norm(memory, block) - longest) * (c.blend / np.sqrt(hidden))
        extra = np.where(split, c.split_s, 0.0)
        total = joint + np.where(possible, setup + extra, np.inf)
        return total, memory, compute, extra

    menu = SPLITS[SPLITS <= np.max(most)]
    time, memory, compute, extra = quickest(way, menu[None], inputs)
    latency = time - extra - np.maximum(memory, compute)
    return c.launch_s + time, c.launch_s + extra, compute, memory, latency


def _two_norm(a, b):
    """Return np.hypot at a tenth of its price: seconds neither overflow nor underflow when squared."""
    return np.sqrt(a * a + b * b)


def _waves(x):
    """Return waves of blocks: whole below WHOLE_WAVES, fractional above, never under 1."""
    return np.where(x < WHOLE_WAVES, np.ceil(np.maximum(x, 1.0)), x)
