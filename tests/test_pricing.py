"""What ops cost on a machine: physics that must hold whatever the constants are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.deployment import deployment
from roofline.ops import Experts
from roofline.pricing.matmul import received
from roofline.workload import decode, prefill

CASES = {
    "dense": ("llama-3.1-70b", {"hw": "h100-sxm", "tp": 4}),
    "mla moe": ("deepseek-r1", {"hw": "h200-sxm", "tp": 8}),
    "gqa moe": ("qwen3-235b-a22b", {"hw": "b200-sxm", "tp": 4, "ep": 4, "weights": "fp8_block"}),
    "linear": ("qwen3.5-397b-a17b", {"hw": "b200-sxm", "tp": 8}),
}


@pytest.fixture(scope="module", params=CASES)
def where(request):
    model, layout = CASES[request.param]
    return deployment(model, **layout)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 256), st.integers(1, 32_000))
def test_calibrated_is_never_faster_than_the_datasheet(where, batch, context):
    for t in where.decode_step(float(batch), float(context)).times:
        sheet = max(float(np.max(x)) for x in (t.compute_s, t.network_s))
        assert float(t.total_s) >= sheet * (1 - 1e-9), t.op.name


def test_scalar_equals_array(where):
    batch, context = np.array([1.0, 7.0, 64.0, 300.0]), np.array([10.0, 900.0, 4000.0, 20000.0])
    whole = where.decode_step(batch, context).total_s
    alone = [float(where.decode_step(b, c).total_s) for b, c in zip(batch, context)]
    assert whole == pytest.approx(alone, rel=1e-12)


def test_steps_together_equal_steps_alone(where):
    both = where.steps((prefill(1.0, 777.0),), (decode(9.0, 1234.0),))
    assert float(both[0].total_s) == pytest.approx(float(where.prefill_step(1.0, 777.0).total_s), rel=1e-12)
    assert float(both[1].total_s) == pytest.approx(float(where.decode_step(9.0, 1234.0).total_s), rel=1e-12)


def test_parts_add_up_to_the_step(where):
    for step in where.steps((prefill(2.0, 500.0),), (decode(32.0, 3000.0),)):
        assert float(sum(step.parts_s.values())) == pytest.approx(float(step.total_s), rel=1e-9)


def test_a_cold_prompt_is_never_faster_than_its_flops():
    """16k tokens of a 70B on 4 H100: 2 P T over the peak of four devices, attention not even counted."""
    where = deployment("llama-3.1-70b", "h100-sxm", tp=4, weights="bf16")
    bound = 2 * (where.model.params - 2 * where.model.params_embedding) * 16384 / (4 * 989.4e12)
    for engine in ("ideal", "vllm", "megakernel"):
        d = deployment("llama-3.1-70b", "h100-sxm", tp=4, weights="bf16", engine=engine)
        assert float(d.prefill_step(1.0, 16384.0).total_s) > bound


def test_wide_expert_parallelism_pays():
    """Each of 64 ranks reads an eighth of the experts that each of 8 does, at 128 sequences a rank."""
    seconds = []
    for ranks in (8, 64):
        step = deployment("deepseek-r1", "gb200", dp=ranks, ep=ranks).decode_step(128.0 * ranks, 2000.0)
        seconds.append(float(sum(t.op.count * t.total_s for t in step.times if t.op.kind == "experts")))
    assert seconds[1] < seconds[0]


def test_tokens_that_reach_a_rank():
    op = Experts("e", 1000.0, 7168, 2048, 256, 8, 1, 8)
    assert received(op) == 1000.0
    wide = Experts("e", 1000.0, 7168, 2048, 256, 8, 1, 64)
    assert received(wide) == pytest.approx(1000 * (1 - (63 / 64) ** 8))
