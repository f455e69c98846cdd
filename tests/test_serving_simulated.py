"""Closed forms against the event simulator, on the same step times and rules."""

from dataclasses import replace

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.serving.lengths import uniform
from roofline.serving.steady import steady_state
from roofline.serving.steps import step_table
from roofline.simulation import Pool, closed_loop, poisson, sglang, simulate, tabulate, tensorrt_llm, vllm

MAX_BATCH = 256


def costs(table, contexts, prompts):
    """The simulator's costs from the closed form's table."""
    free = replace(table, launch_s=0.0)

    def step_s(b, context, n, p):
        b, context, n, p = (np.asarray(a, float) for a in np.broadcast_arrays(b, context, n, p))
        decode = free.decode(np.maximum(b, 1.0), np.maximum(context, 1.0))
        prompt = np.maximum(n, 1.0)
        mixed = free.beside(np.maximum(b, 1.0), np.maximum(context, 1.0), prompt, p).with_prompts_s(1.0)
        alone = free.beside(0.0, 1.0, prompt, p).with_prompts_s(1.0)
        return np.where(n > 0, np.where(b > 0, mixed, alone), decode)

    return tabulate(step_s, MAX_BATCH, contexts, prompts, launch_floor_s=table.launch_s)


def pool(where, isl, osl):
    profile = where.engine.scheduler
    rules = {"vllm": vllm, "sglang": sglang, "tensorrt-llm": tensorrt_llm}[where.engine.name]
    scheduler = rules(
        token_budget=profile.token_budget, max_seqs=MAX_BATCH, emit_steps=profile.emit_steps,
        tokenizer_s_per_token=profile.tokenizer_token_s, tokenizer_s_per_request=profile.tokenizer_request_s,
        front_end_s=profile.front_end_s,
    )  # fmt: skip
    return Pool(costs(step_table(where), (isl * 0.5, isl + osl), (isl * 0.5, 8192.0)), scheduler)


@pytest.fixture(params=["vllm", "sglang", "tensorrt-llm"])
def where(request):
    return deployment("llama-3.1-70b", "h100-sxm", tp=4, engine=request.param)


@pytest.mark.parametrize("isl, osl", [(1024, 512), (4096, 1024)])
@pytest.mark.parametrize("clients", [4, 24, 96])
def test_closed_loop(where, isl, osl, clients):
    """Forty requests a client, lengths between 0.8 and 1 of the longest: TPOT within 4 %, E2E 5 %, mean TTFT 20 %."""
    result = simulate(closed_loop(clients, isl, osl, requests=40 * clients, seed=3), pool(where, isl, osl))
    state = steady_state(
        where, isl=uniform(float(isl), 0.8), osl=uniform(float(osl), 0.8), concurrency=float(clients),
        burst_share=1.0 / 40.0, max_seqs=MAX_BATCH,
    )  # fmt: skip
    assert state.tpot_s == pytest.approx(np.nanmean(result.tpot_s), rel=0.04)
    assert state.e2e_s == pytest.approx(result.e2e_s.mean(), rel=0.05)
    assert state.ttft_s == pytest.approx(result.ttft_s.mean(), rel=0.20)


@pytest.mark.parametrize("isl, osl, rate", [(1000, 300, 0.5), (1000, 300, 4.0), (4000, 300, 1.0)])
def test_open_loop(where, isl, osl, rate):
    """Poisson arrivals: means within 10 %, 90th percentiles within 20 %."""
    result = simulate(poisson(rate, 3000, isl, osl, seed=1), pool(where, isl, osl))
    state = steady_state(where, isl=float(isl), osl=float(osl), rate_per_s=rate, max_seqs=MAX_BATCH)
    for name in ("ttft", "tpot", "e2e"):
        seen, spread = getattr(result, f"{name}_s"), getattr(state, name)
        assert spread.mean == pytest.approx(np.nanmean(seen), rel=0.10), name
        assert spread.at(0.9) == pytest.approx(np.nanquantile(seen, 0.9), rel=0.20), name
