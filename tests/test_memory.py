"""Memory: weights as loaded, profiling peak, KV pool, paging and inverse searches, against what engines printed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InfeasibleError, InputError, UnknownNameError
from roofline.layers.attention.gqa import GQA
from roofline.layers.attention.mla import MLA
from roofline.layers.ffn.dense import Dense
from roofline.memory import (
    contiguous_waste,
    fewest_gpus,
    footprint,
    largest_batch,
    length_of_waste,
    longest_context,
    paged_waste,
    swap_blocks,
    weight_bytes,
    widest_format,
)
from roofline.memory.activations import activation_bytes, non_torch_bytes
from roofline.memory.paging import cache_kinds, pool, sequence_bytes
from roofline.memory.weights import allocated_bytes
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.specs.engine import engine_named
from roofline.specs.hf import from_hf_config
from roofline.specs.library import build, find, hardware
from roofline.specs.model import Layer, Model, Run
from roofline.validation.memory import error_table, predict_memory, resolve, siblings

GIB, MIB = 2.0**30, 2.0**20
BF16 = precision_named("bf16")
ONE = Plan()


def model(name: str) -> Model:
    return build(Model, find("model", name), name)


def plain(layers: int, **attention) -> Model:
    run = Run(Layer(attention=GQA(**attention), ffn=Dense(width=64)), layers)
    return Model(name="test", hidden=64, vocab=640, layers=(run,))


def on_h100(name: str, plan: Plan = ONE, precision=BF16, length: float = 8192, engine="vllm", hw="h100-sxm", **more):
    used = {"utilisation": 0.95, "visible_bytes": 79.19 * GIB} | more
    return footprint(model(name), hardware(hw), plan, precision, engine_named(engine), length, **used)


# Weights. Expected values: what the engine printed after loading (public issue or log named beside it).


@pytest.mark.parametrize(
    ("name", "precision", "plan", "stage", "gib", "tolerance"),
    [
        ("llama-3.1-8b", "bf16", ONE, 0, 14.9888, 0.0005),  # vllm-project/vllm 10517: rope table included
        ("qwen3-0.6b", "bf16", ONE, 0, 1.12, 0.006),  # llm-d-planner e50305af: tied embedding stored once
        ("llama-3.1-8b", "bf16", Plan(pp=4), 0, 4.26, 0.003),  # llm-d-planner 151baf3d: the first stage has the table
        ("llama-3.1-8b", "bf16", Plan(pp=4), 1, 3.28, 0.003),  # the same log, rank 1
        ("qwen3-32b", "bf16", ONE, 0, 61.03, 0.0005),  # llm-d-planner e50305af
        ("llama-3.1-70b", "int8", ONE, 0, 67.7229, 0.0005),  # vllm-project/vllm PR 12569
        ("qwen2.5-7b-instruct", "int4_awq", ONE, 0, 5.2032, 0.005),  # vllm-project/vllm 13882
        ("qwen3-30b-a3b", "bf16", Plan(tp=4), 0, 14.2474, 0.001),  # vllm-project/vllm 17327: all experts resident
        ("gemma-3-4b", "bf16", ONE, 0, 8.58, 0.002),  # dev log: 0.56 GiB of stretched rope tables, vision tower
        ("llama-4-scout", "bf16", Plan(tp=4), 0, 53.12, 0.001),  # dev log: 2.5 GiB of rope table on every rank
        ("gpt-oss-20b", "mxfp4_experts", Plan(tp=2), 0, 7.01, 0.002),  # dev log: padding, scales kept twice
        ("deepseek-v2-lite", "bf16", Plan(tp=2), 0, 14.83, 0.001),  # dev log
    ],
)
def test_weights_as_loaded(name, precision, plan, stage, gib, tolerance):
    got = weight_bytes(model(name), plan, precision_named(precision), engine_named("vllm").memory, stage) / GIB
    assert got == pytest.approx(gib, rel=tolerance)


def test_mxfp4_before_the_padding_kernel():
    # llm-d-planner e50305af: gpt-oss-20b under 0.11 loads 13.47 GiB; 12.82 is the file
    old = engine_named("vllm", version="0.11.0").memory
    got = weight_bytes(model("gpt-oss-20b"), ONE, precision_named("mxfp4_experts"), old) / GIB
    assert got == pytest.approx(13.47, rel=0.003)


def test_ideal_weights_are_parameters():
    m = model("llama-3.1-70b")  # vocabulary 128,256 is a multiple of 64: nothing is padded
    assert weight_bytes(m, ONE, BF16, engine_named("ideal").memory) == 2 * m.params


def test_allocator_rounding():
    # PyTorch: 2 MiB segments above 10 MiB, a rest of at most 1 MiB is not split off
    sizes = np.array([0.5, 9.46, 24.5, 31.5, 129.5, 259.0]) * MIB
    want = np.array([0.5, 9.46, 24.5, 32.0, 130.0, 260.0]) * MIB
    np.testing.assert_allclose(allocated_bytes(sizes), want)
    assert np.all(allocated_bytes(sizes) >= sizes)


def test_qwen_is_heavier_than_its_parameters_by_the_allocator():
    # dev log: 14.25 GiB; parameters and rope table come to 14.193
    profile = engine_named("vllm").memory
    plainly = engine_named("vllm", allocator_rounding=False).memory
    m = model("qwen2.5-7b-instruct")
    assert weight_bytes(m, ONE, BF16, profile) / GIB == pytest.approx(14.25, abs=0.005)
    assert weight_bytes(m, ONE, BF16, plainly) / GIB == pytest.approx(14.193, abs=0.002)


def test_vision_tower_is_cut_or_not():
    # dev logs, Mistral-Small-3.1 in its own format: 44.76, 22.80 and 11.86 GiB on 1, 2 and 4 ranks
    got = [
        weight_bytes(model("mistral-small-3.1-24b"), Plan(tp=tp), BF16, engine_named("vllm").memory) / GIB
        for tp in (1, 2, 4)
    ]
    assert got == pytest.approx([44.76, 22.80, 11.86], abs=0.01)


# Activation peak.


def peak(name: str, version: str, tokens: float, seqs: float, **more) -> float:
    m = model(name)
    profile = engine_named("vllm", version=version).memory
    precision = precision_named(more.pop("weights", "bf16"))
    return float(activation_bytes(m, ONE, precision, profile, tokens, seqs, 132, **more)) / GIB


@pytest.mark.parametrize(
    ("name", "version", "tokens", "seqs", "gib", "tolerance"),
    [
        ("llama-3.1-8b", "0.11", 8192, 1024, 4.76, 0.01),  # user case: about 38 B a logit up to 0.16
        ("gpt-oss-20b", "0.11", 8192, 1024, 7.38, 0.01),  # user case: the vocabulary, not the experts
        ("gemma-2-9b", "0.19", 8192, 1024, 3.65, 0.01),  # user case: 15 B a logit since 0.17
        ("llama-3.1-8b", "0.6", 20000, 256, 2.07, 0.03),  # vllm-project/vllm 10517: tokens (6 I + 6 H)
        ("llama-3.1-8b", "0.6", 29000, 256, 2.99, 0.03),  # the same issue
        ("granite-3.1-8b", "0.19", 8192, 1024, 0.85, 0.01),  # dev log: a small vocabulary, so the layers set the peak
        ("gemma-3-4b", "0.19", 8192, 1024, 3.89, 0.01),  # dev log: 0.18 GiB of images
    ],
)
def test_activation_peak(name, version, tokens, seqs, gib, tolerance):
    weights = "mxfp4_experts" if "oss" in name else "bf16"
    assert peak(name, version, tokens, seqs, weights=weights) == pytest.approx(gib, rel=tolerance)


def test_experts_workspace_is_kept():
    # dev logs: Mixtral at tp 2 1.21 GiB, Llama-4-Scout at tp 4 3.19 GiB, DeepSeek-V2-Lite at tp 1 1.93 GiB
    profile = engine_named("vllm").memory
    for name, tp, gib in (("mixtral-8x7b", 2, 1.21), ("llama-4-scout", 4, 3.19), ("deepseek-v2-lite", 1, 1.93)):
        got = float(activation_bytes(model(name), Plan(tp=tp), BF16, profile, 8192, 1024, 132)) / GIB
        assert got == pytest.approx(gib, abs=0.008)


def test_pipeline_stages_peak_apart():
    # dev log, Llama-3.1-8B pp 4: 1.10 / 1.05 / 1.05 / 2.01
    m, profile = model("llama-3.1-8b"), engine_named("vllm").memory
    got = [float(activation_bytes(m, Plan(pp=4), BF16, profile, 8192, 1024, 132, s)) / GIB for s in range(4)]
    assert got == pytest.approx([1.10, 1.05, 1.05, 2.01], abs=0.012)


def test_non_torch_over_ranks():
    # user case: 0.25, 2.07, 2.13 GiB at tp 1, 2, 4
    got = [non_torch_bytes(Plan(tp=tp), engine_named("vllm").memory) / GIB for tp in (1, 2, 4)]
    assert got == pytest.approx([0.25, 2.07, 2.13], abs=0.03)


# Pool, tokens, concurrency.


@pytest.mark.parametrize(
    ("name", "plan", "precision", "tokens", "concurrency"),
    [  # dev logs: H100, vLLM 0.19, utilisation 0.95, 8192 tokens; all within a few blocks
        ("llama-3.1-8b", ONE, "bf16", 476016, 58.11),
        ("qwen2.5-7b-instruct", ONE, "bf16", 1096000, 133.79),
        ("llama-3.1-8b", Plan(pp=4), "bf16", 2257264, 275.54),
        ("llama-3.1-8b", Plan(tp=2), "bf16", 1044688, 127.53),
        ("gemma-2-27b", ONE, "bf16", 58672, 7.16),
        ("gemma-3-4b", ONE, "bf16", 468144, 57.05),
        ("llama-4-scout", Plan(tp=4), "bf16", 365968, 44.68),
        ("deepseek-v2-lite", Plan(tp=4), "bf16", 2199888, 268.54),
        ("mixtral-8x7b", Plan(tp=2), "bf16", 465936, 56.88),
    ],
)
def test_kv_tokens(name, plan, precision, tokens, concurrency):
    found = on_h100(name, plan, precision_named(precision))
    assert found.failure is None
    assert float(found.kv_tokens) == pytest.approx(tokens, rel=0.002)
    assert float(found.max_concurrency) == pytest.approx(concurrency, rel=0.002)


def test_fp8_cache_holds_twice_as_much():
    # user case and dev log: 476,000 tokens become 952,032; the pool itself does not change
    wide, narrow = on_h100("llama-3.1-8b"), on_h100("llama-3.1-8b", precision=BF16.with_kv("fp8"))
    assert narrow.stages[0].kv_pool == wide.stages[0].kv_pool
    assert narrow.kv_tokens / wide.kv_tokens == pytest.approx(2.0, rel=1e-4)
    assert float(narrow.kv_tokens) == pytest.approx(952032, rel=0.001)


def test_small_card_without_chunking():
    # user case: 23.58 GiB visible, utilisation 0.9, one prompt of 20,000 tokens: 3.81 GiB, 1.56 sequences
    found = footprint(
        model("llama-3.1-8b"), hardware("rtx-4090"), ONE, BF16, engine_named("vllm", version="0.6.3"), 20000,
        utilisation=0.9, visible_bytes=23.58 * GIB, max_num_batched_tokens=20000, max_num_seqs=256,
    )  # fmt: skip
    assert float(found.stages[0].kv_pool) / GIB == pytest.approx(3.81, abs=0.1)
    assert float(found.max_concurrency) == pytest.approx(1.56, abs=0.04)


def test_concurrency_of_printed_blocks():
    # vllm-project/vllm PR 12569: 1381 blocks of 16, pool 6.743 GiB, 10.79x at 2048 tokens
    kinds = cache_kinds(model("llama-3.1-70b"), ONE, BF16)
    got = pool(6.7433 * GIB, kinds, 2048, 8192, engine_named("vllm").memory)
    assert (float(got.blocks), round(float(got.concurrency), 2)) == (1381, 10.79)


def test_draft_layer_keeps_its_own_cache():
    # vllm-project/vllm 19996: 51.63 GiB over 33 layers: 410,128 tokens
    m = plain(33, heads=32, kv_heads=8, head_dim=128)
    got = pool(51.63 * GIB, cache_kinds(m, ONE, BF16), 8192, 8192, engine_named("vllm").memory)
    assert float(got.tokens) == pytest.approx(410128, rel=0.0005)


def test_kv_heads_cut_and_replicated():
    engine = engine_named("vllm").memory
    one_rank = cache_kinds(plain(62, heads=48, kv_heads=8, head_dim=128), Plan(tp=2), BF16)
    # eugr/spark-vllm-docker 396: a 196,608-token request needs 23.25 GiB on a rank of tp 2
    assert float(sequence_bytes(one_rank, 196608, 8192, engine)) / GIB == pytest.approx(23.25, rel=0.0005)
    four_heads = cache_kinds(plain(94, heads=64, kv_heads=4, head_dim=128), Plan(tp=4), BF16)
    # vllm-project/vllm 21348: the K half of 367,404 tokens on one rank is 8.23 GiB
    assert four_heads[0].token_bytes * 94 / 2 * 367404 / GIB == pytest.approx(8.23, rel=0.002)
    eight = cache_kinds(plain(94, heads=64, kv_heads=4, head_dim=128), Plan(tp=8), BF16)
    assert eight == four_heads  # past tp = kv_heads every rank keeps one head


@pytest.mark.parametrize(
    ("attention", "layers", "precision", "tp", "blocks"),
    [  # CPU blocks printed for 4 GiB of swap: vllm-project/vllm 10517, 13882, 5248
        ({"heads": 32, "kv_heads": 8, "head_dim": 128}, 32, "fp16", 1, 2048),
        ({"heads": 28, "kv_heads": 4, "head_dim": 128}, 28, "fp16", 1, 4681),
        ({"heads": 32, "kv_heads": 32, "head_dim": 128}, 32, "fp16", 2, 1024),
    ],
)
def test_swap_blocks(attention, layers, precision, tp, blocks):
    assert (
        swap_blocks(plain(layers, **attention), Plan(tp=tp), precision_named(precision), engine_named("vllm").memory)
        == blocks
    )


def test_latent_cache_formats():
    attention = MLA(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    m = Model(name="mla", hidden=7168, vocab=640, layers=(Run(Layer(attention=attention), 61),))
    kinds = cache_kinds(m, ONE, BF16.with_kv("q8_0"))
    # ikawrakow/ik_llama.cpp PR 259: 1166.625 MiB at 32,768 tokens
    assert float(sequence_bytes(kinds, 32768, 512, engine_named("llama.cpp").memory)) / MIB == pytest.approx(
        1166.625, rel=5e-4
    )
    packed = cache_kinds(m, ONE, BF16.with_kv("fp8_ds_mla"))
    assert packed[0].token_bytes == 656  # sgl-project/sglang PR 11309: 54.52 GiB for 1,462,784 tokens
    assert 61 * 656 * 1462784 / GIB == pytest.approx(54.52, rel=0.001)
    whole, cut = cache_kinds(m, ONE, BF16), cache_kinds(m, Plan(tp=8), BF16)
    assert whole == cut  # one latent for all heads: every rank holds all of it


def test_window_cells_of_llama_cpp():
    # ggml-org/llama.cpp PR 18720: 52 windowed layers, 1024 + 512 cells: 624 MiB
    kinds = cache_kinds(plain(52, heads=32, kv_heads=16, head_dim=128, window=1024), ONE, precision_named("fp16"))
    got = sequence_bytes(kinds, 32768, 512, engine_named("llama.cpp").memory)
    assert float(got) / MIB == 624


def test_half_windowed_model():
    # gpustack/gguf-parser-go 32: 24 layers, half windowed at 128: 3.00 to 3.06 GiB at 131,072 tokens
    kinds = cache_kinds(model("gpt-oss-20b"), ONE, precision_named("mxfp4_experts"))
    assert 3.0 <= float(sequence_bytes(kinds, 131072, 512, engine_named("llama.cpp").memory)) / GIB <= 3.06


def test_capacity_is_not_what_is_printed_for_hybrids():
    # vllm-project/vllm 40691: printed tokens divide the blocks by the groups, concurrency x length does not
    found = on_h100("qwen3-next-80b-a3b", Plan(tp=4), length=32768)
    assert float(found.pool.capacity) > 2 * float(found.kv_tokens)


# The table.


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm", "llama.cpp", "ideal"])
@pytest.mark.parametrize("plan", [ONE, Plan(tp=2), Plan(pp=2), Plan(tp=2, dp=2)])
def test_rows_add_up_to_the_visible_memory(name, plan):
    for who in ("llama-3.1-8b", "gemma-3-4b", "mixtral-8x7b", "qwen3-next-80b-a3b"):
        found = on_h100(who, plan, engine=name, length=4096)
        for stage in found.stages:
            if float(stage.kv_pool) >= 0:
                assert sum(float(v) for v in stage.rows().values()) == pytest.approx(79.19 * GIB, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "plan", "precision", "length", "settings", "words"),
    [
        ("phi-2", ONE, "fp16", 8192, {}, "limit of 2,048"),  # dev log
        ("deepseek-r1", ONE, "fp8_block", 16000, {}, "exceed"),  # dev log
        ("qwen3-32b", ONE, "bf16", 32000, {"utilisation": 0.9}, "no room for one sequence"),  # dev log
        ("gpt-oss-20b", Plan(tp=2), "mxfp4_experts", 8192, {"graph_sizes": 83}, "warming the sampler"),  # dev log
        ("llama-3.1-405b", ONE, "bf16", 100, {}, "exceed"),  # user case
    ],
)
def test_why_it_does_not_start(name, plan, precision, length, settings, words):
    found = on_h100(name, plan, precision_named(precision), length, **settings)
    assert not found.fits
    assert words in found.failure


def test_gpt_oss_starts_with_less():
    # dev log: the same server at utilisation 0.9 is up
    assert on_h100("gpt-oss-20b", Plan(tp=2), precision_named("mxfp4_experts"), utilisation=0.9, graph_sizes=83).fits


def test_smallest_card_decides():
    # vllm-project/vllm 2317: 7.24 B bf16 over a 24 GB and an 8 GB card at tp 2 leaves nothing on the small one
    visible = np.array([23.58, 7.79]) * GIB
    cards = on_h100("mistral-7b-v0.1", Plan(tp=2), length=2048, hw="rtx-3090", visible_bytes=visible, utilisation=0.9)
    assert cards.fits.tolist() == [True, False]


def test_vocabulary_that_cannot_be_cut():
    with pytest.raises(InfeasibleError, match="vocabulary of 151936"):
        on_h100("qwen3-14b", Plan(tp=5))


def test_heads_that_cannot_be_cut():
    with pytest.raises(InfeasibleError, match="71 attention heads"):
        on_h100("falcon-7b", Plan(tp=2))


def test_arrays_equal_scalars():
    shares, lengths = np.array([0.8, 0.9, 0.95])[:, None], np.array([1000.0, 8192.0, 60000.0])
    grid = on_h100("gemma-3-4b", length=lengths, utilisation=shares)
    assert grid.max_concurrency.shape == (3, 3)
    for i, share in enumerate(shares[:, 0]):
        for j, length in enumerate(lengths):
            one = on_h100("gemma-3-4b", length=length, utilisation=share)
            assert float(one.max_concurrency) == grid.max_concurrency[i, j]
            assert bool(one.fits) == grid.fits[i, j]


@settings(max_examples=40)
@given(
    share=st.floats(0.3, 0.95),
    more=st.floats(0.001, 0.05),
    length=st.integers(1, 100_000),
    name=st.sampled_from(["llama-3.1-8b", "gemma-3-4b", "gpt-oss-20b", "deepseek-v2-lite", "qwen3-4b"]),
)
def test_more_memory_never_holds_less_and_longer_never_more(share, more, length, name):
    low, high = on_h100(name, utilisation=share, length=length), on_h100(name, utilisation=share + more, length=length)
    assert float(high.max_concurrency) >= float(low.max_concurrency)
    longer = on_h100(name, utilisation=share, length=length + 1000)
    assert float(longer.max_concurrency) <= float(low.max_concurrency)


# Waste.


def test_paged_waste():
    # textbook figures: block 16; under 4 % for more than 180 tokens
    assert float(paged_waste(16, 180)) == pytest.approx(0.04)
    assert float(length_of_waste(16, 0.04)) == pytest.approx(180)
    assert float(paged_waste(1, 100)) == 0
    lengths = np.arange(1, 10001)
    held = np.ceil(lengths / 16) * 16
    assert (held - lengths).mean() == pytest.approx(7.5, abs=0.01)  # (block - 1) / 2 of a uniform last block


def test_contiguous_waste():
    # Kwon et al. 2023 figure 2: 20.4 to 38.2 % useful, so 61.8 to 79.6 % waste
    assert float(contiguous_waste(204, 1000)) == pytest.approx(0.796)
    assert float(contiguous_waste(382, 1000)) == pytest.approx(0.618)
    assert float(contiguous_waste(3000, 1000)) == 0


# Inverse searches.


@pytest.mark.parametrize("engine", ["vllm", "ideal", "llama.cpp", "sglang"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-3-4b"])
@pytest.mark.parametrize("batch", [1.0, 3.0, 40.0])
def test_longest_context_is_the_longest(engine, name, batch):
    m, hw, profile = model(name), hardware("h100-sxm"), engine_named(engine)
    length = float(longest_context(m, hw, ONE, BF16, profile, batch))
    assert 0 < length <= m.max_positions
    assert float(largest_batch(m, hw, ONE, BF16, profile, length)) >= batch
    if length < m.max_positions:
        assert float(largest_batch(m, hw, ONE, BF16, profile, length + 1)) < batch


def test_longest_context_of_many_batches():
    batches = np.array([1.0, 8.0, 64.0])
    args = (model("llama-3.1-8b"), hardware("h100-sxm"), ONE, BF16, engine_named("vllm"))
    got = longest_context(*args, batches)
    assert got.tolist() == [float(longest_context(*args, b)) for b in batches]
    assert np.all(np.diff(got) <= 0)


def test_nothing_fits():
    args = (model("llama-3.1-405b"), hardware("h100-sxm"), ONE, BF16, engine_named("vllm"))
    assert float(longest_context(*args)) == 0
    assert float(largest_batch(*args, 100)) == 0


def test_fewest_gpus():
    # 141 GB of bf16 weights: two H100 leave room for one sequence of 8192 (1.25 GiB on a rank), not for eight
    args = (model("llama-3.1-70b"), hardware("h100-sxm"), BF16, engine_named("vllm"), 8192)
    plan, found = fewest_gpus(*args)
    assert (plan.tp, plan.pp) == (2, 1)
    assert 1 <= float(found.max_concurrency) < 2
    plan, found = fewest_gpus(*args, batch=8)
    assert (plan.tp, plan.pp) == (4, 1)
    big, _ = fewest_gpus(model("llama-3.1-405b"), hardware("h100-sxm"), BF16, engine_named("vllm"), 8192)
    assert (big.tp, big.pp) == (8, 2)  # one domain of eight does not hold 812 GB
    assert (
        fewest_gpus(model("llama-3.1-405b"), hardware("h100-sxm"), BF16, engine_named("vllm"), candidates=(1, 2))
        is None
    )


def test_widest_format():
    args = (model("llama-3.1-70b"), hardware("h100-sxm"), ONE, engine_named("vllm"))
    assert widest_format(*args, 2048)[0].name == "fp8"  # 66 GiB of weights leave about 1.3 GiB: 4,000 tokens
    assert widest_format(*args, 8192)[0].name == "int4_awq"
    assert widest_format(*args, 2048, candidates=("bf16",)) is None


# The validation table.


def test_names_of_siblings():
    assert siblings("RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w8a8")[-1] == "mistral-small-3.1-24b"
    assert siblings("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16")[-1] == "llama-3.1-8b"
    assert siblings("google/gemma-2-27b-it")[-1] == "gemma-2-27b"


def test_prediction_without_measured_columns(tmp_path):
    import pandas as pd

    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "someone--My-Own-8B.json").write_text(json.dumps(config))
    frame = pd.DataFrame(
        {
            "run_key": ["a", "b", "c"],
            "model": ["someone/My-Own-8B", "meta-llama/Llama-3.1-8B-Instruct", "microsoft/phi-2"],
            "gpu": "H100-SXM5-80GB", "gpu_total_gib": 79.19, "engine": "vllm", "engine_version": "0.19.0",
            "tp": 1, "pp": 1, "max_model_len": 8192, "gpu_memory_utilization": 0.95,
        }
    )  # fmt: skip
    got = predict_memory(frame, tmp_path)
    assert list(got["run_key"]) == ["a", "b", "c"]
    assert list(got["status"]) == ["ok", "ok", "fails"]
    assert got.loc[0, "kv_tokens"] == got.loc[1, "kv_tokens"] == pytest.approx(476016, rel=0.001)
    assert len(error_table(frame, got)) == 0
    with pytest.raises(UnknownNameError, match="nobody"):
        resolve("nobody/nothing-of-this-name", tmp_path)
    mixed = predict_memory(frame.assign(model=["nobody/nothing", *frame["model"][1:]]), tmp_path)
    assert list(mixed["status"]) == ["not predicted", "ok", "fails"]
    assert "unknown model 'nobody/nothing'" in mixed.loc[0, "failure"]
    with pytest.raises(InputError, match="not a folder"):
        predict_memory(frame, tmp_path / "absent")
    with pytest.raises(InputError, match="lacks the column"):
        predict_memory(frame.drop(columns=["gpu"]))


def test_development_logs(shared):
    import pandas as pd

    truth = pd.read_csv(shared / "data" / "memory" / "vllm_memory_dev.csv")
    errors = error_table(truth, predict_memory(truth))
    assert errors.loc["weights_gib", "mean_pct"] < 0.2  # target; measured 0.06
    assert errors.loc["kv_tokens", "median_pct"] < 0.05  # target 1.5; measured 0.01
    assert errors.loc["activation_peak_gib", "median_pct"] < 1.0
    assert errors.loc["status", "mean_pct"] == 0


# What of a config.json is for memory only.


def test_vision_towers_from_configs():
    # Hub totals minus language model (facts on models): exact
    gemma = {
        "model_type": "gemma3", "mm_tokens_per_image": 256,
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
            "sliding_window": 1024, "sliding_window_pattern": 6, "max_position_embeddings": 131072,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "rope_local_base_freq": 10000.0,
        },
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
        },
    }  # fmt: skip
    m = from_hf_config(gemma).model
    assert m.vision.params == 419_816_304
    assert {a.rope_scale for a in (layer.attention for layer, _ in m.layers) if a.window is None} == {8.0}
    assert {a.rope_scale for a in (layer.attention for layer, _ in m.layers) if a.window} == {1.0}
    gemma["vision_config"] = {"model_type": "something_new", "hidden_size": 8}
    unknown = from_hf_config(gemma)
    assert unknown.model.vision is None
    assert any("vision tower is not counted" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("file", "params"),
    [  # Hub total minus language model minus draft layers, models.csv
        ("Qwen--Qwen3-VL-8B-Instruct.json", 576_388_336),
        ("Qwen--Qwen3.5-27B.json", 460_730_096),
        ("meta-llama--Llama-4-Scout-17B-16E-Instruct.json", 871_932_416),
        ("google--gemma-3-27b-it.json", 423_060_336),
    ],
)
def test_vision_towers_of_reference_configs(shared, file, params):
    assert from_hf_config(shared / "data" / "hf_configs" / file).model.vision.params == params
