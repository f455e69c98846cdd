"""Seconds of prefill attention: many new tokens per sequence, over an optional cached prefix."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from roofline.arrays import Array
from roofline.kernels.blocks import in_blocks
from roofline.kernels.chip import Chip
from roofline.kernels.decode import AttentionTerms, warm_bandwidth
from roofline.workload import attended_pairs, kv_tokens_read

TILE = 128.0  # query rows of a block, and keys that it consumes at a time
LEAST_ROWS = 16.0  # the smallest query tile: what one mma instruction holds


@dataclass(frozen=True, slots=True)
class PrefillConstants:
    """How well a tiled prefill kernel does on one GPU with one pair of formats; defaults: a GPU nobody measured."""

    compute_fraction: Array = 0.70  # [-] of the dense peak, on whole tiles
    memory_fraction: Array = 0.70  # [-] of datasheet bandwidth
    launch_s: Array = 9.0e-6  # [s] the smallest call
    softmax_dims: Array = 35.0  # [-] exponentials and rescaling of a pair, as so many more elements of head_dim
    wide_fraction: Array = 0.85  # [-] of compute_fraction left at head_dim 256, where registers run short
    tail: Array = (
        0.5  # [-] share of a part-filled last wave that is paid: 1 plain grid, 0 blocks of very unequal length
    )
    overlap: Array = 1.5  # [-] norm that joins compute and memory: 1 one after the other, inf perfectly overlapped
    step_s: Array = 0.9e-6  # [s] per key tile of the longest block: the serial walk
    block_s: Array = 2.5e-6  # [s] one SM's time per block beyond its tiles
    cache_passes: Array = 0.7  # [-] further passes over the new K and V: cast to the cache format, append
    warm_ratio: Array = 1.2  # [-] bandwidth gained when everything lies in L2; benchmarks only, unused when cold
    warm_l2_share: Array = 0.7  # [-] of L2 that a buffer keeps between calls; benchmarks only
    padding: Array = 1.0  # [-] 1: masked halves of diagonal tiles and padded rows are paid; 0: not (datasheet)

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "compute_fraction": (0.05, 1.0),
        "memory_fraction": (0.1, 1.0),
        "launch_s": (1e-6, 3e-5),
        "softmax_dims": (0.1, 400.0),
        "wide_fraction": (0.1, 1.0),
        "tail": (0.01, 1.0),
        "overlap": (1.0, 5.0),
        "step_s": (1e-8, 8e-6),
        "block_s": (1e-8, 1e-5),
        "cache_passes": (0.01, 12.0),
        "warm_ratio": (1.0, 8.0),
        "warm_l2_share": (0.3, 1.6),
    }


IDENTITY = PrefillConstants(
    compute_fraction=1.0, memory_fraction=1.0, launch_s=0.0, softmax_dims=0.0, wide_fraction=1.0, tail=0.0,
    overlap=np.inf, step_s=0.0, block_s=0.0, cache_passes=0.0, warm_ratio=1.0, padding=0.0,
)  # fmt: skip


def prefill_terms(
    batch: Array,
    new: Array,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    past: Array = 0.0,
    v_dim: Array | None = None,
    window: Array = np.inf,
    causal: bool = True,
    kv_bytes_per_el: Array = 2.0,
    constants: PrefillConstants | None = None,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of attention of `new` tokens per sequence over `past` cached ones, with what they consist of.

    Formula:  `tiled_terms`; moved: 2 B new (2 heads + kv_heads) (dk + dv) for queries, outputs and new K and V in
              16 bits, B new kv_heads (dk + dv) b written, the same per past token read that the window still shows
    Args:     batch B sequences, new and past [tokens] each, heads, kv_heads on this rank [-], head_dim dk (v_dim dv,
              equal unless said), window [tokens, inf = none]; causal False for encoders; peak_flops_per_s [FLOP/s] of
              the matmul format; kv_bytes_per_el b [B]; cold: nothing is found in L2. Everything but `causal`
              broadcasts, `constants` fields too
    Returns:  AttentionTerms [s]
    Assumes:  sequences of a call are equally long; a chunked prompt is a call per chunk with a growing past
    Error:    see `prefill_attention_time`
    Source:   derivation
    """
    dv = head_dim if v_dim is None else v_dim
    width = head_dim + dv
    kv = kv_heads * width
    fresh = batch * new * kv * (2.0 + kv_bytes_per_el)
    cached = batch * kv * kv_bytes_per_el * (kv_tokens_read(new, past, window) - new)
    return tiled_terms(
        batch, new, heads, width, past=past, window=window, causal=causal,
        moved_bytes=batch * new * heads * width * 2.0 + fresh + cached, fresh_bytes=fresh,
        chip=chip, peak_flops_per_s=peak_flops_per_s, constants=constants, cold=cold,
    )  # fmt: skip


