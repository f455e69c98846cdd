"""Prefix caching and tiers: exact curves against plain LRU lists, closed forms against simulated caches."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.serving.prefix import (
    PrefixCache,
    cached_throughput_ratio,
    che_hit_rate,
    fresh_warm_gain,
    hit_curve,
    reuse_distances,
    sustainable_rate,
    working_set_hit_rate,
    zipf,
)
from roofline.serving.tiers import (
    KVTiers,
    Tier,
    break_even_tokens,
    fetch_or_recompute_s,
    fetch_s,
    recompute_s,
    tier_hit_rates,
)

requests_st = st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=1, max_size=40)


def plain_lru(requests, capacity):
    """The definition, with a list: look up the leading blocks, then touch all in order."""
    held, hits = [], []
    for ids in requests:
        hit = 0
        while hit < len(ids) and ids[hit] in held:
            hit += 1
        hits.append(hit)
        for block in ids:
            if block in held:
                held.remove(block)
            held.append(block)
            if len(held) > capacity:
                held.pop(0)
    return hits


@settings(max_examples=60)
@given(requests_st, st.integers(0, 15))
def test_curve_and_cache_are_lru(requests, capacity):
    truth = plain_lru(requests, capacity)
    curve, cache = hit_curve(requests), PrefixCache(capacity)
    assert curve.hits(capacity) == sum(truth)
    padded = np.zeros(len(requests))
    padded[: curve.request_hits(capacity).size] = curve.request_hits(capacity)
    assert padded.tolist() == truth
    assert [cache.request(ids) for ids in requests] == truth


@settings(max_examples=30)
@given(requests_st)
def test_curve_never_falls(requests):
    rates = hit_curve(requests).rate(np.array([0, 1, 2, 3, 5, 8, 13, np.inf]))
    assert (np.diff(rates) >= 0).all()
    assert rates[0] == 0


def test_distances_by_hand():
    """a b c b a: b was 2 distinct blocks ago (b, c), a 3 (a, b, c)."""
    assert reuse_distances([[1], [2], [3], [2], [1]])[0].tolist() == [np.inf, np.inf, np.inf, 2, 3]


@pytest.mark.parametrize(
    ("trace", "asked", "hits"),
    [  # data/traces/README.md: counted with an LRU list at 1,000, 100,000 and unlimited blocks
        ("conversation", 288_500, [12_831, 104_924, 105_710]),
        ("synthetic", 121_877, [10_050, 77_953, 77_953]),
    ],
)
def test_real_traces_to_the_block(shared, trace, asked, hits):
    with (shared / "data" / "traces" / f"mooncake_{trace}.jsonl").open() as file:
        requests = [json.loads(line)["hash_ids"] for line in file]
    curve = hit_curve(requests)
    assert curve.asked == asked
    assert curve.hits(np.array([1_000, 100_000, np.inf])).tolist() == hits
    middle = 5_000  # no published truth: the list-like cache is the judge
    cache = PrefixCache(middle)
    assert [cache.request(ids) for ids in requests] == curve.request_hits(middle).tolist()


def test_pinned_blocks_stay():
    cache = PrefixCache()
    cache.pin([1, 2, 3])
    cache.pin([1, 2])
    cache.release([1, 2, 3])
    cache.shrink(0)
    assert cache.match([1, 2, 3]) == 2
    cache.release([1, 2])
    cache.shrink(1)
    assert cache.match([1, 2]) == 1, "a chain loses its tail first"


@pytest.mark.parametrize("exponent", [0.6, 0.8, 1.0, 1.2])
def test_che_against_a_simulated_lru(exponent):
    """200,000 independent references to 2,000 items; second half, at four capacities."""
    popularity = zipf(2000, exponent)
    ids = np.random.default_rng(0).choice(2000, 200_000, p=popularity)
    needed = hit_curve([[i] for i in ids.tolist()]).needed[100_000:]
    capacity = np.array([20, 100, 400, 1000])
    measured = (needed[:, None] <= capacity).mean(0)
    np.testing.assert_allclose(che_hit_rate(popularity, capacity), measured, atol=0.004)


def test_che_limits_and_broadcasting():
    p = zipf(50, np.array([0.0, 1.0]))
    assert p.shape == (2, 50)
    assert che_hit_rate(p, 50).tolist() == [1.0, 1.0]
    assert che_hit_rate(p, 0).tolist() == [0.0, 0.0]
    assert che_hit_rate(p[0], 10) == pytest.approx(0.2, abs=1e-6)  # uniform: capacity over items
    grid = che_hit_rate(p[:, None, :], np.array([5.0, 10.0, 20.0]))
    assert grid.shape == (2, 3)
    assert grid[1, 1] == pytest.approx(float(che_hit_rate(p[1], 10.0)), rel=1e-12)


def test_working_set_against_a_simulated_lru():
    """Zipf references at 10/s: reuse times alone give the hit rate at every capacity."""
    rng = np.random.default_rng(1)
    ids = rng.choice(1000, 60_000, p=zipf(1000, 0.9))
    times = np.cumsum(rng.exponential(0.1, ids.size))
    last, reuse = {}, np.full(ids.size, np.inf)
    for n, (i, t) in enumerate(zip(ids.tolist(), times.tolist())):
        if i in last:
            reuse[n] = t - last[i]
        last[i] = t
    needed = hit_curve([[i] for i in ids.tolist()]).needed
    capacity = np.array([10, 50, 200, 600])
    measured = (needed[:, None] <= capacity).mean(0)
    np.testing.assert_allclose(working_set_hit_rate(reuse, 10.0, capacity), measured, atol=0.01)


def test_cached_throughput_of_a_measured_run():
    """user_cases U-prefix_chunk-01 (vllm-project/vllm PR 9668): 49 % hits, 17,829 -> 32,149 tokens/s; bound 1.96."""
    assert 17829.4 * cached_throughput_ratio(0.49) == pytest.approx(32149, rel=0.10)
    assert cached_throughput_ratio(0.49) == pytest.approx(1.96, abs=0.005)
    assert cached_throughput_ratio(0.49, 0.909) == pytest.approx(32149 / 17829.4, rel=0.001)
    assert cached_throughput_ratio(0.0) == 1.0


def test_sustainable_rate_against_a_queue():
    """M/G/1, first come first served, at the rate found: the mean TTFT of the class that binds is its limit."""
    shares, service, slo = np.array([0.8, 0.2]), np.array([0.2, 1.0]), np.array([0.8, 5.0])
    rate = float(sustainable_rate(shares, service, slo))
    rng = np.random.default_rng(2)
    n = 400_000
    kind = (rng.random(n) < 0.2).astype(int)
    work = service[kind]
    gaps = rng.exponential(1 / rate, n)
    wait = np.cumsum(np.concatenate(([0.0], work[:-1] - gaps[1:])))  # Lindley: distance above the running minimum
    wait -= np.minimum.accumulate(wait)
    assert (wait + work)[kind == 0].mean() == pytest.approx(0.8, rel=0.03)
    assert (wait + work)[kind == 1].mean() < 5.0
    assert sustainable_rate(shares, service, np.array([0.1, 5.0])) == 0.0


def test_fresh_warm_gain_depends_on_the_limit():
    """seed_figures C04, "up to 40 %": tight limits for warm prompts gain more than that, loose ones lose."""
    gain, warm = fresh_warm_gain(0.8, 0.3, 1.5, np.array([0.6, 0.9, 1.5, 3.0, 30.0]), 4.5, 16)
    assert (np.diff(gain[:-1]) < 0).all()
    assert gain[1] == pytest.approx(1.42, abs=0.01)
    assert gain[3] < 1.0
    assert ((warm >= 1) & (warm <= 15)).all()
    with pytest.raises(InputError, match="at least 2"):
        fresh_warm_gain(0.5, 0.1, 1.0, 1.0, 5.0, 1)


# -- tiers


def test_transfer_floor_of_a_72b():
    """user_cases U-disagg-01: 8192 tokens x 327,680 B over 4 x 400 Gb/s = 13.42 ms."""
    assert fetch_s(8192, 2 * 80 * 8 * 128 * 2, 4 * 400e9 / 8) == pytest.approx(13.42e-3, rel=0.01)


@settings(max_examples=60)
@given(
    st.floats(1e3, 1e6), st.floats(1e8, 1e12), st.floats(0, 1e-1), st.floats(1e-7, 1e-3), st.floats(0, 1e-7)
)  # fmt: skip
def test_break_even_is_where_both_take_as_long(kv, bandwidth, latency, per_token, per_pair):
    n = float(break_even_tokens(kv, bandwidth, latency, per_token, per_pair))
    if not np.isfinite(n) or n > 1e12:
        assert per_pair < 1e-20 or not np.isfinite(n)
        assert fetch_s(1e6, kv, bandwidth, latency) >= recompute_s(1e6, per_token, per_pair) * (1 - 1e-6)
        return
    assert fetch_s(n, kv, bandwidth, latency) == pytest.approx(recompute_s(n, per_token, per_pair), rel=1e-6, abs=1e-15)
    assert fetch_s(2 * n + 1, kv, bandwidth, latency) <= recompute_s(2 * n + 1, per_token, per_pair) * (1 + 1e-9)
    assert fetch_or_recompute_s(1.0, 2.0) == 1.0


def test_chunks_recompute_to_the_whole():
    whole = recompute_s(1000, 1e-5, 1e-9)
    assert recompute_s(300, 1e-5, 1e-9) + recompute_s(700, 1e-5, 1e-9, past=300) == pytest.approx(whole, rel=1e-12)


def test_tier_order():
    """seed_figures C09: HBM over DRAM over SSD; hit time = bytes / bandwidth, LRU hits from reuse distances."""
    hbm, dram, ssd = (float(fetch_s(4096, 327_680, bw)) for bw in (3.35e12, 25e9, 6e9))
    assert hbm < dram < ssd
    assert dram == pytest.approx(4096 * 327_680 / 25e9)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 9), max_size=1), min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_chain_of_tiers_is_one_long_lru(requests, first, second):
    """Blocks found per tier in an exclusive chain of two LRU lists, against the curve cut at the capacities."""
    top, below, found = OrderedDict(), OrderedDict(), np.zeros(2)
    for ids in requests:
        for block in ids:
            if block in top:
                found[0] += 1
            elif block in below:
                found[1] += 1
                del below[block]
            top[block] = None
            top.move_to_end(block)
            if len(top) > first:
                below[top.popitem(last=False)[0]] = None
            if len(below) > second:
                below.popitem(last=False)
    curve = hit_curve(requests)
    np.testing.assert_allclose(tier_hit_rates(curve, [first, second]) * curve.asked, found)


def test_demotion_and_fetch():
    tiers = KVTiers([Tier("dram", 2e6, 1e9), Tier("ssd", 3e6, 1e8, 1e-3)], block_bytes=1e6)
    for block in range(6):
        tiers.demote(block)
    assert [list(held) for held in tiers.blocks] == [[4, 5], [1, 2, 3]]  # 0 fell off the end
    assert tiers.find([5, 3, 0, 4]) == [0, 1]
    end = tiers.take(10.0, [5, 3], [0, 1])
    assert end == pytest.approx(10.0 + 1e-3 + 1e6 / 1e8)  # the slower tier ends last
    assert tiers.find([5]) == []
    assert tiers.take(10.0, [2], [1]) == pytest.approx(end + 1e6 / 1e8)  # waits for the disk
    assert tiers.fetched_blocks == [1, 2]


def test_a_common_store_keeps_what_it_gives():
    store = KVTiers([Tier("rdma", 3e6, 1e9)], block_bytes=1e6, inclusive=True)
    store.store([1, 2, 3])
    store.take(0.0, [1, 2], [0, 0])
    store.store([4])
    assert store.find([1, 2, 4]) == [0, 0, 0]
    assert store.find([3]) == []


def test_refusals():
    with pytest.raises(InputError, match="bandwidth"):
        Tier("dram", 1e9, 0.0)
    with pytest.raises(InputError, match="none given"):
        KVTiers([], 1e6)
    with pytest.raises(InputError, match="capacity"):
        PrefixCache(-1)
