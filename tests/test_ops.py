"""What ops cost in FLOPs and bytes: textbook numbers and identities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.ops import (
    Attention,
    Collective,
    Experts,
    Gemm,
    LatentAttention,
    distinct_experts,
    naive_attention_io_elements,
    tiled_attention_io_elements,
)
from roofline.precision import FORMATS
from roofline.workload import Sequences, decode, prefill


def test_gemm_counts_two_flops_per_multiply_add():
    op = Gemm("g", 3, 5, 7)
    assert op.flops == 2 * 3 * 5 * 7
    assert op.bytes == 2 * (5 * 7 + 3 * 7 + 3 * 5)


def test_attention_flops_match_the_counter():
    # U-prefill_flops-02 of the user cases: 4 B H S S D without a mask
    op = Attention("a", Sequences(1, 64, 0), 12, 12, 64, 64, causal=False)
    assert float(op.flops) == 12_582_912


def test_doubling_a_prompt_more_than_doubles_attention():
    # U-prefill_flops-03 of the user cases: a counter that reports exactly 2x misses the score products
    one, two = (Attention("a", prefill(1, n), 32, 8, 128, 128).flops for n in (8192, 16384))
    assert 3.9 < float(two / one) <= 4.0


@pytest.mark.parametrize("naive_passes", [4])
def test_naive_attention_makes_four_passes_over_the_score_table(naive_passes):
    # seed figures B01-B04: T = 8192, 16-bit scores
    table = 8192 * 8192 * 2
    assert table == pytest.approx(134e6, abs=0.5e6)
    tiled = Attention("a", prefill(1, 8192), 1, 1, 128, 128)
    naive = Attention("a", prefill(1, 8192), 1, 1, 128, 128, naive=True)
    assert float(naive.bytes - tiled.bytes) == naive_passes * table
    assert float(naive.bytes - tiled.bytes) == pytest.approx(536.9e6, abs=0.1e6)


def test_attention_io_scales_as_published():
    # seed figures B05, B06: Theta(T d + T^2) against Theta(T^2 d^2 / M)
    assert naive_attention_io_elements(2**20, 64) / naive_attention_io_elements(2**19, 64) == pytest.approx(4, rel=1e-3)
    base = tiled_attention_io_elements(4096, 64, 1e5)
    assert tiled_attention_io_elements(8192, 64, 1e5) / base == 4
    assert tiled_attention_io_elements(4096, 128, 1e5) / base == 4
    assert tiled_attention_io_elements(4096, 64, 2e5) / base == 0.5


@given(st.integers(1, 64), st.integers(1, 32768), st.sampled_from([1, 2, 4, 8, 16]))
def test_gqa_with_all_heads_is_mha(batch, context, heads):
    gqa = Attention("a", decode(batch, context), heads, heads, 128, 128)
    mqa = Attention("a", decode(batch, context), heads, 1, 128, 128)
    assert float(gqa.flops) == float(mqa.flops)
    assert float(gqa.kv_bytes) == heads * float(mqa.kv_bytes)


@given(st.integers(1, 256), st.integers(1, 100_000))
def test_decode_reads_its_whole_cache_once(batch, context):
    op = Attention("a", decode(batch, context), 64, 8, 128, 128)
    # past tokens are read, the new one is written
    assert float(op.kv_bytes) == batch * (context + 1) * 8 * 256 * 2


def test_latent_attention_reads_one_latent_for_all_heads():
    op = LatentAttention("a", decode(1, 999), 128, 512, 64)
    assert float(op.kv_bytes) == 1000 * 576 * 2
    assert float(op.flops) == 2 * 128 * 1088 * 1000


@given(st.integers(1, 512), st.integers(1, 16), st.integers(0, 5000))
def test_distinct_experts_stay_between_one_token_and_all(experts, top_k, tokens):
    top_k = min(top_k, experts)
    hit = float(distinct_experts(experts, top_k, tokens))
    assert 0 <= hit <= experts
    assert hit <= top_k * tokens + 1e-9
    assert float(distinct_experts(experts, experts, max(tokens, 1))) == experts


def test_all_experts_chosen_is_the_dense_layer():
    moe = Experts("e", 100, 4096, 1024, 4, 4)
    dense = Gemm("up", 100, 2 * 4 * 1024, 4096), Gemm("down", 100, 4096, 4 * 1024)
    assert float(moe.flops) == sum(d.flops for d in dense)
    assert float(moe.weight_bytes) == sum(d.weight_bytes for d in dense)


def test_a_rank_alone_sends_nothing():
    for pattern in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
        assert float(Collective("c", pattern, 1e6, 1).wire_bytes) == 0
    assert float(Collective("c", "all_reduce", 8.0, 4).wire_bytes) == 12


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 4096), st.integers(1, 4096))
def test_scalar_equals_array_for_every_format(name, n, k):
    fmt = FORMATS[name]
    assert fmt.bytes(np.array([n]), np.array([k]))[0] == pytest.approx(float(fmt.bytes(n, k)), rel=1e-12)
    assert float(fmt.bytes(n, k)) >= n * k * fmt.bits / 8
