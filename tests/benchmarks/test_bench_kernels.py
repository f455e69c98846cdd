"""Speed of the kernel models: seconds a point in tables, as a multiple of one division over as many points."""

from __future__ import annotations

import time

import numpy as np
import pytest

from roofline.kernels.chip import Chip
from roofline.kernels.decode import decode_attention_time
from roofline.kernels.gemm import gemm_time
from roofline.kernels.moe import moe_time
from roofline.kernels.prefill import prefill_attention_time

POINTS = 20_000
H100 = {"chip": Chip(3.35e12, 132.0, 50e6, 450e9, 450e9), "peak_flops_per_s": 989e12}
RNG = np.random.default_rng(0)
BATCH, LENGTH = (RNG.integers(1, top, POINTS).astype(float) for top in (256, 65536))
KERNELS = {
    "gemm": lambda: gemm_time(BATCH, LENGTH, 4096.0, **H100),
    "decode": lambda: decode_attention_time(BATCH, LENGTH, 8.0, 4.0, 128.0, **H100),
    "prefill": lambda: prefill_attention_time(BATCH, LENGTH, 8.0, 4.0, 128.0, **H100),
    "moe": lambda: moe_time(LENGTH, 4096.0, 1536.0, 128.0, 8.0, **H100),
}


def division() -> float:
    """Seconds of one division over as many points."""
    times = []
    for _ in range(20):
        start = time.perf_counter()
        LENGTH / BATCH
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.parametrize("kernel", KERNELS)
def test_points(benchmark, kernel):
    seconds = benchmark(KERNELS[kernel])
    assert seconds.shape == (POINTS,)
    if benchmark.stats is not None:  # absent where benchmarks are disabled
        benchmark.extra_info["us_a_point"] = round(benchmark.stats.stats.min / POINTS * 1e6, 3)
        benchmark.extra_info["times_a_division"] = round(benchmark.stats.stats.min / division())
