"""Seconds of the routed experts of one MoE layer on one rank: permute, two grouped GEMMs, activation, combine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from roofline.kernels.chip import Array, Chip
from roofline.kernels.elementwise import warm_share
from roofline.kernels.routing import Loads, uniform_loads

TILE_ROWS = (8, 32, 128)  # token rows of a block's tile that libraries choose among
TILE_COLUMNS = 128
WHOLE_WAVES = 4  # beyond so many waves the last, partly idle one no longer shows


@dataclass(frozen=True, slots=True)
class MoeConstants:
    """How well one MoE kernel does on one GPU in one format; defaults are for a kernel that nobody measured."""

    compute_fraction: Array = 0.4  # [-] of the dense peak, on padded tiles of a full wave
    memory_fraction: Array = 0.82  # [-] of datasheet bandwidth when streaming cold expert weights
    launch_s: Array = 24e-6  # [s] all kernels of the layer on a single token: top-k, sort, GEMMs, activation, combine
    k_latency_s: Array = 1.2e-9  # [s] serial time per element of K that a block walks through
    block_s: Array = 0.1e-6  # [s] of one SM per block of the grid, which is sized for the most scattered routing
    expert_s: Array = 15e-9  # [s] per expert that the rank holds: offsets, descriptors, histograms
    row_passes: Array = 0.5  # [-] part of permuted, activated and quantised rows that goes through HBM
    combine_passes: Array = 0.4  # [-] the same for the T k rows that all ranks together combine
    warm_ratio: Array = 1.5  # [-] bandwidth gained on what lies in L2: fresh rows, and weights in benchmarks (not cold)
    stored_bytes: Array = 0.0  # [B] per weight that the kernel reads if more than the format's: widened on loading
    padding: Array = 1.0  # [-] share of tile padding and idle waves that is paid
    blend: Array = 1.0  # [-] 1: compute, memory and latency overlap as a 2-norm; 0: perfectly (their maximum)

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "compute_fraction": (0.03, 1.0),
        "memory_fraction": (0.1, 0.95),
        "launch_s": (2e-6, 5e-5),
        "k_latency_s": (1e-11, 1.2e-8),
        "block_s": (1e-9, 3e-6),
        "expert_s": (1e-11, 1e-6),
        "row_passes": (0.02, 6.0),
        "combine_passes": (0.002, 6.0),
        "warm_ratio": (1.0, 8.0),
    }


IDENTITY = MoeConstants(
    compute_fraction=1.0, memory_fraction=1.0, launch_s=0.0, k_latency_s=0.0, block_s=0.0, expert_s=0.0,
    row_passes=0.0, combine_passes=0.0, warm_ratio=1.0, padding=0.0, blend=0.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MoeTerms:
    """Seconds of a MoE layer and of what it consists of, for the tile that finishes first."""

    time_s: Array
    launch_s: Array  # fixed: launches, experts held, the grid's blocks
    compute_s: Array  # matrix units, padding and idle waves included
    memory_s: Array  # expert weights and the GEMMs' own rows
    latency_s: Array  # a block's walk along K
    rows_s: Array  # permute, activation, quantise, combine


def moe_terms(
    tokens: Array,
    hidden: Array,
    inter: Array,
    experts: Array,
    top_k: Array,
    *,
    chip: Chip,
    peak_flops_per_s: Array,
    tp: Array = 1.0,
    ep: Array = 1.0,
    matrices: Array = 3.0,
    loads: Loads | None = None,
    weight_bytes_per_el: Array = 2.0,
    act_bytes_per_el: Array = 2.0,
    constants: MoeConstants | None = None,
    cold: Array = True,
    routings: Array = 1.0,
) -> MoeTerms:
    """Return the seconds of one MoE layer on one rank, with what they consist of.

    Formula:  H hidden, I = inter/tp, g = matrices - 1; pairs R, active experts A, blocks(b) of b rows from `loads`
                W   = matrices H I w                                               [B] of one expert
                t_m = (A W + R ((H + I) a + 2 (g I + H))) / (f_m BW)
              for a tile of b = 8, 32 or 128 rows:
                walk  = v(gI) H + v(H) I,   v(N) = blocks(b) ceil(N/128) / SM waves, whole ones below 4
                t_c   = F + padding (2 b 128 SM walk / (f_c P) - F),  F = 2 matrices H I R / (f_c P)
                t_l   = walk tau
                t_b   = max(blocks(b), min(T k, E + (T k - E)/b)) (ceil(gI/128) + ceil(H/128)) t_block / SM
                t     = sqrt(t_c^2 + t_m^2 + t_l^2) + t_b
                Z     = c_row R (2 H a + 4 g I + 2 I a + 4 H) + c_combine T k 4 H     [B] permuted, activated, combined
              time = t_launch + E/ep t_expert + min over tiles of t + Z / (f_m BW)
              what lies in L2 moves faster by 1 + h (warm_ratio - 1): h = warm_share of Z, whose rows are read soon
              after they are written; and for t_m, in benchmarks that repeat a call, of the weights used
    Args:     tokens T entering the layer over all ep ranks, hidden, inter, experts E, top_k k, tp, ep [-];
              matrices: 3 gated, 2 plain; loads: of this rank (random uniform routing unless given);
              peak_flops_per_s P [FLOP/s] of the format multiplied; bytes per element of weights w (scales included) and
              of the activations a that are multiplied [B]; cold: weights come from HBM, as in serving; routings:
              different routings that a benchmark cycles through (only used when not cold). Everything broadcasts,
              `constants` fields too
    Returns:  MoeTerms [s]
    Assumes:  weights of an expert are read once; the grid is launched for the most scattered routing that T k pairs
              over all E experts allow and blocks without work leave at once, because loads are known on the GPU only
    Error:    see `moe_time`
    Source:   derivation
    """
    c = MoeConstants() if constants is None else constants
    t, h, e, k = (np.asarray(x, float) for x in (tokens, hidden, experts, top_k))
    i, gates, local = np.asarray(inter, float) / tp, np.asarray(matrices, float) - 1.0, e / ep
    routed = uniform_loads(t, e, k, ep) if loads is None else loads
    sms, a = chip.sms, act_bytes_per_el

    rate = chip.bandwidth_bytes_per_s * c.memory_fraction
    expert_bytes = (gates + 1.0) * h * i * np.maximum(weight_bytes_per_el, c.stored_bytes)
    used = np.minimum(routed.active * np.minimum(routings, 2.0), local)  # a second routing brings other experts
    warm = warm_share(used * expert_bytes, chip.l2_bytes, cold)
    moved = routed.active * expert_bytes + routed.pairs * ((h + i) * a + 2.0 * (gates * i + h))
    memory = moved / (rate * (1.0 + warm * (c.warm_ratio - 1.0)))
    peak = peak_flops_per_s * c.compute_fraction
    exact = 2.0 * (gates + 1.0) * h * i * routed.pairs / peak

    columns_up, columns_down = np.ceil(gates * i / TILE_COLUMNS), np.ceil(h / TILE_COLUMNS)
    scattered, best = t * k, None
    for rows in TILE_ROWS:
        blocks = routed.blocks(rows)
        walk = _waves(blocks * columns_up / sms) * h + _waves(blocks * columns_down / sms) * i
        compute = exact + c.padding * (2.0 * rows * TILE_COLUMNS * sms / peak * walk - exact)
        latency = walk * c.k_latency_s
        grid = np.maximum(np.minimum(scattered, e + np.maximum(scattered - e, 0.0) / rows), blocks)
        launched = grid * (columns_up + columns_down) * c.block_s / sms
        joint = np.sqrt(compute * compute + memory * memory + latency * latency)
        longest = np.maximum(np.maximum(compute, memory), latency)
        candidate = (longest + c.blend * (joint - longest) + launched, launched, compute, latency)
        best = candidate if best is None else _earlier(best, candidate)
    busy, launched, compute, latency = best
    rows_bytes = c.row_passes * routed.pairs * (2.0 * h * a + 4.0 * gates * i + 2.0 * i * a + 4.0 * h)
    rows_bytes = rows_bytes + c.combine_passes * scattered * 4.0 * h
    near = warm_share(
        rows_bytes, chip.l2_bytes, cold=False
    )  # rows are read soon after they are written, in serving too
    rows_s = rows_bytes / (rate * (1.0 + near * (c.warm_ratio - 1.0)))
    fixed = c.launch_s + local * c.expert_s
    return MoeTerms(fixed + busy + rows_s, fixed + launched, compute, memory, latency, rows_s)


def _waves(n):
    return np.where(n < WHOLE_WAVES, np.ceil(n), n)


def _earlier(one: tuple, other: tuple) -> tuple:
    first = one[0] <= other[0]
    return tuple(np.where(first, x, y)[()] for x, y in zip(one, other, strict=True))


def moe_time(tokens: Array, hidden: Array, inter: Array, experts: Array, top_k: Array, **arguments) -> Array:
    """Return seconds of one MoE layer on one rank; arguments as for `moe_terms`.

    Formula:  `moe_terms`
    Args:     as `moe_terms`
    Returns:  [s]
    Assumes:  as `moe_terms`
    Error:    held-out expert layouts of 12,000 rows on six GPUs: see docs/kernels/moe.md
    Source:   `moe_terms`

    >>> h100 = Chip(bandwidth_bytes_per_s=3.35e12, sms=132, l2_bytes=50e6)
    >>> layer = {"chip": h100, "peak_flops_per_s": 989e12, "constants": IDENTITY}
    >>> round(float(moe_time(1, 4096, 14336, 8, 2, **layer)) * 1e6, 2)  # 2 x 352 MB of weights + 0.2 MB
    210.4
    """
    return moe_terms(tokens, hidden, inter, experts, top_k, **arguments).time_s


def fastest_moe_terms(kernels: Sequence[MoeConstants], *shape: Array, **arguments) -> tuple[MoeTerms, Array]:
    """Return the terms of the fastest of several kernels, point by point, and which one it is.

    Formula:  argmin over kernels of `moe_terms(...).time_s`
    Args:     kernels: constants of the kernels that an engine may choose from; shape and arguments as `moe_terms`
    Returns:  MoeTerms [s] and the index into `kernels` [-], in the broadcast shape of the points
    Assumes:  engines tune: they pick the kernel that is fastest for the shape at hand
    Error:    composed into served decode steps, see docs/validation.md
    Source:   derivation
    """
    every = [moe_terms(*shape, constants=c, **arguments) for c in kernels]
    times = np.stack(np.broadcast_arrays(*(t.time_s for t in every)))
    winner = np.argmin(times, axis=0)

    def chosen(name):
        values = np.stack(np.broadcast_arrays(*(getattr(t, name) for t in every), times[0])[:-1])
        return np.take_along_axis(values, winner[None], axis=0)[0][()]

    return MoeTerms(*(chosen(f.name) for f in fields(MoeTerms))), winner[()]
