"""Prefix caching: how many prompt tokens are already there, and what that saves.

A prompt is cut into blocks; a block's id stands for its tokens *and* everything before them, so equal ids mean an equal
prefix. A block is a hit only if every earlier block of the request is one.

- `hit_curve` reads a trace once and knows the hits of an LRU cache of *every* capacity.
- `PrefixCache` is one such cache, with pins, for the simulator.
- `che_hit_rate` and `working_set_hit_rate` need only a popularity or a reuse-time distribution.
- `fresh_warm_gain` says what it is worth to keep cold prompts away from warm ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from roofline.arrays import Array
from roofline.errors import InputError


def _count_at_least(values: np.ndarray, stops: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many of `values[:stop]` are at least `threshold`, for many (stop, threshold) at once.

    A wavelet matrix, walked by all queries together: one stable partition by each bit, highest first, so 20 array
    passes replace a Fenwick tree's loop over every access (0.2 s instead of 5 s for 288,500 blocks).
    """
    left, right, count = np.zeros_like(stops), stops.copy(), np.zeros_like(stops)
    for bit in range(int(max(values.max(initial=0), thresholds.max(initial=0))).bit_length() - 1, -1, -1):
        ones = (values >> bit) & 1
        rank = np.concatenate(([0], np.cumsum(ones)))
        left1, right1 = rank[left], rank[right]
        high = ((thresholds >> bit) & 1).astype(bool)
        count += np.where(high, 0, right1 - left1)
        zeros = values.size - rank[-1]
        left = np.where(high, zeros + left1, left - left1)
        right = np.where(high, zeros + right1, right - right1)
        values = np.concatenate((values[ones == 0], values[ones == 1]))
    return count + right - left


