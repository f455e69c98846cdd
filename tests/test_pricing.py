"""What ops cost on a machine: physics that must hold whatever the constants are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.deployment import deployment
from roofline.errors import UnsupportedError
from roofline.machine import machine
from roofline.ops import COLLECTIVES, Collective, Experts
from roofline.parallel import Plan
from roofline.pricing import op_times
from roofline.pricing.matmul import received
from roofline.specs.engine import engine_named, engine_names
from roofline.specs.library import hardware
from roofline.workload import decode, prefill

ONE = Plan()
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


@settings(max_examples=15)
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


@settings(max_examples=60)
@given(
    st.sampled_from(COLLECTIVES), st.floats(1.0, 1e9), st.sampled_from(engine_names()),
    st.sampled_from(["rtx-3090", "rtx-4090", "rtx-5090", "l40s"]),
)  # fmt: skip
def test_a_pair_with_peer_access_is_never_slower_than_through_its_host(kind, message, engine, card):
    """Of two cards; on more, peer access can be the slower way: NVIDIA/nccl-tests issue 74, NVIDIA/nccl issue 1817."""
    op, seconds = Collective("c", kind, message, 2), []
    for peer in (True, False):
        pair = machine(hardware(card, overrides={"host.peer_to_peer": peer}), engine_named(engine))
        seconds.append(float(op_times([op], pair, ONE)[0].total_s))
    assert 0 < seconds[0] <= seconds[1]


def test_a_bridge_joins_two_cards_and_no_more():
    """NVLink between pairs of RTX 3090: far quicker than their host; four of them meet in the memory of the host."""

    def gathered(card, ranks):
        op = Collective("c", "all_reduce", 1e8, ranks)
        return float(op_times([op], machine(hardware(card), engine_named("vllm")), ONE)[0].total_s)

    assert gathered("rtx-3090-nvlink", 2) < 0.4 * gathered("rtx-3090", 2)
    assert gathered("rtx-3090-nvlink", 4) == gathered("rtx-3090", 4)


def test_tensor_parallel_prompts_lose_to_stages_without_peer_access():
    """Two cards in a desktop, eight lanes each: stages are quicker for prompts, tensor parallelism for a user's tokens.

    Measured: turboderp-org/exllamav2 issue 734 (prompts 2.8 times slower at tp 2), exllamav3 issue 295; and
    syv-ai/qwen38-27b-rtx3090 issue 40 (tokens 16 to 27 % quicker at tp 2 over eight lanes).
    """
    pair = hardware("rtx-3090", overrides={"host.bandwidth": "15.75 GB/s"})
    tp, pp = (
        deployment("llama-3.1-70b", pair, weights="int4_awq", engine="exllamav2", **plan)
        for plan in ({"tp": 2}, {"pp": 2})
    )
    assert float(tp.prefill_step(1.0, 16384.0).total_s) > 1.5 * float(pp.prefill_step(1.0, 16384.0).total_s)
    assert float(tp.decode_step(1.0, 1000.0).total_s) < float(pp.decode_step(1.0, 1000.0).total_s)


def test_prompts_in_stages_are_as_fast_as_measured():
    """turboderp-org/exllamav2 issue 734: 1045.8 tok/s of a 70B in 4.5 bit over two cards without tensor parallelism.

    ExLlamaV2 has cuBLAS add up in FP16, which GeForce cards do at twice the rate; with FP32 sums it would be 600.
    """
    where = deployment("llama-3.1-70b", "rtx-3090", pp=2, weights="int4_awq", engine="exllamav2")
    assert 16384.0 / float(where.prefill_step(1.0, 16384.0).total_s) == pytest.approx(1045.8, rel=0.1)


def test_sums_in_half_precision_need_an_engine_and_a_device_that_gain_by_them():
    def peak(hw, engine, weights="int4_awq"):
        where = deployment("llama-3.1-8b", hw, weights=weights, engine=engine)
        return where.machine.matmul_flops_per_s(where.precision.of("ffn"))

    for hw, twice in (("rtx-3090", 142e12), ("rtx-4090", 330.3e12), ("rtx-5090", 419e12)):
        assert peak(hw, "exllamav2") == twice == pytest.approx(2.0 * peak(hw, "vllm"), rel=0.01)
    assert peak("a100-sxm", "exllamav2") == peak("a100-sxm", "vllm")
    assert peak("rtx-4090", "exllamav2", "fp8") == peak("rtx-4090", "vllm", "fp8")


def test_gathering_does_the_same_arithmetic_and_moves_more():
    """Columns everywhere instead of rows and columns: equal FLOPs and weights, and 1.5 times every activation."""
    reduced, gathers = (
        deployment("llama-3.1-70b", "rtx-4090", tp=2, weights="int4_awq", engine=e).step(prefill(1.0, 2048.0))
        for e in ("vllm", "exllamav2")
    )
    assert float(gathers.flops) == pytest.approx(float(reduced.flops), rel=1e-9)
    assert float(gathers.weight_bytes) == pytest.approx(float(reduced.weight_bytes), rel=0.01)
    moved = [
        sum(float(t.op.count * t.op.wire_bytes) for t in s.times if t.op.kind == "collective")
        for s in (reduced, gathers)
    ]
    per_layer = 3 * 8192 + 28672  # attention out, its product, the inner row of the block, its product
    assert moved[1] == pytest.approx(80 * 2 * 2048 * 1.5 * per_layer, rel=0.01)
    assert moved[0] == pytest.approx(80 * 2 * 2048 * 2 * 8192, rel=0.01)
    with pytest.raises(UnsupportedError, match="try pp"):
        deployment("mixtral-8x7b", "rtx-4090", tp=2, engine="exllamav2")


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


# Kernels that a release had on devices where others were measured.


def latent(hw, engine, heads=128, batch=128.0, context=1151.0):
    """The attention of one layer of DeepSeek-V2 with so many heads on a rank."""
    where = deployment("deepseek-v2", hw, tp=int(128 / heads), weights="fp8_block", engine=engine)
    return next(t for t in where.decode_step(batch, context).times if t.op.name == "attn.core")


def test_a_release_has_the_kernels_of_its_time():
    """SGLang decoded latent attention by a Triton kernel, whose 16 heads a block read the latents 8 times over."""
    old, new = (latent("h100-sxm", e) for e in ("sglang==0.3.5", "sglang"))
    assert (old.evidence, new.evidence) == ("transferred", "measured")
    assert float(old.total_s) > 3.0 * float(new.total_s)
    few, many = (latent("h100-sxm", "sglang==0.3.5", h, 1000.0, 257.0).total_s for h in (16, 128))
    assert 4.0 < float(many / few) < 8.0
    few, many = (latent("h100-sxm", "sglang", h, 1000.0, 257.0).total_s for h in (16, 128))
    assert float(many / few) < 2.0


@pytest.mark.parametrize("hw", ["l40s", "rtx-pro-6000-server"])
def test_where_the_kernel_was_measured_it_is_its_own(hw):
    old, new = (latent(hw, e, 16) for e in ("sglang==0.3.5", "sglang"))
    assert float(old.total_s) == float(new.total_s) and old.evidence == new.evidence == "measured"


# flagos-ai/FlagGems PR 510, H800, 128 sequences of 1,151 tokens, 128 heads: another such Triton kernel reads latents at
# 88 GB/s, FlashMLA at 1,726.
def test_triton_on_hopper_lies_between_another_such_kernel_and_flash_mla():
    rate = 128 * 1151 * 1152 / float(latent("h100-sxm", "sglang==0.3.5").total_s) / 1e9
    assert 88 < rate < 1726 / 3
