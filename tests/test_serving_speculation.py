"""Speculation under load: in steady states, in the simulator, and wherever a deployment is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.deployment import deployment
from roofline.errors import InputError, RooflineError, UnknownNameError
from roofline.estimates import estimate
from roofline.serving.capacity import kv_sequences
from roofline.serving.lengths import fixed, in_cycles, observed, uniform
from roofline.serving.steady import steady_state
from roofline.serving.steps import step_table
from roofline.simulation import Cycles, closed_loop, deployed, poisson, simulate
from roofline.speculative import (
    ByPosition,
    PromptLookup,
    Speculation,
    break_even_batch,
    cycles_spread,
    drawn_cycles,
    eagle3,
    expected_by_position,
    expected_cycles,
    expected_tokens,
    speculate,
    speculating,
    yield_shares,
)
from roofline.sweeps import sweep

LOAD = {"isl": 300.0, "osl": 800.0}
MANY = np.array([1.0, 4.0, 16.0, 64.0, 256.0])


@pytest.fixture(scope="module")
def plain():
    return deployment("llama-3.1-70b", "h100-sxm", tp=4)


@pytest.fixture(scope="module")
def sparse():
    return deployment("qwen3-30b-a3b", "h100-sxm")


# What cycles yield.


@given(st.floats(0.0, 1.0), st.integers(1, 12))
def test_shares_of_yields_are_a_distribution_with_the_known_mean(a, k):
    shares = yield_shares(a, k)
    assert shares.sum() == pytest.approx(1.0) and (shares >= 0).all()
    assert shares @ np.arange(1, k + 2) == pytest.approx(expected_tokens(a, k), rel=1e-9)


def test_shares_of_yields_by_position():
    rates = (0.9, 0.7, 0.5)
    shares = yield_shares(ByPosition(rates), 3)
    np.testing.assert_allclose(shares, [0.1, 0.9 * 0.3, 0.63 * 0.5, 0.315])
    assert shares @ np.arange(1, 5) == pytest.approx(expected_by_position(rates, 3))
    with pytest.raises(InputError, match="later draft"):
        yield_shares(ByPosition((0.5, 0.6), conditional=False), 2)


@settings(max_examples=25)
@given(st.floats(0.0, 1.0), st.integers(1, 6), st.integers(1, 400))
def test_drawn_cycles_follow_the_renewal_theorem(a, k, tokens):
    """Mean and spread of the number of cycles; bounds that no draw leaves."""
    shares = yield_shares(a, k)
    drawn = drawn_cycles(np.full(4000, tokens), shares, np.random.default_rng(1))
    assert drawn.min() >= -(-tokens // (k + 1)) and drawn.max() <= tokens
    if tokens >= 2 * (k + 1):
        spread = float(cycles_spread(tokens, shares))
        lattice = 0.5 * (shares.max() > 0.5)  # nearly all cycles alike: whole ones, where the limit is their mean
        assert drawn.mean() == pytest.approx(
            expected_cycles(tokens, shares), rel=0.012, abs=4.0 * spread / 4000**0.5 + lattice
        )
        assert drawn.std() == pytest.approx(spread, rel=0.15, abs=0.5)


def test_no_token_needs_no_cycle():
    assert drawn_cycles(np.array([0, 1]), [0.5, 0.5], np.random.default_rng(0)).tolist() == [0, 1]
    assert float(expected_cycles(0.0, [0.5, 0.5])) == 0.0


def test_outputs_of_one_length_fall_out_of_step():
    """Equal outputs need unequal numbers of cycles; at an acceptance of 1 or 0 they do not."""
    assert float(in_cycles(fixed(400.0), yield_shares(0.7, 3)).ratio_min) < 1.0
    for a, n in ((0.0, 400.0), (1.0, 1.0 + 399.0 / 4.0)):
        found = in_cycles(fixed(400.0), yield_shares(a, 3))
        assert float(found.ratio_min) == pytest.approx(1.0) and float(found.mean) == pytest.approx(n, rel=0.01)


# Steps.


@pytest.mark.parametrize("text", ["eagle:3:0.7", "llama-3.2-1b:4:0.7", "ngram:5:0.3", "medusa:4:0.6"])
def test_a_tabulated_cycle_is_that_of_speculate(plain, text):
    """The table of cycles against the fixed-batch answer, off its grid; with prompts it costs more."""
    where = speculating(plain, text)
    s, batch = where.speculation, np.array([1.0, 7.0, 40.0, 150.0])
    asked = {"drafts": float(s.drafts), "acceptance": s.acceptance}
    fixed_batch = speculate(plain, s.drafter, batch=batch, context=1700.0, **asked)
    table = step_table(where)
    np.testing.assert_allclose(table.decode(batch, 1700.0), fixed_batch.cycle_s, rtol=0.02)
    steps = table.beside(batch, 1700.0, 500.0, 0.0)
    assert np.all(steps.with_prompts_s(1.0) > table.decode(batch, 1700.0))


def test_drafters_read_prompts_too(plain):
    """A draft model's prefill adds to a prompt's step, an n-gram table does not."""
    alone = step_table(plain).beside(0.0, 1.0, 4000.0, 0.0).with_prompts_s(1.0)
    small, table = (step_table(speculating(plain, t)) for t in ("llama-3.1-8b:3:0.7", "ngram:3:0.7"))
    assert float(table.beside(0.0, 1.0, 4000.0, 0.0).with_prompts_s(1.0)) == pytest.approx(float(alone))
    share = float(small.beside(0.0, 1.0, 4000.0, 0.0).with_prompts_s(1.0) / alone) - 1.0
    assert 0.05 < share < 0.25  # 8 of 70 billion weights


def test_room_for_fewer_sequences(plain):
    """Weights and cache of a drafter, and slots for drafts; what is verified takes from the token budget."""
    seqs = [
        float(kv_sequences(d, 2000.0, most=1e9))
        for d in (plain, speculating(plain, "ngram:16:0.5"), speculating(plain, "llama-3.1-8b:3:0.7"))
    ]
    assert seqs[0] > seqs[1] > seqs[2] > 0
    assert seqs[0] / seqs[1] == pytest.approx(2016 / 2000, rel=0.01)
    wide = deployment("llama-3.1-8b", "b200-sxm")
    budget = wide.engine.scheduler.token_budget
    assert float(kv_sequences(speculating(wide, "ngram:63:0.5"), 50.0)) == budget // 64


# Steady states.


@pytest.mark.parametrize("where", ["plain", "sparse"])
@pytest.mark.parametrize("drafter", ["eagle", "ngram", "medusa"])
def test_rejected_drafts_never_help(where, drafter, request):
    d = request.getfixturevalue(where)
    base, worse = (steady_state(x, concurrency=MANY, **LOAD) for x in (d, speculating(d, f"{drafter}:3:0")))
    assert np.all(worse.tpot_s >= base.tpot_s) and np.all(worse.tokens_per_s <= base.tokens_per_s)
    assert np.all(worse.ttft_s >= base.ttft_s * (1 - 1e-9))


@pytest.mark.parametrize("load", [{"concurrency": MANY}, {"rate_per_s": np.array([0.1, 0.5, 1.0])}])
def test_more_acceptance_is_never_slower(plain, load):
    states = [steady_state(speculating(plain, f"eagle:3:{a}"), **LOAD, **load) for a in (0.0, 0.3, 0.6, 0.8, 1.0)]
    for low, high in pairwise(states):
        assert np.all(high.tpot_s < low.tpot_s)
        if "concurrency" in load:
            assert np.all(high.tokens_per_s > low.tokens_per_s)


def test_full_acceptance_is_k_plus_1_tokens_a_cycle(plain):
    """One request alone: TPOT is a cycle over four tokens, plus what the last cycle brings too much (1.5 tokens)."""
    where = speculating(plain, "ngram:3:1.0")
    s = steady_state(where, concurrency=1.0, **LOAD)
    cycle = float(step_table(where).decode(1.0, 700.0))
    assert float(s.tpot_s) == pytest.approx(cycle / 4.0 * (1.0 + 1.5 / 799.0), rel=0.005)


def test_one_request_alone_is_the_fixed_batch(plain):
    for a in (0.3, 0.8):
        e = estimate(plain, isl=300, osl=800, batch=1, speculation=f"eagle:3:{a}")
        s = steady_state(e.deployment, concurrency=1.0, **LOAD)
        assert float(s.tpot_s) == pytest.approx(e.tpot_s.value, rel=0.01)
        assert e.tpot_s.value == pytest.approx(float(e.cycle.tpot_s), rel=0.005)


@pytest.mark.parametrize("acceptance", [0.3, 0.4])
def test_crossover_under_load_is_that_of_the_fixed_batch(plain, acceptance):
    """Outputs so long that prompts do not matter: where a steady state stops to gain is the break-even batch."""
    where, load = speculating(plain, f"eagle:3:{acceptance}"), {"isl": 200.0, "osl": 4000.0}
    ends = float(
        break_even_batch(
            plain, where.speculation.drafter, drafts=3.0, acceptance=acceptance, context=2200.0, largest=512
        )
    )
    assert 8 < ends < 130  # the KV of 172 fits
    near = np.array([ends / 1.25, ends * 1.25])
    gain = steady_state(plain, concurrency=near, **load).tpot_s / steady_state(where, concurrency=near, **load).tpot_s
    assert gain[0] > 1.0 > gain[1]


def test_prompts_make_it_pay_less(plain):
    """The same outputs behind longer prompts: steps with prompts are shared, fewer of them are saved."""
    where = speculating(plain, "eagle:3:0.8")

    def gain(isl):
        ask = {"isl": isl, "osl": 300.0, "concurrency": 32.0}
        return float(steady_state(where, **ask).tokens_per_s / steady_state(plain, **ask).tokens_per_s)

    assert gain(100.0) > gain(1000.0) > gain(6000.0) > 1.0


def test_points_of_arrays_are_those_of_scalars(plain):
    where = speculating(plain, "eagle:3:0.7")
    found = steady_state(where, concurrency=MANY[:, None], isl=1000.0, osl=np.array([1.0, 2.0, 500.0]))
    assert np.all(np.isfinite(found.tpot_s)) and np.all(found.tpot_s > 0)
    one = steady_state(where, concurrency=16.0, isl=1000.0, osl=500.0)
    assert float(found.tpot_s[2, 2]) == pytest.approx(float(one.tpot_s), rel=1e-12)


# The simulator.


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("concurrency", "isl", "osl"), [(1, 300, 800), (16, 300, 800), (64, 1000, 500)])
def test_closed_form_agrees_with_the_simulator(plain, acceptance, concurrency, isl, osl):
    where = speculating(plain, f"eagle:3:{acceptance}")
    trace = closed_loop(concurrency, isl, osl, requests=max(10 * concurrency, 60), low=0.5, seed=3)
    run = simulate(trace, deployed(where, trace)).summary()
    lengths = {"isl": uniform(float(isl), 0.5), "osl": uniform(float(osl), 0.5)}
    s = steady_state(where, **lengths, concurrency=float(concurrency), burst_share=concurrency / len(trace))
    assert run["tpot_mean_s"] == pytest.approx(float(s.tpot_s), rel=0.03)
    assert run["e2e_mean_s"] == pytest.approx(float(s.e2e_s), rel=0.03)  # the rate: this and Little's law
    assert run["tpot_p90_s"] == pytest.approx(float(s.tpot.at(0.9)), rel=0.05)


@pytest.mark.parametrize("acceptance", [0.5, 0.9])
def test_open_loop_agrees_with_the_simulator(plain, acceptance):
    where = speculating(plain, f"eagle:3:{acceptance}")
    trace = poisson(2.0, 600, (100, 500), (200, 600), seed=1)
    run = simulate(trace, deployed(where, trace)).summary()
    s = steady_state(where, isl=observed(trace.isl), osl=observed(trace.osl), rate_per_s=trace.rate_req_per_s)
    assert run["tpot_mean_s"] == pytest.approx(float(s.tpot_s), rel=0.05)


def test_speculation_in_the_simulator_is_drawn_from_the_seed(plain):
    trace = closed_loop(8, 300, 200, requests=40)
    where = speculating(plain, "eagle:3:0.7")
    first, again, other = (simulate(trace, deployed(where, trace, seed=s)).finish_s for s in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_gaps_are_between_bursts_and_tpot_is_per_token(plain):
    """All drafts accepted: every gap brings four tokens, so that TPOT is a quarter of the mean gap."""
    trace = closed_loop(1, 300, 401, requests=4, low=1.0)
    run = simulate(trace, deployed(speculating(plain, "ngram:3:1.0"), trace))
    assert run.gap_count.sum() == 4 * 100
    assert run.summary()["itl_mean_s"] / run.tpot_s.mean() == pytest.approx(4.0, rel=1e-6)


def test_no_acceptance_takes_a_cycle_for_every_token():
    assert Cycles((1.0, 0.0, 0.0, 0.0)).steps(np.array([1, 2, 100])).tolist() == [1, 2, 100]
    assert Cycles((0.0, 0.0, 0.0, 1.0)).steps(np.array([1, 2, 101])).tolist() == [1, 2, 26]


def test_a_full_pool_holds_as_many_tokens(plain):
    """KV counted in what a cycle yields: as many sequences run as without speculation, to a few per cent."""
    trace = closed_loop(64, 1000, 400, requests=200, low=1.0)
    batch = [
        simulate(trace, deployed(d, trace, kv_blocks=1500.0)).summary()["decode_batch_mean"]
        for d in (plain, speculating(plain, "ngram:3:1.0"), speculating(plain, "ngram:3:0.7"))
    ]
    assert batch[0] < 24
    assert batch[1:] == pytest.approx([batch[0]] * 2, rel=0.12)


def test_preempted_requests_compute_all_their_tokens_again(plain):
    trace = closed_loop(32, 200, 600, requests=64, low=0.5)
    run = simulate(trace, deployed(speculating(plain, "ngram:3:0.7"), trace, kv_blocks=600.0))
    assert run.complete and run.done.all() and run.preempted.sum() > 0
    assert run.totals["prompt_tokens_computed"] > trace.isl.sum()


def test_prefix_caches_and_pools_speculate_too(plain):
    from roofline.simulation import Link, multi_turn

    where = speculating(plain, "eagle:3:0.8")
    talks = multi_turn(0.5, 12, 4, 1500, 600, 200, 5.0)
    cached = simulate(talks, deployed(where, talks, 1, {"prefix_caching": True}))
    cold = simulate(talks, deployed(where, talks))
    assert cached.done.all() and cached.hit_rate > 0.4
    assert cached.ttft_s.mean() < cold.ttft_s.mean()
    trace = poisson(1.0, 40, 1000, 300, seed=2)
    base, fast = (
        simulate(trace, deployed(d, trace), decode=deployed(d, trace), link=Link(80e3, 50e9)) for d in (plain, where)
    )
    assert fast.tpot_s.mean() < 0.6 * base.tpot_s.mean()


# Wherever a deployment is described.


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("eagle:3:0.8", 2.952), ("eagle:3:0.8,0.5,0.5", 1 + 0.8 + 0.4 + 0.2), ("eagle:3:2.4", 2.4), ("mtp:1:1", 2.0)],
)
def test_a_text_says_how(text, tokens):
    d = speculating(deployment("deepseek-v3" if "mtp" in text else "llama-3.1-8b", "h200-sxm", tp=8), text)
    assert d.speculation.tokens == pytest.approx(tokens, abs=1e-3)
    assert str(d).endswith(f"by {d.speculation.drafter.name}")


@pytest.mark.parametrize("text", ["eagle", "eagle:3", "eagle:three:0.8", "eagle:0:0.8", "eagle:3:-0.1", "eagle:3:4.5",
                                  "eagle:3:nan", "medusa:9:0.5", "eagle:3:0.8,0.9", "eagle:2.5:0.8"])  # fmt: skip
def test_a_wrong_text_is_refused(plain, text):
    with pytest.raises(InputError):
        speculating(plain, text)


def test_an_unknown_drafter_is_told_the_nearest(plain):
    with pytest.raises(UnknownNameError, match="eagle"):
        speculating(plain, "eagel:3:0.8")
    with pytest.raises(RooflineError, match="MTP"):
        speculating(plain, "mtp:1:0.8")


def test_none_is_plain_decoding(plain):
    where = speculating(plain, Speculation(PromptLookup(), 3, 0.5))
    assert speculating(where, None) is where
    assert speculating(where, "none") == plain == speculating(plain, "none")


@pytest.mark.parametrize("load", [{"batch": [1, 32]}, {"concurrency": [1, 32]}])
def test_a_sweep_has_the_numbers_of_estimates(plain, load):
    ways = ["none", "eagle:3:0.8"]
    s = sweep("llama-3.1-70b", "h100-sxm", tp=4, isl=1000, osl=300, speculation=ways, **load)
    ((name, sizes),) = load.items()
    for i, way in enumerate(ways):
        for j, size in enumerate(sizes):
            e = estimate(plain, isl=1000, osl=300, speculation=way, **{name: size})
            assert s.tpot_s[i, j] == pytest.approx(e.tpot_s.value, rel=1e-9)
            assert s.ttft_s[i, j] == pytest.approx(e.ttft_s.value, rel=1e-9)
            assert s.tokens_per_s[i, j] == pytest.approx(e.tokens_per_s.value, rel=1e-9)
    assert s.at(speculation="eagle:3:0.8", **{name: sizes[1]}).cycle is not None


def test_an_estimate_tells_about_its_cycle(plain):
    e = estimate(plain, isl=1000, osl=300, concurrency=16, speculation="eagle:3:0.8")
    told = e.to_dict()["speculation"]
    assert told["tokens"] == pytest.approx(2.952) and told["verify_s"] == pytest.approx(float(e.decode.total_s))
    assert "2.95 tokens in the time of" in str(e) and "verification of drafts" in str(e)
    assert estimate(plain, isl=1000, osl=300).to_dict()["speculation"] is None


def test_pools_levers_and_plans_count_the_same_cycles(plain):
    """A pool of decode workers, `levers` and `plan` against the steady state of the same replica."""
    from roofline.planner import plan, traffic
    from roofline.serving.disaggregated import Pools, pooled_state
    from roofline.techniques import levers

    where, ask = speculating(plain, "eagle:3:0.7"), {"isl": 300.0, "osl": 800.0, "concurrency": 16.0}
    alone, pools = steady_state(where, **ask), pooled_state(Pools(where, where, 4, 1), **ask)
    assert float(pools.tpot_s) == pytest.approx(float(alone.tpot_s), rel=0.1)
    assert float(pools.tokens_per_s) == pytest.approx(float(alone.tokens_per_s), rel=0.1)

    told = levers(plain, **ask, speculation="eagle:3:0.7", families=["KV format"])
    assert told.base.tpot_s == pytest.approx(float(alone.tpot_s), rel=1e-9)
    (found,) = levers(plain, **ask, families=["speculation"]).found
    fixed_batch = {"batch": 16.0, "context": 700.0, "acceptance": 0.7}
    best = speculate(plain, eagle3(plain.model), drafts=np.arange(1.0, 9.0), **fixed_batch).speedup.max()
    assert 1.0 < found.gains["tpot"] < 1.02 * best

    load = {"traffic": traffic(rate_per_s=10.0, isl=1000, osl=300), "max_gpus": 4, "disaggregate": False}
    base, fast = (plan("llama-3.1-70b", "h100-sxm", speculation=s, **load) for s in (None, "eagle:3:0.8"))
    assert fast.usd_per_h <= base.usd_per_h
    assert all(o.deployment.speculation is not None for o, _ in fast.fleet.members)


def test_a_command_says_that_it_does_not_speculate(plain):
    from roofline.handoff import Limits, launch

    assert "3 drafts by eagle" in launch(speculating(plain, "eagle:3:0.8"), "vllm", Limits(4096)).text
    assert "speculate" not in launch(plain, "vllm", Limits(4096)).text


def test_cli_as_a_process():
    def ran(*args):
        done = subprocess.run([sys.executable, "-m", "roofline", *args], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    where = ("llama-3.1-8b", "--isl", "500", "--osl", "200", "--concurrency", "8", "--speculation")
    code, out, _ = ran("estimate", *where, "eagle:3:0.8", "--json")
    assert code == 0 and json.loads(out)["speculation"]["drafts"] == 3
    closed = json.loads(out)["tpot_s"]["value"]
    code, out, _ = ran("simulate", *where, "eagle:3:0.8", "--requests", "80", "--json")
    assert code == 0 and json.loads(out)["tpot_mean_s"] == pytest.approx(closed, rel=0.05)
    code, out, _ = ran("sweep", *where, "eagle:3:0.8", "--speculation", "none")
    assert code == 0 and "eagle:3:0.8" in out
    code, _, err = ran("estimate", *where, "eagle")
    assert code != 0 and "eagle:3:0.8" in err and "Traceback" not in err
