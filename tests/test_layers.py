"""What layers declare and what they list as kernels agree, and hold the laws that their shapes imply."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.errors import InfeasibleError
from roofline.forward import step_ops
from roofline.layers.attention import GQA, KDA, MLA, Compressed, GatedDelta, Mamba1, Mamba2
from roofline.layers.attention.indexer import Indexer
from roofline.layers.ffn import Dense, MoE
from roofline.ops import Collective, Elementwise, Exchange, Experts, Gemm
from roofline.parallel import Plan
from roofline.precision import precision_named
from roofline.specs.library import build, find, names
from roofline.specs.model import Layer, Model
from roofline.workload import Sequences, attended_pairs, decode, prefill, verify

H = 1024
BF16 = precision_named("bf16")
NAMES = names("model")

KINDS = {
    "mha": GQA(heads=16, kv_heads=16, head_dim=64),
    "gqa": GQA(heads=16, kv_heads=4, head_dim=64, qk_norm="head", output_gate="full"),
    "windowed": GQA(heads=16, kv_heads=4, head_dim=64, window=100),
    "chunked": GQA(heads=16, kv_heads=4, head_dim=64, chunk=64),
    "block_sparse": GQA(
        heads=16, kv_heads=4, head_dim=64, index=Indexer(heads=4, dim=32, top_k=128, head_weights=False)
    ),
    "mla": MLA(heads=16, q_rank=256, kv_rank=128, nope_dim=32, rope_dim=16, v_dim=32),
    "mla_direct": MLA(heads=16, kv_rank=128, nope_dim=32, rope_dim=16, v_dim=32, output_gate=True),
    "mla_sparse": MLA(
        heads=16, q_rank=256, kv_rank=128, nope_dim=32, rope_dim=16, v_dim=32, index=Indexer(heads=8, dim=32, top_k=64)
    ),
    "compressed": Compressed(
        heads=16, head_dim=64, rope_dim=16, q_rank=256, o_rank=64, o_groups=8, window=32, ratio=4, overlap=True,
        index=Indexer(heads=8, dim=32, top_k=16),
    ),
    "gated_delta": GatedDelta(heads=16, key_heads=8, key_dim=32, value_dim=64),
    "kda": KDA(heads=16, head_dim=32),
    "mamba1": Mamba1(inner=2048, state=16, dt_rank=64, norms=True),
    "mamba2": Mamba2(heads=32, head_dim=64, state=128, groups=8),
}  # fmt: skip


def flops(ops, *kinds: str) -> float:
    """FLOPs of a list of ops, of some kinds only if any are named."""
    return sum(np.asarray(op.flops) * op.count for op in ops if not kinds or op.kind in kinds)


def named(ops, name: str):
    """The first op of that name."""
    return next(op for op in ops if op.name == name)


def core(ops) -> float:
    """FLOPs of attention and state updates."""
    return flops(ops, "attention", "latent_attention", "state_update", "index_scores")


def everything(ops) -> tuple:
    """FLOPs and the bytes of each sort."""
    return tuple(
        sum(np.asarray(getattr(op, what)) * op.count for op in ops)
        for what in ("flops", "weight_bytes", "kv_bytes", "activation_bytes", "wire_bytes")
    )


# Declared weights and listed products are the same thing.


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("group", [prefill(1, 700), decode(3, 5000)], ids=["prompt", "token"])
def test_products_of_a_token_are_twice_its_active_weights(name, group):
    """2 FLOPs per active matrix element and token, in every layer of every model, prompt or token, absorbed or not."""
    model = build(Model, find("model", name), where=name)
    for layer, _ in model.stage_runs():
        listed = flops(layer.ops(model.hidden, (group,), Plan(), BF16), "gemm", "experts")
        matrices = [w for w in layer.weights(model.hidden, model.norm_params) if w.k > 1]
        # a scalar gate is a vector kernel; keys and values of an encoder are made by its own pass
        declared = sum(w.active_params for w in matrices if w.name != "shared.gate")
        if layer.cross:
            declared -= sum(w.params for w in layer.cross.weights(model.hidden) if w.name in "kv")
        assert listed == pytest.approx(2 * group.tokens * declared, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_large_step_reads_every_matrix_once(name):
    """With enough tokens all experts are hit: bytes of the listed products are the bytes of the declared matrices."""
    model = build(Model, find("model", name), where=name)
    for layer, _ in model.stage_runs():
        ops = layer.ops(model.hidden, (decode(100_000, 100),), Plan(), BF16)
        read = sum(float(op.weight_bytes) * float(op.count) for op in ops)
        held = sum(
            float(w.bytes_per_rank(Plan(), BF16))
            for w in layer.weights(model.hidden, model.norm_params)
            if w.k > 1 and w.name != "shared.gate" and not (layer.cross and w.name in "kv")
        )
        held += (
            sum(
                float(w.bytes_per_rank(Plan(), BF16))
                for w in layer.weights(model.hidden, 0)
                if layer.cross and w.name in "kv"
            )
            / 2
        )
        assert read == pytest.approx(held, rel=1e-9)


# Attention.

COUNTS = st.integers(1, 64)
TOKENS = st.integers(1, 3000)


@given(new=TOKENS, past=st.integers(0, 3000))
def test_grouped_queries_with_a_key_each_are_multi_head_attention(new, past):
    mha = KINDS["mha"]
    assert mha.cache_bytes(past, Plan(), BF16) == past * 2 * 16 * 64 * 2
    ops = mha.ops(H, (Sequences(1, new, past),), Plan(), BF16)
    pairs = new * past + new * (new + 1) / 2
    assert core(ops) == pytest.approx(2 * 2 * 64 * 16 * pairs)
    assert flops(ops, "gemm") == 2 * new * 4 * H * H


@given(new=TOKENS, past=st.integers(0, 3000))
def test_a_window_or_chunk_beyond_the_context_is_full_attention(new, past):
    full = GQA(heads=16, kv_heads=4, head_dim=64)
    group = (Sequences(2, new, past),)
    for other in (full.model_copy(update={"window": 10**7}), full.model_copy(update={"chunk": 10**7})):
        assert everything(other.ops(H, group, Plan(), BF16)) == pytest.approx(
            everything(full.ops(H, group, Plan(), BF16))
        )
        assert other.cache_bytes(past + new, Plan(), BF16) == full.cache_bytes(past + new, Plan(), BF16)


@given(new=st.integers(1, 300), past=st.integers(0, 300))
def test_chunked_attention_counts_the_pairs_inside_chunks(new, past):
    ops = KINDS["chunked"].ops(H, (Sequences(1, new, past),), Plan(), BF16)
    pairs = sum(position % 64 + 1 for position in range(past, past + new))
    assert core(ops) == pytest.approx(2 * 2 * 64 * 16 * pairs)


@pytest.mark.parametrize("kind", ["mha", "gqa", "windowed", "chunked", "block_sparse", "mla_sparse", "compressed"])
@given(sizes=st.lists(st.integers(1, 400), min_size=2, max_size=5))
def test_chunks_of_a_prompt_sum_to_the_prompt(kind, sizes):
    attention, at, parts = KINDS[kind], 0, 0.0
    for size in sizes:
        parts += flops(attention.ops(H, (Sequences(1, size, at),), Plan(), BF16))
        at += size
    assert parts == pytest.approx(flops(attention.ops(H, (prefill(1, at),), Plan(), BF16)), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_give_what_scalars_give(kind):
    attention = KINDS[kind]
    new = np.array([1.0, 7.0, 300.0, 2000.0])[:, None]
    past = np.array([0.0, 50.0, 10_000.0])
    table = everything(attention.ops(H, (Sequences(3.0, new, past),), Plan(tp=2), BF16))
    for i in range(4):
        for j in range(3):
            one = everything(attention.ops(H, (Sequences(3.0, new[i, 0], past[j]),), Plan(tp=2), BF16))
            for many, single in zip(table, one):
                assert np.broadcast_to(many, (4, 3))[i, j] == pytest.approx(float(single), rel=1e-12)


def test_groups_of_a_step_add_up():
    """A mixed step: products over all tokens at once, attention of each group by itself."""
    for attention in KINDS.values():
        both = attention.ops(H, (decode(8, 500), prefill(1, 200)), Plan(), BF16)
        apart = [attention.ops(H, (g,), Plan(), BF16) for g in (decode(8, 500), prefill(1, 200))]
        assert flops(both) == pytest.approx(sum(map(flops, apart)))
        assert sum(op.name == "attn.out" for op in both) == 1


def test_latents_are_absorbed_for_tokens_and_expanded_for_prompts():
    """DeepSeek-V3: a token or a few drafts over a long cache are absorbed, a prompt or a large chunk is not."""
    mla = MLA(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    taken = [mla.absorbed(g) for g in (decode(8, 4000), verify(8, 4000, 4), prefill(1, 4000), Sequences(1, 2048, 8192))]
    assert taken == [1, 1, 0, 0]
    names_of = [{op.name for op in mla.ops(7168, (g,), Plan(), BF16)} for g in (decode(8, 4000), prefill(1, 4000))]
    assert "attn.absorb_q" in names_of[0] and "attn.kv_b" not in names_of[0]
    assert "attn.kv_b" in names_of[1] and "attn.absorb_q" not in names_of[1]


@given(new=st.integers(1, 5000), past=st.integers(0, 50_000))
def test_the_form_that_is_taken_costs_the_fewer_flops(new, past):
    mla, g = KINDS["mla"], Sequences(1, new, past)
    pairs, r, n, rope, v, h = float(attended_pairs(new, past)), 128, 32, 16, 32, 16
    absorbed = 2 * h * (pairs * (2 * r + rope) + new * r * (n + v))
    expanded = 2 * h * (pairs * (n + rope + v) + (new + past) * r * (n + v))
    products = [
        op
        for op in mla.ops(H, (g,), Plan(), BF16)
        if op.name in ("attn.core", "attn.absorb_q", "attn.absorb_v", "attn.kv_b")
    ]
    assert flops(products) == pytest.approx(min(absorbed, expanded))


def test_sparse_attention_reads_what_the_indexer_chose():
    dense, sparse = KINDS["mla"], KINDS["mla_sparse"]
    far, near = (decode(1, 100_000),), (decode(1, 40),)
    read = [named(a.ops(H, far, Plan(), BF16), "attn.core").kv_bytes for a in (dense, sparse)]
    assert read == [100_001 * (128 + 16) * 2, 64 * (128 + 16) * 2]
    # every key is scored: fp8 with a scale
    assert named(sparse.ops(H, far, Plan(), BF16), "index.scores").kv_bytes == 100_001 * (32 + 4)
    few = [named(a.ops(H, near, Plan(), BF16), "attn.core").flops for a in (dense, sparse)]
    assert few[0] == few[1]
    follower = sparse.model_copy(update={"index": sparse.index.model_copy(update={"shared": True})})
    assert not [op for op in follower.ops(H, far, Plan(), BF16) if op.name.startswith("index.")]
    assert follower.cache_bytes(10, Plan(), BF16) == 10 * (128 + 16) * 2


def test_packed_latents():
    """FlashMLA's sparse layout: 512 e4m3, 4 fp32 scales, 64 bf16 = 656 B a token (U-kv_mla-02)."""
    mla = MLA(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    assert [mla.token_bytes(precision_named("bf16", kv=kv)) for kv in ("bf16", "fp8", "fp8_ds_mla")] == [1152, 576, 656]


def test_compressed_attention_sees_its_window_and_the_chosen_entries():
    ops = KINDS["compressed"].ops(H, (decode(1, 10_000),), Plan(), BF16)
    local, summary = (op for op in ops if op.kind == "latent_attention")
    assert local.kv_bytes == 32 * 64 * 2 and summary.kv_bytes == 16 * 64 * 2
    assert local.flops == 2 * 16 * 2 * 64 * 32 and summary.flops == 2 * 16 * 2 * 64 * 16
    assert KINDS["compressed"].cache_bytes(10_000, Plan(), BF16) == (32 + 2500) * 128 + 2500 * 36


def test_layers_that_share_a_cache_read_but_do_not_keep_it():
    own = GQA(heads=8, kv_heads=2, head_dim=64)
    shared = own.model_copy(update={"shared_kv": True})
    assert {w.name for w in own.weights(H)} - {w.name for w in shared.weights(H)} == {"k", "v"}
    assert shared.cache_bytes(1000.0, Plan(), BF16) == 0
    read = [named(a.ops(H, (decode(1, 999),), Plan(), BF16), "attn.core").kv_bytes for a in (own, shared)]
    assert read == [1000 * 2 * 2 * 64 * 2, 999 * 2 * 2 * 64 * 2]
    assert "attn.kv_append" not in {op.name for op in shared.ops(H, (decode(1, 999),), Plan(), BF16)}


def test_recurrent_states_are_read_and_written_once_a_step():
    for kind in ("gated_delta", "kda", "mamba1", "mamba2"):
        attention = KINDS[kind]
        for tokens in (1, 500):
            (update,) = (
                op
                for op in attention.ops(H, (Sequences(3, tokens, 40),), Plan(tp=2), BF16)
                if op.kind == "state_update"
            )
            assert update.kv_bytes == 2 * 3 * attention.cache_bytes(1e6, Plan(tp=2), BF16)


# Feed-forward.


@given(experts=st.integers(1, 16), tokens=st.integers(1, 4000))
def test_choosing_all_experts_is_a_dense_block_of_their_width(experts, tokens):
    moe, dense = MoE(width=64, experts=experts, top_k=experts), Dense(width=64 * experts)
    routed = [op for op in moe.ops(H, tokens, Plan(), BF16) if isinstance(op, Experts)]
    products = [op for op in dense.ops(H, tokens, Plan(), BF16) if isinstance(op, Gemm)]
    assert flops(routed) == pytest.approx(flops(products))
    assert sum(op.weight_bytes for op in routed) == pytest.approx(sum(op.weight_bytes for op in products))


def test_experts_must_divide_over_ranks():
    with pytest.raises(InfeasibleError, match="ep: 3 does not divide the 8 experts"):
        MoE(width=64, experts=8, top_k=2).ops(H, 10, Plan(tp=3, ep=3), BF16)


def test_latent_experts_work_on_narrow_rows():
    """Nemotron 3: experts see rows of the latent width; the shared expert does not."""
    ops = MoE(width=64, experts=8, top_k=2, latent=256, shared_width=128, gated=False).ops(H, 10, Plan(), BF16)
    (experts,) = (op for op in ops if isinstance(op, Experts))
    assert experts.hidden == 256 and experts.matrices == 2
    assert {op.k for op in ops if op.name == "shared.up"} == {H}


def test_shared_experts_are_named_as_such():
    ops = MoE(width=64, experts=8, top_k=2, shared_width=128, shared_gate=True).ops(H, 10, Plan(), BF16)
    shared = [op.name for op in ops if op.name.startswith("shared.")]
    assert shared == ["shared.up", "shared.activation", "shared.down", "shared.gate", "shared.scale", "shared.add"]


# Ranks.


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_communicates_nothing(name):
    model = build(Model, find("model", name), where=name)
    for layer, _ in model.stage_runs():
        ops = layer.ops(model.hidden, (decode(4, 1000), prefill(1, 100)), Plan(), BF16)
        assert not [op for op in ops if isinstance(op, Collective | Exchange)]


REPLICATED = {
    "attn.qkv_a",
    "attn.kv_a",
    "moe.router",
    "attn.low_rank_a",
    "index.q",
    "index.k",
    "moe.latent_down",
    "moe.latent_up",
}
REPLICATED |= {"compressor", "streams.mix", "per_layer.gate", "per_layer.up", "index.scores", "layer.input"}


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_tensor_parallelism_conserves_flops(kind, tp):
    """Ranks times the FLOPs of one are the FLOPs of the whole, apart from what every rank repeats."""
    group = (decode(8, 300), prefill(1, 200))
    kept = [[op for op in KINDS[kind].ops(H, group, Plan(tp=n), BF16) if op.name not in REPLICATED] for n in (1, tp)]
    assert tp * flops(kept[1]) == pytest.approx(flops(kept[0]))


@pytest.mark.parametrize("plan", [Plan(tp=4), Plan(tp=4, ep=4), Plan(tp=2, dp=2, ep=4), Plan(tp=4, dp=2, ep=2)])
def test_expert_ranks_conserve_flops_and_weights(plan):
    moe = MoE(width=128, experts=16, top_k=4)
    (one,) = (op for op in moe.ops(H, 64 * plan.dp, Plan(), BF16) if isinstance(op, Experts))
    (rank,) = (op for op in moe.ops(H, 64, plan, BF16) if isinstance(op, Experts))
    assert plan.tp * plan.dp * rank.flops == pytest.approx(one.flops)
    assert plan.tp * plan.dp * rank.weight_bytes == pytest.approx(one.weight_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_hold_the_declared_weights_between_them(kind):
    for w in KINDS[kind].weights(H):
        share = float(w.bytes_per_rank(Plan(tp=4), BF16))
        assert share == pytest.approx(float(w.bytes_per_rank(Plan(), BF16)) / w.ways(Plan(tp=4)))
        assert w.ways(Plan(tp=16)) <= (w.limit or 16)


def test_a_layer_reduces_after_each_part_and_a_parallel_one_once():
    parts = {"attention": KINDS["mha"], "ffn": Dense(width=4096)}
    for layer, times in ((Layer(**parts), 2), (Layer(**parts, parallel=True), 1)):
        reduces = [op for op in layer.ops(H, (decode(8, 100),), Plan(tp=2), BF16) if isinstance(op, Collective)]
        assert [(op.name, op.payload_bytes) for op in reduces] == [("tp.all_reduce", 2 * 8 * H)] * times
    full = KINDS["gqa"].model_copy(update={"qk_norm": "full"})
    assert "attn.qk_norm_reduce" in {op.name for op in full.ops(H, (decode(8, 100),), Plan(tp=2), BF16)}


def test_data_parallel_attention_exchanges_tokens_in_the_cheaper_of_two_ways():
    """Gather: 2 T dp h bytes each way; all-to-all: a token goes to n (1 - (1 - 1/n)^k) ranks."""
    moe = MoE(width=128, experts=16, top_k=4)
    plan = Plan(tp=1, dp=8, ep=8)
    (exchange,) = (op for op in moe.ops(H, 32, plan, BF16) if isinstance(op, Exchange))
    gather, direct = exchange.alternatives
    assert [c.payload_bytes for c in gather] == [2 * 32 * 8 * H] * 2
    ranks = 8 * (1 - (1 - 1 / 8) ** 4)
    assert [float(c.payload_bytes) for c in direct] == pytest.approx([ranks * 32 * H * 2] * 2)
    assert exchange.wire_bytes == pytest.approx(sum(c.wire_bytes for c in direct))
    narrow = named(moe.ops(H, 32, plan, precision_named("fp8_block")), "moe.exchange")
    assert float(narrow.alternatives[1][0].payload_bytes) == pytest.approx(ranks * 32 * H)  # dispatched in fp8
    (only,) = (op for op in moe.ops(H, 32, Plan(tp=1, dp=8), BF16) if isinstance(op, Exchange))
    assert len(only.alternatives) == 1  # without expert parallelism there is nobody to send to


# Small kernels.


@pytest.mark.parametrize(
    ("name", "layer", "small"),
    [  # counted from engine traces: dense 5 (6 with a norm on query and key), GQA-MoE 5 (6), MLA-MoE 9, linear-MoE 11
        ("llama-3.1-70b", -1, 5),
        ("qwen3-32b", -1, 6),
        ("gpt-oss-120b", -1, 5),
        ("mixtral-8x7b", -1, 5),
        ("qwen3-235b-a22b", -1, 6),
        ("deepseek-v3", -1, 9),
        ("kimi-k2.5", -1, 9),
        ("qwen3.5-397b-a17b", 0, 11),
        ("qwen3.5-397b-a17b", -1, 11),
    ],
)
def test_small_kernels_of_a_layer(name, layer, small):
    model = build(Model, find("model", name), where=name)
    ops = model.layers[layer].layer.ops(model.hidden, (decode(8, 1000),), Plan(), BF16)
    assert sum(op.kernels for op in ops if isinstance(op, Elementwise)) == small


def test_norms_beyond_one_per_part_are_kernels_of_their_own():
    ops = Layer(attention=KINDS["mha"], ffn=Dense(width=64), norms=4).ops(H, (decode(1, 1),), Plan(), BF16)
    norms = Counter(op.name for op in ops if isinstance(op, Elementwise) and "norm" in op.name)
    assert norms == {"attn.norm": 1, "ffn.norm": 1, "layer.post_norm": 1}
    assert next(op for op in ops if op.name == "layer.post_norm").kernels == 2


def test_attention_over_an_encoder_reads_its_tokens():
    model = build(Model, find("model", "t5-xxl"), where="t5-xxl")
    layer = model.layers[0].layer
    cores = [
        op
        for op in layer.ops(model.hidden, (decode(2, 30),), Plan(), BF16, encoder_tokens=500.0)
        if op.kind == "attention"
    ]
    assert [float(op.kv_bytes) for op in cores] == [2 * 31 * 2 * 64 * 64 * 2, 2 * 500 * 2 * 64 * 64 * 2]
    assert cores[1].flops == 2 * 500 * 2 * 2 * 64 * 64


def test_an_encoder_decoder_works_with_all_its_weights_once():
    """Products of one prompt token and one decoded token together: every matrix but the tables and the head."""
    model = build(Model, find("model", "t5-xxl"), where="t5-xxl")
    listed = flops(model.encoder_ops((prefill(1, 1),), Plan(), BF16), "gemm")
    listed += sum(
        n * flops(layer.ops(model.hidden, (decode(1, 0),), Plan(), BF16), "gemm")
        for layer, n in model.stage_layers(Plan())
    )
    norms = (2 * 24 + 3 * 24 + 2) * model.hidden + 2 * 32 * 64  # and two tables of relative biases
    assert listed == 2 * (model.params - model.params_embedding - model.params_head - norms)


def test_per_layer_inputs_are_made_once_a_step():
    """Gemma 4 E2B: one product makes the inputs of all 35 layers."""
    model = build(Model, find("model", "gemma-4-e2b"), where="gemma-4-e2b")
    ops = model.entry_ops(10.0, Plan(), BF16)
    assert named(ops, "per_layer.projection").n == 35 * 256
    plain = build(Model, find("model", "llama-3.1-8b"), where="llama-3.1-8b").entry_ops(10.0, Plan(), BF16)
    assert [op.name for op in plain] == ["embed"]


def test_the_scan_of_mamba_is_summed_over_ranks_where_its_inputs_are_projected():
    ops = KINDS["mamba1"].ops(H, (decode(8, 100),), Plan(tp=2), BF16)
    assert named(ops, "attn.x_reduce").payload_bytes == 8 * (64 + 2 * 16) * 2


def test_the_variant_of_the_documentation_works(root):
    """docs/adding-an-attention-variant.md: its class runs as it stands there."""
    text = (root / "docs" / "adding-an-attention-variant.md").read_text()
    space: dict = {}
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    exec(compile(code, "docs", "exec", dont_inherit=True), space)
    strided = space["Strided"](heads=16, kv_heads=4, head_dim=64, window=100, stride=10)
    assert strided.cache_bytes(1100.0, Plan(), BF16) == (100 + 100) * 2 * 4 * 64 * 2
    group = (decode(2, np.array([50.0, 1099.0])),)
    seen = named(strided.ops(H, group, Plan(tp=2), BF16), "attn.core")
    assert list(seen.flops) == [2 * 2 * 8 * 128 * 51, 2 * 2 * 8 * 128 * 200]
    declared = sum(w.params for w in strided.weights(H))
    assert list(flops(strided.ops(H, group, Plan(), BF16), "gemm") * np.ones(2)) == [2 * 2 * declared] * 2


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gemma-3-4b", "gpt-oss-20b", "llama-4-scout", "deepseek-v3.2", "deepseek-v4-flash"]
)
@given(context=st.floats(0.0, 200_000.0), cp=st.sampled_from([2, 4, 8]), batch=st.integers(1, 64))
def test_context_parallel_ranks_read_the_cache_once_between_them(name, context, cp, batch):
    """Windows, chunks and chosen tokens are shared like the rest: all ranks read what one would, and the new token."""
    model = build(Model, find("model", name), where=name)

    def read(plan, past):
        ops = step_ops(model, (decode(float(batch), past),), plan, precision_named("bf16"))
        return sum(op.count * op.kv_bytes for op in ops)

    alone, between = read(Plan(), context), cp * read(Plan(cp=cp), context)
    once_more = (cp - 1) * read(Plan(), 0.0)
    assert alone * (1 - 1e-9) <= between <= (alone + once_more) * (1 + 1e-9)
