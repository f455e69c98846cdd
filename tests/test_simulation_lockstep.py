"""Attention-data-parallel ranks in lockstep, against a loop that takes every step, and what must hold for any run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulation_costs import llama_70b_tp4
from simulation_reference import lockstep_reference
from test_simulation_engine import FRONT, SCHEDULERS, TRACES

from roofline.deployment import deployment
from roofline.errors import InputError
from roofline.simulation import (
    LeastLoaded,
    Link,
    Lockstep,
    Pool,
    RoundRobin,
    Trace,
    closed_loop,
    deployed,
    poisson,
    sglang,
    simulate,
    static,
    vllm,
)
from roofline.speculative import speculating

COSTS = llama_70b_tp4()
SHARED = Lockstep(3, [1.0, 4096.0], [4e-3, 40e-3])
OPEN = {name: trace for name, trace in TRACES.items() if trace.concurrency is None}
RULES = {name: rules for name, rules in SCHEDULERS.items() if rules.continuous}


def dealt(trace: Trace, ranks: int) -> list[Trace]:
    """What each rank gets when requests are dealt in turn."""
    return [
        replace(
            trace, isl=trace.isl[r::ranks], osl=trace.osl[r::ranks], arrived_s=trace.arrived_s[r::ranks],
            cached=None if trace.cached is None else trace.cached[r::ranks],
        )
        for r in range(ranks)
    ]  # fmt: skip


@pytest.mark.parametrize("trace", OPEN)
@pytest.mark.parametrize("rules", RULES)
def test_jumps_equal_steps(rules, trace):
    """Every first token, every finish, every preemption and the number of steps of three ranks, to rounding."""
    trace, rules = OPEN[trace], RULES[rules]
    rules = replace(rules, tokenizer_s_per_request=0.0, tokenizer_s_per_token=0.0)  # ranks share theirs
    result = simulate(trace, Pool(COSTS, rules, 3, lockstep=SHARED))
    assert result.complete and result.done.all()
    for r, (slow, _, _) in enumerate(lockstep_reference(dealt(trace, 3), COSTS, rules, SHARED.seconds)):
        np.testing.assert_allclose(result.first_s[r::3], [x.first for x in slow], rtol=1e-9)
        np.testing.assert_allclose(result.finish_s[r::3], [x.finish for x in slow], rtol=1e-9)
        assert result.preempted[r::3].tolist() == [x.preempted for x in slow]


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("rules", ["vllm", "sglang-poll", "trt-hold", "vllm-kv"])
def test_a_rank_alone_with_nothing_shared_is_a_replica(rules, trace):
    pool = Pool(COSTS, SCHEDULERS[rules])
    one = simulate(TRACES[trace], replace(pool, lockstep=Lockstep(1, [1.0, 2.0], [0.0, 0.0], COSTS.launch_floor_s)))
    alone = simulate(TRACES[trace], pool)
    np.testing.assert_allclose(one.first_s, alone.first_s, rtol=1e-9)
    np.testing.assert_allclose(one.finish_s, alone.finish_s, rtol=1e-9)


def test_like_ranks_with_like_requests_are_one_rank():
    """Nobody waits where all do the same: two ranks and twice the shared tokens."""
    base = poisson(3.0, 60, (50, 900), (10, 150), seed=3)
    twice = Trace(np.repeat(base.isl, 2), np.repeat(base.osl, 2), np.repeat(base.arrived_s, 2))
    one = simulate(base, Pool(COSTS, vllm(), lockstep=replace(SHARED, ranks=1)))
    two = simulate(twice, Pool(COSTS, vllm(), 2, lockstep=replace(SHARED, ranks=2)))
    np.testing.assert_allclose(two.finish_s[::2], one.finish_s, rtol=1e-9)
    np.testing.assert_allclose(two.finish_s[1::2], one.finish_s, rtol=1e-9)


@pytest.mark.parametrize("rules", [vllm(**FRONT), sglang(**FRONT)], ids=["vllm", "sglang"])
def test_one_prompt_delays_all_ranks(rules):
    """Long outputs on one rank: a prompt of 8,000 tokens on another holds them up, as long as it takes."""
    at = np.array([0.0, 2.0])
    trace = Trace(np.array([100, 8000]), np.array([400, 1]), at)
    free, bound = (
        simulate(trace, Pool(COSTS, rules, 2, lockstep=lock)) for lock in (None, Lockstep(2, [1.0, 2.0], [0.0, 0.0]))
    )
    assert free.itl_s(1.0) < 0.05
    prompt = COSTS.step_s(0, 0, 8000, 8000.0**2) - COSTS.base_s[0]
    assert bound.finish_s[0] - free.finish_s[0] == pytest.approx(prompt, rel=0.25)


def test_unequal_ranks_are_slower_than_equal_ones():
    """The same tokens, dealt unevenly: the longest rank decides."""
    lengths = np.tile([200, 4000], 30)
    at = np.repeat(np.arange(30) * 0.5, 2)
    trace = Trace(lengths, np.full(60, 200), at)  # in turn: one rank gets all the long ones
    even = Trace(np.tile([200, 4000, 4000, 200], 15), np.full(60, 200), at)
    pool = Pool(COSTS, vllm(), 2, lockstep=replace(SHARED, ranks=2))
    assert simulate(trace, pool).tpot_s.mean() > 1.02 * simulate(even, pool).tpot_s.mean()


def test_closed_loops_routers_and_pools_move_groups():
    trace = closed_loop(24, 600, 100, requests=96, low=0.3)
    pool = Pool(COSTS, vllm(**FRONT), 6, LeastLoaded(), lockstep=SHARED)
    run = simulate(trace, pool)
    assert run.done.all() and set(run.replica.tolist()) == set(range(6))
    sent, finish = np.sort(run.sent_s), np.sort(run.finish_s)
    assert all(np.count_nonzero(sent <= t) - np.count_nonzero(finish <= t) <= 24 for t in sent)
    talk = poisson(4.0, 60, (100, 900), (10, 100), seed=2)
    two = simulate(talk, replace(pool, router=RoundRobin()), decode=pool, link=Link(1e5, 50e9))
    assert two.done.all() and (two.decode_replica >= 0).all()


def test_refusals():
    with pytest.raises(InputError, match="whole groups of 3"):
        Pool(COSTS, vllm(), 4, lockstep=SHARED)
    with pytest.raises(InputError, match="continuous"):
        Pool(COSTS, static(8), 3, lockstep=SHARED)


# Of a deployment.


@pytest.fixture(scope="module")
def mixture():
    return deployment("deepseek-r1", "h200-sxm", tp=1, dp=8, ep=8)


def test_only_mixtures_wait(mixture):
    trace = closed_loop(32, 512, 64, requests=64)
    assert deployed(mixture, trace).lockstep.ranks == 8
    assert deployed(deployment("llama-3.1-8b", "h200-sxm", dp=2), trace).lockstep is None
    assert deployed(deployment("deepseek-r1", "h200-sxm", tp=8, ep=8), trace).lockstep is None


def test_own_and_shared_parts_are_a_step(mixture):
    """Ranks that do the same: the parts add up to the step of which they are parts."""
    trace = closed_loop(256, 1000, 200, requests=256, low=1.0)
    pool = deployed(mixture, trace)
    whole = deployed(mixture, trace, pool={"lockstep": None})
    for batch in (1, 8, 32):
        own, step = (p.costs.step_s(batch, 1000.0 * batch) for p in (pool, whole))
        assert own + pool.lockstep.seconds(8.0 * batch) == pytest.approx(step, rel=0.02)


@pytest.mark.parametrize("speculation", [None, "mtp:1:0.8"])
def test_waiting_costs_latency_and_never_helps(mixture, speculation):
    trace = poisson(12.0, 240, (200, 4000), (50, 400), seed=5)
    where = speculating(mixture, speculation)
    free, bound = (simulate(trace, deployed(where, trace, pool=p)) for p in ({"lockstep": None}, {}))
    assert bound.done.all()
    assert bound.tpot_s.mean() > 1.05 * free.tpot_s.mean()
    assert bound.totals["prompt_tokens_computed"] == free.totals["prompt_tokens_computed"]
