"""Seconds of one matrix product [m, k] x [k, n]: tiles, waves, split K, the memory system and the quantiser."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from roofline.arrays import where
from roofline.kernels.blocks import in_blocks, quickest
from roofline.kernels.chip import Array, Chip
from roofline.kernels.elementwise import quantise_time, warm_share

# What libraries offer: output tiles (m, n) of one thread block, and into how many parts K may be cut.
TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 4, 8, 16)
MENU = np.array([(tm, tn, s) for tm, tn in TILES for s in SPLITS], float).T  # [field, choice]
K_STEP = 64  # elements of K that a block consumes at a time; a split keeps at least one step
BLOCK = 2048  # points evaluated at once: with their candidates 0.1 to 0.5 MB a term, so that all of them stay in cache


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """How well GEMM kernels do on one GPU in one number format; defaults are for a GPU that nobody measured."""

    compute_fraction: Array = 0.72  # [-] of the dense peak, inside the main loop of a full wave
    memory_fraction: Array = 0.78  # [-] of datasheet bandwidth when streaming cold weights
    launch_s: Array = 3.0e-6  # [s] the smallest GEMM: start, first loads, epilogue
    k_latency_s: Array = 0.8e-9  # [s] serial time per element of K that a block walks through
    feed_ratio: Array = 6.0  # [-] rate at which all SMs together can load tiles (from L2), over datasheet bandwidth
    wave_loss: Array = 0.5  # [-] share of tile padding and idle last waves that is paid: 1 plain grid, 0 stream-K
    split_s: Array = 2.5e-6  # [s] adding up the parts when K is split
    quantise_s: Array = 2.5e-6  # [s] the activation quantiser's own kernel, where there is one
    quantise_row_s: Array = 0.15e-6  # [s] time one SM spends on the scale of one row (token)
    quantise_fraction: Array = 0.6  # [-] of datasheet bandwidth that the quantiser reaches
    warm_ratio: Array = 1.5  # [-] bandwidth gained when everything lies in L2; benchmarks only, unused when cold
    max_splits: Array = 16.0  # [-] 1 for kernels that never split K
    blend: Array = 1.0  # [-] 1: compute, memory and latency overlap as a 4-norm; 0: perfectly (their maximum)

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "compute_fraction": (0.1, 1.0),
        "memory_fraction": (0.2, 1.0),
        "launch_s": (0.0, 2e-5),
        "k_latency_s": (0.0, 1e-8),
        "feed_ratio": (1.0, 30.0),
        "wave_loss": (0.0, 1.0),
        "split_s": (0.0, 2e-5),
        "quantise_s": (0.0, 2e-5),
        "quantise_row_s": (0.0, 5e-6),
        "quantise_fraction": (0.02, 1.0),
        "warm_ratio": (1.0, 8.0),
    }


IDENTITY = GemmConstants(
    compute_fraction=1.0, memory_fraction=1.0, launch_s=0.0, k_latency_s=0.0, feed_ratio=np.inf, wave_loss=0.0,
    split_s=0.0, quantise_s=0.0, quantise_row_s=0.0, quantise_fraction=np.inf, warm_ratio=1.0, max_splits=1.0,
    blend=0.0,
)  # fmt: skip
# For processors whose matrix units are not fed block by block as a GPU's are (TPU, CPU): no tiles, no serial latency.
UNTILED = GemmConstants(k_latency_s=0.0, feed_ratio=np.inf, wave_loss=0.0, split_s=0.0, max_splits=1.0)


@dataclass(frozen=True, slots=True)
class GemmTerms:
    """Seconds of a GEMM and of what it consists of, for the tile and split that finish first."""

    time_s: Array
    launch_s: Array  # fixed: launch, adding up splits, the quantiser's own launch
    compute_s: Array  # matrix units, padding and idle waves included
    memory_s: Array  # HBM
    latency_s: Array  # a block's walk along K: serial latency and loading its tiles
    quantise_s: Array  # the quantiser's rows and bytes


def gemm_terms(
    m: Array,
    n: Array,
    k: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    weight_bytes_per_el: Array = 2.0,
    act_bytes_per_el: Array = 2.0,
    out_bytes_per_el: Array = 2.0,
    quantise: Array = False,
    constants: GemmConstants | None = None,
    cold: Array = True,
    weight_copies: Array = 1.0,
) -> GemmTerms:
    """Return the seconds of [m, k] x [k, n] with what they consist of.

    Formula:  for a tile (bm, bn) and a K split s:  c = s ceil(m/bm) ceil(n/bn) blocks, v = ceil(c/SM) waves,
              K' = 64 ceil(k / 64 s)
                t_c = F + wave_loss (2 v bm bn K' SM / (f_c P) - F),  F = 2 m n k / (f_c P)
                t_m = (n k w + m k a + m n o + [s > 1] 4 s m n) / (f_m BW)
                t_l = v K' tau + max(c, SM) K' (min(bm, m) a + bn w) / (feed BW)
                t   = (t_c^4 + t_m^4 + t_l^4)^(1/4) + [s > 1] t_split
              time = t_launch + min over tiles and splits of t + [quantise] quantise_time(m, k)
              warm buffers (benchmarks): f_m grows by 1 + h (warm_ratio - 1), h = warm_share of the cycled footprint
    Args:     m, n, k [-]; peak_flops_per_s P [FLOP/s] of the format multiplied; bytes per element of weights w (scales
              included), activations a, output o [B]; quantise: activations arrive in 16 bits and are quantised first;
              cold: weights come from HBM, as in serving; weight_copies: distinct weights that a benchmark cycles
              through (only used when not cold). Everything broadcasts, `constants` fields too
    Returns:  GemmTerms [s]
    Assumes:  the library picks a good tile; one GEMM at a time; activations are read once
    Error:    see `gemm_time`
    Source:   derivation; tile menus as in CUTLASS and cuBLAS
    """
    c = GemmConstants() if constants is None else constants
    inputs = [m, n, k, peak_flops_per_s, weight_bytes_per_el, act_bytes_per_el, out_bytes_per_el, quantise, cold]
    inputs += [weight_copies, chip.bandwidth_bytes_per_s, chip.sms, chip.l2_bytes]
    inputs += [getattr(c, f.name) for f in fields(c)]
    return GemmTerms(*in_blocks(_terms, inputs, 6, BLOCK))


def _terms(*inputs) -> tuple:
    """Return the six fields of GemmTerms for one block of points."""
    m, n, k, peak, w, a, o, quantise, cold, copies, bandwidth, sms, l2, *values = inputs
    c = GemmConstants(*values)
    moved = n * k * w + m * k * a + m * n * o
    hot = warm_share(copies * (n * k * w + m * n * o) + m * k * a, l2, cold)
    rate = bandwidth * c.memory_fraction * (1.0 + hot * (c.warm_ratio - 1.0))
    peak = peak * c.compute_fraction
    exact_s, lost_s = (1.0 - c.wave_loss) * 2.0 * m * n * k / peak, c.wave_loss * sms / peak
    memory_s, part_s = moved / rate, 4.0 * (m * n) / rate
    feed, most = c.feed_ratio * bandwidth, np.maximum(np.minimum(c.max_splits, k / K_STEP), 1.0)

    def way(tile_m, tile_n, split):
        whole = split == 1
        blocks = split * np.ceil(n / tile_n) * np.ceil(m / tile_m)
        steps = K_STEP * np.ceil(k / (K_STEP * split))
        waves = np.ceil(blocks / sms)
        compute = waves * (steps * (2.0 * tile_m * tile_n) * lost_s) + exact_s
        memory = memory_s + np.where(whole, 0.0, split) * part_s
        load_s = (np.minimum(tile_m, m) * a + tile_n * w) / feed
        latency = waves * (steps * c.k_latency_s) + np.maximum(blocks, sms) * (steps * load_s)
        joint = np.sqrt(np.sqrt(_fourth(compute) + _fourth(memory) + _fourth(latency)))
        longest = np.maximum(np.maximum(compute, memory), latency)
        extra = np.where(whole, 0.0, c.split_s)
        total = longest + c.blend * (joint - longest) + np.where(split <= most, extra, np.inf)
        return total, extra, compute, memory, latency

    menu = MENU[:, MENU[2] <= np.max(most)]
    total, extra, compute, memory, latency = quickest(way, menu, inputs)
    chip = Chip(bandwidth, sms, l2)
    q = quantise_time(
        m, k, chip=chip, act_bytes_per_el=a, kernel_s=0.0, row_s=c.quantise_row_s, memory_fraction=c.quantise_fraction,
        cold=cold,
    )  # fmt: skip
    q = where(quantise, q, 0.0)
    fixed = c.launch_s + where(quantise, c.quantise_s, 0.0)
    return fixed + total + q, fixed + extra, compute, memory, latency, q


def _fourth(x):
    x = x * x
    return x * x


def gemm_time(m: Array, n: Array, k: Array, **arguments) -> Array:
    """Return seconds of [m, k] x [k, n]; arguments as for `gemm_terms`.

    Formula:  `gemm_terms`
    Args:     as `gemm_terms`
    Returns:  [s]
    Assumes:  as `gemm_terms`
    Error:    held-out (n, k) groups of 12,000 rows on six GPUs: see docs/kernels/gemm.md
    Source:   `gemm_terms`

    >>> h100 = Chip(bandwidth_bytes_per_s=3.35e12, sms=132, l2_bytes=50e6)
    >>> round(float(gemm_time(1, 8192, 8192, chip=h100, peak_flops_per_s=989e12, constants=IDENTITY)) * 1e6, 2)
    40.07
    """
    return gemm_terms(m, n, k, **arguments).time_s
