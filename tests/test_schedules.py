"""Schedules of a step (graphs, eager launches, one megakernel), looped blocks, pipeline stages, experts under load."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.deployment import deployment
from roofline.errors import InputError
from roofline.estimates import estimate
from roofline.forward import loop_hits
from roofline.kernels.host import launches, step_launches
from roofline.ops import Gemm
from roofline.serving.expert_load import (
    attention_dp_gain,
    coverage,
    expert_cost,
    skewed_imbalance,
    tokens_for_coverage,
)
from roofline.serving.pipeline import bubble_share, decode_share, passage, prefill_pipelined
from roofline.serving.recipes import with_graphs
from roofline.serving.steps import step_table
from roofline.specs.engine import engine_named
from roofline.speculative import Speculation, eagle3
from roofline.step import compose
from roofline.workload import decode, prefill


def with_step(run, **changes):
    """The same replica under an engine with other rules for a step."""
    step = run.engine.step.model_copy(update=changes)
    return run.with_(engine=run.engine.model_copy(update={"step": step}))


@pytest.fixture(scope="module")
def small():
    return deployment("llama-3.2-1b", "h100-sxm")


# One megakernel.

BANDWIDTH, WEIGHTS = 3.35e12, 2.47e9  # [B/s] H100 SXM; [B] Llama-3.2-1B in bf16: 1.236e9 parameters


@pytest.mark.parametrize(("share", "tokens_per_s"), [(0.72, 976), (0.78, 1057), (0.50, 678)])
def test_speed_at_a_share_of_bandwidth(share, tokens_per_s, small):
    """CS336 guest lecture (72 %), Hazy Research May 2025 (78 %, engines at most 50 %)."""
    assert share * BANDWIDTH / WEIGHTS == pytest.approx(tokens_per_s, abs=1)
    assert float(small.decode_step(1.0, 64.0).weight_bytes) == pytest.approx(WEIGHTS, rel=0.002)


def test_megakernel_reaches_72_to_78_percent_of_bandwidth():
    """Nothing is fitted to it: the GEMMs' own share of bandwidth, without launches and gaps between them."""
    found = deployment("llama-3.2-1b", "h100-sxm", engine="megakernel").decode_step(1.0, 32.0 + 64.0)
    share = float(found.weight_bytes / found.total_s) / BANDWIDTH
    assert 0.72 * 0.96 < share < 0.78 * 1.04


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_reach_about_half_of_it(engine):
    """Hazy Research May 2025: at most 50 % of bandwidth; the step model allows up to a tenth more."""
    found = deployment("llama-3.2-1b", "h100-sxm", engine=engine).decode_step(1.0, 96.0)
    assert 0.40 < float(found.weight_bytes / found.total_s) / BANDWIDTH < 0.55


def test_megakernel_over_sglang():
    """Hazy Research May 2025: 1.5 times faster than SGLang on H100."""
    one, other = (deployment("llama-3.2-1b", "h100-sxm", engine=e) for e in ("megakernel", "sglang"))
    ratio = float(other.decode_step(1.0, 96.0).total_s / one.decode_step(1.0, 96.0).total_s)
    assert ratio == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("batch", [1.0, 32.0, 512.0])
@pytest.mark.parametrize("tp", [1, 2])
def test_schedules_are_ordered(batch, tp):
    run = deployment("llama-3.1-8b", "h100-sxm", tp=tp)
    serial, over, mega = (
        float(with_step(run, schedule=s).decode_step(batch, 1000.0).total_s)
        for s in ("serial", "overlapped", "megakernel")
    )
    eager = float(with_step(run, cuda_graphs=False, launch_s=4e-6).decode_step(batch, 1000.0).total_s)
    floor = float(deployment("llama-3.1-8b", "h100-sxm", tp=tp, engine="ideal").decode_step(batch, 1000.0).total_s)
    assert mega <= serial and over <= serial <= eager
    assert serial >= floor
    found = with_step(run, schedule="megakernel").decode_step(batch, 1000.0)
    assert mega >= float(found.bytes) / BANDWIDTH


def test_unknown_schedule_is_refused():
    with pytest.raises(InputError, match="serial"):
        compose([], schedule="magic")


