"""Speed of the simulator and of the hit curve. Run with `pytest -n 0 --benchmark-enable tests/benchmarks`.

Floors are far below what an idle core does, so that a busy machine does not fail them.
"""

from __future__ import annotations

import numpy as np
import pytest
from simulation_costs import llama_70b_tp4

from roofline.serving.prefix import hit_curve
from roofline.simulation import Lockstep, Pool, closed_loop, poisson, sglang, simulate, tensorrt_llm, vllm

COSTS = llama_70b_tp4()
FRONT = {"tokenizer_s_per_token": 3.2e-6, "tokenizer_s_per_request": 3e-4, "front_end_s": 3e-3, "emit_steps": 0.4}
CHAT = closed_loop(64, 1000, 500, requests=10_000, low=0.1)  # prompts 100-1000, outputs 50-500
RULES = {
    "vllm": vllm(),
    "vllm-front": vllm(**FRONT),
    "trt": tensorrt_llm(hold_steps=20),
    "sglang": sglang(poll_steps=10),
    "vllm-kv": vllm(kv_blocks=5000),
}


@pytest.mark.parametrize("rules", RULES)
def test_requests_per_second(benchmark, rules):
    """70B chat load at C = 64: 150-200 thousand requests/s on an idle core, 2,100-2,800 by the fastest peer."""
    pool = Pool(COSTS, RULES[rules])
    result = benchmark(simulate, CHAT, pool)
    if benchmark.stats is not None:  # absent where benchmarks are disabled
        benchmark.extra_info["requests_per_s"] = round(len(CHAT) / benchmark.stats.stats.min)
    assert result.done.all()


def test_four_replicas_that_look_at_the_load(benchmark):
    from roofline.simulation import LeastLoaded

    trace = poisson(20.0, 5_000, (100, 1000), (50, 500))
    result = benchmark(simulate, trace, Pool(COSTS, vllm(), 4, LeastLoaded()))
    assert result.done.all()


def test_eight_ranks_in_lockstep(benchmark):
    """Every jump ends where any rank's does: some five thousand requests/s."""
    trace = poisson(40.0, 2_000, (100, 1000), (50, 500))
    pool = Pool(COSTS, vllm(), 8, lockstep=Lockstep(8, [1.0, 4096.0], [4e-3, 40e-3]))
    result = benchmark(simulate, trace, pool)
    assert result.done.all()


def test_hit_curve(benchmark):
    """As many blocks as the Mooncake conversation trace: 12,000 requests of 24."""
    rng = np.random.default_rng(0)
    requests = [rng.integers(0, 200_000, 24).tolist() for _ in range(12_000)]
    assert benchmark(hit_curve, requests).asked == 288_000
