"""Speed of sweeps. Run with `pytest -n 0 --benchmark-enable tests/benchmarks`.

Each benchmark reports points per second, peak memory, and its time over that of a stated plain-numpy kernel on as many
points in the same run: the two-term roofline max(FLOPs / peak, (weights + KV) / bandwidth), everything an array. The
ratio does not depend on how busy the machine is. Targets on two idle cores: 2 million step estimates and 1 million
serving estimates (TTFT, TPOT, throughput, USD/Mtok) a second; floors here are far below, for busy machines.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

from roofline.sweeps import sweep

ISL, OSL = np.linspace(256.0, 8192.0, 64), np.linspace(64.0, 2048.0, 16)
SIZES = np.arange(1.0, 257.0)
POINTS = ISL.size * OSL.size * SIZES.size  # 262,144
SERVING = ("ttft_s", "tpot_s", "tokens_per_s", "usd_per_mtok_output")
CASES = {"llama-3.1-70b": ("h100-sxm", {"tp": 4}), "deepseek-r1": ("b200-sxm", {"tp": 8, "ep": 8})}


def plain_numpy(repeats: int = 5) -> float:
    """Seconds of the two-term roofline of a 70B decode step over as many points, all terms full arrays."""
    isl, osl, size = (np.ascontiguousarray(x) for x in np.broadcast_arrays(
        ISL[:, None, None], OSL[None, :, None], SIZES))  # fmt: skip
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        context = isl + osl / 2.0
        flops, moved = 1.41e11 * size, 1.41e11 + 327680.0 * size * context
        np.maximum(flops / 989e12, moved / 3.35e12)
        times.append(time.perf_counter() - start)
    return min(times)


def evaluate(model: str, load: str):
    hw, layout = CASES[model]
    metrics = SERVING if load != "batch" else ("ttft_s", "tpot_s")
    sizes = SIZES if load != "rate_per_s" else SIZES / 64.0
    return sweep(model, hw, isl=ISL, osl=OSL, metrics=metrics, **layout, **{load: sizes})


@pytest.mark.parametrize("model", CASES)
@pytest.mark.parametrize("load", ["batch", "concurrency", "rate_per_s"])
def test_points_per_second(benchmark, model, load):
    """batch: two steps (prompt and decode) a point; concurrency, rate_per_s: a serving estimate a point."""
    evaluate(model, load)  # tables of steps are made once for a deployment; a long sweep does not see them
    result = benchmark.pedantic(evaluate, (model, load), rounds=3, iterations=1)
    assert len(result) == POINTS
    tracemalloc.start()
    evaluate(model, load)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    if benchmark.stats is not None:  # absent where benchmarks are disabled
        per_point = 2 if load == "batch" else 1
        benchmark.extra_info["estimates_per_s"] = round(per_point * POINTS / benchmark.stats.stats.min)
        benchmark.extra_info["times_plain_numpy"] = round(benchmark.stats.stats.min / plain_numpy(), 1)
        benchmark.extra_info["peak_mb"] = round(peak / 1e6, 1)
    columns = 8 * POINTS * len(result.columns)
    assert peak < columns + 200e6  # intermediates stay in blocks