# Graphs and eager launches.


def test_eager_steps_last_as_long_as_their_launches(small):
    eager = with_step(small, cuda_graphs=False, launch_s=50e-6)
    found = eager.decode_step(1.0, 500.0)
    assert float(found.total_s) == pytest.approx(50e-6 * step_launches(t.op for t in found.times))
    assert sum(float(v) for v in found.parts_s.values()) == pytest.approx(float(found.total_s))
    assert float(found.parts_s["overhead"]) > 0.5 * float(found.total_s)


def test_a_fast_host_and_a_busy_device_hide_launches(small):
    plain = float(small.decode_step(1.0, 500.0).total_s)
    assert float(with_step(small, cuda_graphs=False, launch_s=1e-9).decode_step(1.0, 500.0).total_s) == plain
    prefill = float(small.prefill_step(8.0, 8192.0).total_s)
    assert float(with_step(small, cuda_graphs=False, launch_s=50e-6).prefill_step(8.0, 8192.0).total_s) == prefill


def test_eager_arrays_are_scalars(small):
    eager = with_step(small, cuda_graphs=False, launch_s=15e-6)
    batch = np.array([1.0, 64.0, 2048.0])
    found = eager.decode_step(batch, 500.0).total_s
    assert np.allclose(found, [float(eager.decode_step(float(b), 500.0).total_s) for b in batch], rtol=1e-12)
    assert found[2] > found[0]


def test_the_table_of_steps_knows_eager_launches(small):
    eager = with_step(small, cuda_graphs=False, launch_s=50e-6)
    table = step_table(eager)
    assert float(table.decode(4.0, 512.0)) == pytest.approx(float(eager.decode_step(4.0, 512.0).total_s), rel=1e-9)
    assert float(step_table(small).decode(4.0, 512.0)) < float(table.decode(4.0, 512.0))


# Up to which batch there is a graph.


@pytest.mark.parametrize(
    ("engine", "hw", "plan", "batch"),
    [
        ("vllm", "h100-sxm", {}, 512), ("vllm==0.9", "h100-sxm", {}, 512), ("vllm==0.6.3", "h100-sxm", {}, 256),
        ("sglang", "h100-sxm", {}, 256), ("sglang", "h100-sxm", {"tp": 8}, 512), ("sglang", "rtx-4090", {}, 24),
        ("sglang", "l40s", {"tp": 4}, 160), ("sglang", "b200-sxm", {}, 512), ("sglang==0.4.6", "h100-sxm", {}, 160),
        ("sglang==0.3.5", "h100-sxm", {"tp": 8}, 160), ("sglang==0.3.5", "h100-sxm", {"dp": 8}, 96),
        ("sglang==0.4.6", "h100-sxm", {"dp": 8}, 160), ("sglang==0.3.5", "rtx-4090", {}, 8),
        ("tensorrt-llm", "b200-sxm", {"tp": 8}, 128), ("llama.cpp", "rtx-4090", {}, np.inf),
        ("transformers", "h100-sxm", {}, 0), ("megakernel", "h100-sxm", {}, np.inf),
    ],
)  # fmt: skip
def test_largest_batch_with_a_graph(engine, hw, plan, batch):
    """vLLM: VllmConfig and V0 model_runner; SGLang: server_args by memory and ranks; TensorRT-LLM: CudaGraphConfig."""
    assert deployment("deepseek-v2-lite", hw, engine=engine, **plan).decode_launch.most == batch


@pytest.mark.parametrize("plan", [{}, {"tp": 2}, {"dp": 2}, {"pp": 2}])
def test_a_batch_beyond_the_graphs_is_launched_kernel_by_kernel(plan):
    """At the limit nothing changes; one sequence of a rank more, and the host sets the pace."""
    run = deployment("deepseek-v2-lite", "h100-sxm", engine=with_graphs(engine_named("sglang"), 64), **plan)
    most = 64.0 * run.plan.dp * run.plan.pp
    whole = run.with_(engine=with_graphs(run.engine))
    held, beyond = run.decode_step(np.array([most, most + run.plan.dp * run.plan.pp]), 500.0).total_s
    assert held == float(whole.decode_step(most, 500.0).total_s)
    assert beyond == pytest.approx(run.engine.step.launch_s * run.launched(decode(float(run.plan.dp), 1.0)))
    assert beyond > float(whole.decode_step(most + 8.0, 500.0).total_s)
    batch = np.array([1.0, 63.0, 64.0, 65.0, 300.0])
    table = step_table(run).decode(batch * run.plan.pp, 500.0)
    assert table == pytest.approx(run.decode_step(batch * run.plan.pp * run.plan.dp, 500.0).total_s, rel=0.06)
    assert table[3] / table[2] == pytest.approx(beyond / held, rel=0.06)


