"""Tiered KV cache: GPU memory over CPU DRAM over SSD, and when a fetch beats computing again.

A block evicted from one tier moves to the next (an exclusive chain), each tier evicts its least recent block. Such a
chain holds exactly what one long LRU list holds, cut at the tiers' capacities, so `HitCurve` answers for all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError, check_number
from roofline.serving.prefix import HitCurve


@dataclass(frozen=True, slots=True)
class Tier:
    """A place for KV below the GPU: how much it holds and how fast it gives it back."""

    name: str
    capacity_bytes: float
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self):
        check_number(f"tier '{self.name}' capacity_bytes", min(self.capacity_bytes, 1e300))
        check_number(f"tier '{self.name}' bandwidth_bytes_per_s", min(self.bandwidth_bytes_per_s, 1e300), low=1e-9)
        check_number(f"tier '{self.name}' latency_s", self.latency_s)


def fetch_s(tokens: Array, kv_bytes_per_token: Array, bandwidth_bytes_per_s: Array, latency_s: Array = 0.0) -> Array:
    """Seconds to bring the KV of `tokens` from a tier, or over a link between two pools.

    Formula:  latency + tokens * kv_bytes_per_token / bandwidth
    Args:     tokens [-]; kv_bytes_per_token [B], of all layers on the path; bandwidth [B/s], one direction; latency [s]
    Returns:  [s]; a floor where nothing overlaps
    Assumes:  large transfers; the path is not shared at that moment (the simulator queues them)
    Source:   derivation

    >>> round(float(fetch_s(8192, 327680, 200e9)) * 1e3, 2)
    13.42
    """
    return latency_s + np.asarray(tokens, float) * kv_bytes_per_token / bandwidth_bytes_per_s


def recompute_s(tokens: Array, s_per_token: Array, s_per_token2: Array = 0.0, past: Array = 0.0) -> Array:
    """Seconds to prefill `tokens` again on top of `past` tokens that are there.

    Formula:  l n + A ((p + n)^2 - p^2)
    Args:     tokens n, past p [-]; s_per_token l [s]; s_per_token2 A [s per token squared], as in `StepCosts`
    Returns:  [s]
    Assumes:  enough tokens to be bound by compute
    Source:   derivation: linear layers, and causal attention over an arithmetic series
    """
    n = np.asarray(tokens, float)
    return s_per_token * n + s_per_token2 * n * (n + 2.0 * past)


def fetch_or_recompute_s(fetch: Array, recompute: Array) -> Array:
    """Seconds of the cheaper of the two.

    Formula:  min(fetch, recompute)
    Args:     fetch, recompute [s]
    Returns:  [s]
    Source:   definition
    """
    return np.minimum(fetch, recompute)


def break_even_tokens(
    kv_bytes_per_token: Array,
    bandwidth_bytes_per_s: Array,
    latency_s: Array,
    s_per_token: Array,
    s_per_token2: Array = 0.0,
) -> Array:
    """Prefix length from which fetching is faster than computing again.

    Formula:  positive root n of  A n^2 + (l - kv/bw) n - latency = 0
    Args:     as `fetch_s` and `recompute_s`, at past = 0
    Returns:  [tokens]; 0: any length, inf: none (the linear case where kv/bw >= l)
    Assumes:  prefix at the start of the prompt; both idle
    Source:   derivation

    >>> float(break_even_tokens(327680, 25e9, 1e-3, 40e-6).round(1))
    37.2
    """
    a = np.asarray(s_per_token2, float)
    b = np.asarray(s_per_token, float) - np.asarray(kv_bytes_per_token, float) / bandwidth_bytes_per_s
    c = np.asarray(latency_s, float)
    root = np.sqrt(b * b + 4.0 * a * c)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # (-b + root) / 2a loses all digits for b > 0: multiplied by its conjugate there
        quadratic = np.where(b > 0, 2.0 * c / (b + root), (root - b) / (2.0 * a))
        linear = np.where(b > 0, c / b, np.where((b == 0) & (c == 0), 0.0, np.inf))
    return np.where(a > 0, quadratic, linear)


def tier_hit_rates(curve: HitCurve, capacities: Sequence[float]) -> np.ndarray:
    """Share of the blocks asked that is found in each tier, fastest first; the rest is computed.

    Formula:  rate(C1 + ... + Ci) - rate(C1 + ... + C(i-1))
    Args:     curve of the trace; capacities of the tiers, GPU first [blocks]
    Returns:  [tiers], sums to at most 1
    Assumes:  exclusive chain of LRU tiers (a demoted block goes to the front of the next tier, a hit comes back to the
              first); a prefix may span tiers
    Error:    exact for that chain: equals `KVTiers` to the block on a random trace (tests/test_prefix.py)
    Source:   inclusion property of LRU

    >>> from roofline.serving.prefix import hit_curve
    >>> tier_hit_rates(hit_curve([[1], [2], [1], [2], [2]]), [1, 1]).round(2).tolist()
    [0.2, 0.4]
    """
    return np.diff(curve.rate(np.cumsum(np.asarray(capacities, float))), prepend=0.0)


class KVTiers:
    """Tiers below the GPU, as the simulator sees them: what is where, and when the path is free.

    Exclusive by default: a block lives in one tier, evictions move it down and a fetch takes it out. `inclusive` makes
    it a store that prompts are written to as they are computed and that keeps what is fetched: give one such object to
    several replicas as their common store.
    """

    __slots__ = ("_free_at_s", "block_bytes", "blocks", "fetched_blocks", "inclusive", "limits", "tiers")

    def __init__(self, tiers: Sequence[Tier], block_bytes: float, inclusive: bool = False):
        if not tiers:
            raise InputError("tiers: none given; name at least one, e.g. Tier('dram', 512e9, 25e9)")
        check_number("block_bytes", block_bytes, low=1.0)
        self.tiers, self.block_bytes, self.inclusive = tuple(tiers), block_bytes, inclusive
        self.limits = [int(min(t.capacity_bytes / block_bytes, 2**53)) for t in tiers]
        self.blocks: list[OrderedDict[int, None]] = [OrderedDict() for _ in tiers]
        self._free_at_s = [0.0] * len(self.tiers)
        self.fetched_blocks = [0] * len(self.tiers)

    def demote(self, block: int, level: int = 0) -> None:
        """Take in a block that the tier above evicted; what overflows goes one down, and is dropped at the end."""
        if self.inclusive and level == 0 and any(block in held for held in self.blocks):
            return
        held = self.blocks[level]
        held[block] = None
        held.move_to_end(block)
        if len(held) > self.limits[level]:
            out, _ = held.popitem(last=False)
            if level + 1 < len(self.blocks):
                self.demote(out, level + 1)

    def store(self, ids: Sequence[int]) -> None:
        """Write a computed prompt's blocks to the store; those it has become its most recent."""
        for block in reversed(ids):
            level = next((i for i, held in enumerate(self.blocks) if block in held), None)
            if level is None:
                self.demote(block)
            else:
                self.blocks[level].move_to_end(block)

    def find(self, ids: Sequence[int]) -> list[int]:
        """Tier of each leading block of `ids`; the list ends at the first block that no tier has."""
        found = []
        for block in ids:
            level = next((i for i, held in enumerate(self.blocks) if block in held), None)
            if level is None:
                break
            found.append(level)
        return found

    def fetch_end_s(self, now_s: float, found: Sequence[int]) -> float:
        """Time at which the blocks of `found` would be on the GPU: each tier serves one request at a time."""
        end = now_s
        for level in set(found):
            tier = self.tiers[level]
            start = max(now_s, self._free_at_s[level])
            end = max(
                end,
                start
                + float(fetch_s(found.count(level), self.block_bytes, tier.bandwidth_bytes_per_s, tier.latency_s)),
            )
        return end

    def take(self, now_s: float, ids: Sequence[int], found: Sequence[int]) -> float:
        """Start that fetch: the blocks leave their tiers; returns the time of its end."""
        end = self.fetch_end_s(now_s, found)
        for level in set(found):
            tier = self.tiers[level]
            start = max(now_s, self._free_at_s[level])
            self._free_at_s[level] = start + found.count(level) * self.block_bytes / tier.bandwidth_bytes_per_s
            self.fetched_blocks[level] += found.count(level)
        for block, level in zip(ids, found):
            if self.inclusive:
                self.blocks[level].move_to_end(block)
            else:
                del self.blocks[level][block]
        return end