def tiled_terms(
    batch: Array,
    new: Array,
    heads: Array,
    width: Array,
    *,
    past: Array,
    window: Array,
    causal: bool,
    moved_bytes: Array,
    fresh_bytes: Array,
    chip: Chip,
    peak_flops_per_s: Array,
    constants: PrefillConstants | None = None,
    cold: Array = True,
) -> AttentionTerms:
    """Return the seconds of a kernel whose blocks each take one tile of queries through all keys that it may see.

    Formula:  query tile T = 128, or below 128 new tokens the power of two from 16 on that holds them;
              nb = ceil(new/T), block i sees min(i T + 128 ceil(past/128), (ceil(window/T) + 1) T) keys,
              x = B heads nb / SM
                t_c  = 2 B heads (width + 2 d_softmax) pairs (ceil(x)/x)^tail / (f_c wide^((width/2 - 128)/128) P)
                       with pairs = sum over i of T keys_i; exactly attended pairs where padding is 0
                t_m  = moved / (f_m BW)
              time = t_launch + (t_c^q + t_m^q)^(1/q) + keys_nb/T t_step + max(x, 1) t_block
                     + passes fresh / (f_m BW)
    Args:     batch B, new, past [tokens], heads [-], width [elements] of a key and a value together; moved_bytes in
              all, fresh_bytes the new K and V as read and as cached [B]
    Returns:  AttentionTerms [s]
    Assumes:  no split along the keys: for few queries over a long past use the decode kernel
    Error:    see the callers
    Source:   derivation; block time and passes over new K and V are what moved held-out error from 12.8 to 8.5 %
    """
    c = PrefillConstants() if constants is None else constants
    pairs = attended_pairs(new, past, window, causal)
    inputs = [
        batch, new, heads, width, past, window, pairs, moved_bytes, fresh_bytes, peak_flops_per_s, cold,
        chip.bandwidth_bytes_per_s, chip.sms, chip.l2_bytes, *(getattr(c, f.name) for f in fields(c)),
    ]  # fmt: skip
    return AttentionTerms(*in_blocks(_tiled if causal else _tiled_unmasked, inputs, 5))


def prefill_attention_time(batch: Array, new: Array, heads: Array, kv_heads: Array, head_dim: Array, **arguments):
    """Return seconds of attention of many new tokens per sequence; arguments as for `prefill_terms`.

    Formula:  `prefill_terms`
    Args:     as `prefill_terms`
    Returns:  [s]
    Assumes:  as `prefill_terms`
    Error:    held-out head layouts of 12,000 rows on six GPUs, no past: see docs/kernels/attention.md
    Source:   `prefill_terms`

    >>> h100 = Chip(bandwidth_bytes_per_s=3.35e12, sms=132, l2_bytes=50e6)
    >>> t = prefill_attention_time(1, 8192, 32, 8, 128, chip=h100, peak_flops_per_s=989e12, constants=IDENTITY)
    >>> round(float(t) * 1e3, 3)
    0.556
    """
    return prefill_terms(batch, new, heads, kv_heads, head_dim, **arguments).time_s


def _tiled(batch, new, heads, width, past, window, pairs, moved, fresh, peak, cold, bandwidth, sms, l2, *values):
    """Return the five fields of AttentionTerms for one block of rows, causal mask."""
    tile, blocks = _query_tiles(new)
    behind = TILE * np.ceil(past / TILE)
    seen = np.minimum((np.ceil(window / tile) + 1.0) * tile, behind + blocks * tile)  # keys of the last block
    growing = np.clip(np.floor((seen - behind) / tile), 0.0, blocks)  # blocks that see everything before them
    keys = growing * behind + tile * growing * (growing + 1.0) / 2.0 + (blocks - growing) * seen
    return _finish(
        batch, heads, width, tile, blocks, keys, seen, pairs, moved, fresh, peak, cold, bandwidth, sms, l2, values
    )


def _tiled_unmasked(
    batch, new, heads, width, past, window, pairs, moved, fresh, peak, cold, bandwidth, sms, l2, *values
):
    """Return the five fields of AttentionTerms for one block of rows, every query sees every key (in the window)."""
    tile, blocks = _query_tiles(new)
    seen = np.minimum(TILE * np.ceil(past / TILE) + blocks * tile, (np.ceil(window / tile) + 1.0) * tile)
    return _finish(
        batch, heads, width, tile, blocks, blocks * seen, seen, pairs, moved, fresh, peak, cold, bandwidth, sms, l2,
        values,
    )  # fmt: skip


def _query_tiles(new):
    """Return rows of a query tile and how many tiles hold the new tokens."""
    tile = np.clip(2.0 ** np.ceil(np.log2(np.maximum(new, 1.0))), LEAST_ROWS, TILE)
    return tile, np.ceil(new / tile)


def _finish(batch, heads, width, tile, blocks, keys, seen, pairs, moved, fresh, peak, cold, bandwidth, sms, l2, values):
    """Return the five fields of AttentionTerms from the keys that all and the last of the blocks see."""
    c = PrefillConstants(*values)
    paid = pairs + c.padding * (np.maximum(tile * keys, pairs) - pairs)
    x = batch * heads * blocks / sms
    wave = np.maximum(np.ceil(x) / np.maximum(x, 1e-12), 1.0) ** c.tail  # no sequence: no wave
    reached = peak * c.compute_fraction * c.wide_fraction ** np.clip(width / 256.0 - 1.0, 0.0, 1.0)
    compute = 2.0 * batch * heads * (width + 2.0 * c.softmax_dims) * paid * wave / reached
    rate = bandwidth * c.memory_fraction * warm_bandwidth(moved, l2, cold, c.warm_ratio, c.warm_l2_share)
    memory = moved / rate
    append = c.cache_passes * fresh / rate
    longest = np.maximum(compute, memory)
    ratio = np.minimum(compute, memory) / np.maximum(longest, 1e-30)  # an empty op takes no time
    joint = longest * (1.0 + ratio**c.overlap) ** (1.0 / c.overlap)
    latency = seen / tile * c.step_s + np.maximum(x, 1.0) * c.block_s
    time = c.launch_s + joint + append + latency
    return time, c.launch_s, compute, memory + append, latency