def test_a_busy_device_hides_the_launches_of_a_large_batch(small):
    few = small.with_(engine=with_graphs(small.engine, 8))
    assert float(few.decode_step(512.0, 8000.0).total_s) == float(small.decode_step(512.0, 8000.0).total_s)


def test_parts_of_a_launched_step_add_up():
    run = deployment("deepseek-v2-lite", "h100-sxm", engine=with_graphs(engine_named("sglang"), 1))
    step = run.decode_step(4.0, 500.0)
    assert sum(float(v) for v in step.parts_s.values()) == pytest.approx(float(step.total_s))


def test_drafts_fill_the_graphs_of_an_engine_that_counts_tokens():
    """vLLM captures tokens: three drafts and the token before them leave room for 128 sequences in 512."""
    drafting = Speculation(eagle3(deployment("llama-3.1-8b", "h100-sxm").model), 3, 0.7)
    for engine, most in (("vllm", 128), ("sglang", 256)):
        run = deployment("llama-3.1-8b", "h100-sxm", engine=engine).with_(speculation=drafting)
        assert run.decode_launch.most == most


# sgl-project/sglang PR 1401 (September 2024, batch 1, 128 tokens cached): Llama-3-8B 9.28 (Triton) and 8.23 ms
# (FlashInfer), DeepSeek-Coder-V2-Lite four times 6.22 ms without graphs.
@pytest.mark.parametrize(("model", "measured"), [("llama-3-8b", (8.23e-3, 9.28e-3)), ("deepseek-v2-lite", (24.9e-3,))])
def test_launches_of_a_decode_step_take_what_was_measured(model, measured):
    """launch_s was fitted to prompts; of decodes it is within a third, and without the factors of prompt steps."""
    run = deployment(model, "h100-sxm", engine="sglang")
    eager = run.with_(engine=with_graphs(run.engine, 1)).decode_launch.eager_s
    assert all(0.67 < eager / t < 1.45 for t in measured)


# premAI-io/benchmarks README, 30 April 2024: A100 80 GB, batch 1, transformers. `launch_s` of the profile is from the
# Mistral-7B row of the same table, so that it is not here.
@pytest.mark.parametrize("tokens_per_s", [34.2, 36.65])  # fp16, and fp32: the host sets the pace
def test_an_eager_framework_runs_at_the_pace_of_the_host(tokens_per_s):
    run = deployment("llama-2-7b", "a100-sxm", engine="transformers")
    assert 1.0 / float(run.decode_step(1.0, 256.0).total_s) == pytest.approx(tokens_per_s, rel=0.09)
    assert float(run.decode_step(1.0, 256.0).total_s) > 2 * float(
        run.with_(engine=engine_named("vllm")).decode_step(1.0, 256.0).total_s
    )


def test_launches_of_a_step_are_those_of_its_ops(small):
    times = small.decode_step(1.0, 10.0).times
    assert step_launches(t.op for t in times) == sum(float(np.max(t.op.count)) * launches(t.op) for t in times)


# Looped blocks.

PARCAE = ["parcae-140m", "parcae-370m", "parcae-770m", "parcae-1.3b"]


@pytest.mark.parametrize("name", PARCAE)
def test_looped_layers_executed_over_stored(name):
    """sandyresearch/parcae configs: prelude, core and coda alike, core 8 times: (1 + 8 + 1) / 3."""
    model = deployment(name, "h100-sxm").model
    assert model.executed_layers / model.stored_layers == pytest.approx(3.333, abs=1e-3)


