"""Outputs of a run: aggregates, the life of a request, progress, interruption; and textbook behaviours."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from simulation_costs import llama_70b_tp4

from roofline.errors import InputError
from roofline.simulation import Pool, Trace, closed_loop, poisson, sglang, simulate, static, vllm
from roofline.simulation.costs import from_terms

COSTS = llama_70b_tp4()
FRONT = {"tokenizer_s_per_token": 3.2e-6, "tokenizer_s_per_request": 3e-4, "front_end_s": 3e-3, "emit_steps": 0.4}


def test_deterministic():
    trace = poisson(5.0, 200, (50, 900), (1, 150), seed=1)
    one, two = (simulate(trace, Pool(COSTS, vllm(**FRONT), 2)) for _ in range(2))
    assert np.array_equal(one.finish_s, two.finish_s)


def test_summary_is_arithmetic_over_the_columns():
    trace = poisson(5.0, 200, (50, 900), (2, 150), seed=1)
    result = simulate(trace, Pool(COSTS, vllm(**FRONT)))
    out = result.summary()
    assert out["finished"] == out["requests"] == 200
    assert out["ttft_p90_s"] == pytest.approx(np.percentile(result.ttft_s, 90))
    np.testing.assert_allclose(result.ttft_s + result.tpot_s * (trace.osl - 1), result.e2e_s, rtol=1e-12)
    # every token after a request's first is one gap, up to the emission lag that both ends of a request share
    assert result.gap_count.sum() == (trace.osl - 1).sum()
    lag = 0.4 * (max(COSTS.base_s) - min(COSTS.base_s)) * 200
    assert (result.gap_s * result.gap_count).sum() == pytest.approx((result.finish_s - result.first_s).sum(), abs=lag)
    assert out["output_tok_per_s"] == pytest.approx(trace.osl.sum() / result.duration_s)
    assert 0 < out["seat_occupancy"] <= 1
    assert 0 < out["busy_share"] <= 1
    assert out["itl_p50_s"] <= out["itl_p90_s"] <= out["itl_p99_s"]
    assert result.goodput_req_per_s() == pytest.approx(out["req_per_s"])
    assert result.goodput_req_per_s(ttft_s=out["ttft_p50_s"]) == pytest.approx(out["req_per_s"] / 2, rel=0.02)
    frame = result.to_frame()
    assert len(frame) == 200
    assert frame["e2e_s"].mean() == pytest.approx(out["e2e_mean_s"])


def test_little_s_law():
    """Closed loop: concurrency = throughput x latency, once the start and the end are cut away."""
    result = simulate(closed_loop(32, 800, 100, requests=2000, low=0.2), Pool(COSTS, vllm()))
    middle = slice(200, 1800)
    rate = 1600 / (result.sent_s[1800] - result.sent_s[200])
    assert rate * result.e2e_s[middle].mean() == pytest.approx(32, rel=0.02)


@pytest.mark.parametrize("rules", [vllm(token_budget=1024, **FRONT), sglang(token_budget=1024, **FRONT)])
def test_life_has_no_holes(rules):
    trace = poisson(4.0, 60, (50, 4000), (1, 100), seed=2)
    result = simulate(trace, Pool(COSTS, rules), timeline=True)
    for i in range(60):
        spans = result.life(i)
        assert spans[0].kind == "front_end"
        assert spans[0].start_s == result.sent_s[i]
        assert spans[-1].end_s == pytest.approx(result.finish_s[i])
        for before, after in pairwise(spans):
            assert after.start_s == pytest.approx(before.end_s, abs=1e-9)
        assert sum(s.tokens for s in spans if s.kind == "prefill") == trace.isl[i]
        assert sum(s.tokens for s in spans if s.kind == "decode") == (trace.osl[i] - 1 if trace.osl[i] > 1 else 0)
        chunks = [s for s in spans if s.kind == "prefill"]
        assert len(chunks) >= -(-trace.isl[i] // 1024)
    assert sum(s[3] * s[4] for s in result.decodes) <= (trace.osl - 1).sum()
    with pytest.raises(InputError, match="0 to 59"):
        result.life(60)


def test_life_without_chunks():
    result = simulate(poisson(1.0, 3, 500, 10), Pool(COSTS, vllm()))
    kinds = [s.kind for s in result.life(1)]
    assert kinds[-2:] == ["prefill", "decode"]


def test_progress():
    seen = []
    simulate(poisson(5.0, 500, 100, 10), Pool(COSTS, vllm()), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (500, 500)
    assert 90 <= len(seen) <= 102
    assert seen == sorted(seen)
    seen.clear()
    simulate(closed_loop(8, 100, 10, requests=200), Pool(COSTS, vllm(), 3), progress=lambda *a: seen.append(a))
    assert seen[-1] == (200, 200)


@pytest.mark.parametrize("replicas", [1, 2])
def test_interrupt_keeps_what_is_done(replicas):
    def stop(done, total):
        if done >= 100:
            raise KeyboardInterrupt

    trace = closed_loop(16, 500, 50, requests=400)
    whole = simulate(trace, Pool(COSTS, vllm(), replicas))
    part = simulate(trace, Pool(COSTS, vllm(), replicas), progress=stop)
    assert not part.complete
    assert 100 <= part.done.sum() < 200
    np.testing.assert_allclose(part.finish_s[part.done], whole.finish_s[part.done])
    assert part.summary()["finished"] == part.done.sum()


# -- behaviours


def together(osl, **columns):
    """Requests that all arrive at 0."""
    osl = np.asarray(osl)
    return Trace(np.full(osl.size, 100), osl, np.zeros(osl.size), **columns)


@pytest.mark.parametrize("lengths", [(3, 7, 5, 11), (2, 5, 4, 8)])
def test_seats_of_static_batching(lengths):
    """seed_figures B50, B51: 4 seats, 59 % of the seat-steps give a token: sum / (4 max)."""
    result = simulate(together(lengths), Pool(COSTS, static(4)))
    assert result.totals["seat_occupancy"] * 100 == pytest.approx(59, abs=0.5)
    assert result.totals["seat_occupancy"] == pytest.approx(sum(lengths) / (4 * max(lengths)))


def test_seats_of_continuous_batching():
    """seed_figures B52: with a backlog, seats are refilled at every iteration: almost 100 %."""
    lengths = np.random.default_rng(0).integers(2, 12, 4000)
    busy = simulate(together(lengths), Pool(COSTS, vllm(max_seqs=4, token_budget=4096, seen_late=False)))
    assert busy.totals["seat_occupancy"] * 100 == pytest.approx(100, abs=0.5)


def test_continuous_batching_outruns_static():
    """seed_figures B53 reports up to 36.9 x at equal latency (Orca): the sign, and its growth with uneven lengths."""
    gain = {}
    for name, osl in {"even": 100, "uneven": (1, 200)}.items():
        trace = dataclasses.replace(poisson(1.0, 400, 100, osl, seed=3), arrived_s=np.zeros(400))
        rate = {
            rules.name: simulate(trace, Pool(COSTS, rules)).summary()["output_tok_per_s"]
            for rules in (static(16), vllm(max_seqs=16))
        }
        gain[name] = rate["vllm"] / rate["static"]
    assert gain["uneven"] > 1.3 > 1.05 > gain["even"]


def test_static_waits_for_a_full_batch():
    trace = Trace(np.full(5, 100), np.full(5, 10), np.array([0.0, 0.1, 0.2, 0.3, 5.0]))
    hasty, patient = (simulate(trace, Pool(COSTS, static(4, batch_wait_s=wait))) for wait in (0.0, 1.0))
    assert hasty.admitted_s[0] == 0.0
    assert patient.admitted_s[:4].tolist() == [0.3] * 4  # full when the fourth comes
    assert patient.admitted_s[4] == 6.0  # nobody else comes: the wait runs out


def test_a_long_prompt_stalls_a_stream():
    """user_cases U-prefix_chunk-02: 55 tokens/s fall to some 5 while 100k tokens come in chunks of 1,024."""
    # 18 ms a decode step; 1,024 prompt tokens take 0.2 s, as on the small machine of that case
    costs = from_terms(np.full(8, 0.018), 1e-9, prompt_token_s=0.2 / 1024, pair_s=0.0)
    trace = Trace(np.array([100, 100_000]), np.array([2000, 1]), np.array([0.0, 5.0]))
    result = simulate(trace, Pool(costs, vllm(token_budget=1024, max_seqs=8)))
    during = result.gap_s > 0.1
    assert during.sum() == pytest.approx(100_000 / 1023, abs=2)
    assert 1 / result.gap_s[during].mean() == pytest.approx(1 / 0.218, rel=0.01)  # the mixed step, not the decode step
    assert 1 / result.itl_s(0.5) == pytest.approx(55, rel=0.02)
    smaller = simulate(trace, Pool(costs, vllm(token_budget=256, max_seqs=8)))
    assert smaller.itl_s(0.99) < 0.5 * result.itl_s(0.99)
    assert smaller.first_s[1] > result.first_s[1]


def test_lockstep():
    """Prefill-first and fixed lengths: all finish and prefill together, TTFT is (C + 1) / 2 prompts; vLLM staggers."""
    trace = closed_loop(16, 2048, 128, requests=320, low=1.0)
    one = COSTS.step_s(0, 0, 2048, 2048**2)
    lock = simulate(trace, Pool(COSTS, sglang(token_budget=2048)))
    assert lock.ttft_s[160:].mean() == pytest.approx(one * 17 / 2, rel=0.1)
    free = simulate(trace, Pool(COSTS, vllm(token_budget=2048)))
    assert free.ttft_s[160:].mean() < 0.5 * lock.ttft_s[160:].mean()


def test_polling_and_waiting_cost_steps():
    """A request that arrives while others decode waits for a poll, half an interval on average."""
    trace = poisson(2.0, 300, 200, 400, seed=4)
    base = simulate(trace, Pool(COSTS, sglang())).summary()
    polled = simulate(trace, Pool(COSTS, sglang(poll_steps=30))).summary()
    extra = polled["ttft_mean_s"] - base["ttft_mean_s"]
    assert 0.3 * 15 * base["tpot_mean_s"] < extra < 1.5 * 15 * base["tpot_mean_s"]
