"""Seconds of one collective inside a scale-up domain: low-latency, bulk and in-switch algorithms, the fastest wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from roofline.arrays import larger, smaller, where
from roofline.kernels.chip import Array, Chip
from roofline.ops import wire_bytes

HALF_BYTES = 8192.0  # [B] message at which half of the extra latency of a larger launch has set in


@dataclass(frozen=True, slots=True)
class CollectiveConstants:
    """How well one library does on one interconnect; the defaults are for a switch that nobody measured."""

    fast_s: Array = 5e-6  # [s] low-latency algorithm: launch and one exchange of flags between two ranks
    fast_rank_s: Array = 0.4e-6  # [s] for every rank more
    fast_step_s: Array = 2e-6  # [s] more channels and blocks once a message outgrows a few KiB
    fast_fraction: Array = 0.3  # [-] of one-way link bandwidth, low-latency algorithm at 2 ranks
    one_shot: Array = 1.0  # [-] 1: low-latency all-reduce sends the whole message to every peer; 0: its shards
    bulk_s: Array = 25e-6  # [s] bandwidth algorithm (ring, tree, copy engines): launch and pipeline fill
    bulk_rank_s: Array = 0.5e-6  # [s] for every rank more
    bulk_fraction: Array = 0.65  # [-] of one-way link bandwidth, bandwidth algorithm at 2 ranks
    doubling: Array = 1.0  # [-] time per byte when the ranks double: < 1 more links busy, > 1 shared host bridges
    switch_s: Array = 50e-6  # [s] reduction inside the switch: launch and fill
    switch_fraction: Array = 0.67  # [-] of one-way link bandwidth, reduction inside the switch

    BOUNDS: ClassVar[dict[str, tuple[float, float]]] = {
        "fast_s": (5e-7, 1e-4),
        "fast_rank_s": (0.0, 2e-5),
        "fast_step_s": (0.0, 2e-5),
        "fast_fraction": (0.005, 1.0),
        "bulk_s": (5e-7, 5e-4),
        "bulk_rank_s": (0.0, 1e-4),
        "bulk_fraction": (0.005, 1.0),
        "doubling": (0.4, 10.0),
        "switch_s": (1e-6, 5e-4),
        "switch_fraction": (0.05, 1.0),
    }


IDENTITY = CollectiveConstants(
    fast_s=0.0, fast_rank_s=0.0, fast_step_s=0.0, fast_fraction=1.0, one_shot=0.0, bulk_s=0.0, bulk_rank_s=0.0,
    bulk_fraction=1.0, doubling=1.0, switch_s=0.0, switch_fraction=1.0,
)  # fmt: skip

# Through host memory, where cards cannot reach each other's or the engine does not try: NCCL's shared memory, or copies
# to and from pinned memory. A byte goes to the host over one card's link and back over another's, and both directions
# meet in the host's memory: 0.6 of the line rate, all crossings of a link counted, as the median of published tests.
CROSSED = 0.6
STAGED = CollectiveConstants(
    fast_s=10e-6, fast_rank_s=2e-6, fast_step_s=4e-6, fast_fraction=0.2, one_shot=0.0, bulk_s=15e-6, bulk_rank_s=5e-6,
    bulk_fraction=CROSSED / 2.0,
)  # fmt: skip
GATHERED = replace(STAGED, fast_fraction=0.4, bulk_fraction=CROSSED)  # host_gather: its bytes are the crossings
STAGED_BANDS = {"all": (0.63, 1.6), "launch": (0.5, 2.0)}  # [p10, p90] of measured / predicted


def collective_time(
    kind: str,
    message_bytes: Array,
    ranks: Array,
    *,
    chip: Chip,
    constants: CollectiveConstants | None = None,
    in_switch: Array = False,
) -> Array:
    """Return seconds of one collective among the ranks of one scale-up domain.

    Formula:  V = wire_bytes;  D = doubling^log2(n/2);  L = min(link, (n-1) pair)
                fast   = t_f + (n-1) t_fn + t_fs b/(b + 8 KiB) + V_f / (L min(1, e_f/D))
                         V_f = (n-1) b for a one-shot all_reduce, else V
                bulk   = t_b + (n-1) t_bn + V / (L min(1, e_b/D))
                switch = t_s + (1 + 1/n) b / (L e_s)          all_reduce with n > 2 and `in_switch` only
              time = min(fast, bulk, switch); 0 for one rank
    Args:     kind, message_bytes b [B], ranks n [-]: see `wire_bytes`; chip.link_bytes_per_s [B/s] one direction of all
              scale-up links of a device, chip.pair_bytes_per_s [B/s] of one pair (0: a switch gives every pair all);
              in_switch: the switch can add this number format (NVLink SHARP: 16 and 32 bit floats)
    Returns:  [s]
    Assumes:  one collective at a time, ranks arrive together, inside one domain
    Error:    held-out message sizes of 3,021 rows on six GPUs: see docs/kernels/collective.md
    Source:   derivation; ring and one-shot costs as in Thakur et al. 2005 (doi 10.1177/1094342005051521)

    >>> nvlink = Chip(3.35e12, link_bytes_per_s=450e9)
    >>> round(float(collective_time("all_reduce", 1 << 30, 8, chip=nvlink, constants=IDENTITY)) * 1e3, 3)
    4.176
    """
    return collective_terms(kind, message_bytes, ranks, chip=chip, constants=constants, in_switch=in_switch)[0]


def collective_latency(
    kind: str,
    message_bytes: Array,
    ranks: Array,
    *,
    chip: Chip,
    constants: CollectiveConstants | None = None,
    in_switch: Array = False,
) -> Array:
    """Return the part of `collective_time` that does not grow with the message.

    Formula:  the fixed terms of the algorithm that wins in `collective_time`
    Args:     as `collective_time`
    Returns:  [s]
    Source:   `collective_time`
    """
    return collective_terms(kind, message_bytes, ranks, chip=chip, constants=constants, in_switch=in_switch)[1]


def collective_terms(
    kind: str,
    message_bytes: Array,
    ranks: Array,
    *,
    chip: Chip,
    constants: CollectiveConstants | None = None,
    in_switch: Array = False,
) -> tuple[Array, Array]:
    """Return `collective_time` and `collective_latency` of the same collective, evaluated once.

    Formula:  of the algorithms of `collective_time` the one with the smallest sum of fixed and transfer terms
    Args:     as `collective_time`
    Returns:  [s], [s]
    Source:   `collective_time`
    """
    (fast_s, fast), (bulk_s, bulk) = _parts(kind, message_bytes, ranks, chip, constants, in_switch)
    first, second = fast_s + fast, bulk_s + bulk
    return smaller(first, second), where(first <= second, fast_s, bulk_s)


def _parts(kind, b, n, chip: Chip, constants, in_switch):
    """Return (latency, transfer) of the low-latency algorithm and of the better of ring and switch."""
    c = CollectiveConstants() if constants is None else constants
    alone, n = n <= 1, larger(n * 1.0, 2.0)
    volume = wire_bytes(kind, b, n)
    pair = where(chip.pair_bytes_per_s > 0, chip.pair_bytes_per_s, np.inf)
    link = smaller(chip.link_bytes_per_s, (n - 1.0) * pair)
    spread = c.doubling ** np.log2(n / 2.0)
    first = where(c.one_shot == 1, (n - 1.0) * b, volume) if kind == "all_reduce" else volume
    fast_s = c.fast_s + (n - 1.0) * c.fast_rank_s + c.fast_step_s * b / (b + HALF_BYTES)
    fast = first / (link * smaller(1.0, c.fast_fraction / spread))
    bulk_s = c.bulk_s + (n - 1.0) * c.bulk_rank_s
    bulk = volume / (link * smaller(1.0, c.bulk_fraction / spread))
    if kind == "all_reduce":
        switched = (1.0 + 1.0 / n) * b / (link * c.switch_fraction)
        wins = in_switch & (n > 2) & (c.switch_s + switched < bulk_s + bulk)
        bulk_s, bulk = where(wins, c.switch_s, bulk_s), where(wins, switched, bulk)
    return [tuple(where(alone, 0.0, x) for x in pair) for pair in ((fast_s, fast), (bulk_s, bulk))]