def looped(run, llc_bytes):
    """Decode step of one sequence on an accelerator with that much cache."""
    part = run.accelerator
    compute = part.compute.model_copy(update={"l2": llc_bytes, "llc": None})
    return run.with_(accelerator=part.model_copy(update={"compute": compute})).decode_step(1.0, 64.0)


def layer_weight_bytes(step):
    return sum(
        float(np.max(t.op.count)) * float(t.op.weight_bytes)
        for t in step.times
        if isinstance(t.op, Gemm) and t.op.name != "lm_head"
    )


@pytest.mark.parametrize("name", PARCAE)
def test_weight_traffic_of_loops_without_and_with_a_cache(name):
    """FLOPs and, without reuse, weight traffic scale by the executed layers; with reuse each weight is read once."""
    run = deployment(name, "h100-sxm")
    model = run.model
    stored = [
        (w, r.count, r.layer.loops) for r in model.layer_runs for w in r.layer.weights(model.hidden, 0) if w.k > 1
    ]
    once = sum(2.0 * w.params * n for w, n, _ in stored)
    every = sum(2.0 * w.params * n * loops for w, n, loops in stored)
    assert layer_weight_bytes(looped(run, 1e3)) == pytest.approx(every, rel=1e-6)
    assert layer_weight_bytes(looped(run, 1e12)) == pytest.approx(once, rel=1e-6)
    assert float(looped(run, 1e12).total_s) < float(looped(run, 1e3).total_s)
    assert float(looped(run, 1e12).flops) == float(looped(run, 1e3).flops)


def test_only_small_blocks_stay_in_the_cache():
    """The 28 MB core of the 140M model against 50 MiB of L2 on H100; the 1.3B model's is 450 MB."""
    share = {}
    for name in ("parcae-140m", "parcae-1.3b"):
        run = deployment(name, "h100-sxm", engine="ideal")
        share[name] = float(run.decode_step(1.0, 64.0).weight_bytes / looped(run, 1e3).weight_bytes)
    assert share["parcae-140m"] < 0.75
    assert share["parcae-1.3b"] > 0.99


def test_caches_of_long_batches_drive_weights_out():
    run = deployment("parcae-140m", "b200-sxm", engine="ideal")
    few, many = (float(run.decode_step(b, 2000.0).weight_bytes) for b in (1.0, 256.0))
    assert many > 1.5 * few


@given(st.integers(1, 32), st.floats(1e3, 1e12), st.floats(0.0, 1e9))
def test_loop_hits_are_shares(loops, block, cache):
    hits = float(loop_hits(loops, block, cache))
    assert 0.0 <= hits <= 1.0 - 1.0 / loops
    assert float(loop_hits(loops, block, 2 * cache)) >= hits


@pytest.mark.parametrize("name", PARCAE)
def test_kv_of_loops_each_or_shared(name):
    """Entries scale by the executed layers, unless the loops share one cache."""
    model = deployment(name, "h100-sxm").model
    runs = [run._replace(layer=run.layer.model_copy(update={"loop_cache": "shared"})) for run in model.layers]
    fields = {name: getattr(model, name) for name in type(model).model_fields}
    shared = type(model).model_validate(fields | {"layers": runs})
    ratio = model.kv_bytes_per_sequence(1000.0) / shared.kv_bytes_per_sequence(1000.0)
    assert float(ratio) == pytest.approx(3.333, abs=1e-3)


# Pipeline stages.


@given(st.integers(1, 16), st.integers(1, 64))
def test_equal_stages_have_the_bubble_of_the_formula(stages, jobs):
    found = passage([[1.0] * jobs] * stages)
    assert float(found.bubble) == pytest.approx((stages - 1) / (jobs + stages - 1))
    assert float(bubble_share(stages, jobs)) == pytest.approx(float(found.bubble))
    assert (float(found.total_s), float(found.first_s)) == (jobs + stages - 1, stages)


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_passage_is_bounded_by_its_slowest_stage_and_its_longest_job(times):
    found = passage(times)
    assert float(found.total_s) >= max(max(sum(row) for row in times), max(sum(col) for col in zip(*times))) - 1e-9
    assert float(found.total_s) <= sum(map(sum, times)) + 1e-9
    assert 0.0 <= float(found.bubble) < 1.0


