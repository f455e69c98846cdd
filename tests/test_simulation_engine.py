"""The event-jumping simulator against a step-by-step loop, and what must hold for any run."""

from __future__ import annotations

import numpy as np
import pytest
from simulation_costs import llama_70b_tp4
from simulation_reference import reference

from roofline.simulation import Pool, bursty, closed_loop, poisson, sglang, simulate, static, tensorrt_llm, vllm

COSTS = llama_70b_tp4()
FRONT = {"tokenizer_s_per_token": 3.2e-6, "tokenizer_s_per_request": 3e-4, "front_end_s": 3e-3, "emit_steps": 0.4}

SCHEDULERS = {
    "vllm": vllm(token_budget=2048),
    "vllm-front": vllm(token_budget=2048, **FRONT),
    "vllm-sync": vllm(token_budget=512, seen_late=False),
    "vllm-seats": vllm(token_budget=2048, max_seqs=7, **FRONT),
    "vllm-kv": vllm(token_budget=2048, kv_blocks=400, **FRONT),
    "vllm-kv-shortest": vllm(token_budget=1024, kv_blocks=300, preempt="shortest"),
    "vllm-kv-token": vllm(token_budget=1024, kv_blocks=5000, block_tokens=1),
    "vllm-stream": vllm(token_budget=2048, stream_interval=10, stream_first=False, **FRONT),
    "vllm-cold": vllm(cold_start_s=1.0),
    "trt": tensorrt_llm(token_budget=2048, **FRONT),
    "trt-small-budget": tensorrt_llm(token_budget=300),
    "trt-hold": tensorrt_llm(token_budget=4096, hold_steps=20, **FRONT),
    "trt-kv": tensorrt_llm(token_budget=2048, kv_blocks=600, **FRONT),
    "trt-kv-hold": tensorrt_llm(token_budget=4096, kv_blocks=900, hold_steps=20, **FRONT),
    "sglang": sglang(token_budget=2048, **FRONT),
    "sglang-poll": sglang(token_budget=2048, poll_steps=10, **FRONT),
    "sglang-poll-sync": sglang(token_budget=512, poll_steps=7, seen_late=False),
    "sglang-kv": sglang(token_budget=2048, poll_steps=10, kv_blocks=6000, **FRONT),
    "static": static(8),
    "static-front": static(8, **FRONT),
}
TRACES = {
    "closed": closed_loop(16, 1000, 200, requests=120, low=0.2, seed=1),
    "closed-fixed": closed_loop(16, 600, 64, requests=64, low=1.0),
    "closed-short": closed_loop(24, 300, 4, requests=120, low=0.1, seed=2),
    "poisson": poisson(6.0, 150, (50, 900), (1, 150), seed=3),
    "poisson-cached": poisson(6.0, 120, (50, 900), (1, 150), seed=3, cached=(1, 700)),
    "bursty": bursty(3.0, 100, (50, 900), (1, 100), cv=4.0, seed=4),
}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("rules", SCHEDULERS)
def test_jumps_equal_steps(rules, trace):
    """Every first token, every finish and every preemption, to rounding."""
    trace, rules = TRACES[trace], SCHEDULERS[rules]
    result = simulate(trace, Pool(COSTS, rules))
    slow, seats, steps = reference(trace, COSTS, rules)
    assert result.complete and result.done.all()
    assert result.preempted.tolist() == [r.preempted for r in slow]
    np.testing.assert_allclose(result.sent_s, [r.send for r in slow], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(result.first_s, [r.first for r in slow], rtol=1e-9)
    np.testing.assert_allclose(result.finish_s, [r.finish for r in slow], rtol=1e-9)
    assert result.totals["steps"] == steps
    assert result.totals["seat_occupancy"] == pytest.approx(seats / (steps * rules.max_seqs), rel=1e-12)
    gaps = np.concatenate([r.gaps for r in slow])
    if not result.preempted.any():  # gaps across a preemption are left out
        assert result.gap_count.sum() == gaps.size
        assert (result.gap_s * result.gap_count).sum() == pytest.approx(gaps.sum(), rel=1e-9)
        for q in (0.5, 0.9, 0.99):
            assert result.itl_s(q) == pytest.approx(np.quantile(gaps, q, method="inverted_cdf"), rel=0.01)
