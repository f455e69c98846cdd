"""The table of step costs against the step model it came from."""

from __future__ import annotations

import numpy as np
import pytest
from simulation_costs import BANDWIDTH, FLOPS, KV_BYTES, WEIGHT_BYTES, llama_70b_tp4

from roofline.errors import InputError
from roofline.simulation.costs import from_terms, tabulate


def roofline_step(decode_count, decode_context, prefill_new, prefill_past):
    """A 70B on four GPUs as one roofline a step: weights once, GEMMs of all tokens, KV and pairs apart, 3 ms fixed."""
    tokens = decode_count + prefill_new
    gemm = np.maximum(WEIGHT_BYTES / BANDWIDTH, 2 * 70.6e9 / 4 * tokens / FLOPS)
    kv = decode_count * decode_context * KV_BYTES / BANDWIDTH
    pairs = prefill_new * (prefill_new + 2 * prefill_past) * (4 * 80 * 8192 / 8) / (989.4e12 * 0.5)
    return gemm + kv + pairs + 3e-3 + 5e-6 * decode_count + 1e-3 * (prefill_new > 0)


def test_table_of_a_roofline():
    costs = tabulate(roofline_step, 256, contexts=(256, 8192), prompts=(32, 8192))
    assert costs.max_batch == 256
    assert costs.median_error < 1e-3
    assert 1e-3 < costs.max_error < 0.05  # where GEMMs of prompt and decodes together turn compute bound
    assert costs.step_s(64, 64 * 1000) == pytest.approx(float(roofline_step(64, 1000, 0, 0)), rel=1e-6)
    for n, past in ((2048, 0), (8192, 0), (2048, 6144)):
        assert costs.step_s(0, 0, n, n * (n + 2 * past)) == pytest.approx(float(roofline_step(0, 0, n, past)), rel=0.01)
    assert costs.step_s(32, 32e3, 2048, 2048**2) == pytest.approx(float(roofline_step(32, 1000, 2048, 0)), rel=0.02)


def test_table_of_experts():
    """A prompt reads the experts that a small decode batch does not: a floor that falls with the batch."""

    def step(b, ctx, n, past):
        def coverage(tokens):
            return 1 - (1 - 8 / 256) ** tokens

        return 5e-3 + 20e-3 * coverage(b + n) + b * ctx * 1e-9 + np.maximum(0, 1e-5 * n) + 1e-10 * n * (n + 2 * past)

    costs = tabulate(step, 64, prompts=(16, 8192))
    assert costs.prompt_extra_s(1, 100) > 2 * costs.prompt_extra_s(64, 100)
    assert costs.step_s(1, 1000, 300, 300**2) == pytest.approx(float(step(1, 1000, 300, 0)), rel=0.02)
    assert costs.step_s(64, 64000, 4096, 4096**2) == pytest.approx(float(step(64, 1000, 4096, 0)), rel=0.01)
    assert costs.max_error < 0.05


def test_terms():
    costs = from_terms([0.01, 0.011], 1e-8, 1e-4, 1e-9, eager_s=2e-3, experts_s=[5e-3, 4e-3], launch_floor_s=0.03)
    assert costs.step_s(2, 1000) == pytest.approx(0.011 + 1e-5)
    assert costs.step_s(1, 0, 1000, 1e6) == pytest.approx(0.01 + 0.1 + 2e-3 + 1e-3)
    assert costs.step_s(0, 0, 10, 100) == 0.03  # 0.01 + max(1e-3, 5e-3) + 2e-3 lies below the launches
    small = from_terms([0.01], 0, 1e-4, 0, eager_s=2e-3, launch_floor_s=0.03, graph_tokens=16)
    assert small.step_s(1, 0, 10, 0) == pytest.approx(0.011)  # fits the graph: neither floor nor per-step cost
    assert small.step_s(1, 0, 16, 0) == 0.03


def test_a_cold_prompt_is_never_faster_than_its_flops():
    """16k tokens of a 70B on four H100: 2 x 70.6e9 x 16384 FLOPs and its causal pairs at 4 x 989.4 TFLOP/s."""
    n = 16384
    flops = 2 * 70.6e9 * n + 4 * 80 * 8192 * n * n / 2
    assert llama_70b_tp4().step_s(0, 0, n, n * n) > flops / (4 * 989.4e12)


def test_refusals():
    with pytest.raises(InputError, match="increasing ranges"):
        tabulate(roofline_step, 8, contexts=(100, 100))
    with pytest.raises(InputError, match="batch of 1 or more"):
        tabulate(roofline_step, 0)