def test_unequal_stages_wait_for_the_slowest():
    found = passage([[1.0] * 100, [2.0] * 100])
    assert float(found.slowest) == pytest.approx(4 / 3)
    assert float(found.total_s) == pytest.approx(1.0 + 200.0)


def test_prompts_fill_stages_by_micro_batches_and_chunks():
    run = deployment("llama-3.1-70b", "h100-sxm", tp=2, pp=4)
    whole = prefill_pipelined(run, batch=16.0, isl=4096.0)
    split = prefill_pipelined(run, batch=16.0, isl=4096.0, micro_batches=16)
    chunked = prefill_pipelined(run, batch=1.0, isl=65536.0, chunks=16)
    assert float(whole.bubble) == pytest.approx(0.75, abs=0.002)
    assert float(split.bubble) == pytest.approx(float(bubble_share(4, 16)), abs=0.005)
    assert float(split.total_s) < 0.35 * float(whole.total_s)
    assert float(split.first_s) < float(whole.first_s) / 10
    one = float(run.step(prefill(1.0, 65536.0)).total_s)
    assert float(chunked.total_s) < 0.5 * one
    assert float(prefill_pipelined(run, batch=1.0, isl=65536.0).total_s) == pytest.approx(one, rel=0.01)


@pytest.mark.parametrize(("engine", "chunks"), [("vllm", 4), ("exllamav2", 16), ("transformers", 1)])
def test_the_chunks_of_a_prompt_follow_one_another_through_the_stages(engine, chunks):
    """32,768 tokens in the engine's chunks: the flow shop of `prefill_pipelined`, whose chunks have unlike pasts."""
    run = deployment("llama-3.1-70b", "h100-sxm", tp=2, pp=4, weights="fp8", engine=engine)
    found = float(run.prefill_step(1.0, 32768.0).total_s)
    whole = prefill_pipelined(run, batch=1.0, isl=32768.0, chunks=chunks)
    assert found == pytest.approx(float(whole.total_s), rel=0.1)
    assert found <= float(run.step(prefill(1.0, 32768.0)).total_s) * (1 + 1e-12)


def test_chunks_attend_to_what_came_before_and_only_the_last_has_logits():
    """On one stage the chunks of a prompt do the arithmetic of the whole prompt, one head product included."""
    run = deployment("llama-3.1-8b", "h100-sxm", engine="ideal")
    cut = prefill_pipelined(run, batch=1.0, isl=32768.0, chunks=8, cached=4096.0)
    whole = float(run.prefill_step(1.0, 32768.0, 4096.0).total_s)
    assert float(cut.total_s) == pytest.approx(whole, rel=0.002)
    assert float(cut.bubble) == pytest.approx(0.0)


def test_prefill_over_stages_refuses_what_cannot_be_cut():
    run = deployment("llama-3.1-8b", "h100-sxm", pp=2)
    with pytest.raises(InputError, match="more than there are prompts"):
        prefill_pipelined(run, batch=2.0, isl=100.0, micro_batches=4)
    with pytest.raises(InputError, match="chunks"):
        prefill_pipelined(run, batch=2.0, isl=100.0, chunks=0)


def test_prompts_of_a_batch_follow_one_another_through_the_stages():
    """As many micro-batches as stages, or as prompts where these are fewer: the flow shop of `prefill_pipelined`."""
    run = deployment("llama-3.1-70b", "h100-sxm", tp=2, pp=4, weights="fp8")
    for batch in (1, 2, 16):
        split = prefill_pipelined(run, batch=float(batch), isl=2048.0, micro_batches=min(batch, 4))
        assert float(run.prefill_step(float(batch), 2048.0).total_s) == pytest.approx(float(split.total_s), rel=1e-9)


def test_decodes_fewer_than_stages_leave_stages_idle():
    """One sequence takes the sum of its stages; as many as stages wait for the slowest, which has the head."""
    run = deployment("llama-3.1-8b", "h100-sxm", pp=4)
    one, four = (float(run.decode_step(b, 500.0).total_s) for b in (1.0, 4.0))
    stages = [float(run.step(decode(1.0, 500.0), stage=s).total_s) for s in range(4)]
    assert four == pytest.approx(max(sum(stages), 4 * max(stages)), rel=0.01)
    assert one == pytest.approx(sum(stages), rel=0.01)
    assert one < 0.95 * four
    assert float(decode_share(4, 1.0)) == 0.25


