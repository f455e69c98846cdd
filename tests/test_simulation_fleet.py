"""Several replicas, prefix caches, tiers, routing and disaggregation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from simulation_costs import KV_BYTES, llama_70b_tp4

from roofline.errors import InfeasibleError, InputError
from roofline.serving.prefix import fresh_warm_gain, hit_curve, sustainable_rate
from roofline.serving.tiers import KVTiers, Tier
from roofline.simulation import (
    CacheAware,
    FreshWarm,
    LeastLoaded,
    Link,
    Pool,
    RoundRobin,
    closed_loop,
    multi_turn,
    poisson,
    read_trace,
    sglang,
    simulate,
    tensorrt_llm,
    vllm,
)
from roofline.simulation.engine import _independent, _together
from roofline.simulation.log import Log
from roofline.simulation.replica import Replica
from roofline.simulation.trace import Trace

COSTS = llama_70b_tp4()
RULES = {
    "vllm": vllm(token_budget=2048, tokenizer_s_per_token=3e-6, emit_steps=0.4),
    "kv": vllm(token_budget=2048, kv_blocks=400),
    "trt": tensorrt_llm(token_budget=2048, hold_steps=5),
    "sglang": sglang(token_budget=2048, poll_steps=5),
}
TALK = multi_turn(0.5, 60, (1, 6), (200, 2000), (50, 400), (20, 200), think_s=20.0, shared_prefix=1024, seed=5)


def logs(trace, pool, drive):
    log = Log(trace.isl.tolist(), trace.osl.tolist(), None, trace.block_ids, trace.block_tokens)
    replicas = pool.start(log)
    drive(trace, replicas)
    return log


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_moving_together_changes_nothing_for_those_who_never_meet(rules, replicas):
    """Cutting jumps at every arrival or foreign step gives the times of replicas that run through alone."""
    router = RoundRobin()
    pool = Pool(COSTS, RULES[rules], replicas)
    trace = poisson(8.0, 120, (50, 900), (1, 150), seed=6)
    alone = logs(trace, pool, lambda t, r: _independent(t, r, router))
    together = logs(trace, pool, lambda t, r: _together(t, r, router, [], None, None))
    np.testing.assert_allclose(together.first, alone.first, rtol=1e-9)
    np.testing.assert_allclose(together.finish, alone.finish, rtol=1e-9)
    assert together.preempted == alone.preempted
    if replicas == 1:
        trace = closed_loop(12, 900, 100, requests=80, low=0.2)
        alone = logs(trace, pool, lambda t, r: _independent(t, r, router))
        together = logs(trace, pool, lambda t, r: _together(t, r, router, [], None, None))
        np.testing.assert_allclose(together.finish, alone.finish, rtol=1e-9)


def test_closed_loop_over_replicas_keeps_its_concurrency():
    trace = closed_loop(13, 500, 100, requests=150, low=0.3)
    result = simulate(trace, Pool(COSTS, vllm(), replicas=4, router=LeastLoaded()))
    assert result.done.all()
    times = np.concatenate((result.sent_s, result.finish_s))
    change = np.repeat([1, -1], len(trace))
    order = np.lexsort((change, times))  # at equal times the answer comes before the next request
    in_flight = np.cumsum(change[order])
    assert in_flight.max() == 13
    assert set(result.replica.tolist()) == {0, 1, 2, 3}


def test_more_replicas_answer_sooner_and_least_loaded_beats_turns():
    trace = poisson(14.0, 400, (50, 2000), (1, 300), seed=7)
    mean = {}
    for name, pool in {
        "one": Pool(COSTS, vllm(max_seqs=32)),
        "turns": Pool(COSTS, vllm(max_seqs=32), 4),
        "least": Pool(COSTS, vllm(max_seqs=32), 4, LeastLoaded()),
    }.items():
        mean[name] = simulate(trace, pool).summary()["e2e_mean_s"]
    assert mean["least"] < mean["turns"] < mean["one"]


# -- prefix cache


def test_cache_hits_equal_the_exact_curve_when_nothing_is_ever_evicted():
    """Requests are admitted in order, so an unlimited pool hits what the stack-distance curve says, to the block."""
    result = simulate(TALK, Pool(COSTS, vllm(), prefix_caching=True))
    curve = hit_curve(TALK.block_ids)
    assert result.block_hits == (curve.hits(np.inf), curve.asked)
    assert result.cached.sum() <= curve.hits(np.inf) * TALK.block_tokens
    computed = (TALK.isl - result.cached).sum()
    assert result.totals["prompt_tokens_computed"] == computed


@pytest.mark.parametrize("rules", RULES)
def test_a_hit_is_tokens_that_are_past(rules):
    """The hits that a cache found, given as known from the start, make the same run, which is checked step by step."""
    rules = dataclasses.replace(RULES[rules], kv_blocks=np.inf, hold_steps=0)  # holding counts hits as first seen
    found = simulate(TALK, Pool(COSTS, rules, prefix_caching=True))
    known = dataclasses.replace(TALK, block_ids=None, block_tokens=0, cached=found.cached.astype(int))
    told = simulate(known, Pool(COSTS, rules))
    assert found.cached.sum() > 0
    np.testing.assert_allclose(told.first_s, found.first_s, rtol=1e-9)
    np.testing.assert_allclose(told.finish_s, found.finish_s, rtol=1e-9)


def test_cache_is_faster_and_a_small_one_hits_less():
    none, small, large = (
        simulate(TALK, Pool(COSTS, vllm(kv_blocks=blocks), prefix_caching=caching))
        for blocks, caching in ((np.inf, False), (1200, True), (20000, True))
    )
    assert none.hit_rate == 0 < small.hit_rate < large.hit_rate
    assert large.summary()["ttft_mean_s"] < none.summary()["ttft_mean_s"]
    assert all(r.done.all() for r in (none, small, large))


def test_pool_is_never_overdrawn():
    """Pinned prefix blocks plus private blocks stay within the pool, seen from outside at every step boundary."""
    rules = vllm(kv_blocks=1000, token_budget=2048)
    log = Log(TALK.isl.tolist(), TALK.osl.tolist(), None, TALK.block_ids, TALK.block_tokens)
    (replica,) = Pool(COSTS, rules, prefix_caching=True).start(log)
    for i, at in enumerate(TALK.arrived_s.tolist()):
        replica.submit(i, at)
    seen = 0
    while not replica.idle:
        replica.advance(np.nextafter(replica.next_s, np.inf))
        n = len(log.isl)
        running = [key % n for key in replica.running]
        private = sum(-(-(replica.step - replica.birth[i] - 1) // 16) for i in running)
        pinned = len(replica.cache.pinned) * TALK.block_tokens // 16
        assert private + pinned <= 1000
        seen = max(seen, private + pinned)
    assert not replica.cache.pinned
    assert seen > 700  # the pool was really in use
    assert not np.isnan(log.finish).any()


def test_tiers_turn_evictions_into_fetches():
    """A small GPU pool over DRAM hits about what a large pool does, and a slow disk is left alone."""
    block_bytes = KV_BYTES * TALK.block_tokens
    small = simulate(TALK, Pool(COSTS, vllm(kv_blocks=1200), prefix_caching=True))
    dram = simulate(
        TALK,
        Pool(COSTS, vllm(kv_blocks=1200), prefix_caching=True,
             tiers=lambda: KVTiers([Tier("dram", 200e9, 25e9, 1e-4)], block_bytes)),
    )  # fmt: skip
    disk = simulate(
        TALK,
        Pool(COSTS, vllm(kv_blocks=1200), prefix_caching=True,
             tiers=lambda: KVTiers([Tier("disk", 200e9, 0.1e9, 1e-4)], block_bytes)),
    )  # fmt: skip
    large = simulate(TALK, Pool(COSTS, vllm(), prefix_caching=True))
    assert small.hit_rate < dram.hit_rate <= large.hit_rate
    assert dram.hit_rate > 0.9 * large.hit_rate
    assert dram.summary()["ttft_mean_s"] < small.summary()["ttft_mean_s"]
    assert disk.hit_rate == pytest.approx(small.hit_rate, abs=0.03)


def test_cache_aware_routing_hits_more_than_turns():
    rates = {}
    for router in (RoundRobin(), LeastLoaded(), CacheAware()):
        result = simulate(TALK, Pool(COSTS, vllm(kv_blocks=4000), 4, router, prefix_caching=True))
        assert result.done.all()
        rates[type(router).__name__] = result.hit_rate
    alone = hit_curve(TALK.block_ids)
    bound = alone.hits(np.inf) * TALK.block_tokens / TALK.isl.sum()
    assert rates["CacheAware"] > 0.98 * bound  # as if there were one cache
    assert rates["CacheAware"] > 1.2 * max(rates["RoundRobin"], rates["LeastLoaded"])


def test_real_trace_hits_to_the_block(shared):
    """data/traces/README.md: 105,710 of 288,500 blocks under an unlimited LRU cache."""
    trace = read_trace(shared / "data" / "traces" / "mooncake_conversation.jsonl")
    trace = dataclasses.replace(trace, osl=np.ones_like(trace.osl))
    result = simulate(trace, Pool(COSTS, vllm(), prefix_caching=True))
    assert result.block_hits == (105_710, 288_500)


# -- disaggregation


def slots_wait(concurrency, slots, osl, tpot_s):
    """Mean wait for a decode seat in a closed loop: every answer frees one of `slots` for `concurrency` clients."""
    return (concurrency - slots) / slots * osl * tpot_s


@pytest.mark.parametrize(("concurrency", "workers", "seats"), [(6, 3, 1), (36, 4, 8), (30, 20, 1)])
def test_ttft_is_the_wait_for_a_decode_seat(concurrency, workers, seats):
    """Rows e3349, e3342, e3432 of the serving data have these slots; measured TTFT follows the same formula."""
    osl = 256
    trace = closed_loop(concurrency, 1024, osl, requests=20 * concurrency, low=1.0)
    result = simulate(
        trace,
        Pool(COSTS, vllm(), 2, LeastLoaded()),
        decode=Pool(COSTS, vllm(max_seqs=seats), workers, LeastLoaded()),
        link=Link(KV_BYTES, 50e9, 1e-3),
    )
    tpot = np.median(result.tpot_s)
    steady = np.mean(result.ttft_s[2 * concurrency :])
    assert steady == pytest.approx(slots_wait(concurrency, workers * seats, osl - 1, tpot), rel=0.08)


def test_disaggregation_keeps_prompts_out_of_decode():
    """Same GPUs: decode gaps no longer see long prompts, TTFT pays the transfer and fewer prefill replicas."""
    trace = poisson(3.0, 200, 6000, 200, seed=8)
    together = simulate(trace, Pool(COSTS, vllm(token_budget=8192), 4)).summary()
    apart = simulate(
        trace, Pool(COSTS, vllm(token_budget=8192), 2), decode=Pool(COSTS, vllm(), 2), link=Link(KV_BYTES * 4, 50e9)
    ).summary()
    assert apart["itl_p99_s"] < 0.2 * together["itl_p99_s"]
    assert apart["tpot_mean_s"] < together["tpot_mean_s"]
    assert apart["ttft_mean_s"] > together["ttft_mean_s"]


def test_transfer_floor_of_a_72b():
    """user_cases U-disagg-01: 8192 tokens of 80 layers x 8 heads x 128 x 2 x bf16 over 4 x 400 Gb/s: 13.42 ms."""
    trace = Trace(np.array([8192]), np.array([2]), np.array([0.0]))
    link = Link(2 * 80 * 8 * 128 * 2, 4 * 400e9 / 8)
    result = simulate(trace, Pool(COSTS, vllm()), decode=Pool(COSTS, vllm()), link=link, timeline=True)
    transfer = next(s for s in result.life(0) if s.kind == "transfer_and_seat")
    assert transfer.seconds == pytest.approx(13.42e-3, rel=0.001)
    hidden = dataclasses.replace(link, overlap=1.0)
    result = simulate(trace, Pool(COSTS, vllm()), decode=Pool(COSTS, vllm()), link=hidden)
    assert result.first_s[0] == pytest.approx(result.prefilled_s[0], abs=1e-9)


@pytest.mark.parametrize("isl", [1592, 1600, 1601])
@pytest.mark.parametrize("seats", [4, 64])
def test_a_decode_pool_short_of_blocks(isl, seats):
    """Requests that arrive with their KV have a slot for their next token; who is preempted computes it all again."""
    trace = closed_loop(12, isl, 120, requests=60, low=1.0)
    decode = Pool(COSTS, vllm(max_seqs=seats, kv_blocks=4 * (isl // 16) + 9))
    result = simulate(trace, Pool(COSTS, vllm(token_budget=4096), 2), decode=decode, link=Link(KV_BYTES, 50e9))
    assert np.isfinite(result.finish_s).all()
    again = result.preempted.sum()
    assert again > 0
    computed = result.summary()["prompt_tokens_computed"] - 60 * isl
    assert again * isl < computed < again * (isl + 120)


def test_decode_pool_may_be_other_hardware():
    fast = llama_70b_tp4()
    fast = dataclasses.replace(fast, base_s=[t / 4 for t in fast.base_s], kv_s=[t / 4 for t in fast.kv_s])
    trace = poisson(2.0, 100, 2000, 200, seed=9)
    link = Link(KV_BYTES, 50e9)
    same = simulate(trace, Pool(COSTS, vllm(), 2), decode=Pool(COSTS, vllm()), link=link).summary()
    other = simulate(trace, Pool(COSTS, vllm(), 2), decode=Pool(fast, vllm()), link=link).summary()
    assert other["tpot_mean_s"] < 0.3 * same["tpot_mean_s"]
    # the first token waits for a step boundary of the decode pool, no more than two of its steps
    assert 0 < same["ttft_mean_s"] - other["ttft_mean_s"] < 2 * same["tpot_mean_s"]


@pytest.mark.parametrize("disaggregated", [False, True])
def test_looking_ahead_changes_nothing(monkeypatch, disaggregated):
    """Replicas that run to the next possible meeting, against replicas that stop at every foreign step."""
    trace = closed_loop(40, 1500, 60, requests=200, low=0.2, seed=3)
    extra = {}
    if disaggregated:
        extra = {"decode": Pool(COSTS, vllm(max_seqs=6), 4, LeastLoaded()), "link": Link(KV_BYTES, 10e9, 1e-3)}
    pool = Pool(COSTS, vllm(max_seqs=12, token_budget=2048), 3, LeastLoaded())
    far = simulate(trace, pool, **extra)
    monkeypatch.setattr(Replica, "earliest_finish_s", Replica.next_s)
    near = simulate(trace, pool, **extra)
    np.testing.assert_allclose(far.finish_s, near.finish_s, rtol=1e-9)
    assert np.array_equal(far.replica, near.replica)
    assert np.array_equal(far.decode_replica, near.decode_replica)


# -- fresh and warm prompts


def mixed_prompts(rate, requests, warm_share, document=16_384, new=4096, cold=24_576, documents=20, block=512):
    """Cold prompts, and warm ones: `new` tokens after one of `documents` that the first requests put into the store."""
    rng = np.random.default_rng(0)
    blocks = document // block
    warm = np.concatenate((np.zeros(documents, bool), rng.random(requests) < warm_share))
    ids, fresh = [], documents * blocks
    for i, is_warm in enumerate(warm):
        which = i if i < documents else int(rng.integers(documents))
        head = list(range(which * blocks, (which + 1) * blocks)) if i < documents or is_warm else []
        tail = 0 if i < documents else (new if is_warm else cold) // block
        ids.append(head + list(range(fresh, fresh + tail)))
        fresh += tail
    arrived = np.concatenate((np.zeros(documents), 100.0 + np.cumsum(rng.exponential(1 / rate, requests))))
    isl = np.array([len(one) * block for one in ids])
    trace = Trace(isl, np.ones_like(isl), arrived, block_ids=ids, block_tokens=block)
    return trace, warm, np.arange(isl.size) >= documents


def test_fresh_and_warm_pools():
    """seed_figures C04, "up to 40 % more sustainable throughput": simulated 37 % over turns, 3 % over least loaded.

    16 prefill replicas over a common store, 80 % warm prompts (0.34 s) among cold ones (1.77 s); mean TTFT of either at
    most three times its prefill. The closed form for random routing says 47 %; with warm limits of ten prefills nothing
    is gained (docs/prefix-and-tiers.md has the map).
    """
    warm_s, cold_s = COSTS.step_s(0, 0, 4096, 4096 * (4096 + 2 * 16_384)), COSTS.step_s(0, 0, 24_576, 24_576**2)
    gain, warm_servers = fresh_warm_gain(0.8, warm_s, cold_s, 3 * warm_s, 3 * cold_s, 16)
    assert 1.4 < gain < 1.6
    capacity = 16 / (0.8 * warm_s + 0.2 * cold_s)

    def holds(router, load):
        trace, warm, late = mixed_prompts(load * capacity, 2500, 0.8)
        store = KVTiers([Tier("rdma", 5e15, 1e15)], KV_BYTES * 4 * 512, inclusive=True)
        rules = tensorrt_llm(token_budget=1, seen_late=False)  # one whole prompt at a time
        result = simulate(trace, Pool(COSTS, rules, 16, router, prefix_caching=True, tiers=lambda: store))
        assert result.cached[warm].min() == 16_384
        assert result.cached[late & ~warm].max() == 0
        ttft = result.ttft_s
        return ttft[warm].mean() <= 3 * warm_s and ttft[late & ~warm].mean() <= 3 * cold_s

    split = FreshWarm(16 - int(warm_servers))
    assert holds(split, 0.95)
    assert holds(RoundRobin(), 0.95 / 1.6)
    assert not holds(RoundRobin(), 0.95 / 1.2)
    assert holds(LeastLoaded(), 0.9)


def test_one_replica_is_a_queue():
    """Whole prompts one at a time, Poisson arrivals: an M/G/1 queue, at the rate that its closed form allows."""
    shares, isl = np.array([0.7, 0.3]), np.array([2048, 12_288])
    service = np.array([COSTS.step_s(0, 0, int(n), int(n) ** 2) for n in isl])
    slo = np.array([1.0, 5.0])
    rate = float(sustainable_rate(shares, service, slo))
    rng = np.random.default_rng(1)
    n = 60_000
    kind = (rng.random(n) < 0.3).astype(int)
    trace = Trace(isl[kind], np.ones(n, int), np.cumsum(rng.exponential(1 / rate, n)))
    result = simulate(trace, Pool(COSTS, tensorrt_llm(token_budget=1, seen_late=False)))
    assert result.ttft_s[kind == 0].mean() == pytest.approx(1.0, rel=0.06)
    assert result.ttft_s[kind == 1].mean() == pytest.approx(1.0 + service[1] - service[0], rel=0.06)


# -- what is refused


def test_refusals():
    trace = poisson(1.0, 3, 1000, 10)
    with pytest.raises(InputError, match="block ids"):
        simulate(trace, Pool(COSTS, vllm(), prefix_caching=True))
    with pytest.raises(InputError, match="prefix_caching=True"):
        Pool(COSTS, vllm(), 2, CacheAware())
    with pytest.raises(InputError, match="leave none warm"):
        Pool(COSTS, vllm(), 2, FreshWarm(2), prefix_caching=True)
    with pytest.raises(InputError, match="needs both"):
        simulate(trace, Pool(COSTS, vllm()), decode=Pool(COSTS, vllm()))
    with pytest.raises(InputError, match="exceeds the largest tabulated batch"):
        simulate(trace, Pool(COSTS, vllm(max_seqs=1000)))
    with pytest.raises(InfeasibleError, match="needs 64 KV blocks"):
        simulate(trace, Pool(COSTS, vllm(kv_blocks=63)))