def reuse_distances(requests: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Smallest LRU capacity at which each block is still resident when its request arrives, and the request's index.

    Formula:  (blocks touched since the last touch) - (those touched more than once since) = distinct blocks since
    Args:     requests: block ids of each request, in order of arrival
    Returns:  (distances [blocks, inf = never seen], request index), one entry a block asked, flattened in order
    Assumes:  one cache; a request is looked up before it touches its blocks, first to last
    Error:    exact
    Source:   Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage hierarchies", IBM Syst. J. 9 (1970);
              counted offline as a dominance problem

    >>> reuse_distances([[1, 2], [1, 3], [1, 2]])[0].tolist()
    [inf, inf, 2.0, inf, 2.0, 3.0]
    """
    lengths = np.fromiter((len(r) for r in requests), np.int64, len(requests))
    ids = np.fromiter((b for r in requests for b in r), np.int64, int(lengths.sum()))
    request = np.repeat(np.arange(lengths.size), lengths)
    start = (np.cumsum(lengths) - lengths)[request]
    order = np.argsort(ids, kind="stable")
    previous = np.full(ids.size, -1)
    same = ids[order[1:]] == ids[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    before = previous.copy()  # last touch by an *earlier* request: a block repeated within one is looked up once
    while (inside := before >= start).any():
        before[inside] = previous[before[inside]]
    seen = np.flatnonzero(before >= 0)
    again = _count_at_least(previous + 1, start[seen], before[seen] + 1)
    distances = np.full(ids.size, np.inf)
    distances[seen] = start[seen] - before[seen] - again
    return distances, request


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Prefix hits of one trace at every LRU capacity: `needed[i]` is the capacity from which block i hits."""

    needed: np.ndarray  # [blocks asked], inf = never
    request: np.ndarray  # index of the request that asked
    _sorted: np.ndarray

    @property
    def asked(self) -> int:
        """Blocks asked for by all requests together."""
        return self.needed.size

    def hits(self, capacity: Array) -> Array:
        """Blocks that hit in an LRU cache of `capacity` blocks (inf: unlimited)."""
        finite = np.searchsorted(self._sorted, np.inf)
        return np.minimum(np.searchsorted(self._sorted, capacity, side="right"), finite)

    def rate(self, capacity: Array) -> Array:
        """Share of the blocks asked that hit, 0 to 1."""
        return self.hits(capacity) / max(self.asked, 1)

    def request_hits(self, capacity: float) -> np.ndarray:
        """Hit blocks of each request at one capacity [requests]."""
        hit = self.needed <= min(capacity, np.finfo(float).max)
        return np.bincount(self.request[hit], minlength=int(self.request.max(initial=-1)) + 1)


def hit_curve(requests: Sequence[Sequence[int]]) -> HitCurve:
    """Prefix hits of an LRU block cache of every capacity at once, from one pass over a trace.

    Formula:  block j of a request hits at capacity C  iff  max over i <= j of distance_i <= C
    Args:     requests: block ids of each request, in order of arrival
    Returns:  `HitCurve`: `.hits(capacity)`, `.rate(capacity)`, `.request_hits(capacity)`; capacities in blocks
    Assumes:  as `reuse_distances`; no block is pinned by running requests
    Error:    exact: equals counting with an LRU list to the block on two public traces of 410,000 blocks
    Source:   inclusion property of LRU (Mattson et al. 1970)

    >>> curve = hit_curve([[1, 2], [1, 3], [1, 2]])
    >>> curve.hits(np.array([1, 2, 3, np.inf])).tolist()
    [0, 2, 3, 3]
    """
    distances, request = reuse_distances(requests)
    never = distances.size + 1.0
    lifted = np.where(np.isfinite(distances), distances, never) + request * (never + 1.0)
    needed = np.maximum.accumulate(lifted) - request * (never + 1.0)  # running maximum that restarts at each request
    needed[needed >= never] = np.inf
    return HitCurve(needed, request, np.sort(needed))


class PrefixCache:
    """An LRU cache of prefix blocks, some of them pinned by running requests.

    `request` is the whole life of a request in a cache nobody holds; the simulator calls `match`, `pin` and `release`.
    Released blocks queue up for eviction last block first, as vLLM does: a chain loses its tail before its head.
    """

    __slots__ = ("capacity", "idle", "on_evict", "pinned")

    def __init__(self, capacity: float = np.inf, on_evict=None):
        if not capacity >= 0:
            raise InputError(f"capacity: {capacity!r} blocks; allowed: 0 or more")
        self.capacity = capacity
        self.idle: OrderedDict[int, None] = OrderedDict()
        self.pinned: dict[int, int] = {}
        self.on_evict = on_evict

    def __len__(self) -> int:
        return len(self.idle) + len(self.pinned)

    def match(self, ids: Sequence[int]) -> int:
        """Leading blocks of `ids` that are resident."""
        idle, pinned = self.idle, self.pinned
        for n, block in enumerate(ids):
            if block not in idle and block not in pinned:
                return n
        return len(ids)

    def request(self, ids: Sequence[int]) -> int:
        """Hits of a request, which then touches all its blocks in order."""
        hits, idle = self.match(ids), self.idle
        for block in ids:
            if block in idle:
                idle.move_to_end(block)
            else:
                idle[block] = None
                if len(idle) > self.capacity:
                    self._evict()
        return hits

    def pin(self, ids: Iterable[int]) -> None:
        """Make `ids` resident and hold them."""
        idle, pinned = self.idle, self.pinned
        for block in ids:
            if block in pinned:
                pinned[block] += 1
            else:
                idle.pop(block, None)
                pinned[block] = 1

    def release(self, ids: Sequence[int]) -> None:
        """Let go of `ids`; those that nobody else holds may be evicted, the last one first."""
        for block in reversed(ids):
            left = self.pinned[block] - 1
            if left:
                self.pinned[block] = left
            else:
                del self.pinned[block]
                self.idle[block] = None

    def insert(self, ids: Sequence[int]) -> None:
        """Make `ids` resident and most recent, unpinned (a fetch from a lower tier)."""
        for block in reversed(ids):
            if block not in self.pinned:
                self.idle[block] = None
                self.idle.move_to_end(block)

    def shrink(self, limit: float) -> None:
        """Evict idle blocks, least recent first, until at most `limit` blocks are resident (pinned ones stay)."""
        for _ in range(min(len(self.idle), max(0, int(np.ceil(len(self) - limit))))):
            self._evict()

    def _evict(self) -> None:
        block, _ = self.idle.popitem(last=False)
        if self.on_evict is not None:
            self.on_evict(block)


def zipf(items: int, exponent: Array) -> np.ndarray:
    """Popularity of each of `items` prefixes, most popular first.

    Formula:  p_i = i^-s / sum over j of j^-s
    Args:     items n [-]; exponent s [-], float or array [...]
    Returns:  [..., n], sums to 1
    Source:   Zipf's law; Breslau et al., "Web caching and Zipf-like distributions", INFOCOM 1999

    >>> zipf(3, 1.0).round(3).tolist()
    [0.545, 0.273, 0.182]
    """
    weights = np.arange(1.0, items + 1) ** -np.asarray(exponent, float)[..., None]
    return weights / weights.sum(-1, keepdims=True)


def che_hit_rate(popularity: Array, capacity: Array) -> Array:
    """Hit rate of an LRU cache when items are asked independently with given popularity.

    Formula:  sum_i p_i (1 - exp(-p_i T)),  T the root of  sum_i (1 - exp(-p_i T)) = C
    Args:     popularity p [..., items], sums to 1; capacity C [items], broadcasts with p's leading axes
    Returns:  [-], 0 to 1
    Assumes:  independent references, items of one size (weight p by blocks otherwise); 1 when everything fits
    Error:    below 0.004 in hit rate against a simulated LRU, Zipf 0.6 to 1.2 over 2,000 items (tests/test_prefix.py)
    Source:   Che, Tung, Wang, "Hierarchical web caching systems", IEEE JSAC 20 (2002), eq. 4-5

    >>> round(float(che_hit_rate(zipf(1000, 1.0), 100)), 3)
    0.577
    """
    p = np.asarray(popularity, float)
    c = np.asarray(capacity, float)
    p = np.broadcast_to(p, np.broadcast_shapes(p.shape[:-1], c.shape) + p.shape[-1:])
    low, high = np.full(p.shape[:-1], -20.0), np.full(p.shape[:-1], 60.0)  # ln T, bisected
    for _ in range(60):
        mid = 0.5 * (low + high)
        full = -np.expm1(-p * np.exp(mid)[..., None]).sum(-1) > c
        low, high = np.where(full, low, mid), np.where(full, mid, high)
    hit = -(p * np.expm1(-p * np.exp(low)[..., None])).sum(-1)
    return np.where(c >= p.shape[-1], 1.0, np.where(c > 0, hit, 0.0))


def working_set_hit_rate(reuse_s: Array, blocks_per_s: Array, capacity: Array) -> Array:
    """Hit rate of an LRU cache from a sample of reuse times (time since a block was last asked for).

    Formula:  F(T), with T the age at which the cache overflows:  C = rate * integral from 0 to T of (1 - F(u)) du
    Args:     reuse_s [samples], inf = never asked before; blocks_per_s rate [blocks/s]; capacity C [blocks]
    Returns:  [-], 0 to 1, the broadcast shape of blocks_per_s and capacity
    Assumes:  steady state: reuse times are independent of the clock; first requests are in the sample as inf
    Error:    below 0.01 in hit rate on a synthetic chat trace (tests/test_prefix.py)
    Source:   Denning and Schwartz, "Properties of the working-set model", CACM 15 (1972): the mean working-set size is
              the integral of the miss rate

    >>> working_set_hit_rate(np.array([1.0, 1.0, 9.0, np.inf]), 1.0, np.array([0.5, 3.0, 100.0])).tolist()
    [0.0, 0.5, 0.75]
    """
    reuse = np.sort(np.asarray(reuse_s, float))
    finite = reuse[np.isfinite(reuse)]
    times, size = np.concatenate(([0.0], finite)), reuse.size
    missing = 1.0 - np.arange(finite.size + 1) / size  # 1 - F on the interval that follows each time
    held = np.concatenate(([0.0], np.cumsum(missing[:-1] * np.diff(times))))  # blocks per unit of rate
    capacity, rate = np.broadcast_arrays(np.asarray(capacity, float), np.asarray(blocks_per_s, float))
    age = np.searchsorted(held, capacity / rate, side="right") - 1
    return np.searchsorted(finite, times[age], side="right") * (age > 0) / max(size, 1)


def cached_throughput_ratio(hit: Array, prefill_share: Array = 1.0) -> Array:
    """Input-token throughput with a prefix cache over that without.

    Formula:  1 / (1 - hit * prefill_share)
    Args:     hit: share of prompt tokens that are cached [-]; prefill_share: share of the engine's time spent on
              prompt tokens when nothing is cached [-], 1 = prompts only
    Returns:  [-], at least 1
    Assumes:  a cached token costs nothing, others what they did; attention over the cached part is not in the share
    Error:    -8 % on one measured run (8B fp8, L40S, 49 % hits: 1.80 measured, bound 1.96 at share 1)
    Source:   Amdahl's law; measurement: vllm-project/vllm PR 9668

    >>> round(float(cached_throughput_ratio(0.49)), 2)
    1.96
    """
    return 1.0 / (1.0 - np.asarray(hit, float) * prefill_share)


def sustainable_rate(shares: Array, service_s: Array, slo_s: Array, servers: Array = 1.0) -> Array:
    """Highest Poisson arrival rate at which the mean TTFT of every class of request keeps its limit.

    Formula:  servers * 2 w / (m2 + 2 w m1),  w = min over classes of (slo - service),  m1, m2 moments of service
    Args:     shares of the classes [..., classes], sum to 1; service_s prefill seconds [..., classes];
              slo_s mean TTFT allowed [..., classes]; servers, each fed an equal random part
    Returns:  [requests/s]; 0 where a class misses its limit even alone
    Assumes:  M/G/1 in each server, first come first served, whole prompts
    Source:   Pollaczek-Khinchine: wait = rate m2 / (2 (1 - rate m1)), solved for the rate

    >>> round(float(sustainable_rate(np.array([1.0]), np.array([0.5]), np.array([1.0]))), 3)
    1.333
    """
    shares, service_s = np.asarray(shares, float), np.asarray(service_s, float)
    slack = np.where(shares > 0, slo_s - service_s, np.inf).min(-1)
    m1, m2 = (shares * service_s).sum(-1), (shares * service_s**2).sum(-1)
    slack = np.maximum(slack, 0.0)
    return servers * 2.0 * slack / (m2 + 2.0 * slack * m1)


def fresh_warm_gain(
    warm_share: Array, warm_s: Array, fresh_s: Array, warm_slo_s: Array, fresh_slo_s: Array, servers: int
) -> tuple[Array, Array]:
    """Sustainable rate of separate fresh and warm prefill pools over that of one mixed pool, and the best warm size.

    Formula:  max over n of min(rate_warm(n) / warm_share, rate_fresh(servers - n) / (1 - warm_share)) / rate_mixed
    Args:     warm_share of requests with most of the prompt cached [-]; warm_s, fresh_s prefill seconds of either
              kind; warm_slo_s, fresh_slo_s mean TTFT allowed; servers in all (a whole number of at least 2)
    Returns:  (gain [-], warm servers [-]); gain below 1 means that splitting loses
    Assumes:  as `sustainable_rate`; both routings see the same hits (the split alone is valued, not better placement)
    Error:    not measured here; the vendor reports "up to 40 %", which needs a skewed mix, tight warm limits and many
              servers (docs/prefix-and-tiers.md has the map)
    Source:   derivation; claim: Together AI, "cache-aware disaggregated inference"

    >>> gain, warm = fresh_warm_gain(0.7, 0.2, 2.0, 0.6, 5.0, 16)
    >>> round(float(gain), 2), int(warm)
    (2.31, 3)
    """
    if not (isinstance(servers, (int, np.integer)) and servers >= 2):
        raise InputError(f"servers: {servers!r}; splitting needs a whole number of at least 2")
    args = np.broadcast_arrays(*(np.asarray(a, float) for a in (warm_share, warm_s, fresh_s, warm_slo_s, fresh_slo_s)))
    share, warm_s, fresh_s, warm_slo, fresh_slo = args
    both = sustainable_rate(
        np.stack([share, 1 - share], -1), np.stack([warm_s, fresh_s], -1), np.stack([warm_slo, fresh_slo], -1), servers
    )
    n = np.arange(1.0, servers)  # private axis, last
    alone = np.ones((*share.shape, 1))
    warm = sustainable_rate(alone, warm_s[..., None], warm_slo[..., None])
    fresh = sustainable_rate(alone, fresh_s[..., None], fresh_slo[..., None])
    with np.errstate(divide="ignore", invalid="ignore"):
        split = np.minimum((warm / share)[..., None] * n, (fresh / (1 - share))[..., None] * (servers - n))
        return split.max(-1) / both, n[split.argmax(-1)]