def test_utilisation_counts_idle_stages():
    """A sequence alone is in one of four stages at a time: weights are read once a pass, on four devices in turn."""
    run = deployment("llama-3.1-8b", "h100-sxm", pp=4, engine="ideal")
    one, eight = (estimate(run, isl=500, osl=2, batch=b) for b in (1, 8))
    assert one.mbu == pytest.approx(0.25, rel=0.05)
    assert 0.8 < eight.mbu <= 1.0
    assert one.mfu_prefill < 0.26 < eight.mfu_prefill <= 1.0


# Experts under load.


@given(st.integers(2, 512), st.integers(1, 8), st.floats(0.01, 0.99))
def test_tokens_for_coverage_inverts_coverage(experts, top_k, share):
    top_k = min(top_k, experts - 1)
    assert float(coverage(experts, top_k, tokens_for_coverage(experts, top_k, share))) == pytest.approx(share)


def test_a_step_reads_more_experts_with_its_batch_until_it_reads_all():
    run = deployment("qwen3-30b-a3b", "h100-sxm")
    read = [float(run.decode_step(b, 10.0).weight_bytes) for b in (1.0, 8.0, 64.0, 512.0)]
    assert read[1] > 4 * read[0]
    assert read[3] == pytest.approx(read[2], rel=0.03)


@pytest.fixture(scope="module")
def wide():
    return deployment("deepseek-v3", "h200-sxm", dp=16, ep=16)


def test_imbalance_of_ranks_costs_what_the_busiest_takes_longer(wide):
    batch = np.array([64.0, 4096.0])
    even, uneven, worse = (
        expert_cost(wide.with_(expert_imbalance=x), batch=batch, context=2000.0) for x in (1.0, 1.5, 2.0)
    )
    assert np.all(even.idle_s == 0.0)
    assert np.all(uneven.idle_s > 0.0) and np.all(worse.idle_s > uneven.idle_s)
    assert uneven.idle_s[1] / even.step_s[1] > uneven.idle_s[0] / even.step_s[0]  # few rows: weights, not rows, count
    assert np.allclose(worse.step_s - even.step_s, worse.experts_s - even.experts_s)
    assert np.all(worse.experts_s < 2.0 * even.experts_s + 1e-12)


def test_imbalance_may_be_swept(wide):
    found = wide.with_(expert_imbalance=np.array([1.0, 1.5])).decode_step(1024.0, 2000.0).total_s
    assert found[1] > found[0] == pytest.approx(float(wide.decode_step(1024.0, 2000.0).total_s), rel=1e-12)


def test_skew_makes_ranks_uneven():
    tokens = np.array([256.0, 4096.0])
    mild, strong = (skewed_imbalance(tokens, 256, 8, 16, a) for a in (1.01, 1.3))
    assert np.all(mild >= 1.0) and np.all(strong > mild)
    assert float(skewed_imbalance(4096.0, 256, 8, 1, 1.2)) == pytest.approx(1.0)


def test_exchanging_tokens_takes_a_growing_share(wide):
    few, many = (expert_cost(wide, batch=b, context=1000.0) for b in (16.0, 8192.0))
    assert 0.0 < float(few.exchange_share) < float(many.exchange_share) < 0.8
    dense = expert_cost(deployment("llama-3.1-8b", "h100-sxm"), batch=8.0, context=100.0)
    assert (float(dense.experts_s), float(dense.exchange_s), float(dense.idle_s)) == (0.0, 0.0, 0.0)


def test_attention_data_parallel_pays_for_large_batches():
    """MLA's latent is copied on every tensor-parallel rank; its own sequences need their own share of the batch."""
    tensor = deployment("deepseek-v3", "h200-sxm", tp=8, ep=8)
    data = deployment("deepseek-v3", "h200-sxm", dp=8, ep=8)
    gain = attention_dp_gain(tensor, data, batch=np.array([1.0, 64.0, 512.0]), context=4096.0)
    assert gain[0] < 1.0 < gain[2]
    assert np.all(np.diff(gain) > 0)
