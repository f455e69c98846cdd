"""Speed of one answer: a steady state alone and in a large array, a scalar estimate."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.deployment import deployment
from roofline.estimates import estimate
from roofline.serving.steady import steady_state

POINTS = 200_000
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def llama():
    return deployment("llama-3.1-70b", "h100-sxm", tp=4)


def test_steady_state_alone(benchmark, llama):
    """Target: 3 ms."""
    assert benchmark(lambda: steady_state(llama, isl=100.0, osl=100.0, concurrency=1.0)).tpot_s > 0


def test_steady_states(benchmark, llama):
    """Target: 5 us a point."""
    isl, osl, size = (RNG.uniform(low, high, POINTS) for low, high in ((50, 9000), (50, 900), (1, 300)))
    state = benchmark(lambda: steady_state(llama, isl=isl, osl=osl, concurrency=size))
    assert state.tpot_s.shape == (POINTS,)
    if benchmark.stats is not None:  # absent where benchmarks are disabled
        benchmark.extra_info["us_a_point"] = round(benchmark.stats.stats.min / POINTS * 1e6, 3)


@pytest.mark.parametrize("engine", ["ideal", "vllm"])
def test_scalar_estimate(benchmark, engine):
    """Target: 1 ms."""
    where = deployment("llama-3.1-70b", "h100-sxm", tp=4, engine=engine)
    assert benchmark(lambda: estimate(where, isl=2000, osl=500, batch=32)).tpot_s.value > 0
